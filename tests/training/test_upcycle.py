"""Upcycled-FL: against the paper's algorithm, the one-step view, pairing, and what is charged."""

import math
from dataclasses import replace

import numpy as np
import pytest
import small
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import nn

from cupola.base.randomness import permutations, uniforms
from cupola.engines import SeparateProcesses
from cupola.errors import PlanError
from cupola.federation import Ledger, State, drive
from cupola.training import Evaluation, Local, Participation, Privacy, Schedule, Server, Upcycle
from cupola.training.batches import share_out
from cupola.training.choices import Sum
from cupola.training.participation import draw
from cupola.training.privacy_promise import guarantee
from cupola.training.recipes import find_recipe
from cupola.training.upcycle import factor, follow_loss, is_free
from cupola.training.utility import check

SEED, BATCH = 5, 6
SIZES = (20, 9, 14, 6)
HALF = Participation(kind="fraction", fraction=0.5, stragglers=0.5)
PROX = Local(batch_size=BATCH, lr=0.2, epochs=3, momentum=0.5, proximal=0.3)
UP = Server(upcycle=Upcycle(damping=0.12))
C = 0.3 / 0.42
SUB_RECIPES = ["fedprox", "fedadam", "fednova", "scaffold", "fedcmb+wga"]


def linear(data, **more):
    return small.problem(data, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), **more)


def models(program, data):
    """The model after each round."""
    found = {}
    for state, _ in small.states(program, data):
        found[state.values["round"]] = {
            n: a for n, a in state.arrays.items() if n.startswith("model/")
        }
    return found


# Algorithm 2 of the paper, slow and obvious


