"""Noise in shares under masks: what is trained, what is refused, what it costs."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import small
import torch

from cupola.errors import FederationError, PlanError
from cupola.federation import Declined, Ledger, SiteContext, StateStore, drive
from cupola.privacy.accounting import epsilon
from cupola.privacy.budget import Book, Limit
from cupola.privacy.discrete import discrete_gaussian
from cupola.privacy.distributed import event
from cupola.privacy.noise import source
from cupola.secure.durable_dict import Memory
from cupola.secure.wrapped_question import layout_of
from cupola.training import Local, Participation, Privacy, Server, TrainingHost
from cupola.training.choices import Sum
from cupola.training.local import charge, train
from cupola.training.mechanisms.coordinator import parameter_names
from cupola.training.privacy_promise import guarantee, resolve

NAMES = ["1.weight", "1.bias", "3.weight", "3.bias"]  # as the model has them
SIZES = (20, 7, 33, 12, 9)
LOCAL = Local(work="batches", batches=3, batch_size=4, lr=0.3, weighting="uniform")
PRIVACY = Privacy(mechanism="distributed", noise_multiplier=0.6, clip=0.5, colluders=1)


def training(privacy=PRIVACY, sizes=SIZES, **choices):
    data = small.digits(sizes)
    choices = {"local": LOCAL, "sum": Sum(kind="masked", minimum=4), "public": {}, **choices}
    return small.training(data, privacy=privacy, **choices), data


def run(program, data, *, quorum=0.5, **more):
    """The state at the end, and the federation's ledger."""
    lines = []
    state = small.run_masked(program, data, quorum=quorum, ledger=Ledger(lines.append), **more)
    return state, lines


def flat(arrays):
    return np.concatenate([arrays[f"model/{n}"].reshape(-1) for n in NAMES])


def context(program, data, *, minimum=4, site=0, sites=5, seed=5, masked=True):
    """A site as it is asked in the first round, and the question."""
    question = program.ask(program.start()).question
    party = SimpleNamespace(roster=SimpleNamespace(minimum=minimum), answers=lambda _: True)
    host = TrainingHost(program.problem, data)
    here = SiteContext(site, data.site(site), host.workspace(), StateStore(), seed, party=party)
    if masked:
        here.hidden = layout_of(question, sites)
    return here, question


# What is trained


@pytest.mark.parametrize("protocol", ["compensator", "pairwise"])
def test_the_model_is_what_the_words_say(protocol):
    """Every site's update, clipped, rounded towards zero, with its own integers added."""
    program, data = training(sum=Sum(kind="masked", minimum=4, protocol=protocol))
    clipped, _ = training(
        replace_mechanism(PRIVACY, "central"), sum=Sum(), server=Server(), rounds=1
    )
    shares = program.coordinator.shares
    model = flat(program.start().arrays)
    assert parameter_names(program.start().arrays) == NAMES
    shapes = {n: program.start().arrays[f"model/{n}"].shape for n in NAMES}
    for round in range(1, program.rounds + 1):
        total = np.zeros(shares.dimension, np.int64)
        for site in range(len(data)):
            update = plain_update(clipped, data, site, model, round, shapes)
            total += np.trunc(update / shares.grid).astype(np.int64)
            random = source(program.seed, "noise share", round, site)
            total += discrete_gaussian(shares.steps, shares.dimension, random)
        model = model - total * shares.grid / len(data)
    state, _ = run(program, data)
    assert np.abs(flat(state.arrays) - model).max() < 1e-6 + len(data) * shares.grid


def replace_mechanism(privacy, mechanism):
    return privacy.model_copy(update={"mechanism": mechanism, "colluders": 0})


def plain_update(program, data, site, model, round, shapes):
    """A site's clipped update at this model; stores of earlier rounds are made anew."""
    host = TrainingHost(program.problem, data)
    store = StateStore()
    here = SiteContext(site, data.site(site), host.workspace(), store, program.seed)
    question = program.ask(program.start()).question
    arrays, start = {}, 0
    for name in NAMES:
        size = math.prod(shapes[name])
        arrays[f"model/{name}"] = model[start : start + size].reshape(shapes[name])
        start += size
    answer = None
    for past in range(1, round + 1):  # batches come from an iterator that a site keeps
        answer = train(here, replace(question, arrays=arrays, round=past, step=past))
    return flat(answer.arrays)


@pytest.mark.parametrize("bits", [None, 32, 64])
def test_totals_are_exact_multiples_of_the_grid(bits):
    program, data = training(sum=Sum(kind="masked", minimum=3, bits=bits), rounds=1)
    seen = {}

    class Watching(type(program)):
        def answer(self, state, reply):
            seen.update(reply.arrays)
            return super().answer(state, reply)

    program.__class__ = Watching
    run(program, data)
    assert set(seen) == {n for n in program.start().arrays if n.startswith("model/")}
    expected = np.zeros(program.coordinator.shares.dimension)
    for site in range(5):
        here, question = context(program, data, minimum=3, site=site)
        expected += flat(train(here, question).arrays)
    total = flat(seen)
    assert np.array_equal(total, expected)
    steps = total / program.coordinator.shares.grid
    assert np.array_equal(steps, np.rint(steps))


