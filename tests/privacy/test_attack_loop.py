"""Plain private loops that were private in name only: known masks, mixing loaders, own samplers."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from cupola.errors import PlanError
from cupola.privacy import make_private
from cupola.privacy.persample import PerSample
from cupola.privacy.plain_loop import Private
from cupola.privacy.secret_draws import secret_draws

X, Y = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 3
ROWS = TensorDataset(X, Y)


def private(net: nn.Module, loader: DataLoader | None = None, **options) -> Private:
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = loader or DataLoader(ROWS, batch_size=8)
    return make_private(net, sgd, loader, **{"noise_multiplier": 1.0, **options})


def step(private: Private) -> None:
    x, y = next(iter(private.loader))
    F.cross_entropy(private.model(x), y).backward()


def drawn() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()  # noqa: NPY002


def seeded() -> None:
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)


def test_draws_inside_are_secret_and_afterwards_as_before() -> None:
    seeded()
    expected = drawn()
    seeded()
    with secret_draws():
        first = drawn()
    assert drawn() == expected
    seeded()
    with secret_draws():
        assert not {*drawn()} & {*first, *expected}


@pytest.mark.parametrize("seed", [None, 1])
def test_masks_do_not_follow_from_the_scripts_seed(seed: int | None) -> None:
    """Of two batches of all rows, with one public seed: only what nobody can repeat differs."""
    found = []
    for _ in range(2):
        net = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3))
        nn.init.zeros_(net[1].weight)
        nn.init.zeros_(net[1].bias)
        loop = private(net, DataLoader(ROWS, batch_size=40), noise_multiplier=0.0, seed=seed)
        torch.manual_seed(42)
        step(loop)
        found.append(net[1].weight.grad)
    assert torch.equal(*found) == (seed is not None)


class Noisy(Dataset):
    """Rows that are augmented as they are read."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.rand(6), i % 3


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_augmentations_do_not_follow_from_the_scripts_seed(workers: int) -> None:
    found = []
    for _ in range(2):
        loader = DataLoader(Noisy(), batch_size=8, num_workers=workers)
        loop = private(nn.Linear(6, 3), loader)
        torch.manual_seed(42)
        found.append(next(iter(loop.loader))[0])
    assert not torch.equal(*found)


def mixed(items: list) -> list[torch.Tensor]:
    x, y = default_collate(items)
    share = np.random.beta(1.0, 1.0)  # noqa: NPY002
    order = torch.randperm(len(x))
    return [share * x + (1 - share) * x[order], y]


def padded(items: list) -> tuple[torch.Tensor, torch.Tensor]:
    rows = nn.utils.rnn.pad_sequence([x for x, _ in items], batch_first=True)
    return rows, torch.tensor([y for _, y in items])


TEXTS = [(torch.randn(n), n % 2) for n in (3, 5, 4, 9, 6, 3, 3, 5)]


