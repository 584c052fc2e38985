"""Source models and what is built on them: layers, counts, BatchNorm, refusals."""

from __future__ import annotations

import copy
import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_sources import NAME, tiny, trained, write
from torch import nn as torch_nn
from torch.nn import functional as F

from cupola import data as datasets
from cupola import nn
from cupola.base.registry import Entry
from cupola.errors import CupolaError, PlanError
from cupola.nn.frozen_batchnorm import StillNorm, fold, still
from cupola.nn.models.pretrained import INSTALLED
from cupola.nn.reprogram import Border, Labels, Placement, frequent_labels
from cupola.nn.sources import Preprocessing, load, table
from cupola.nn.sources import trained as registry
from cupola.privacy.persample import PerSample
from cupola.training.frozen import share

TO = Preprocessing(8, (0.4, 0.5, 0.6), (0.2, 0.25, 0.5), unit=3.0)
COUNTS = {  # of torchvision, but for the last
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet50-torchvision": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "resnext50": 25_028_904,
    "resnext101": 83_455_272,
    "efficientnet-lite0": 4_652_008,
    "knresnet18": 11_685_220,
    "knresnet34": 21_792_830,
    "knresnet50": 25_556_390,
}


pytestmark = pytest.mark.usefixtures("source")


def build(source: str, shape=(3, 12, 12), classes=5, **options):
    return nn.build("pretrained", shape, classes, 1, source=source, **options)


@pytest.mark.parametrize("entry", table(), ids=lambda e: e.name)
def test_registered_models_have_the_published_size_and_a_name_for_every_layer(entry):
    with registry.Unfilled():
        module = registry.architecture(entry)
    assert sum(p.numel() for p in module.parameters()) == COUNTS[entry.name]
    layers = [m for m in module.modules() if isinstance(m, registry._KINDS)]
    assert len(layers) == len(entry.layers()) == len(set(entry.layers()))
    assert module[-1].in_features == entry.features


@pytest.mark.parametrize(("classes", "trained"), [(10, 160_538), (37, 187_565), (8, 158_536)])
def test_trainable_parameters_are_those_of_the_paper(tmp_path, classes, trained):
    large = write(tmp_path / "large", size=224, classes=1000)
    assert share(build(large, classes=classes)).trained == trained
    assert share(build(large, classes=classes, adapt="map")).trained == 1001 * classes


@pytest.mark.parametrize("change", [fold, still])
def test_batchnorm_folded_or_still_computes_what_evaluation_mode_does(change):
    module = trained().double()
    x = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    expected = module(x)
    changed = change(copy.deepcopy(module)).double()
    assert torch.allclose(changed(x), expected, atol=1e-5)  # weights are rounded to float32
    assert not list(changed.buffers())
    left = [m for m in changed.modules() if isinstance(m, StillNorm)]
    assert len(left) == (1 if change is fold else 3)


def test_a_still_norm_is_trained_as_batchnorm_in_evaluation_mode():
    module = trained()
    other = still(copy.deepcopy(module))
    x = torch.randn(4, 3, 16, 16)
    for m in (module, other):  # both in evaluation mode
        m(x).square().sum().backward()
    layer, made = module[1], other[1]
    assert torch.allclose(layer.weight.grad, made[1].weight.grad, rtol=1e-4)
    assert torch.allclose(layer.bias.grad, made[1].bias.grad, rtol=1e-4)
    assert made[0].mean.grad is None


def test_an_image_lies_in_the_middle_of_nothing_or_of_black():
    x = torch.rand(2, 3, 4, 4)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (TO.mean, TO.std))
    placed = Placement((3, 4, 4), TO, 4)(x)
    assert torch.allclose(placed, F.pad((x - mean) / std, (2, 2, 2, 2)))
    black = Placement((3, 4, 4), TO, 4, "black")(x)
    assert torch.allclose(black, (F.pad(x, (2, 2, 2, 2)) - mean) / std)
    grey = Placement((1, 4, 4), TO, 5)(x[:, :1])
    assert torch.equal(grey, Placement((3, 4, 4), TO, 5)(x[:, :1].expand(-1, 3, -1, -1)))


