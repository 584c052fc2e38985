"""Per-sample gradients of adapters: layers' rules alone, equal to every sample by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import eight_bits
import persample_oracles as oracles
import pytest
import tiny_transformers
import torch
from torch import Tensor, nn

from cupola.errors import PlanError
from cupola.nn import build, find_loss
from cupola.nn.adapters import LOW_RANK, adapt, low_rank, narrow_base, settle
from cupola.privacy.persample import ROUNDING, PerSample

LENGTH, CLASSES, SAMPLES = 9, 3, 5


def adapted(name: str, kind: str, folder: Path, **more: Any) -> tuple[nn.Module, Tensor, Tensor]:
    """A model with an adapter whose factors are all other than zero, and samples, some padded."""
    chance = torch.Generator().manual_seed(0)
    x = torch.randint(3, tiny_transformers.TOKENS, (SAMPLES, LENGTH), generator=chance)
    x[1, 5:] = 0
    y = torch.randint(0, CLASSES, (SAMPLES,), generator=chance)
    if name == "transformer":
        small = {"width": 16, "heads": 2, "hidden": 24, "layers": 2, "dropout": 0.0}
        module = build(name, (LENGTH,), tiny_transformers.TOKENS, 0, **small)
        y = torch.randint(0, tiny_transformers.TOKENS, x.shape, generator=chance)
    else:
        base = tiny_transformers.save(folder / name, name)
        module = build("huggingface", (LENGTH,), CLASSES, 0, path=str(base), dropout=0.0)
    kept = getattr(module, "fresh", ())
    given = {"rank": 2} if kind in LOW_RANK else {}
    adapt(module, kind, modules_to_save=kept, **given, **more)  # type: ignore[arg-type]
    with torch.no_grad():
        for p in module.parameters():
            if p.requires_grad:
                p.copy_(0.3 * torch.randn(p.shape, generator=chance))
    return module, x, y


@pytest.mark.parametrize("kind", [*LOW_RANK, "bitfit", "prompt", "head"])
@pytest.mark.parametrize("name", ["transformer", "bert", "gpt2"])
def test_clipped_sums_equal_brute_force(name: str, kind: str, tmp_path: Path) -> None:
    if (name, kind) == ("gpt2", "prompt"):
        pytest.skip("refused: it reads its result at a place it cannot find")
    more = {"patterns": ["leave"]} if (name, kind) == ("transformer", "head") else {}
    module, x, y = adapted(name, kind, tmp_path, **more)
    module, loss = module.double(), find_loss("cross_entropy")
    engine = PerSample(module, loss)
    expected = oracles.alone(module, loss, x, y)
    clip = 0.5 * float(oracles.norms(expected).median())
    found = engine.clipped_sum(x, y, clip)
    oracles.assert_equal(found, expected, clip, 1e-9)
    assert engine.form is not None
    assert (engine.fallback, engine.form.alone) == (None, None)


@pytest.mark.parametrize("kind", LOW_RANK)
def test_convolutions(kind: str) -> None:
    net = nn.Sequential(
        nn.Conv2d(2, 6, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(6, 5, 1), nn.ReLU(),
        nn.Flatten(), nn.LazyLinear(CLASSES),
    )  # fmt: skip
    x = torch.randn(SAMPLES, 2, 8, 8)
    net(x)
    adapt(net, kind, rank=2, patterns=["0", "2"]).double()  # type: ignore[arg-type]
    for p in oracles.trained(net):
        nn.init.normal_(p)
    y, loss = torch.arange(SAMPLES) % CLASSES, find_loss("cross_entropy")
    engine = PerSample(net, loss)
    oracles.assert_equal(
        engine.clipped_sum(x.double(), y, 0.5), oracles.alone(net, loss, x.double(), y), 0.5, 1e-9
    )
    assert engine.fallback is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_sample_changes_the_sum_by_the_clip_at_most(tmp_path: Path, dtype: torch.dtype) -> None:
    """Weights that make one sample's gradient huge beside others'; the base in half the bits."""
    module, x, y = adapted("bert", "lora", tmp_path)
    if dtype == torch.bfloat16:
        narrow_base(module, dtype)
        settle(module)
    with torch.no_grad():
        for _, layer in low_rank(module):
            layer.lora_B.weight.mul_(1e4)
    engine = PerSample(module, find_loss("cross_entropy"))
    whole = engine.clipped_sum(x, y, 1.0).sums
    for leave in range(SAMPLES):
        rest = [i for i in range(SAMPLES) if i != leave]
        part = engine.clipped_sum(x[rest], y[rest], 1.0).sums
        moved = torch.stack([(a - b).norm() for a, b in zip(whole, part)]).norm()
        assert 0 < float(moved) <= 1 + ROUNDING
    assert engine.fallback is None


def test_gpt2s_own_dense_layers_trained_in_full(tmp_path: Path) -> None:
    """transformers' `Conv1D` keeps its weight the other way round."""
    base = tiny_transformers.save(tmp_path / "gpt2", "gpt2")
    module = build("huggingface", (LENGTH,), CLASSES, 0, path=str(base), dropout=0.0)
    adapt(module, "head", patterns=["c_attn", "c_fc", "c_proj", "score"]).double()
    x = torch.randint(3, tiny_transformers.TOKENS, (SAMPLES, LENGTH))
    y, loss = torch.arange(SAMPLES) % CLASSES, find_loss("cross_entropy")
    for given in ({}, {"factors": False}):
        engine = PerSample(module, loss, **given)
        expected = oracles.alone(module, loss, x, y)
        oracles.assert_equal(engine.clipped_sum(x, y, 0.5), expected, 0.5, 1e-9)
        assert engine.fallback is None


@pytest.mark.parametrize("kind", [*LOW_RANK, "bitfit"])
def test_a_base_in_8_bits(kind: str) -> None:
    given = {"rank": 2} if kind in LOW_RANK else {}
    module = adapt(eight_bits.base(CLASSES), kind, **given).double()  # type: ignore[arg-type]
    chance = torch.Generator().manual_seed(0)
    x, y = torch.randint(0, 7, (SAMPLES, 4), generator=chance), torch.arange(SAMPLES) % CLASSES
    with torch.no_grad():
        for p in oracles.trained(module):
            p.copy_(0.3 * torch.randn(p.shape, generator=chance))
    loss = find_loss("cross_entropy")
    expected, engine = oracles.alone(module, loss, x, y), PerSample(module, loss)
    clip = 0.5 * float(oracles.norms(expected).median())
    oracles.assert_equal(engine.clipped_sum(x, y, clip), expected, clip, 1e-9)
    assert engine.form is not None
    assert (engine.fallback, engine.form.alone) == (None, None)


def test_a_kernel_without_a_gradient_is_refused() -> None:
    """torch's packed layer lets the gradient of what is before it vanish in silence."""
    with pytest.raises(PlanError, match=r"2 \(Linear\) is quantised and gives no gradient"):
        PerSample(eight_bits.base(), find_loss("cross_entropy"))
