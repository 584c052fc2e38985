"""Models of the KernelNorm papers: published parameter counts, every norm, choices that show."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import nn

from cupola.errors import PlanError
from cupola.nn import build, properties
from cupola.nn.kernelnorm import KernelNorm, KNConv
from cupola.nn.models import building, convnext
from cupola.nn.normalisation import LocalContextNorm, Norm, PositionalNorm, norm

SMALL, LARGE, KERNEL = (3, 32, 32), (3, 224, 224), {"norm": "kernel"}

COUNTS = [
    ("vgg6", SMALL, 10, KERNEL, 3_915_914),
    ("vgg11", SMALL, 10, KERNEL, 9_225_610),
    ("resnet8", SMALL, 10, KERNEL, 1_856_394),
    ("resnet9", SMALL, 10, {}, 2_448_714),
    ("resnet9", SMALL, 10, KERNEL, 2_446_474),
    ("knresnet13", SMALL, 10, {}, 2_041_034),
    ("knresnet13", (3, 96, 96), 10, {}, 2_048_714),
    ("densenet20x16", SMALL, 10, {}, 764_778),
    ("densenet20x16", SMALL, 10, KERNEL, 759_882),
    ("preactresnet18", SMALL, 10, KERNEL, 11_169_162),
    ("preactresnet18", SMALL, 100, KERNEL, 11_215_332),
    ("preactresnet18", SMALL, 10, KERNEL | {"shortcut": 2}, 11_685_258),
    ("preactresnet18", SMALL, 100, KERNEL | {"shortcut": 2}, 11_731_428),
    ("preactresnet18", SMALL, 100, {"last_norm": False}, 11_217_316),
    ("preactresnet34", SMALL, 10, {}, 21_280_330),
    ("preactresnet50", SMALL, 10, {}, 23_513_162),
    ("resnet18", LARGE, 1000, {"norm": "batch"}, 11_689_512),
    ("resnet34", LARGE, 1000, {"norm": "batch"}, 21_797_672),
    ("resnet50", LARGE, 1000, {"norm": "batch"}, 25_557_032),
    ("knresnet18", SMALL, 100, {}, 11_215_840),
    ("knresnet34", SMALL, 100, {}, 21_323_450),
    ("knresnet50", SMALL, 100, {}, 23_681_570),
    ("knresnet18", LARGE, 1000, {}, 11_685_220),
    ("knresnet34", LARGE, 1000, {}, 21_792_830),
    ("knresnet50", LARGE, 1000, {}, 25_556_390),
    ("knresnet18", SMALL, 1000, {}, 11_677_540),
    ("convnext_tiny", LARGE, 1000, {}, 28_587_784),
    ("convnext_tiny", LARGE, 1000, {"norm": "layer"}, 28_589_128),
    ("fcn_resnet18", LARGE, 19, {}, 13_546_579),
    ("fcn_resnet34", LARGE, 19, {}, 23_654_739),
    ("fcn_resnet50", LARGE, 19, {}, 32_955_987),
    ("fcn_knresnet18", LARGE, 19, {}, 13_525_124),
    ("fcn_knresnet34", LARGE, 19, {}, 23_398_803),
    ("fcn_knresnet50", LARGE, 19, {}, 32_874_099),
]


@pytest.mark.parametrize(("name", "shape", "classes", "options", "count"), COUNTS)
def test_parameter_counts_are_the_published_ones(name, shape, classes, options, count):
    with torch.device("meta"):
        module = building._MODELS.find(name)(shape, classes, **options)
    assert sum(p.numel() for p in module.parameters()) == count


NORMS = {
    "none": (), "layer": nn.GroupNorm, "group": nn.GroupNorm, "instance": nn.InstanceNorm2d,
    "positional": PositionalNorm, "local-context": LocalContextNorm, "kernel": KNConv,
    "batch": nn.BatchNorm2d,
}  # fmt: skip
ANY = ["vgg6", "vgg11", "resnet8", "resnet9", "resnet18", "resnet50", "preactresnet18"]
ANY += ["preactresnet50", "knresnet13", "knresnet18", "knresnet50", "densenet20x16", "cnn", "fcn"]
ANY += ["fcn_resnet18", "fcn_knresnet50"]


@pytest.mark.parametrize("name", ANY)
@pytest.mark.parametrize("kind", get_args(Norm))
def test_every_model_takes_every_norm(name, kind):
    with torch.device("meta"):
        module = building._MODELS.find(name)((3, 64, 64), 7, norm=kind, activation="silu")
        output = module.eval()(torch.empty(2, 3, 64, 64))
    assert output.shape[:2] == (2, 7)
    known = {type(m) for m in module.modules()}
    for other, layers in NORMS.items():
        wanted = isinstance(layers, type) and any(issubclass(k, layers) for k in known)
        assert wanted == (layers != () and layers is NORMS[kind]), other
    assert nn.SiLU in known
    assert nn.ReLU not in known
    if kind == "kernel" and name != "cnn":  # whose first convolution stays as it is
        plain = [m for m in module.modules() if type(m) is nn.Conv2d]
        assert len(plain) == {"fcn": 3}.get(name, int(name.startswith("fcn")))


def test_kernel_options_reach_the_layers():
    module = build(
        "resnet9", (3, 16, 16), 10, 0, norm="kernel", kernel_dropout=0.2, last_dropout=0.3,
        kernel_evaluation="random",
    )  # fmt: skip
    layers = [m for m in module.modules() if isinstance(m, KNConv | KernelNorm)]
    assert [m.dropout for m in layers] == [0.2] * 8 + [0.3]
    assert all(m.random for m in module.eval().modules() if m in layers)
    # The same model without draws: the same function in training and evaluation.
    calm = build("resnet9", (3, 16, 16), 10, 0, norm="kernel", kernel_dropout=0, last_dropout=0)
    x = torch.rand(2, 3, 16, 16)
    assert torch.equal(calm.train()(x), calm.eval()(x))
    assert torch.equal(calm[0].weight, module[0].weight)


def test_what_was_a_switch_is_still_taken():
    """Plans with `always_drop` come here with its value."""
    for value, meant in ((True, "random"), (False, "off"), ("expected", "expected")):
        module = build("vgg6", (3, 8, 8), 10, 0, norm="kernel", width=2, kernel_evaluation=value)
        assert module[0].evaluation == meant


def test_group_norm_by_size_or_number_in_every_network():
    divisible = [name for name in ANY if not name.endswith("knresnet50")]  # it has 201 channels
    for name in [*divisible, "mobilenet_v2", "crop_resnet18"]:
        with torch.device("meta"):
            make = building._MODELS.find(name)
            counts = [
                {m.num_groups for m in module.modules() if isinstance(m, nn.GroupNorm)}
                for module in (
                    make((3, 64, 64), 7, norm="group", groups=4),
                    make((3, 64, 64), 7, norm="group", group_size=1),
                )
            ]
        assert counts[0] == {4}, name
        assert min(counts[1]) > 4, name
    with pytest.raises(PlanError, match=r"group_size = 8 and model\.groups = 2 both"):
        build("vgg6", SMALL, 10, 0, norm="group", group_size=8, groups=2)


def test_widths():
    counts = {
        name: [
            sum(p.numel() for p in build(name, SMALL, 10, 0, **options).parameters())
            for options in ({}, {"width": 64}, {"width": 16})
        ]
        for name in ("vgg6", "vgg11", "resnet8", "resnet9", "knresnet13", "crop_resnet18")
    }
    for usual, same, narrow in counts.values():
        assert usual == same
        assert 14 < usual / narrow < 17
    module = build("resnet8", SMALL, 10, 0, norm="kernel", width=16)
    assert [m.out_channels for m in module.modules() if isinstance(m, KNConv)][::3] == [16, 32, 64]


def test_published_forms():
    large = build("preactresnet18", (3, 64, 64), 10, 0, norm="kernel", stem="high")
    other = build(
        "preactresnet18", (3, 64, 64), 10, 0, norm="kernel", stem="high", stem_pooling=False
    )
    x = torch.rand(1, 3, 64, 64)
    assert isinstance(large[1], nn.MaxPool2d)
    assert other[1](other[0](x)).shape[-1] == 2 * large[2](large[1](large[0](x))).shape[-1]
    biases = [
        build("knresnet18", (3, 16, 16), 10, 0, init=init)[-1].bias for init in ("he", "he-zero")
    ]
    assert biases[0].abs().sum() > 0
    assert biases[1].abs().sum() == 0


def test_stochastic_depth_leaves_blocks_out():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        block = convnext._Block(4, 0.5)
        block.scale.weight.data.fill_(1.0)
        x = torch.rand(200, 4, 3, 3)
        whole = block.eval()(x) - x
        change = (block.train()(x) - x).flatten(1)
    kept = change.abs().sum(1) > 0
    assert 60 < int(kept.sum()) < 140
    torch.testing.assert_close(change[kept], 2 * whole.flatten(1)[kept])
    shares = [
        block.left_out.p if block.left_out else 0.0
        for block in build("convnext_tiny", (3, 32, 32), 10, 0, stochastic_depth=0.17)
        if isinstance(block, convnext._Block)
    ]
    assert shares == pytest.approx([i / 100 for i in range(18)])


def test_check_tells_norms_apart():
    x = torch.rand(2, 3, 8, 8)

    def found(**options):
        return properties(build("resnet8", (3, 8, 8), 10, 0, **options), x)

    kernel = found(norm="kernel")
    assert kernel.batch_dependent == ()
    assert len(kernel.random) == 8
    assert all("KNConv2d" in name or "KernelNorm2d" in name for name in kernel.random)
    assert not kernel.utility_preserving
    assert found(norm="kernel", kernel_dropout=0, last_dropout=0).utility_preserving
    batch = found(norm="batch")
    assert len(batch.batch_dependent) == 7
    assert batch.random == ()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("convnext_tiny", LARGE, 10, {"norm": "group"}), ["model.norm = 'group'", "'kernel'"]),
        (("resnet8", SMALL, 10, {"kernel_dropout": 1}), ["model.kernel_dropout = 1"]),
        (("preactresnet18", SMALL, 10, {"shortcut": 3}), ["model.shortcut = 3"]),
        (("knresnet18", (3, 64, 64), 10, {"stem": "high"}), ["at least 96x96"]),
        (("fcn_knresnet18", LARGE, None, {}), ["regression"]),
        (("knresnet13", (60,), 10, {}), ["images"]),
        (("vgg6", (3, 8, 8), 10, {"norm": "instance"}), ["'instance'", "single pixels"]),
    ],
)
def test_refusals(call, words):
    name, shape, classes, options = call
    with pytest.raises(PlanError) as refusal:
        build(name, shape, classes, 0, **options)
    for word in words:
        assert word in str(refusal.value)


def test_kernel_norm_is_no_layer_between_others():
    with pytest.raises(PlanError, match="convolutions"):
        norm("kernel", 8)


def test_local_norms_against_their_definitions():
    x = torch.randn(2, 4, 5, 6, dtype=torch.float64) + 3
    found = PositionalNorm(4).double()(x)
    expected = (x - x.mean(1, keepdim=True)) / (
        x.var(1, correction=0, keepdim=True) + 1e-5
    ).sqrt()  # fmt: skip
    torch.testing.assert_close(found, expected)
    whole = LocalContextNorm(4).double()(x)
    torch.testing.assert_close(whole, nn.GroupNorm(2, 4).double()(x))
    local = LocalContextNorm(4, window=3).double()(x)
    for group in (0, 1):
        channels = slice(2 * group, 2 * group + 2)
        for i, j in ((0, 0), (2, 3), (4, 5)):
            near = x[:, channels, max(0, i - 1) : i + 2, max(0, j - 1) : j + 2]
            variance, mean = torch.var_mean(near, (1, 2, 3), correction=0, keepdim=True)
            expected = (x[:, channels, i, j] - mean[..., 0, 0]) / (
                variance[..., 0, 0] + 1e-5
            ).sqrt()
            torch.testing.assert_close(local[:, channels, i, j], expected)