def test_numbers_and_series_become_a_square():
    x = torch.arange(1.0, 6.0).repeat(2, 1)
    placed = Placement((5,), TO, 6)(x)[0, 1]
    cells = placed[1:7:2, 1:7:2] / TO.unit
    assert cells.tolist() == [[1, 2, 3], [4, 5, 0], [0, 0, 0]]
    assert float(placed[0].abs().sum()) == 0
    assert torch.equal(Placement((1, 5), TO, 6)(x[:, None])[0, 1], placed)


def test_a_border_is_added_around_and_only_there():
    border = Border(TO, 5)
    x = torch.randn(2, 3, 8, 8)
    added = border(x) - x
    inside = torch.zeros(8, 8, dtype=torch.bool)
    inside[2:7, 2:7] = True
    assert not added[..., inside].abs().max() > 0
    assert torch.allclose(added[0], TO.unit * torch.tanh(border.theta * ~inside), atol=1e-6)
    assert border.theta.numel() == 192


def test_a_border_that_begins_empty_changes_nothing_until_it_is_trained(source):
    empty = Border(TO, 5, "zero")
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(empty(x), x)
    assert torch.equal(empty.slope(), TO.unit * empty.mask.expand(3, -1, -1))
    images = torch.rand(4, 3, 12, 12)
    own, plain = build(source, begin="zero"), build(source, adapt="map", inner=14)
    assert torch.equal(own.features(images), plain.features(images))
    with pytest.raises(PlanError, match=r"model\.begin is for a trained border"):
        build(source, adapt="head", begin="zero")


@pytest.mark.parametrize("adapt", ["reprogram", "labels", "map", "head", "full", "scratch"])
def test_per_sample_gradients_are_those_of_single_samples(source, adapt):
    given = {"labels": [[0, 3], [1, 4], [2, 5]]} if adapt == "labels" else {}
    module = build(source, classes=3, adapt=adapt, **given).eval()
    x, y = torch.rand(4, 3, 12, 12), torch.tensor([0, 2, 1, 0])
    loss = nn.find_loss("cross_entropy")
    engine = PerSample(module, loss, microbatch=3)
    found = engine.clipped_sum(x, y, 0.5)
    assert engine.fallback is None
    trained = [p for p in module.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in trained]
    for i in range(4):
        own = torch.autograd.grad(loss(module(x[i : i + 1]), y[i : i + 1]).sum(), trained)
        norm = torch.cat([g.flatten() for g in own]).norm()
        assert torch.allclose(norm.double(), found.norms[i], rtol=1e-4)
        for t, g in zip(total, own):
            t += g * min(1.0, 0.5 / float(norm))
    assert all(torch.allclose(t.double(), s, atol=1e-5) for t, s in zip(total, found.sums))


def test_a_frozen_source_is_shared_and_keeps_no_input_of_its_convolutions(source):
    one, other = build(source), build(source, classes=7)
    weight = one.trunk[0].weight
    assert weight.data_ptr() == other.trunk[0].weight.data_ptr()
    assert weight is not other.trunk[0]
    assert type(one.trunk[0]).__name__ == "LeanConv2d"
    assert [n for n, p in one.named_parameters() if p.requires_grad] == [
        "border.theta", "output.weight", "output.bias",
    ]  # fmt: skip
    one.double()
    assert other.trunk[0].weight.dtype == torch.float32


