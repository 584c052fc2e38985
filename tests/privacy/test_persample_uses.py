"""Parameters used twice, tied, or by hand; random layers; the cells of recurrent layers."""

from __future__ import annotations

import persample_oracles as oracles
import pytest
import torch
from persample_examples import (
    MARKS,
    Output,
    Raw,
    SelfAttention,
    SwappedLSTM,
    draw,
    generator,
    loss,
    ready,
    tokens,
)
from torch import Tensor, nn
from torch.nn import functional as F

from cupola.privacy.persample import PerSample, clipping

pytestmark = MARKS


class Twice(nn.Module):
    """One layer used on images of two sizes, and twice on the same size."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(self.conv(x).tanh())
        x = self.conv(F.avg_pool2d(x, 2)).mean((2, 3))
        return self.linear(self.linear(x).tanh())


class Tied(nn.Module):
    """Input and output embedding are one parameter, in two layers or by hand."""

    def __init__(self, *, by_hand: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 3)
        self.output = None if by_hand else nn.Linear(3, 7, bias=False)
        if self.output is not None:
            self.output.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x)
        return F.linear(h, self.embedding.weight) if self.output is None else self.output(h)


class TimeFirst(nn.Module):
    """Samples in the second dimension while the layer works."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.transpose(0, 1)).transpose(0, 1)


class FunctionalUse(nn.Module):
    """The layer is called, and its weight is also used behind its back."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + F.linear(x.sin(), self.linear.weight)


class HiddenAtZero(nn.Module):
    """As above, behind a factor that is zero at the start: no gradient betrays it there."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.gate = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) + self.gate(x) * F.linear(x, self.linear.weight)


USES = {
    "shared layers": (Twice, (5, 2, 6, 4), True),
    "tied layers": (lambda: Tied(by_hand=False), tokens(5, 4), True),
    "tied by hand": (lambda: Tied(by_hand=True), tokens(5, 4), False),
    "raw parameter": (Raw, (5, 6), False),
    "time first": (TimeFirst, (5, 3, 6), False),
    "time first, as many steps as samples": (TimeFirst, (3, 3, 6), False),
    "functional use": (FunctionalUse, (5, 6), False),
    "weight norm": (
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)),
        (5, 6),
        False,
    ),
    "in-place activation": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(24, 2)
        ),
        (5, 2, 6, 4),
        True,
    ),
    "transposed convolution": (lambda: nn.ConvTranspose2d(2, 3, 3), (4, 2, 3, 3), False),
    "attention, extra keys": (lambda: SelfAttention(add_bias_kv=True), (4, 5, 4), False),
    "recurrent, time first": (lambda: SwappedLSTM(), (4, 5, 3), True),
}


@pytest.mark.parametrize("name", USES)
def test_parameters_used_in_other_ways_are_right_too(name):
    make, x, booked = USES[name]
    x = x if isinstance(x, Tensor) else draw(*x, seed=7)
    y = 1 + torch.arange(len(x), dtype=torch.float64)
    module = ready(make())
    gradients = oracles.alone(module, loss, x, y)
    clip = float(oracles.norms(gradients).median())
    persample = PerSample(module, loss)
    oracles.assert_equal(persample.clipped_sum(x, y, clip), gradients, clip)
    assert (persample.fallback is None) is booked


def test_a_use_is_found_where_no_gradient_betrays_it():
    module, x = HiddenAtZero().double(), draw(5, 6)
    with torch.no_grad():
        for p in module.gate.parameters():
            p.zero_()
    persample = PerSample(module, loss)
    persample.clipped_sum(x, torch.ones(5).double(), 1.0)
    assert persample.fallback is not None


def dropout_models() -> dict[str, nn.Module]:
    return {
        "dropout": nn.Sequential(
            nn.Dropout(0.3), nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 2)
        ),
        "rrelu": nn.Sequential(nn.Linear(6, 6), nn.RReLU(), nn.Linear(6, 2)),
    }


@pytest.mark.parametrize("name", dropout_models())
def test_random_layers_draw_for_each_sample(name, monkeypatch):
    monkeypatch.setattr(clipping, "depends_on_company", lambda *_: None)  # else one by one
    module, x, y = ready(dropout_models()[name]), draw(6, 6), draw(6, seed=2).abs() + 1
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5)
        losses = loss(module(x), y)
        rows = [
            torch.autograd.grad(value, oracles.trained(module), retain_graph=True)
            for value in losses
        ]
        torch.default_generator.manual_seed(5)
        persample = PerSample(module, loss, microbatch=6)
        found = persample.clipped_sum(x, y, 1.0)
    assert persample.fallback is None
    oracles.assert_equal(found, [torch.stack(column) for column in zip(*rows)], 1.0)


def test_the_fall_back_draws_for_each_sample():
    module = ready(nn.Sequential(nn.Dropout(0.5), Raw()))
    x = draw(1, 6).expand(40, 6)  # the same sample: only the masks can tell them apart
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5)
        found = PerSample(module, loss).clipped_sum(x, torch.ones(40).double(), 1.0)
    assert len(set(found.norms.tolist())) > 10


def test_recurrent_dropout_needs_no_fall_back():
    module = ready(Output(nn.LSTM(3, 4, 2, batch_first=True, dropout=0.5)))
    x = draw(1, 5, 3).expand(30, 5, 3)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5)
        persample = PerSample(module, loss)
        found = persample.clipped_sum(x, torch.ones(30).double(), 1.0)
    assert persample.fallback is None
    assert len(set(found.norms.tolist())) > 10


@pytest.mark.parametrize(
    "layer",
    [
        nn.LSTM(3, 4, 3, bidirectional=True),
        nn.LSTM(3, 4, 2, proj_size=2, bidirectional=True),
        nn.GRU(3, 4, 2, bidirectional=True),
        nn.RNN(3, 4, 2, bias=False),
    ],
    ids=str,
)
def test_cells_equal_torchs_layers(layer):
    from cupola.privacy.persample.tape import Tape, layout, recording

    layer, x = ready(layer), draw(6, 4, 3)
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    h = draw(count, 4, layer.proj_size or 4, seed=4)
    start = (h, draw(count, 4, 4, seed=5)) if isinstance(layer, nn.LSTM) else h
    for hx in (None, start):
        expected = layer(x, hx)
        with recording(layout(layer), Tape(silent=True)):
            found = layer(x, hx)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("boolean", [True, False])
def test_attention_cell_equals_torchs_layer(boolean):
    from cupola.privacy.persample.tape import Tape, layout, recording

    layer = ready(nn.MultiheadAttention(4, 2))
    q, k, v = draw(5, 3, 4), draw(6, 3, 4, seed=1), draw(6, 3, 4, seed=2)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2, [True] + [False] * 5])
    mask = torch.rand(6, 5, 6, generator=generator(4)) < 0.2  # per sample and head
    if not boolean:
        padding, mask = (
            torch.zeros(m.shape).double().masked_fill(m, -9.0) for m in (padding, mask)
        )
    for averaged in (True, False):
        options = {
            "key_padding_mask": padding,
            "attn_mask": mask,
            "average_attn_weights": averaged,
        }
        expected = layer(q, k, v, **options)
        with recording(layout(layer), Tape(silent=True)):
            found = layer(q, k, v, **options)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
