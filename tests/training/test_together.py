"""Every form of training many sites together equals training them one by one."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cupola.data import Dataset, FederatedData, SiteData
from cupola.engines import InProcess
from cupola.errors import CupolaError
from cupola.federation import drive
from cupola.nn import find_loss
from cupola.training import (
    Evaluation,
    Local,
    Participation,
    Problem,
    Server,
    Training,
    TrainingHost,
)
from cupola.training.batched.samples import samples_of
from cupola.training.workspace import Workspace


def sites(sizes, features=12, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    held = []
    for n in sizes:
        x = torch.randn(n, features, generator=generator)
        y = torch.randint(0, classes, (n,), generator=generator)
        held.append(SiteData(Dataset(x, y), Dataset(x[:0], y[:0]), Dataset(x[:0], y[:0])))
    return FederatedData.from_arrays(
        held, kind="classification", classes=classes, input_shape=(features,)
    )


def network(hidden=(), activation=nn.ReLU, features=12, classes=3):
    def build():
        with torch.random.fork_rng():
            torch.manual_seed(3)
            sizes = [features, *hidden, classes]
            parts = [nn.Flatten()]
            for a, b in pairwise(sizes):
                parts += [nn.Linear(a, b), activation()]
            return nn.Sequential(*parts[:-1])

    return build


def model_after(build, data, local, mode, rounds=3, dtype=torch.float32, loss=None, **choices):
    problem = Problem(
        build,
        loss or find_loss("cross_entropy"),
        "classification",
        data.classes,
        data.input_shape,
        "cpu",
        dtype,
    )
    training = Training(
        problem,
        len(data),
        rounds,
        seed=5,
        local=local,
        evaluation=Evaluation(every=1000),
        **choices,
    )
    with InProcess(TrainingHost(problem, data), seed=5, mode=mode, workers=2) as federation:
        state = drive(training, federation)
    return training.model(state), federation.ledger


def agree(a, b, tolerance):
    for name in a:
        scale = max(1.0, float(np.abs(a[name]).max()))
        assert np.abs(a[name] - b[name]).max() <= tolerance * scale, name


LOCALS = {
    "plain": Local(batch_size=4, epochs=2, lr=0.1),
    "momentum": Local(batch_size=4, lr=0.05, momentum=0.9, weight_decay=0.01),
    "nesterov": Local(batch_size=4, lr=0.05, momentum=0.9, nesterov=True),
    "proximal": Local(batch_size=4, epochs=3, lr=0.1, proximal=0.5),
    "adam": Local(batch_size=4, lr=0.01, optimizer="adam"),
    "uniform": Local(batch_size=4, lr=0.1, weighting="uniform", drop_last=True),
    "normalised": Local(batch_size=4, lr=0.1, send="normalised", momentum=0.5),
    "batches": Local(work="batches", batches=3, batch_size=3, lr=0.1, send="gradients"),
    "weighted": Local(
        work="batches", batches=5, batch_size=2, lr=0.1, send="gradients", accumulation="weighted"
    ),
    "one batch": Local(work="batches", batches=1, batch_size=3, lr=0.1, send="gradients"),
    "full gradient": Local(work="gradient", lr=0.1, send="gradients"),
    "epochs of gradients": Local(
        batch_size=4, lr=0.1, epochs=2, send="gradients", accumulation="weighted"
    ),
}


def possible(local, mode):
    """The implicit form is for SGD; a single gradient at the common model has its own form."""
    single = local.work == "gradient" or (local.work == "batches" and local.batches == 1)
    return mode == "together" or not (single or (mode == "implicit" and local.optimizer == "adam"))


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        (mode, name)
        for mode in ("stacked", "explicit", "implicit", "together")
        for name, local in LOCALS.items()
        if possible(local, mode)
    ],
)
def test_forms_equal_one_by_one(name, mode):
    local = LOCALS[name]
    data = sites([9, 4, 17, 1, 12, 6, 0])
    build = network((7, 5), nn.Tanh)
    plain, ledger = model_after(build, data, local, "one-by-one", dtype=torch.float64)
    fast, fast_ledger = model_after(build, data, local, mode, dtype=torch.float64)
    agree(plain, fast, 1e-11)
    assert ledger.up == fast_ledger.up
    assert ledger.down == fast_ledger.down


@pytest.mark.parametrize("hidden", [(), (16,)])
@pytest.mark.parametrize("mode", ["stacked", "explicit", "implicit", "auto"])
def test_float32_agrees_to_1e_6(hidden, mode):
    data = sites([20, 31, 8, 16])
    local = Local(batch_size=5, lr=0.1)
    plain, _ = model_after(network(hidden), data, local, "one-by-one")
    fast, _ = model_after(network(hidden), data, local, mode)
    agree(plain, fast, 1e-6)


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=6),
    batch=st.integers(1, 5),
    epochs=st.integers(1, 3),
    momentum=st.sampled_from([0.0, 0.7]),
    proximal=st.sampled_from([0.0, 0.3]),
    mode=st.sampled_from(["stacked", "explicit", "implicit"]),
    stragglers=st.sampled_from([0.0, 0.5]),
)
def test_any_sizes(sizes, batch, epochs, momentum, proximal, mode, stragglers):
    if not any(sizes):
        sizes = [1, *sizes]
    local = Local(batch_size=batch, epochs=epochs, lr=0.1, momentum=momentum, proximal=proximal)
    choice = Participation(stragglers=stragglers, dropouts=0.2)
    data = sites(sizes, features=5)
    build = network((4,), nn.Sigmoid, features=5)
    args = {"dtype": torch.float64, "participation": choice, "rounds": 2}
    plain, _ = model_after(build, data, local, "one-by-one", **args)
    fast, _ = model_after(build, data, local, mode, **args)
    agree(plain, fast, 1e-11)


@pytest.mark.parametrize("loss", ["focal", "log"])
def test_other_losses_take_the_general_output_gradient(loss):
    data = sites([9, 4, 17], classes=2)
    build = network((6,), classes=2)
    local = Local(batch_size=4, lr=0.1)
    args = {"loss": find_loss(loss), "dtype": torch.float64}
    plain, _ = model_after(build, data, local, "one-by-one", **args)
    for mode in ("explicit", "implicit", "stacked"):
        fast, _ = model_after(build, data, local, mode, **args)
        agree(plain, fast, 1e-11)


@pytest.mark.parametrize(("mode", "hidden"), [("one-by-one", (6,)), ("compiled", ())])
def test_workers_change_no_bit(mode, hidden):
    if mode == "compiled":
        pytest.importorskip("numba", reason="the compiled form needs numba")
    data = sites([9, 4, 17, 3, 8] * 5)  # the compiled form adds up groups of ten
    local, build = Local(batch_size=4, lr=0.1), network(hidden)
    results = []
    for workers in (1, 2, 3):
        problem = Problem(build, find_loss("cross_entropy"), "classification", 3, (12,), "cpu")
        training = Training(problem, len(data), 3, local=local, server=Server(momentum=0.5))
        host = TrainingHost(problem, data)
        with InProcess(host, mode=mode, workers=workers) as federation:
            results.append(training.model(drive(training, federation)))
    for other in results[1:]:
        for name, array in results[0].items():
            assert (array == other[name]).all()


def test_insisting_on_an_impossible_form_is_refused():
    data = sites([9, 4])
    with pytest.raises(CupolaError, match=r"engine.mode = 'implicit'.*use 'auto'"):
        model_after(network((7,), nn.GELU), data, Local(), "implicit")


@pytest.mark.parametrize("mode", ["explicit", "compiled"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"epochs": 3},
        {"send": "normalised"},
        {"drop_last": True},
        {"momentum": 0.5, "proximal": 0.3, "epochs": 2},
        {"proximal": 0.3, "send": "normalised"},
        {"weight_decay": 0.05, "momentum": 0.9},
    ],
)
def test_logistic_regression(mode, settings, monkeypatch):
    monkeypatch.setattr(
        "cupola.training.batched.compiled.LONG", 9
    )  # sites of many steps get calls of their own
    pytest.importorskip("numba", reason="the compiled form needs numba: pip install 'cupola[fast]'")
    data = sites([9, 4, 17, 1, 12, 6, 0, 40])
    local = Local(batch_size=4, lr=0.1, **settings)
    plain, ledger = model_after(network(), data, local, "one-by-one", dtype=torch.float64)
    fast, fast_ledger = model_after(network(), data, local, mode, dtype=torch.float64)
    agree(plain, fast, 1e-12)
    assert ledger.up == fast_ledger.up
    single, _ = model_after(network(), data, local, mode)
    agree({n: a.astype(np.float32) for n, a in plain.items()}, single, 1e-6)


def test_labels_that_the_loss_ignores_are_left_to_the_plain_form():
    pytest.importorskip("numba", reason="the compiled form needs numba: pip install 'cupola[fast]'")
    data = sites([9, 4, 17])
    data.site(1).train.y[2] = -100
    local = Local(batch_size=4, lr=0.1)
    plain, _ = model_after(network(), data, local, "one-by-one")
    fast, _ = model_after(network(), data, local, "compiled")
    agree(plain, fast, 0)


def test_saturated_logits_stay_finite():
    pytest.importorskip("numba", reason="the compiled form needs numba: pip install 'cupola[fast]'")
    data = sites([20, 20])
    local = Local(batch_size=5, lr=500.0)
    plain, _ = model_after(network(), data, local, "one-by-one", dtype=torch.float64)
    fast, _ = model_after(network(), data, local, "compiled", dtype=torch.float64)
    agree(plain, fast, 1e-9)


@pytest.mark.parametrize("kept", [0, 2000, 1 << 20])
def test_samples_kept_between_rounds_are_the_right_ones(monkeypatch, kept):
    monkeypatch.setattr("cupola.training.batched.samples.KEPT_BYTES", kept)
    data = sites([5, 9, 3, 12, 7, 4])
    some = Participation(kind="fraction", count=3)
    local = Local(batch_size=4, lr=0.1)
    (one, _), (many, _) = (
        model_after(network(), data, local, mode, rounds=8, dtype=torch.float64, participation=some)
        for mode in ("one-by-one", "explicit")
    )
    agree(one, many, 1e-12)


def test_samples_are_kept_as_long_as_their_sites_data_and_no_longer():
    data = sites([5, 9, 3])
    problem = Problem(network(), find_loss("cross_entropy"), "classification", 3, (12,), "cpu")
    space, held = Workspace(problem), [data.site(i).train for i in range(3)]
    kept = samples_of(space, held).x
    assert samples_of(space, held[1:]).x is kept  # not prepared again
    for seed in range(1, 4):  # made when asked, and gone after it
        made = [Dataset(*each) for each in _arrays(sites([4, 6], seed=seed))]
        found = samples_of(space, made)
        assert torch.equal(found.x[found.first[1] :][:6], made[1].x)
        del made
    assert len(samples_of(space, held).x) == 17


def _arrays(data):
    return [(data.site(i).train.x, data.site(i).train.y) for i in range(len(data))]