def test_trained_weights_are_the_start_of_full_training_and_not_of_scratch(source):
    full, scratch = build(source, adapt="full"), build(source, adapt="scratch")
    first = load(source).module[0].weight
    assert torch.equal(full.trunk[0].weight, first)
    assert full.trunk[0].weight.data_ptr() != first.data_ptr()
    assert not torch.equal(scratch.trunk[0].weight, first)
    again, other = (
        nn.build("pretrained", (3, 12, 12), 5, seed, source=source, adapt="scratch")
        for seed in (1, 2)
    )
    assert torch.equal(again.trunk[0].weight, scratch.trunk[0].weight)
    assert not torch.equal(other.trunk[0].weight, scratch.trunk[0].weight)
    assert any(isinstance(m, torch_nn.GroupNorm) for m in scratch.modules())
    fresh = build(source, adapt="head", norms="fresh")
    assert any(isinstance(m, torch_nn.GroupNorm) for m in fresh.modules())
    assert set(getattr(full, INSTALLED)) == {
        n for n, p in full.named_parameters() if not p.requires_grad
    }


def test_features_stand_for_inputs_where_only_the_output_is_trained(source):
    module = build(source, adapt="map", relu=True)
    x = torch.rand(3, 3, 12, 12)
    assert module.fixed
    assert torch.equal(module(module.features(x)), module(x))
    assert not build(source).fixed


def test_bfloat16_is_close_to_float32_and_gives_gradients(source):
    whole, narrow = build(source), build(source, compute="bfloat16")
    x = torch.rand(3, 3, 12, 12)
    a, b = whole(x).detach(), narrow(x)
    assert b.dtype == torch.float32
    assert not torch.equal(a, b)
    assert torch.allclose(a, b.detach(), rtol=0.1, atol=0.1 * float(a.abs().max()))
    theta = narrow.border.theta
    (gradient,) = torch.autograd.grad(b.sum(), theta)
    assert bool(torch.isfinite(gradient).all())
    assert float(gradient.abs().max()) > 0


def test_labels_are_assigned_by_frequency_each_once():
    counts = np.array([[5, 4, 0, 0], [6, 1, 2, 0]])
    assert frequent_labels(counts) == [[1], [0]]
    assert frequent_labels(counts, 2) == [[1, 3], [0, 2]]
    mapped = Labels([[1, 3], [0, 2]], 2, 4)(torch.tensor([[1.0, 2.0, 3.0, 8.0]]))
    assert mapped.tolist() == [[5.0, 2.0]]


