"""Features of a frozen source: the same bits whoever else is in the data, and made once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_sources import write
from torch import Tensor

from cupola.data import Dataset
from cupola.nn import build
from cupola.nn.reprogram import Adapted
from cupola.training import features
from cupola.training.features import AT_A_TIME, Features

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("source")


@pytest.fixture(autouse=True)
def _nothing_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "_seen", features._Seen())


def adapted(source: str, **options: Any) -> Adapted:
    made = build("pretrained", (1, 8, 8), 10, 0, source=source, adapt="head", **options)
    assert isinstance(made, Adapted)
    return made.requires_grad_(False)


def rows(n: int) -> Dataset:
    chance = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (n, 1, 8, 8), generator=chance, dtype=torch.uint8)
    return Dataset(x, torch.zeros(n, dtype=torch.int64))


class Counted:
    """How many rows a source was asked for, its own probe left out."""

    def __init__(self, module: Adapted, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed = 0
        plain = module.features

        def counting(x: Tensor) -> Tensor:
            self.passed += len(x) if len(x) != 2 else 0
            return plain(x)

        monkeypatch.setattr(module, "features", counting)


def made(module: Adapted, data: Dataset) -> Tensor:
    return Features(module, CPU, torch.float32).of(data).x


def test_they_are_what_one_pass_after_the_other_gives(source: str) -> None:
    module, data = adapted(source), rows(3 * AT_A_TIME + 5)
    slow = [module.features(data.inputs(slice(i, i + AT_A_TIME))) for i in range(0, 197, AT_A_TIME)]
    assert torch.equal(made(module, data), torch.cat(slow))


@given(seed=st.integers(0, 999), n=st.integers(1, 200))
@settings(max_examples=25, deadline=None)
def test_what_was_seen_before_changes_no_bit(source: str, seed: int, n: int) -> None:
    module = adapted(source)
    part = rows(300).subset(torch.randperm(300, generator=torch.Generator().manual_seed(seed))[:n])
    features._seen.clear()
    alone = made(module, part)
    made(module, rows(300))
    assert torch.equal(made(module, part), alone)


def test_an_input_passes_once_in_a_process(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = adapted(source), adapted(source)
    data = rows(4 * AT_A_TIME)
    counted = Counted(first, monkeypatch)
    made(first, data)
    assert counted.passed == len(data)
    again = Counted(second, monkeypatch)  # another run, other sites
    made(second, data.subset(torch.arange(4 * AT_A_TIME).flip(0)[: 2 * AT_A_TIME]))
    assert again.passed == 0
    made(second, replace(data, prepare=lambda x: 1 - x))
    assert again.passed == len(data)


@pytest.mark.parametrize("options", [{"inner": 10}, {"compute": "bfloat16"}])
def test_another_way_through_the_source_is_another_source(
    source: str, options: dict[str, Any]
) -> None:
    data = rows(AT_A_TIME)
    plain, other = adapted(source), adapted(source, **options)
    before = made(plain, data)
    found = made(other, data)
    assert torch.equal(found, other.features(data.inputs()))
    assert not torch.equal(found, before)


def test_other_weights_are_another_source(source: str, tmp_path: Path) -> None:
    data = rows(AT_A_TIME)
    made(adapted(source), data)
    other = adapted(write(tmp_path / "other", seed=3))
    assert torch.equal(made(other, data), other.features(data.inputs()))


def test_what_is_kept_is_bounded(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = adapted(source)
    monkeypatch.setattr(features, "KEPT_BYTES", 100 * 4 * module.width)
    data = rows(3 * AT_A_TIME)
    assert torch.equal(made(module, data)[:AT_A_TIME], module.features(data.inputs())[:AT_A_TIME])
    assert 0 < len(features._seen) <= 100
    assert features._seen.held == 4 * module.width * len(features._seen)
