"""The training loop as a step machine: purity, resume, judging, and what can go wrong."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import small
import torch
from torch import nn

from cupola.data import SiteData
from cupola.engines import SeparateProcesses
from cupola.errors import FederationError, PlanError
from cupola.federation import Ledger, drive
from cupola.federation.message import encode_question
from cupola.training import Evaluation, Local, Participation, Schedule, Server, pick_device
from cupola.training.centralised import centralised
from cupola.training.recipes import find_recipe

HALF = Participation(kind="fraction", fraction=0.5)
FEDCMB = Local(**{**find_recipe("fedcmb").local, "batches": 3}, batch_size=6, lr=0.1)
SCAFFOLD = Local(**find_recipe("scaffold").local, batch_size=6, lr=0.1)
BOTH = frozenset({"test", "validation"})
MODES = ["one-by-one", "auto"]


def relabelled(data):
    """The same inputs with wrong labels: what is learned makes their loss worse."""
    return small.rows(data.x, (data.y + 1) % 10)


# The step machine


def test_the_same_state_asks_the_same_question():
    data = small.digits(held=5)
    judge = Evaluation(on="both", per_site=True)
    program = small.training(data, 2, evaluation=judge, site_splits=BOTH, participation=HALF)
    asked = []
    for state, _ in small.states(program, data):
        before = {n: a.copy() for n, a in state.arrays.items()}
        ask, again = program.ask(state), program.ask(state)
        if ask is None:
            break
        asked.append((ask.question.task, ask.kind))
        assert (ask.kind, list(ask.sites)) == (again.kind, list(again.sites))
        assert encode_question(ask.question) == encode_question(again.question)
        assert all((state.arrays[n] == a).all() for n, a in before.items())
    judged = [("evaluate", "sum"), ("evaluate", "sum"), ("evaluate", "gather")]
    assert asked == [("train", "sum"), *judged] * 2
    assert program.ask(state) is None


def test_the_start_is_the_same_after_a_run():
    data = small.digits()
    program = small.training(data, 2)
    before = program.start()
    small.run(program, data)
    assert small.largest_difference(program.start().arrays, before.arrays) == 0


@pytest.mark.parametrize("local", [FEDCMB, SCAFFOLD], ids=["fedcmb", "scaffold"])
@pytest.mark.parametrize("mode", MODES)
def test_a_resume_from_any_state_ends_the_same(local, mode):
    data = small.digits((20, 9, 14, 7), held=4)
    judge = Evaluation(on="sites", best=True, metric="loss", per_site=True)
    program = small.training(
        data,
        3,
        local=local,
        server=Server(momentum=0.5),
        participation=HALF,
        evaluation=judge,
        site_splits=BOTH,
    )
    states = small.states(program, data, mode)
    small.assert_resumes(program, data, mode, states)


def test_a_question_asked_again_finds_the_state_it_started_from():
    """A missed quorum stops `drive`; the same step asked again must not meet newer site state."""
    data = small.digits((20, 9))
    program = small.training(data, 3, local=FEDCMB)
    with small.engine(program, data) as reach:
        state = drive(replace(program, rounds=1), reach)
        ask = program.ask(state)
        first = reach.sum(ask.question, ask.sites)
        again = reach.sum(ask.question, ask.sites)
    assert all((again.arrays[n] == a).all() for n, a in first.arrays.items())


def test_separate_processes_give_the_same_bits():
    """FedCMB keeps its place in the data at the sites, SCAFFOLD its variates."""
    sizes, choice = [14, 9], Participation(kind="fraction", fraction=0.5)
    data = small.digits(tuple(sizes))
    with SeparateProcesses("small:host", {"sizes": sizes}, 2, seed=5, quorum=1.0) as reach:
        for local in (FEDCMB, SCAFFOLD):
            program = small.training(data, 4, local=local, participation=choice)
            reach.confirm(-1)
            far = drive(program, reach)
            near = small.run(program, data)
            assert all((far.arrays[n] == a).all() for n, a in near.arrays.items())


# Judging


def test_public_and_site_data():
    data = small.digits(held=6)
    public = small.training(data, 2, evaluation=Evaluation())
    assert "test" in small.run(public, data).values["last"]
    at_sites = replace(public, evaluation=Evaluation(on="sites"), site_splits=BOTH)
    last = small.run(at_sites, data).values["last"]
    assert "test" not in last
    assert last["sites_test"]["samples"] == last["sites_validation"]["samples"] == 24
    both = replace(public, evaluation=Evaluation(on="both"), site_splits=frozenset({"test"}))
    last = small.run(both, data).values["last"]
    assert {"test", "sites_test"} <= last.keys()
    assert "sites_validation" not in last


def test_the_twin_is_judged_on_the_same_data():
    data = small.digits((12, 12, 0), held=6)
    local = Local(work="gradient", send="gradients", lr=0.3)
    judge = Evaluation(on="sites")
    program = small.training(data, 2, local=local, evaluation=judge, site_splits=BOTH)
    *_, (record, _) = centralised(program, data)
    last = small.run(program, data).values["last"]
    assert "test" not in record
    assert record["sites_test"].pop("confusion") == last["sites_test"].pop("confusion")
    for name, value in last["sites_test"].items():
        assert record["sites_test"][name] == pytest.approx(value, rel=1e-9)


def test_every_few_rounds_and_the_last():
    data = small.digits()
    program = small.training(data, 5, evaluation=Evaluation(every=2))
    records = [s.values["last"] for s, _ in small.states(program, data)[1:]]
    assert [r["round"] for r in records if "test" in r] == [2, 4, 5]


def test_each_sites_numbers_are_gathered_on_request_only():
    data = small.digits(held=6)
    for asked in (False, True):
        entries = []
        judge = Evaluation(on="sites", per_site=asked)
        program = small.training(data, 1, evaluation=judge, site_splits=BOTH)
        last = small.run(program, data, ledger=Ledger(entries.append)).values["last"]
        assert ("per_site" in last) == asked
        assert ("gather" in {e["kind"] for e in entries}) == asked
    assert last["per_site"].keys() == {"0", "1", "2", "3"}
    assert all(m["samples"] == 6 and "confusion" not in m for m in last["per_site"].values())


def test_the_last_record_carries_the_confusion_matrix():
    data = small.digits(held=6)
    judge = Evaluation(on="both")
    program = small.training(data, 2, evaluation=judge, site_splits=BOTH)
    records = [s.values["last"] for s, _ in small.states(program, data) if s.values.get("last")]
    assert not any("confusion" in r["test"] for r in records if r["round"] < 2)
    for where, n in (("test", len(data.public["test"])), ("sites_test", 24)):
        table = np.array(records[-1][where]["confusion"])
        assert table.shape == (10, 10)
        assert table.sum() == n
        accuracy = np.trace(table) / n
        assert records[-1][where]["accuracy"] == pytest.approx(accuracy)
    json.dumps(records[-1], allow_nan=False)


@pytest.mark.parametrize("where", ["public", "sites"])
def test_early_stopping_and_the_best_model(where):
    data = small.digits()
    wrong = relabelled(data.site(0).train)
    public, splits = dict(data.public), frozenset()
    if where == "public":
        public["validation"] = wrong
    else:
        sites = [SiteData(data.site(i).train, wrong.subset(slice(i, None, 4))) for i in range(4)]
        data, splits = small.federation(sites, public=public), frozenset({"validation"})
    judge = Evaluation(metric="loss", best=True, patience=3)
    local = Local(batch_size=5, lr=0.2, epochs=3)
    program = small.training(
        data, 20, local=local, evaluation=judge, public=public, site_splits=splits
    )
    state = small.run(program, data)
    best = state.values["best"]["round"]
    assert state.values["round"] == best + 3 < 20
    assert "loss on validation data did not improve for 3" in state.values["stopped"]
    assert program.ask(state) is None
    assert "confusion" in state.values["last"]["test"]
    shorter = replace(program, rounds=best, evaluation=Evaluation(every=best))
    expected = small.model_after(shorter, data)
    assert small.largest_difference(program.model(state), expected) == 0


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        (Evaluation(best=True), "need validation data"),
        (Evaluation(patience=2), "need validation data"),
        (Evaluation(on="sites"), "needs held-out data at the sites"),
        (Evaluation(per_site=True), "needs held-out data at the sites"),
    ],
)
def test_judging_without_data_is_refused(judge, message):
    with pytest.raises(PlanError, match=message):
        small.training(small.digits(), evaluation=judge)


def test_a_metric_that_is_not_measured_is_refused():
    data = small.digits()
    public = {"validation": data.site(0).train}
    judge = Evaluation(best=True, metric="f1")
    with pytest.raises(PlanError, match=r"metric = 'f1' is not measured here; measured: accuracy"):
        small.training(data, 1, evaluation=judge, public=public)


# What can go wrong at sites


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "choice", [Participation(dropouts=1.0), Participation(kind="poisson", fraction=1e-9)]
)
def test_a_round_without_sites_changes_nothing_and_goes_on(choice, mode):
    data = small.digits()
    program = small.training(data, 3, participation=choice, server=Server(momentum=0.9))
    state = small.run(program, data, mode)
    assert state.values["round"] == 3
    assert state.values["last"]["sites"] == 0
    start = program.model(program.start())
    assert small.largest_difference(program.model(state), start) == 0


@pytest.mark.parametrize("local", [Local(batch_size=4), FEDCMB])
def test_partial_work_is_the_same_in_every_form(local):
    data = small.digits((20, 9, 14, 7, 12, 13))
    program = small.training(data, 3, local=local, participation=Participation(stragglers=0.5))
    plain = small.model_after(program, data)
    for mode in ("stacked", "explicit", "implicit"):
        assert small.largest_difference(small.model_after(program, data, mode), plain) <= 1e-11


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("local", [Local(batch_size=6), FEDCMB, SCAFFOLD])
def test_one_sample_and_no_samples(local, mode):
    data = small.digits((20, 1, 0, 7))
    program = small.training(data, 3, local=local)
    state = small.run(program, data, mode)
    assert state.values["last"]["sites"] == 3
    assert state.values["last"]["failed"] == {"no samples": 1}
    assert small.largest_difference(program.model(state), program.model(program.start())) > 0


def test_only_empty_sites_change_nothing():
    data = small.digits((0, 0))
    for mode in MODES:
        program = small.training(data, 2)
        state = small.run(program, data, mode)
        assert state.values["last"]["failed"] == {"no samples": 2}
        assert small.largest_difference(program.model(state), program.model(program.start())) == 0


def test_a_class_missing_at_a_site():
    train = small.source().train
    sites = [SiteData(train.subset(train.y == c).subset(slice(0, 20))) for c in (0, 1, 2, 3)]
    test = small.source().test
    data = small.federation(sites, public={"test": test.subset(test.y < 4)})
    program = small.training(data, 8, local=Local(batch_size=5), evaluation=Evaluation(auroc=50))
    last = small.run(program, data, "auto").values["last"]["test"]
    assert last["accuracy"] > 0.6  # of four classes that no site has seen together
    assert last["auroc"] > 0.9


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("local", [Local(batch_size=6), FEDCMB, SCAFFOLD])
def test_nan_at_a_site_is_left_out_and_named(local, mode):
    data = small.digits((12, 12, 12))
    sites = [data.site(i) for i in range(3)]
    x = sites[1].train.inputs().clone()
    x[:, 0, 3, 3] = float("nan")
    broken = small.federation([sites[0], SiteData(small.rows(x, sites[1].train.y)), sites[2]])
    entries = []
    program = small.training(broken, 3, local=local)
    state = small.run(program, broken, mode, ledger=Ledger(entries.append))
    assert state.values["last"]["sites"] == 2
    assert [list(e["failed"]) for e in entries] == [[1]] * 3
    assert all("NaN in the data" in e["failed"][1] for e in entries)
    empty = SiteData(small.rows(x[:0], sites[1].train.y[:0]))
    alone = small.federation([sites[0], empty, sites[2]])
    expected = small.run(small.training(alone, 3, local=local), alone)
    for name, array in expected.arrays.items():
        assert np.abs(array - state.arrays[name]).max() <= 1e-12


@pytest.mark.parametrize("mode", MODES)
def test_nan_at_every_site_stops(mode):
    x = torch.full((6, 1, 8, 8), float("nan"))
    sites = [SiteData(small.rows(x, torch.arange(6))) for _ in range(2)]
    data = small.federation(sites)
    with pytest.raises(FederationError, match=r"round 1: 0 of 2 sites.*site 0: .*NaN in the data"):
        small.run(small.training(data), data, mode)


@pytest.mark.parametrize("mode", MODES)
def test_divergence_is_said_in_words(mode):
    data = small.digits()
    what = small.problem(data, small.perceptron(nn.ReLU), dtype=torch.float32)
    program = small.training(data, 9, what, local=Local(lr=1e30, batch_size=4))
    with pytest.raises(FederationError, match=r"local\.lr is too high"):
        small.run(program, data, mode)
    huge = small.training(data, 1, what, server=Server(lr=1e45))
    with pytest.raises(FederationError, match=r"round 1: .*diverged.*server\.lr"):
        small.run(huge, data, mode)


# Rates


def test_schedules():
    step = Schedule(kind="step", gamma=0.5, every=2)
    assert [step.factor(r, 9) for r in range(1, 6)] == [1, 1, 0.5, 0.5, 0.25]
    cosine = Schedule(kind="cosine", floor=0.2)
    factors = [cosine.factor(r, 10) for r in range(1, 11)]
    assert factors[0] == 1
    assert factors[5] == pytest.approx(0.6)
    assert all(a > b for a, b in pairwise(factors))
    assert factors[-1] > 0.2
    warm = Schedule(warmup=3)
    assert [warm.factor(r, 10) for r in range(1, 6)] == [0.25, 0.5, 0.75, 1, 1]
    assert Schedule().factor(7, 10) == 1
    late = Schedule(kind="step", gamma=0.5, at=(40, 60))
    assert [late.factor(r, 70) for r in (1, 40, 41, 60, 61, 70)] == [1, 1, 0.5, 0.5, 0.25, 0.25]
    power = Schedule(kind="polynomial", power=0.9)
    assert power.factor(1, 500) == 1
    assert power.factor(251, 500) == pytest.approx(0.5**0.9)
    with pytest.raises(ValueError, match="belongs to kind = 'step'"):
        Schedule(kind="cosine", at=(3,))


def test_the_rate_of_a_round_reaches_the_sites():
    data = small.digits()
    local = Local(lr=0.4, schedule=Schedule(kind="step", gamma=0.5))
    program = small.training(data, 3, local=local)
    rates = [
        a.question.options["lr"] for s, _ in small.states(program, data) if (a := program.ask(s))
    ]
    assert rates == [0.4, 0.2, 0.1]


def test_server_rates():
    data = small.digits()
    half = Schedule(kind="step", gamma=0.5)

    def rates(local, **server):
        program = small.training(data, 2, local=local, server=Server(**server))
        return [program.server_lr(r) for r in (1, 2)]

    change, gradients = Local(lr=0.3, schedule=half), FEDCMB.model_copy(update={"schedule": half})
    assert rates(change) == [1, 1]  # the sites' schedule is in their changes already
    assert rates(change, lr=0.1, schedule=half) == [0.1, 0.05]
    assert rates(gradients) == [0.1, 0.05]  # the sites' own rate, schedule included
    assert rates(gradients, lr=2.0) == [2, 1]
    assert rates(gradients, schedule=Schedule()) == [0.1, 0.1]


# Models


def test_batch_norm_trains_and_its_buffers_are_averaged():
    data = small.digits((20, 12, 8))
    what = small.problem(data, small.perceptron(lambda: nn.BatchNorm1d(8), nn.ReLU))
    program = small.training(data, 5, what, evaluation=Evaluation())
    with small.engine(program, data) as reach:
        start = program.start()
        ask = program.ask(start)
        answers = reach.gather(ask.question, ask.sites)
        after = program.answer(start, reach.sum(ask.question, ask.sites))
        end = drive(program, reach, after)
    for name in ("buffer/2.running_mean", "buffer/2.running_var"):
        mean = sum(a.weight * a.arrays[name] for a in answers.values()) / 40
        assert np.abs(mean - after.arrays[name]).max() <= 1e-12
        assert np.abs(mean - start.arrays[name]).max() > 1e-3
    assert end.values["last"]["test"]["loss"] < after.values["last"]["test"]["loss"]
    assert "2.running_var" in program.model(end)


def test_a_site_finds_no_trace_of_the_site_before():
    """Batch norm with momentum None counts batches in a buffer that never leaves the worker."""
    data = small.digits((20, 12, 8))
    make = small.perceptron(lambda: nn.BatchNorm1d(8, momentum=None), nn.ReLU)
    program = small.training(data, 2, small.problem(data, make))
    ask = program.ask(program.start())
    with small.engine(program, data) as reach:
        after_others = reach.gather(ask.question, [0, 1, 2])[2]
    with small.engine(program, data) as reach:
        alone = reach.gather(ask.question, [2])[2]
    assert small.largest_difference(after_others.arrays, alone.arrays) == 0


def test_dropout_draws_by_seed_and_leaves_the_global_generator_alone():
    data = small.digits()
    what = small.problem(data, small.perceptron(nn.Dropout))
    models = []
    for seed, disturbance in ((5, 0), (5, 99), (6, 0)):
        torch.manual_seed(disturbance)
        program = small.training(data, 2, what, seed=seed, evaluation=Evaluation())
        states = []
        with small.engine(program, data, "auto") as reach:
            program.space.properties  # noqa: B018
            before = torch.random.get_rng_state()
            drive(program, reach, after=states.append)
            assert torch.equal(torch.random.get_rng_state(), before)
        models.append(program.model(states[-1]))
    assert small.largest_difference(models[0], models[1]) == 0
    assert small.largest_difference(models[0], models[2]) > 1e-4


def test_a_full_gradient_in_parts_is_the_whole(monkeypatch):
    from cupola.training import local as module

    data = small.digits((50,))
    full = Local(work="gradient", send="gradients", lr=0.1)

    def by_class_frequency(output, y):
        often = torch.bincount(y, minlength=10)[y].to(output)
        return nn.functional.cross_entropy(output, y, reduction="none") / often

    for loss in (small.CROSS_ENTROPY, by_class_frequency):
        program = small.training(data, 2, small.problem(data, loss=loss), local=full)
        monkeypatch.setattr(module, "MICRO_BATCH", 256)
        whole = small.model_after(program, data)
        monkeypatch.setattr(module, "MICRO_BATCH", 7)
        assert small.largest_difference(small.model_after(program, data), whole) <= 1e-12


@pytest.mark.parametrize("device", small.DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", MODES)
def test_devices_and_types(device, dtype, mode):
    if device == "mps" and dtype == torch.float64:
        pytest.skip("there is no float64 on this device")
    data = small.digits()
    what = small.problem(data, dtype=dtype, device=device)
    program = small.training(data, 3, what, local=Local(batch_size=5), evaluation=Evaluation())
    state = small.run(program, data, mode)
    model = program.model(state)
    kind = np.float32 if dtype == torch.float32 else np.float64
    assert {a.dtype for a in model.values()} == {np.dtype(kind)}
    reference = small.training(data, 3, local=Local(batch_size=5))
    exact = small.model_after(reference, data)
    assert small.largest_difference(model, exact) <= (1e-5 if dtype == torch.float32 else 1e-12)
    assert state.values["last"]["test"]["samples"] == len(data.public["test"])


def test_unknown_and_absent_devices():
    with pytest.raises(PlanError, match="not one of auto, cpu, cuda, mps"):
        pick_device("tpu")
    for name in {"cuda", "mps"} - set(small.DEVICES):
        with pytest.raises(PlanError, match="not present on this machine"):
            pick_device(name)
    assert pick_device("auto").type in small.DEVICES