@pytest.mark.parametrize(
    ("shape", "options", "said"),
    [
        ((3, 17, 12), {}, "larger than the source's input, 16 x 16"),
        ((2, 12, 12), {}, "2 channels, the source takes 3"),
        ((3, 12, 12), {"inner": 17}, "inner is 1 to 16"),
        ((3, 12, 12), {"inner": 16}, "no border"),
        ((300,), {}, "300 numbers do not fit"),
        ((3, 12, 12), {"adapt": "labels", "classes": 13}, "13 target classes"),
        ((3, 12, 12), {"adapt": "labels", "per_class": 3}, "need 15, the source has 12"),
        ((3, 12, 12), {"adapt": "labels"}, "public data"),
        ((3, 12, 12), {"adapt": "labels", "labels": [0, 1, 2, 3, 3]}, "at most once"),
        ((3, 12, 12), {"labels": [0, 1, 2, 3, 4]}, "model.labels is for"),
        ((3, 12, 12), {"adapt": "full", "compute": "bfloat16"}, "frozen source"),
        ((3, 12, 12), {"norms": "fresh"}, "destroys"),
        ((3, 12, 12), {"norms": "folded", "adapt": "scratch"}, "no trained BatchNorm"),
        ((3, 12, 12), {"relu": True, "adapt": "labels", "labels": [0, 1, 2, 3, 4]}, "has none"),
        ((3, 12, 12), {"size": 32}, "takes images of 16 pixels"),
        ((3, 12, 12), {"weights": "other.pth"}, "holds its own weights"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(source, shape, options, said):
    with pytest.raises(PlanError, match=said):
        build(source, shape, **options)


def test_a_source_brings_no_code_and_must_be_whole(tmp_path: Path):
    other = Path(write(tmp_path / "run"))
    text = (other / "plan.toml").read_text()
    (other / "plan.toml").write_text(text.replace(NAME, "os:system"))
    with pytest.raises(PlanError, match="own code"):
        build(str(other))
    (other / "plan.toml").write_text(text)
    (other / "result.json").write_text(json.dumps({"input_shape": [64], "classes": 3}))
    with pytest.raises(PlanError, match="not a classifier of square images"):
        build(str(other))
    (other / "result.json").unlink()
    with pytest.raises(PlanError, match="no finished run"):
        build(str(other))


def test_a_frozen_source_draws_nothing_in_training(source):
    module = build(source).train()
    assert not any(m.training for m in module.trunk.modules())
    x = torch.rand(3, 3, 12, 12)
    assert torch.equal(module(x), module(x))
    assert build(source, adapt="full").train().trunk.training


def test_more_target_than_source_classes_need_a_trained_map(source):
    assert build(source, classes=13)(torch.rand(2, 3, 12, 12)).shape == (2, 13)


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> registry.Entry:
    """A source of the registry as small as the run's."""
    made = replace(
        table()[0],
        name="tiny",
        make=lambda: tiny((3, 32, 32), 12),
        layers=lambda: ["a", "b", "c", "d", "e", "f"],
        preprocessing=replace(TO, size=32),
        files=("tiny.pth",),
        where="ask the author",
        classes=12,
        package=None,
    )
    monkeypatch.setitem(registry._SOURCES.entries, "tiny", Entry(made, ""))
    return made


@pytest.mark.usefixtures("entry")
def test_weights_are_found_by_name_and_checked(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("CUPOLA_DATA", raising=False)
    with pytest.raises(PlanError, match=r"not here; ask the author.*tiny\.pth"):
        build("tiny")
    with pytest.raises(PlanError, match="is no file; ask the author"):
        build("tiny", weights=str(tmp_path / "none.pth"))
    assert build("tiny", adapt="scratch")(torch.rand(1, 3, 12, 12)).shape == (1, 5)
    layers = [m for m in trained().modules() if isinstance(m, registry._KINDS)]
    state = {f"{n}.{k}": v for n, m in zip("abcdef", layers) for k, v in m.state_dict().items()}
    torch.save(state, tmp_path / "tiny.pth")
    monkeypatch.setenv("CUPOLA_WEIGHTS", str(tmp_path))
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(load("tiny").module.eval()(x), trained()(x))
    checkpoint = {"model": state, "optimizer": {}, "epoch": 3, "args": Namespace(lr=0.1)}
    torch.save(checkpoint, tmp_path / "checkpoint.pth")  # as training scripts leave it
    found = load("tiny", str(tmp_path / "checkpoint.pth")).module
    assert torch.equal(found.eval()(x), trained()(x))
    torch.save({**state, "f.weight": torch.zeros(3, 3)}, tmp_path / "bad.pth")
    with pytest.raises(PlanError, match=r"f.weight has shape \(3, 3\), \(12, 24\) is needed"):
        build("tiny", weights=str(tmp_path / "bad.pth"))
    (tmp_path / "broken.safetensors").write_bytes(b"nothing")
    with pytest.raises(PlanError, match="cannot be read as weights"):
        build("tiny", weights=str(tmp_path / "broken.safetensors"))
    with pytest.raises(PlanError, match="did you mean 'tiny'"):
        build("tinny")


@pytest.mark.slow
def test_the_real_resnet50_takes_most_dogs_for_dogs():
    try:
        held = datasets.load("cifar10", variant="10k").test
        module = build("resnet50", (3, 32, 32), 10, adapt="map")
    except CupolaError as error:
        pytest.skip(f"needs CIFAR-10 and ResNet-50's weights: {error}")
    dogs = held.subset((held.y == 5).nonzero().flatten()[:48])
    with torch.no_grad():
        guess = module.features(dogs.inputs()).argmax(1)
    assert float(((guess >= 151) & (guess <= 268)).float().mean()) > 0.5