def test_a_resumed_step_draws_the_same_shares():
    program, data = training(rounds=1)
    here, question = context(program, data)
    one, other = (train(here, question).arrays for _ in range(2))
    assert small.largest_difference(one, other) == 0
    later = train(here, replace(question, round=2)).arrays
    assert small.largest_difference(one, later) > 0


def test_a_real_site_draws_its_share_from_the_system():
    program, data = training(local=Local(work="gradient", lr=0.1, weighting="uniform"))
    here, question = context(program, data, seed=None)
    here.party.memory = Memory()
    one, other = (flat(train(here, replace(question, step=s)).arrays) for s in (1, 2))
    spread = (one - other).std() / math.sqrt(2)
    assert spread == pytest.approx(program.coordinator.shares.deviation, rel=0.15)


def test_too_few_survivors_tell_nothing_and_more_bring_more_noise():
    program, data = training(participation=Participation(dropouts=0.95), rounds=2)
    state, ledger = run(program, data, quorum=0.0)
    assert np.array_equal(flat(state.arrays), flat(program.start().arrays))
    assert len(ledger) == 2
    assert "in shares: 3 of at least 4 are counted on" in ledger[0]["protection"]
    assert not any(line["sites"] for line in ledger)
    honest = program.coordinator.shares.honest
    assert program.coordinator.shares.deviation * math.sqrt(honest) == pytest.approx(0.3, rel=1e-4)
    assert program.coordinator.shares.deviation * math.sqrt(5) > 0.3


def test_updates_that_are_not_finite_are_answered_with_noise_alone():
    program, data = training(local=Local(work="gradient", lr=0.1, weighting="uniform"))
    held = data.site(0).train
    bad = small.rows(torch.full_like(held.inputs(), math.nan), held.y)
    here, question = context(program, data)
    here.data = replace(here.data, train=bad)
    answer = flat(train(here, question).arrays)
    random = source(5, "noise share", 1, 0)
    noise = discrete_gaussian(
        program.coordinator.shares.steps, program.coordinator.shares.dimension, random
    )
    assert np.array_equal(answer, noise * program.coordinator.shares.grid)


def test_answers_hold_the_parameters_and_nothing_else():
    program, data = training()
    here, question = context(program, data)
    answer = train(here, question)
    assert set(answer.arrays) == set(question.expects)
    assert answer.weight == 1.0
    assert all(array.dtype == np.float64 for array in answer.arrays.values())
    assert all(spec.bound == program.coordinator.shares.bound for spec in question.expects.values())


# What is refused


def test_it_needs_masked_sums_uniform_weights_and_enough_honest_sites():
    with pytest.raises(PlanError, match="sum = 'masked'"):
        training(sum=Sum())
    with pytest.raises(PlanError, match="uniform"):
        training(local=Local())
    with pytest.raises(PlanError, match=r"privacy\.colluders = 4"):
        training(PRIVACY.model_copy(update={"colluders": 4}))
    with pytest.raises(PlanError, match="protects the update alone"):
        training(local=LOCAL.model_copy(update={"send": "normalised"}))
    with pytest.raises(ValueError, match="colluders belongs to mechanism 'distributed'"):
        Privacy(mechanism="central", noise_multiplier=1.0, colluders=1)
    with pytest.raises(ValueError, match="pld"):
        Privacy(mechanism="distributed", noise_multiplier=1.0, accountant="pld")
    with pytest.raises(PlanError, match=r"sum\.minimum = 4"):
        training(sizes=(5, 5, 5))


@pytest.mark.parametrize("mode", ["auto", "one-by-one"])
def test_a_plain_sum_gets_no_answer(mode):
    program, data = training(rounds=1)
    lines = []
    with small.engine(program, data, mode=mode, ledger=Ledger(lines.append)) as federation:
        state = drive(program, federation)
    assert np.array_equal(flat(state.arrays), flat(program.start().arrays))
    (line,) = lines
    assert not line["sites"]
    assert len(line["failed"]) == 5
    assert all("outside a masked sum" in code for code in line["failed"].values())


def declined(here, question, words):
    with pytest.raises(Declined, match=words):
        train(here, question)


def test_a_site_answers_only_inside_a_masked_sum():
    program, data = training()
    here, question = context(program, data, masked=False)
    declined(here, question, "outside a masked sum")
    here.party = None
    declined(here, question, "outside a masked sum")
    with pytest.raises(Declined, match="outside a masked sum"):
        charge(here, question)