def algorithm_2(data, w, rounds, mu, lam, choice, lr=0.2, momentum=0.5, epochs=3):
    """Multinomial logistic regression; every site keeps its own models, as the paper writes it."""
    sizes = [len(data.site(i).train) for i in range(len(data))]
    history = []
    for m in range(1, -(-rounds // 2) + 1):
        active = draw(choice, len(data), SEED, m)
        p = np.array([sizes[i] for i in active]) / sum(sizes[i] for i in active)
        local = []
        for i in active:
            lot, part = uniforms(SEED, "stragglers", m, [i], 2)[0]
            many = 1 + int(part * (epochs - 1)) if lot < choice.stragglers else epochs
            train = data.site(i).train
            x = np.float64(train.x.float() / 255).reshape(sizes[i], -1)
            x = np.hstack([x, np.ones((sizes[i], 1))])
            y = np.eye(10)[train.y]
            own, velocity = w.copy(), np.zeros_like(w)
            for epoch in range(many):
                (order,) = permutations(SEED, f"shuffle {epoch}", m, [i], [sizes[i]])
                for start in range(0, sizes[i], BATCH):
                    rows = order[start : start + BATCH]
                    z = np.exp(x[rows] @ own.T)
                    error = z / z.sum(1, keepdims=True) - y[rows]
                    gradient = error.T @ x[rows] / len(rows) + mu * (own - w)
                    velocity = momentum * velocity + gradient
                    own -= lr * velocity
            local.append(own)
        odd = sum(share * own for share, own in zip(p, local))
        history.append(odd)
        if len(history) == rounds:
            break
        local = [own + mu / (mu + lam) * (odd - w) for own in local]  # equation 4, at the sites
        w = sum(share * own for share, own in zip(p, local))
        history.append(w)
    return history


@pytest.mark.parametrize("rounds", [5, 6])
@pytest.mark.parametrize("mode", ["one-by-one", "auto", "explicit"])
def test_the_paper_s_algorithm(rounds, mode):
    data = small.digits(SIZES)
    what = linear(data)
    program = small.training(
        data, rounds, what, seed=SEED, local=PROX, server=UP, participation=HALF
    )
    first = program.start().arrays
    start = np.hstack([first["model/1.weight"], first["model/1.bias"][:, None]])
    expected = algorithm_2(data, start, rounds, mu=0.3, lam=0.12, choice=HALF)
    seen = 0
    for state, _ in small.states(program, data, mode)[1:]:
        a = state.arrays
        ours = np.hstack([a["model/1.weight"], a["model/1.bias"][:, None]])
        np.testing.assert_allclose(ours, expected[state.values["round"] - 1], rtol=0, atol=1e-10)
        seen += 1
    assert seen == rounds


# The one-step view


@pytest.mark.parametrize("choice", [Upcycle(damping=0.12), Upcycle(factor=0.4)])
def test_even_rounds_are_over_relaxed_training(choice):
    """With SGD at the coordinator, upcycling is server.lr = 1 + c, and nothing else."""
    data = small.digits(SIZES)
    two = small.training(data, 8, local=PROX, server=Server(upcycle=choice), participation=HALF)
    rate = 1 + factor(choice, PROX.proximal, 1)
    one = small.training(data, 4, local=PROX, server=Server(lr=rate), participation=HALF)
    upcycled, relaxed = models(two, data), models(one, data)
    for k in range(1, 5):
        assert small.largest_difference(upcycled[2 * k], relaxed[k]) < 1e-12
    assert small.largest_difference(upcycled[7], relaxed[4]) > 1e-3


def test_the_first_round_is_that_of_fedprox():
    data = small.digits(SIZES)
    program = small.training(data, 1, local=PROX, server=UP, participation=HALF)
    plain = replace(program, server=Server())
    assert small.largest_difference(models(program, data)[1], models(plain, data)[1]) == 0


# The same sites, stragglers, batches and noise as without upcycling


@given(
    seed=st.integers(0, 2**32),
    round=st.integers(1, 60),
    fraction=st.floats(0.1, 1),
    stragglers=st.floats(0, 1),
    keep=st.booleans(),
    kind=st.sampled_from(["step", "cosine"]),
)
def test_training_round_k_draws_what_round_k_of_fedprox_draws(
    seed, round, fraction, stragglers, keep, kind
):
    data = small.digits(SIZES)
    choice = Participation(
        kind="fraction", fraction=fraction, stragglers=stragglers, keep_stragglers=keep
    )
    local = PROX.model_copy(update={"schedule": Schedule(kind=kind)})
    plain = small.training(data, 60, seed=seed, local=local, participation=choice)
    upcycled = replace(plain, rounds=120, server=UP)

    def asked(program, done):
        start = program.start()
        ask = program.ask(State(0, start.arrays, {**start.values, "round": done}))
        with small.engine(program, data) as reach:
            work = share_out([reach.context(i) for i in ask.sites], ask.question, local)
        return ask, work

    (one, mine), (other, theirs) = asked(plain, round - 1), asked(upcycled, 2 * round - 2)
    assert list(one.sites) == list(other.sites)
    assert one.question.round == other.question.round == round
    assert one.question.options == other.question.options
    for a, b in zip(mine, theirs, strict=True):
        assert a.declined == b.declined
        assert np.array_equal(a.order, b.order)
        assert np.array_equal(a.sizes, b.sizes)


def test_a_sites_iterator_and_variates_do_not_notice():
    """What sites keep between rounds goes on as if there were no free ones in between."""
    data = small.digits(SIZES)
    local = Local(**{**find_recipe("fedcmb").local, "batches": 3}, batch_size=6, lr=0.1)
    plain = small.training(data, 3, local=local)
    upcycled = replace(plain, rounds=6, server=Server(upcycle=Upcycle(factor=0.5)))
    ends = [small.states(program, data)[-1][1] for program in (plain, upcycled)]
    assert ends[0].keys() == ends[1].keys()
    assert all(np.array_equal(ends[1][n], a) for n, a in ends[0].items())


# The factor


positive = st.floats(1e-6, 1e6)


@given(mu=positive, damping=st.floats(0, 1e6), number=st.integers(1, 10**6))
def test_the_factor_is_a_share(mu, damping, number):
    fixed = factor(Upcycle(damping=damping), mu, number)
    assert 0 < fixed <= 1
    assert fixed == factor(Upcycle(damping=damping, mu=mu), 77.0, number)
    growing = factor(Upcycle(damping=damping, growing=True), mu, number)
    assert growing == pytest.approx(fixed / math.sqrt(number))


@given(st.lists(st.floats(0, 1e3) | st.just(math.inf), max_size=40), st.floats(0.01, 1))
def test_the_adaptive_factor_stays_a_share(losses, first):
    values = {}
    for loss in losses:
        before = values.get("factor", first)
        values |= follow_loss(Upcycle(factor=first, adaptive=True), 0.0, loss, values)
        assert 0 < values["factor"] <= 1
        assert abs(values["factor"] - before) <= 0.2 * before + 1e-12
        assert all(math.isfinite(v) for v in values.values())


def test_corollary_4_8():
    """Growing: the factors' mean over M rounds is below 2/sqrt(M), that of their squares less."""
    choice = Upcycle(factor=1.0, growing=True)
    for many in (1, 10, 100, 1000):
        c = np.array([factor(choice, 0.0, m) for m in range(1, many + 1)])
        assert c.mean() <= 2 / math.sqrt(many)
        assert (c**2).mean() <= (1 + math.log(many)) / many
        lam = (1 - c) / c  # at mu = 1
        assert (np.diff(lam) > 0).all()


def test_published_settings():
    for mu, lam in ((0.1, 0.04), (0.3, 0.12), (0.5, 0.21), (1.0, 0.43)):
        assert 0.69 < factor(Upcycle(damping=lam), mu, 1) < 0.72
    assert factor(Upcycle(**find_recipe("upcycled-fedavg").server["upcycle"]), 0.0, 1) == 0.7


def test_the_adaptive_factor_reacts_one_training_round_later():
    data = small.digits(SIZES)
    choice = Upcycle(factor=0.5, adaptive=True)
    program = small.training(data, 8, local=PROX, server=Server(upcycle=choice))
    records = [s.values["last"] for s, _ in small.states(program, data)[1:]]
    told = [r["received_loss"] for r in records[::2]]
    used = [r["upcycled"] for r in records[1::2]]
    assert used[0] == 0.5  # nothing to hold the first loss against
    expected, past = 0.5, told[0]
    for loss, c in zip(told[1:], used[1:]):
        expected = expected * 0.8 if loss > past else min(1.0, expected * 1.1)
        past = (past + loss) / 2
        assert c == pytest.approx(expected)
    received = models(program, data)[6]
    mean = [
        program.judge(received, data.site(i).train)["loss"] * size for i, size in enumerate(SIZES)
    ]
    assert told[3] == pytest.approx(sum(mean) / sum(SIZES), rel=1e-12)


@pytest.mark.parametrize("mode", ["auto", "explicit", "stacked"])
def test_losses_are_the_same_in_every_form(mode):
    data = small.digits((30, 9, 14, 6, 3))
    server = Server(upcycle=Upcycle(factor=0.5, adaptive=True))
    program = small.training(data, 4, linear(data), local=PROX, server=server, participation=HALF)
    one, other = (small.run(program, data, m) for m in ("one-by-one", mode))
    assert other.values["loss"] == pytest.approx(one.values["loss"], rel=1e-9)
    assert other.values["factor"] == one.values["factor"]


def test_adaptive_with_masked_sums():
    data = small.digits((20, 9, 14, 12))
    server = Server(upcycle=Upcycle(factor=0.5, adaptive=True))
    program = small.training(data, 6, local=PROX, server=server)
    plain = small.run(program, data)
    masked = small.run_masked(replace(program, sum=Sum(kind="masked")), data)
    assert masked.values["loss"] == pytest.approx(plain.values["loss"], abs=1e-6)
    names = [n for n in plain.arrays if n.startswith("model/")]
    assert max(np.abs(plain.arrays[n] - masked.arrays[n]).max() for n in names) < 1e-6


# What a free round does, and does not


@pytest.mark.parametrize("name", SUB_RECIPES)
def test_a_free_round_moves_parameters_only(name):
    data = small.digits(SIZES)
    recipe = find_recipe(name)
    local = Local(**recipe.local, batch_size=BATCH, lr=0.1)
    server = Server(**recipe.server, upcycle=Upcycle(factor=0.7))
    program = small.training(data, 6, local=local, server=server)
    found = [s for s, _ in small.states(program, data)]
    for before, odd, even in zip(found[0::2], found[1::2], found[2::2]):
        assert is_free(server.upcycle, even.values["round"])
        for array, value in even.arrays.items():
            if array.startswith("model/"):
                w, old = odd.arrays[array], before.arrays[array]
                np.testing.assert_allclose(value, w + 0.7 * (w - old), rtol=0, atol=1e-12)
            else:
                assert np.array_equal(value, odd.arrays[array]), array
        assert not any(n.startswith("before/") for n in even.arrays)


def test_buffers_stay_as_the_sites_left_them():
    data = small.digits(SIZES)
    what = small.problem(data, small.perceptron(lambda: nn.BatchNorm1d(8)))
    local = Local(batch_size=BATCH, lr=0.1)
    server = Server(upcycle=Upcycle(factor=1.0))
    found = [
        s for s, _ in small.states(small.training(data, 4, what, local=local, server=server), data)
    ]
    names = [n for n in found[0].arrays if n.startswith("buffer/")]
    assert names
    for odd, even in zip(found[1::2], found[2::2]):
        assert all(np.array_equal(odd.arrays[n], even.arrays[n]) for n in names)


def test_free_rounds_ask_nobody_and_are_judged_like_others():
    data = small.digits(SIZES)
    entries = []
    program = small.training(data, 7, local=PROX, server=UP, evaluation=Evaluation())
    with small.engine(program, data, ledger=Ledger(entries.append)) as reach:
        records = []
        drive(program, reach, after=lambda s: records.append(s.values["last"]))
    assert [r["round"] for r in records] == [1, 2, 3, 4, 5, 6, 7]
    assert all("accuracy" in r["test"] for r in records)
    assert [r["sites"] for r in records] == [4, 0, 4, 0, 4, 0, 4]
    assert [r.get("upcycled") for r in records] == [None, *[pytest.approx(C), None] * 3]
    assert [(e["task"], e["round"]) for e in entries] == [("train", k) for k in (1, 2, 3, 4)]


def test_sites_judge_free_rounds_if_they_are_asked_to():
    data = small.digits(SIZES, held=4)
    entries = []
    judge = Evaluation(on="sites", every=2)
    splits = frozenset({"test"})
    program = small.training(data, 4, local=PROX, server=UP, evaluation=judge, site_splits=splits)
    last = small.run(program, data, ledger=Ledger(entries.append)).values["last"]
    assert [e["task"] for e in entries] == ["train", "evaluate"] * 2
    assert last["sites_test"]["samples"] == 16


@pytest.mark.parametrize("mode", ["one-by-one", "auto"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_resume_from_any_state_ends_the_same(mode, adaptive):
    data = small.digits(SIZES, held=4)
    server = Server(optimizer="adam", lr=0.05, upcycle=Upcycle(factor=0.7, adaptive=adaptive))
    judge = Evaluation(on="sites", best=True, metric="loss")
    program = small.training(
        data, 5, local=PROX, server=server, participation=HALF, evaluation=judge,
        site_splits=frozenset({"test", "validation"}),
    )  # fmt: skip
    found = small.states(program, data, mode)
    small.assert_resumes(program, data, mode, found)


@pytest.mark.slow
def test_separate_processes_give_the_same_bits():
    sizes = [14, 9]
    data = small.digits(tuple(sizes))
    local = Local(**find_recipe("scaffold").local, batch_size=6, lr=0.1)
    server = Server(upcycle=Upcycle(factor=0.6, adaptive=True))
    program = small.training(data, 5, local=local, server=server)
    with SeparateProcesses("small:host", {"sizes": sizes}, 2, seed=5, quorum=1.0) as reach:
        far = drive(program, reach)
    near = small.run(program, data)
    assert far.values == near.values
    assert all((far.arrays[n] == a).all() for n, a in near.arrays.items())


def test_at_most_once_counts_training_rounds():
    data = small.digits(SIZES)
    once = Participation(kind="at-most-once", count=2)
    small.run(small.training(data, 4, local=PROX, server=UP, participation=once), data)
    with pytest.raises(PlanError, match="3 rounds of 2 sites need 6"):
        small.training(data, 5, local=PROX, server=UP, participation=once)


# Privacy: training rounds are charged, and nothing else


MECHANISMS = {
    "dp-sgd": ({"noise_multiplier": 1.5}, {}),
    "central": ({"noise_multiplier": 1.5}, {"weighting": "uniform"}),
    "distributed": ({"noise_multiplier": 1.5, "clip": 0.5}, {"weighting": "uniform"}),
    "output": ({"noise_multiplier": 2.0, "neighbours": "replace-one"}, {"momentum": 0.0}),
    "objective": ({"answer_epsilon": 0.5, "neighbours": "replace-one"}, {"momentum": 0.0}),
}


def private(data, mechanism, rounds, server=UP, what=None, **more):
    privacy, local = MECHANISMS[mechanism]
    privacy = Privacy(mechanism=mechanism, **{**privacy, **more})
    if privacy.epsilon is None:
        sums = Sum(kind="masked") if mechanism == "distributed" else Sum()
        chosen = PROX.model_copy(update=local)
        return small.training(
            data, rounds, what or linear(data), local=chosen, server=server, privacy=privacy,
            sum=sums,
        )  # fmt: skip
    raise AssertionError


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_only_training_rounds_are_charged(mechanism):
    """2M rounds promise what M rounds without upcycling promise; 2M - 1 do, too."""
    data = small.digits(SIZES)
    sizes = data.sizes()
    plain = guarantee(private(data, mechanism, 4, Server()), sizes)
    for rounds in (7, 8):
        promise = guarantee(private(data, mechanism, rounds), sizes)
        assert promise.epsilon == plain.epsilon
        assert [g.events for g in promise.groups] == [g.events for g in plain.groups]
    assert guarantee(private(data, mechanism, 9), sizes).epsilon > plain.epsilon


@pytest.mark.parametrize("mechanism", ["dp-sgd", "central", "output"])
def test_private_models_follow_from_released_ones(mechanism):
    """A free round reads nothing but models that were released: it can be recomputed from them."""
    data = small.digits(SIZES)
    found = models(private(data, mechanism, 6), data)
    for even in (2, 4, 6):
        for name, value in found[even].items():
            last, before = found[even - 1][name], found[even - 2][name]
            assert np.array_equal(value, last + factor(UP.upcycle, 0.3, 1) * (last - before))


def test_the_noise_of_training_round_k_is_that_of_round_k():
    data = small.digits(SIZES)
    still = {"noise_multiplier": 1.5, "clip": 1e-9}  # updates vanish: what moves is noise
    up = models(private(data, "central", 4, **still), data)
    plain = models(private(data, "central", 2, Server(), **still), data)
    for name in plain[1]:
        drawn = plain[2][name] - plain[1][name]
        np.testing.assert_allclose(up[3][name] - up[2][name], drawn, rtol=0, atol=1e-12)


# Refusals


def test_refusals():
    data = small.digits(SIZES)
    with pytest.raises(PlanError, match=r"no mu: set local\.proximal or server\.upcycle\.mu"):
        small.training(data, 2, local=Local(), server=UP)
    small.training(data, 2, local=Local(), server=Server(upcycle=Upcycle(damping=0.1, mu=0.2)))
    ftrl = Privacy(mechanism="dp-ftrl", noise_multiplier=1.0)
    uniform = PROX.model_copy(update={"weighting": "uniform"})
    with pytest.raises(PlanError, match=r"dp-ftrl.*use 'central'"):
        small.training(data, 2, local=uniform, server=UP, privacy=ftrl)
    adaptive = Server(upcycle=Upcycle(factor=0.5, adaptive=True))
    for mechanism in MECHANISMS:
        with pytest.raises(PlanError, match="neither noises nor charges"):
            private(data, mechanism, 2, server=adaptive)
    with pytest.raises(PlanError, match="needs task = 'train'"):
        small.training(data, 2, server=adaptive, task="own")


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"factor": 0.5, "damping": 0.1},
        {"factor": 0.0},
        {"factor": 1.5},
        {"damping": -0.1},
        {"factor": 0.5, "mu": 0.1},
        {"factor": 0.5, "growing": True, "adaptive": True},
    ],
)
def test_factors_that_make_no_sense(wrong):
    with pytest.raises(ValidationError):
        Upcycle(**wrong)


def test_a_site_does_not_tell_its_loss_beside_a_private_answer():
    data = small.digits(SIZES)
    program = private(data, "dp-sgd", 2)
    ask = program.ask(program.start())
    nosy = replace(ask.question, options={**ask.question.options, "report_loss": True})
    with small.engine(program, data) as reach:
        total = reach.sum(nosy, ask.sites)
    assert not total.sites
    assert set(total.failed.values()) == {
        "a loss without noise is not told beside a private answer"
    }


def test_upcycling_breaks_the_equality_with_centralised_training():
    data = small.digits()
    local = Local(work="gradient", send="gradients", lr=0.3)
    program = small.training(data, 4, local=local)
    assert check(program, data).preserved
    verdict = check(replace(program, server=Server(upcycle=Upcycle(factor=0.5))), data)
    assert not verdict.preserved
    assert [c.name for c in verdict.failing] == ["every round trains"]
    assert verdict.difference > 1e-6


def test_float32_extrapolates_in_float64():
    data = small.digits(SIZES)
    program = small.training(
        data, 2, small.problem(data, dtype=torch.float32), local=PROX, server=UP
    )
    found = models(program, data)
    for name, value in found[2].items():
        old, last = (found[i][name].astype(np.float64) for i in (0, 1))
        assert value.dtype == np.float32
        assert np.array_equal(
            value, (last + factor(UP.upcycle, 0.3, 1) * (last - old)).astype("f4")
        )
