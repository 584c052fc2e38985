"""Models: counts, shapes, deterministic initialisation, refusals."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from cupola import nn as cupola_nn
from cupola.errors import PlanError
from cupola.nn import build

COUNTS = [
    ("linear", (60,), 10, {}, 610),
    ("mlp", (784,), 10, {}, 159_010),
    ("mlp", (1, 28, 28), 10, {"hidden": [196]}, 155_830),  # Upcycled-FL's 784-196-10
    ("small_cnn", (1, 28, 28), 10, {}, 2_130_140),
    ("cnn", (1, 28, 28), 62, {}, 1_690_174),
    ("cnn", (1, 28, 28), 62, {"norm": "none"}, 1_690_046),
    ("vgg6", (3, 32, 32), 10, {}, 3_915_914),
    ("vgg6", (3, 32, 32), 10, {"norm": "group"}, 3_917_386),
    ("vgg6", (3, 32, 32), 10, {"norm": "layer"}, 3_917_386),
    ("vgg11", (3, 32, 32), 10, {}, 9_225_610),
    ("vgg11", (3, 32, 32), 10, {"norm": "batch"}, 9_231_114),
    ("mobilenet_v2", (3, 32, 32), 10, {}, 133_152 + 810),  # 002, Table 7: 0.13 M, and a head
    ("mobilenet_v2", (3, 224, 224), 1000, {"width": 1.0, "last": True}, 3_504_872),
    ("resnet8", (3, 32, 32), 10, {}, 1_855_178),
    ("resnet8", (3, 32, 32), 10, {"norm": "group"}, 1_857_610),
    ("resnet18", (3, 224, 224), 1000, {}, 11_689_512),
    ("resnet18", (3, 64, 64), 10, {}, 11_181_642),
    ("resnet18", (3, 32, 32), 10, {"norm": "batch"}, 11_173_962),
    ("char_lstm", (80,), 80, {}, 819_920),
    ("crop_resnet18", (3, 24, 24), 100, {}, 11_227_812),
    ("crop_resnet18", (3, 24, 24), 10, {}, 11_181_642),
    ("transformer", (20,), 10_004, {}, 2_277_984),
    # 2 x 128 over 300, without the embedding: 352,256 + 258
    ("text_lstm", (25,), 2, {"vocabulary": 50}, 15_000 + 352_514),
]


@pytest.mark.parametrize(("name", "shape", "classes", "options", "count"), COUNTS)
def test_parameter_counts_are_the_published_ones(name, shape, classes, options, count):
    module = build(name, shape, classes, 0, **options)
    assert sum(p.numel() for p in module.parameters()) == count


NATURAL = [
    ("linear", (1, 8, 8), 10, {}, (2, 10)),
    ("linear", (5,), None, {}, (2,)),
    ("mlp", (30,), 2, {"hidden": [16, 8], "activation": "mish", "dropout": 0.2}, (2, 2)),
    ("mlp", (30,), None, {"hidden": []}, (2,)),
    ("cnn", (1, 8, 8), 10, {}, (2, 10)),
    ("small_cnn", (3, 5, 4), 10, {"hidden": [8]}, (2, 10)),
    ("cnn", (3, 13, 9), 4, {"norm": "none", "dropout": 0.5, "hidden": 32}, (2, 4)),
    ("vgg6", (1, 8, 8), 10, {"norm": "layer"}, (2, 10)),
    ("vgg6", (3, 32, 32), None, {"norm": "batch", "activation": "gelu"}, (2,)),
    ("vgg11", (3, 32, 32), 10, {"norm": "group"}, (2, 10)),
    ("mobilenet_v2", (3, 32, 32), 10, {}, (2, 10)),
    ("mobilenet_v2", (3, 32, 32), 10, {"stem": "high", "norm": "group"}, (2, 10)),
    ("resnet8", (3, 32, 32), 10, {"norm": "group"}, (2, 10)),
    ("resnet8", (1, 8, 8), 10, {}, (2, 10)),
    ("resnet18", (3, 32, 32), 10, {}, (2, 10)),
    ("resnet18", (3, 64, 64), 10, {"norm": "none"}, (2, 10)),
    ("char_lstm", (12,), 80, {"hidden": 32}, (2, 12, 80)),
    ("text_lstm", (25,), 2, {"vocabulary": 50}, (2, 2)),
    ("crop_resnet18", (3, 24, 24), 10, {}, (2, 10)),
    ("transformer", (12,), 50, {"hidden": 32}, (2, 12, 50)),
    ("fcn", (3, 17, 22), 5, {}, (2, 5, 17, 22)),
    ("resnet9", (3, 16, 16), 10, {}, (2, 10)),
    ("knresnet13", (3, 16, 16), 10, {}, (2, 10)),
    ("densenet20x16", (1, 8, 8), 10, {}, (2, 10)),
    ("resnet34", (3, 8, 8), 10, {"norm": "layer"}, (2, 10)),
    ("resnet50", (3, 32, 32), None, {"stem": "high"}, (2,)),
    ("preactresnet18", (3, 16, 16), 10, {"norm": "kernel", "shortcut": 2}, (2, 10)),
    ("preactresnet34", (3, 16, 16), 10, {"norm": "none"}, (2, 10)),
    ("preactresnet50", (3, 16, 16), 10, {"norm": "positional"}, (2, 10)),
    ("knresnet18", (3, 96, 96), 10, {}, (2, 10)),
    ("knresnet34", (3, 16, 16), 10, {}, (2, 10)),
    ("knresnet50", (3, 16, 16), 10, {}, (2, 10)),
    ("convnext_tiny", (3, 32, 32), 10, {}, (2, 10)),
    ("fcn_resnet18", (3, 33, 40), 5, {"norm": "local-context"}, (2, 5, 33, 40)),
    ("fcn_resnet34", (3, 32, 32), 5, {}, (2, 5, 32, 32)),
    ("fcn_resnet50", (3, 32, 32), 5, {"norm": "layer"}, (2, 5, 32, 32)),
    ("fcn_knresnet18", (3, 33, 40), 5, {}, (2, 5, 33, 40)),
    ("fcn_knresnet34", (3, 32, 32), 5, {}, (2, 5, 32, 32)),
    ("fcn_knresnet50", (3, 32, 32), 5, {}, (2, 5, 32, 32)),
]


def example(shape: tuple[int, ...], name: str) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if name.endswith("lstm") or name == "transformer":
        return torch.randint(0, 50, (2, *shape), generator=generator)
    return torch.rand(2, *shape, generator=generator)


@pytest.mark.parametrize(("name", "shape", "classes", "options", "output"), NATURAL)
def test_forward_and_backward_on_natural_input(name, shape, classes, options, output):
    module = build(name, shape, classes, 0, **options)
    y = module(example(shape, name))
    assert y.shape == output
    y.square().sum().backward()
    for parameter in module.parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()
    assert any(p.grad.abs().sum() > 0 for p in module.parameters())


def test_every_model_is_described_and_tried_here():
    known = set(cupola_nn.describe())
    assert known == set(cupola_nn.names())
    # They need a source, or a folder of transformers; they have tests of their own.
    assert known - {"pretrained", "huggingface"} == {case[0] for case in NATURAL}
    assert all("\n" not in about and about for about in cupola_nn.describe().values())


@given(st.integers(0, 2**63), st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_initialisation_depends_on_the_seed_alone(seed, elsewhere):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(elsewhere)
        before = torch.get_rng_state()
        first = build("mlp", (6,), 3, seed, hidden=[4]).state_dict()
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(3)
        second = build("mlp", (6,), 3, seed, hidden=[4]).state_dict()
        other = build("mlp", (6,), 3, seed + 1, hidden=[4]).state_dict()
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert not torch.equal(first["1.weight"], other["1.weight"])


def test_mlp_is_a_plain_sequence():
    module = build("mlp", (1, 4, 4), 3, 0, hidden=[5], activation="tanh")
    assert isinstance(module, nn.Sequential)
    assert [type(m) for m in module] == [nn.Flatten, nn.Linear, nn.Tanh, nn.Linear]


def test_signals_pass_deep_models_at_the_start():
    """Without He initialisation VGG-11 would answer the same to every image."""
    y = build("vgg11", (3, 32, 32), 10, 0)(example((3, 32, 32), "vgg11"))
    assert (y[0] - y[1]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("vgg7", (3, 32, 32), 10, {}), ["model", "vgg7", "did you mean 'vgg6'"]),
        (("mlp", (4,), 10, {"hiden": [3]}), ["model.hiden", "did you mean 'hidden'"]),
        (("mlp", (4,), 10, {"hidden": [3, 0]}), ["model.hidden[1]", "greater than or equal to 1"]),
        (("vgg6", (3, 32, 32), 10, {"norm": "grup"}), ["model.norm = 'grup'", "'group'"]),
        (("linear", (4,), 10, {"norm": "group"}), ["model.norm", "takes none"]),
        (("vgg11", (3, 28, 28), 10, {}), ["vgg11", "at least 32x32", "28x28"]),
        (("resnet18", (3, 28, 28), 10, {"stem": "high"}), ["at least 32x32"]),
        (("cnn", (60,), 10, {}), ["images", "(60,)", "'linear' and 'mlp'"]),
        (("char_lstm", (3, 8, 8), 10, {}), ["tokens", "(3, 8, 8)"]),
        (("char_lstm", (8,), None, {}), ["regression"]),
        (("text_lstm", (8,), 2, {}), ["model.vocabulary", "missing"]),
        (("linear", (0,), 2, {}), ["(0,)"]),
        (("linear", (4,), 0, {}), ["0 classes"]),
        (("nowhere_to_be_found:Net", (4,), 2, {}), ["cannot import 'nowhere_to_be_found'"]),
        (("torch.nn:Lineer", (4,), 2, {}), ["did you mean 'Linear'"]),
        (("torch.nn:Linear", (4,), 2, {}), ["model.in_features is missing"]),
        (("torch.nn:Linear", (4,), 2, {"in_featurs": 4}), ["did you mean 'in_features'"]),
        (("builtins:dict", (4,), 2, {}), ["wrap it in a function"]),
        (("fractions:Fraction", (4,), 2, {}), ["gave a Fraction"]),
        (("math:pi", (4,), 2, {}), ["not callable"]),
    ],
)
def test_refusals_name_the_key_and_the_way_out(call, words):
    name, shape, classes, options = call
    with pytest.raises(PlanError) as refusal:
        build(name, shape, classes, 0, **options)
    assert "\n" not in str(refusal.value)
    for word in words:
        assert word in str(refusal.value)


def own_net(input_shape: tuple[int, ...], classes: int, width: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(input_shape[0], width), nn.Linear(width, classes))


def test_the_users_own_model_gets_what_its_signature_takes():
    path = f"{__name__}:own_net"
    first, second = (build(path, (6,), 4, 1, width=5) for _ in range(2))
    assert first(torch.zeros(2, 6)).shape == (2, 4)
    assert torch.equal(first[0].weight, second[0].weight)
    plain = build("torch.nn:Linear", (6,), 4, 1, in_features=6, out_features=2)
    assert plain(torch.zeros(2, 6)).shape == (2, 2)