@pytest.mark.parametrize(
    ("loader", "said"),
    [
        (DataLoader(ROWS, batch_size=8, collate_fn=mixed), "among others than alone"),
        (DataLoader(TEXTS, batch_size=8, collate_fn=padded), "among others than alone"),  # type: ignore[arg-type]
        (DataLoader(ROWS, batch_size=8, sampler=SubsetRandomSampler(range(9))), "data.Subset"),
    ],
    ids=["mixup", "padding", "sampler"],
)  # fmt: skip
def test_loaders_whose_samples_are_not_their_own(loader: DataLoader, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        private(nn.Linear(6, 3), loader)


def test_a_way_to_make_batches_of_ones_own_may_draw() -> None:
    def jittered(items: list) -> tuple[torch.Tensor, torch.Tensor]:
        rows = [x + torch.randn(6) * random.random() for x, _ in items]
        return torch.stack(rows), torch.tensor([int(y) for _, y in items])

    step(private(nn.Linear(6, 3), DataLoader(ROWS, batch_size=8, collate_fn=jittered)))


def test_a_stream_with_a_length_is_a_stream() -> None:
    class Stream(IterableDataset):
        def __len__(self) -> int:
            return 8

        def __iter__(self):
            yield from ROWS

    with pytest.raises(PlanError, match="stream"):
        private(nn.Linear(6, 3), DataLoader(Stream(), batch_size=2))


class Running(nn.Module):
    """A mean of the samples for evaluation; and a counter, which tells nothing of them."""

    def __init__(self, of_samples: bool) -> None:
        super().__init__()
        self.layer, self.of_samples = nn.Linear(6, 3), of_samples
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
            if self.of_samples:
                self.mean += 0.1 * (x.detach().mean(0) - self.mean)
        return self.layer(x if self.training else x - self.mean)


def test_buffers_that_samples_change_are_refused() -> None:
    step(private(Running(of_samples=False)))
    net = Running(of_samples=True)
    loop = private(net)
    with pytest.raises(PlanError, match="buffer 'mean' changes with the samples"):
        step(loop)
    assert not net.mean.any()
    assert loop.steps == 0


class Picky(Running):
    """A model that cannot be tried on drawn samples."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x >= 0).all():
            raise ValueError("no such sample")
        return super().forward(x)


def test_buffers_that_cannot_be_tried_are_refused() -> None:
    loop = private(Picky(of_samples=True))
    with pytest.raises(PlanError, match="nobody can tell whether they change"):
        step(loop)
    assert loop.steps == 0


def test_layers_keep_their_modes() -> None:
    """A batch normalisation that is frozen, as the refusal says, is none that mixes."""
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 3))
    net[1].eval()
    step(private(net))
    assert [part.training for part in net] == [True, False, True, True]
    net.eval()
    net[2].train()
    with pytest.raises(PlanError, match="mixes"):
        private(net)
    assert [part.training for part in net] == [False, False, True, False]


def test_autocast_leaves_the_clip_as_it_is() -> None:
    net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 3))
    engine = PerSample(net, lambda o, y: F.cross_entropy(o, y, reduction="none"))
    plain = engine.clipped_sum(X, Y, 0.1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = engine.clipped_sum(X, Y, 0.1)
    assert all(torch.equal(a, b) for a, b in zip(plain.sums, cast.sums))


def test_epsilon_is_at_the_delta_that_was_asked_for() -> None:
    loop = private(nn.Linear(6, 3), delta=1e-9)
    step(loop)
    assert loop.epsilon() == loop.epsilon(1e-9) > loop.epsilon(1e-5)


def test_the_ledger_goes_on() -> None:
    asked = {"noise_multiplier": None, "epsilon": 2.0, "epochs": 2}
    first = private(nn.Linear(6, 3), **asked)
    for _ in range(4):
        step(first)
    again = private(nn.Linear(6, 3), steps=first.steps, **asked)
    assert again.epsilon() == first.epsilon()
    for _ in range(6):
        step(again)
    with pytest.raises(PlanError, match="10 steps keep the epsilon"):
        step(again)
    with pytest.raises(PlanError, match="steps"):
        private(nn.Linear(6, 3), steps=-1)


def test_an_optimizer_has_one_ledger() -> None:
    net = nn.Linear(6, 3)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(ROWS, batch_size=8)
    make_private(net, sgd, loader, noise_multiplier=1.0)
    with pytest.raises(PlanError, match="already"):
        make_private(net, sgd, loader, noise_multiplier=1.0)


def test_a_copy_is_of_the_module_alone() -> None:
    loop = private(nn.Linear(6, 3))
    copied = copy.deepcopy(loop.model)
    assert type(copied) is nn.Linear
    assert torch.equal(copied.weight, loop.model.weight)


def test_several_outputs_are_refused_in_words() -> None:
    class Two(nn.Linear):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:  # type: ignore[override]
            return super().forward(x), 1

    loop = private(Two(6, 3))
    with pytest.raises(PlanError, match="a tuple, not one tensor"):
        loop.model(next(iter(loop.loader))[0])[0]