def test_a_site_trusts_its_own_roster_not_the_coordinator():
    program, data = training()
    here, question = context(program, data, minimum=3)
    declined(here, question, "fewer sites than its noise counts on")
    with pytest.raises(Declined, match="fewer sites"):
        charge(here, question)
    here, question = context(program, data, minimum=5)  # more than the noise counts on
    train(here, question)


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"sites": 5, "minimum": 4},
        {"sites": 5, "minimum": 4, "bits": 2**30},
        {"sites": 5, "minimum": "4", "bits": 32},
        {"sites": 5, "minimum": True, "bits": 32},
        {"sites": -5, "minimum": 4, "bits": 32},
        {"sites": 2**40, "minimum": 4, "bits": 32},
        {"sites": 2**30, "minimum": 4, "bits": 32},
        {"sites": 3, "minimum": 4, "bits": 32},
        None,
        [5, 4, 32],
    ],
)
def test_impossible_facts_are_declined(facts):
    program, data = training()
    here, question = context(program, data)
    asked = replace(question, options={**question.options, "shares": facts})
    declined(here, asked, "not possible")


def test_a_coarse_encoding_would_round_the_noise_away_and_is_declined():
    program, data = training()
    here, question = context(program, data, sites=2**12)
    declined(here, question, "too coarse")
    expects = {n: replace(s, bound=s.bound / 2) for n, s in question.expects.items()}
    here.hidden = layout_of(replace(question, expects=expects), 5)
    declined(here, question, "too coarse")  # answers beyond the bound would tell of it
    here.hidden = here.hidden[:2]
    declined(here, question, "outside a masked sum")


def test_weights_and_other_arrays_are_declined():
    program, data = training()
    here, question = context(program, data)
    for change in ({"weighting": "samples"}, {"send": "normalised"}, {"control_variates": True}):
        local = {**question.options["local"], **change}
        asked = replace(question, options={**question.options, "local": local})
        with pytest.raises(Declined, match="one unweighted update"):
            charge(here, asked)
    asked = replace(question, options={**question.options, "local": {"weighting": "samples"}})
    declined(here, asked, "one unweighted update")


# What it costs


def test_what_a_site_is_charged_for():
    program, data = training()
    here, question = context(program, data)
    found = charge(here, question)
    assert found.events == (event(0.6),)
    assert found.unit == "site"
    assert found.trusts == "2 other sites"
    for colluders, words in ((2, "1 other site"), (3, "nobody")):
        other, _ = training(PRIVACY.model_copy(update={"colluders": colluders}))
        assert charge(*context(other, data)).trusts == words
    assert not here.store.export(10)  # nothing was computed


def test_books_hold_every_round_and_budgets_say_no(tmp_path):
    def book_in(name, allowed):
        limit = Limit(epsilon([event(0.6).times(allowed)], 1e-5) * 1.0001, 1e-5)
        return lambda *_: Book(tmp_path / name, study="study", limit=limit)

    program, data = training(rounds=3)
    run(program, data, book=book_in("enough", 3))
    book = Book.read(tmp_path / "enough")
    assert book.histories() == {(event(0.6).times(3),): [0, 1, 2, 3, 4]}
    assert book.unprotected == {}
    with pytest.raises(FederationError, match="privacy budget"):
        run(program, data, book=book_in("short", 2))
    assert Book.read(tmp_path / "short").history(0) == (event(0.6).times(2),)


def test_the_promise_and_its_words():
    program, _ = training(rounds=7)
    promise = guarantee(program, np.array(SIZES))
    assert promise.unit == "site"
    assert "coordinator included" in promise.against
    assert "at least 2 others" in promise.against
    assert promise.groups[0].events == (event(0.6).times(7),)
    assert promise.epsilon == epsilon([event(0.6).times(7)], 1e-5)
    notes = " ".join(promise.warnings)
    assert "grid 2^-" in notes
    assert "1.3 times the noise" in notes
    alone = epsilon([event(0.6 / math.sqrt(3)).times(7)], 1e-5)
    assert f"share alone gives epsilon {alone:.3g}" in notes
    assert "knows its own share" not in notes
    alone, _ = training(PRIVACY.model_copy(update={"colluders": 0}))
    assert "knows its own share" in " ".join(guarantee(alone, np.array(SIZES)).warnings)


def test_sampling_sites_claims_no_amplification():
    choice = Participation(kind="poisson", fraction=0.5)
    program, _ = training(participation=choice, rounds=4)
    events = guarantee(program, np.array(SIZES)).groups[0].events
    assert events == (event(0.6).times(4),)
    once = Participation(kind="rotation", count=4)
    program, _ = training(participation=once, sizes=(9,) * 8, rounds=4)
    assert guarantee(program, np.full(8, 9)).groups[0].events == (event(0.6).times(2),)


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_noise_from_epsilon(neighbours):
    wanted = Privacy(mechanism="distributed", epsilon=4.0, neighbours=neighbours)
    found = resolve(
        wanted, LOCAL, Participation(), sites=5, rounds=3, seed=1, sizes=np.array(SIZES)
    )
    spent = epsilon([event(found.noise_multiplier).times(3)], 1e-5, neighbours=neighbours)
    assert 3.99 < spent <= 4.0
