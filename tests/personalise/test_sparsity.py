"""PFE: the share of silent channels, on any network, in one pass, with or without noise."""

import numpy as np
import pytest
import small
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cupola import nn as models
from cupola.data import Dataset
from cupola.errors import PlanError
from cupola.federation import Declined, Question, SiteContext, StateStore
from cupola.privacy.noise import Simulated
from cupola.training import Workspace
from cupola.training.personalise import activations, find_layers, sparsity_of
from cupola.training.personalise.personal_choices import Release
from cupola.training.personalise.sparsity import (
    drawn_channels,
    epsilon_of,
    noise_of,
    released,
    sensitivity,
    sparsity,
)
from cupola.training.workspace import Problem


class Text(nn.Module):
    """Embedding and a Transformer block, whose activation is no module."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.block(self.embedding(x)).mean(1))


def space(make, shape, tokens=None):
    problem = Problem(
        small.seeded(make), small.CROSS_ENTROPY, "classification", 3, shape, "cpu", tokens=tokens
    )
    return Workspace(problem)


def images(n=23):
    return Dataset(torch.randn(n, 2, 6, 6), torch.zeros(n, dtype=torch.int64))


def convolutional(act=nn.ReLU):
    def make():
        return nn.Sequential(
            nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), act(), nn.Flatten(), nn.Linear(80, 3)
        )

    return space(make, (2, 6, 6))


@pytest.mark.parametrize("inplace", [False, True])
def test_is_the_share_of_zeros_behind_a_relu(inplace):
    work, data = convolutional(lambda: nn.ReLU(inplace=inplace)), images()
    found = sparsity_of(work, data, {"2": [4, 0]}, batch=7)["2"]
    work.module.eval()
    with torch.no_grad():
        zeros = (work.module[:3](data.x) == 0).double().mean((0, 2, 3)).numpy()
    assert found.tolist() == pytest.approx(zeros[[4, 0]].tolist(), abs=1e-12)
    work.module.train()


def test_without_exact_zeros_it_is_the_share_of_inputs_not_above_zero():
    work, data = convolutional(nn.GELU), images()
    found = sparsity_of(work, data, {"2": range(5)})["2"]
    work.module.eval()
    with torch.no_grad():
        before = (work.module[:2](data.x) <= 0).double().mean((0, 2, 3)).numpy()
    assert np.array_equal(found, before)
    assert work.module[2](torch.randn(999)).eq(0).sum() == 0


@settings(max_examples=20)
@given(st.integers(1, 30), st.integers(1, 25))
def test_batches_of_any_size_give_the_vector_of_one_pass(batch, n):
    work, data = convolutional(), images(n)
    chosen = {"2": [0, 1, 2, 3, 4]}
    whole = sparsity_of(work, data, chosen, batch=1000)["2"]
    assert np.array_equal(sparsity_of(work, data, chosen, batch=batch)["2"], whole)


def test_every_kind_of_network_has_layers_to_tell_of():
    cases = {
        "mlp": (lambda: models.build("mlp", (7,), 3, 1, hidden=[9, 5]), (7,), None, [9, 5]),
        "lstm": (
            lambda: models.build("text_lstm", (6,), 3, 1, vocabulary=11, hidden=4),
            (6,),
            11,
            [4],
        ),
        "transformer": (Text, (6,), 11, [16]),
        "resnet8": (
            lambda: models.build("resnet8", (3, 16, 16), 3, 1, norm="batch"),
            (3, 16, 16),
            None,
            None,
        ),
    }
    for name, (make, shape, tokens, units) in cases.items():
        work = space(make, shape, tokens)
        x = torch.randn(4, *shape) if tokens is None else torch.randint(0, tokens, (4, *shape))
        found = activations(work.module, x)
        assert units is None or [layer.channels for layer in found] == units, name
        first = found[0]
        vector = sparsity_of(
            work, Dataset(x, torch.zeros(4, dtype=torch.int64)), {first.name: range(first.channels)}
        )[first.name]
        assert vector.shape == (first.channels,), name
        assert 0 < vector.mean() < 1, name
        assert work.module.training


def test_a_transformer_is_watched_where_its_fast_path_would_hide_the_hidden_layer():
    work = space(Text, (6,), 11)
    x = torch.randint(0, 11, (5, 6))
    found = sparsity_of(
        work, Dataset(x, torch.zeros(5, dtype=torch.int64)), {"block.linear1": range(16)}
    )
    seen = []
    handle = work.module.block.linear1.register_forward_hook(lambda _, __, out: seen.append(out))
    work.module.eval()(x)
    handle.remove()
    work.module.train()
    expected = (seen[0] <= 0).double().mean((0, 1)).numpy()
    assert np.allclose(found["block.linear1"], expected)


def test_layers_are_found_by_place_and_name_and_unknown_ones_refused():
    module, x = convolutional().module, torch.randn(2, 2, 6, 6)
    assert [layer.name for layer in find_layers(module, x, [0, "0", -1])] == ["2", "0", "2"]
    with pytest.raises(PlanError, match="1 activations"):
        find_layers(module, x, [1])
    with pytest.raises(PlanError, match="'nothing'; activations: 2"):
        find_layers(module, x, ["nothing"])


def test_a_shorter_draw_of_channels_begins_a_longer_one():
    layers = find_layers(convolutional().module, torch.randn(2, 2, 6, 6), ["0"])
    assert drawn_channels(layers, 2, seed=3)[0] == drawn_channels(layers, 99, seed=3)[0][:2]
    assert sorted(drawn_channels(layers, 99, seed=3)[0]) == [0, 1, 2, 3, 4]


# Differential privacy


@given(st.integers(1, 6), st.integers(2, 9), st.integers(0, 10**6))
def test_no_example_moves_the_vector_by_more_than_its_sensitivity(q, n, seed):
    rng = np.random.default_rng(seed)
    shares = rng.integers(0, 2, (n, q)).astype(float)  # the extreme points are the worst
    told = 0.5 + (shares - 0.5).sum(0) / n
    assert np.allclose(told, shares.mean(0))
    fewer = 0.5 + (shares[1:] - 0.5).sum(0) / n  # over the same public n
    other = shares.copy()
    other[0] = 1 - other[0]
    limit = sensitivity(q, n)
    assert np.linalg.norm(told - fewer) <= limit + 1e-12
    assert np.linalg.norm(told - other.mean(0)) <= 2 * limit + 1e-12
    assert np.linalg.norm(told - other.mean(0)) == pytest.approx(2 * limit)


def test_noise_has_the_size_that_epsilon_needs():
    spec = Release(epsilon=2.0, delta=1e-5)
    assert epsilon_of(spec) <= 2.0 < epsilon_of(Release(noise_multiplier=0.99 * noise_of(spec)))
    drawn = released(np.full(20000, 0.5), 10**6, noise_of(spec), Simulated(1, "test", 0)) - 0.5
    assert drawn.std() == pytest.approx(noise_of(spec) * sensitivity(20000, 10**6), rel=0.03)
    assert released(np.ones(50), 2, 50.0, Simulated(1, "test", 0)).max() == 1.0


def asked(noise=None, rows=8):
    work = convolutional()
    held = images(rows)
    site = SiteContext(3, type("Data", (), {"train": held}), work, StateStore(), 7)
    options = {"layers": [["2", [0, 1, 2]]]} | ({} if noise is None else {"noise": noise})
    return site, Question("sparsity", work.arrays(), options, round=4)


def test_a_release_is_charged_as_what_it_does_and_an_exact_vector_is_unprotected():
    assert sparsity.charge(*asked()) is None
    (event,) = sparsity.charge(*asked(noise=3.0)).events
    assert (event.noise, event.count, event.neighbours) == (3.0, 1, "add-remove")
    exact = sparsity(*asked()).arrays["sparsity/0"]
    noised = sparsity(*asked(noise=3.0)).arrays["sparsity/0"]
    assert exact.dtype == np.float32
    assert not np.array_equal(exact, noised)
    with pytest.raises(Declined, match="above 0"):
        sparsity.charge(*asked(noise=0.0))
    with pytest.raises(Declined, match="no samples"):
        sparsity(*asked(rows=0))
