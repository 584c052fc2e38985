"""What is sent of an update, end to end: totals, ranges, memory, privacy, refusals."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import small

from cupola.errors import PlanError
from cupola.federation import Declined, Ledger, SiteContext, StateStore
from cupola.federation.message import contribution_size
from cupola.privacy.persample.rules import ROUNDING
from cupola.secure.encoding import encode, entry
from cupola.secure.wrapped_question import layout_of
from cupola.training import Level, Local, Privacy, Server, Trainable, TrainingHost
from cupola.training.choices import Sum
from cupola.training.frozen import partly
from cupola.training.local import train
from cupola.training.mechanisms.coordinator import flat_total, joined
from cupola.training.methods.feddyn import FedDyn
from cupola.training.methods.geometric_median import GeometricMedian
from cupola.training.methods.trimmed_mean import TrimmedMean
from cupola.training.plan_check import deviation
from cupola.training.transforms import Quantise, Sparsify, TopK, Transform
from cupola.training.transforms.pipeline import RANGE, parts_of, unpacked_total

SIZES = (20, 7, 33, 12, 9)
LOCAL = Local(work="batches", batches=3, batch_size=4, lr=0.3)
UNIFORM = Local(work="batches", batches=3, batch_size=4, lr=0.3, weighting="uniform")
MASKED = Sum(kind="masked", minimum=3)
SHORT = Sum(kind="masked", minimum=3, bits=16)
CENTRAL = Privacy(mechanism="central", noise_multiplier=0.0, clip=0.1)
NOISED = Privacy(mechanism="central", noise_multiplier=1.0, clip=0.1)
FINE = (Quantise(bits=16),)
NAMES = ["1.weight", "1.bias", "3.weight", "3.bias"]


class Negated(Transform):
    """A user's own."""

    kind: str = "test_pipeline:Negated"

    def at_site(self, numbers, way):  # noqa: ARG002
        return -numbers

    def at_coordinator(self, total, size, way):  # noqa: ARG002
        return -total


def training(transforms, sizes=SIZES, **choices):
    data = small.digits(sizes)
    choices = {"local": LOCAL, "public": {}, **choices}
    return small.training(data, transforms=tuple(transforms), **choices), data


def model(state):
    return np.concatenate([state.arrays[f"model/{n}"].reshape(-1) for n in NAMES])


def ended(transforms, run=small.run, **choices):
    program, data = training(transforms, **choices)
    return model(run(program, data))


@pytest.mark.parametrize(
    "choices",
    [
        {},
        {"local": UNIFORM},
        {"local": Local(lr=0.3, send="normalised")},
        {"local": Local(work="gradient", lr=0.3, send="gradients")},
        {"local": UNIFORM.model_copy(update={"control_variates": True})},
        {"local": UNIFORM, "privacy": CENTRAL},
        {"server": Server(optimizer="adam", lr=0.05)},
    ],
    ids=lambda c: str(c)[:40],
)
@pytest.mark.parametrize("masked", [False, True])
def test_sixteen_bits_are_nearly_the_update_itself(choices, masked):
    """By every method: the transforms are undone before anything is made of the total."""
    run = small.run_masked if masked else small.run
    choices = {**choices, "rounds": 4, **({"sum": MASKED} if masked else {})}
    plain, coarse = ended((), run, **choices), ended(FINE, run, **choices)
    first = model(training((), **choices)[0].start())
    assert np.linalg.norm(coarse - plain) < 0.45 * np.linalg.norm(plain - first)
    assert (coarse != plain).any()


@pytest.mark.parametrize("masked", [False, True])
def test_own_transforms_that_undo_themselves_change_nothing(masked):
    run, choices = small.run, {}
    if masked:
        run, choices = small.run_masked, {"sum": MASKED}
    assert ended([Negated()], run, **choices) == pytest.approx(ended((), run, **choices), abs=1e-9)


def test_a_masked_total_of_a_random_part_is_that_of_plain_sums():
    step = [Sparsify(share=0.3)]
    found = ended(step, small.run_masked, sum=MASKED)
    assert found == pytest.approx(ended(step), abs=1e-9)


@pytest.mark.parametrize("protocol", ["compensator", "pairwise"])
def test_masked_quantised_totals_are_exactly_the_sums_of_what_sites_round(protocol):
    """Whole numbers under masks: nothing is lost, and no total wraps around."""
    program, data = training([Quantise(bits=8)], sum=Sum(kind="masked", protocol=protocol))
    one = model(small.run_masked(program, data))
    question = program.ask(program.start()).question
    layout = {e.name: e for e in layout_of(question, len(data))}
    assert (layout["packed/0"].kind, layout["packed/0"].fraction) == ("int", 0)
    again = model(small.run_masked(program, data))
    assert (one == again).all()


def test_bytes_of_an_answer_are_the_bits_of_its_numbers():
    for steps, bits in (
        ([Quantise(bits=8)], 8),
        ([Quantise(bits=4)], 4),
        ([Sparsify(share=0.5), Quantise(bits=8)], 4),
    ):
        program, data = training(steps, sizes=(20,) * 10)
        lines = []
        small.run(program, data, ledger=Ledger(lines.append))
        packed = 610 * bits / 8  # the model's numbers
        assert all(packed <= line["bytes_up"] < packed + 160 for line in lines)


@pytest.mark.parametrize(("lr", "first"), [(0.3, 1e-5), (1e-5, None)])
def test_the_range_follows_the_updates(lr, first):
    """From a first one that is much too small for the updates, or much too large."""
    local = LOCAL.model_copy(update={"lr": lr})
    program, data = training([Quantise(bits=8)], local=local, rounds=10)
    state, found = program.start(), []
    if first is not None:
        state.arrays[RANGE] = np.array([first])
    with small.engine(program, data) as reach:
        while (ask := program.ask(state)) is not None:
            found.append(float(ask.question.arrays[RANGE][0]))
            total = reach.sum(ask.question, ask.sites)
            beyond = int(total.arrays["beyond"][0])
            state = program.answer(state, total)
    if first is None:
        assert found[-1] < 0.3 * found[0]
    else:
        assert found[3] > 1000 * first
        assert beyond < 0.02 * 610 * len(data)


def test_runs_resume_with_memory_and_range():
    for steps in ([Sparsify(share=0.4), Quantise(bits=8)], [TopK(share=0.05)]):
        program, data = training(steps)
        found = small.states(program, data)
        assert any("unsent/0/0" in name for _, kept in found for name in kept)
        small.assert_resumes(program, data, "one-by-one", found)


def test_together_is_one_by_one_where_updates_are_packed():
    program, data = training([Quantise(bits=8)])
    assert (model(small.run(program, data, "auto")) == model(small.run(program, data))).all()


def test_what_sites_receive_is_coarse_and_the_coordinators_model_is_not():
    program, _ = training([Quantise(bits=16, download=8)])
    state = program.start()
    question = program.ask(state).question
    assert not any(name.startswith("model/") for name in question.arrays)
    assert question.arrays["packed/model"].nbytes < 640
    exact, coarse = ended(FINE, rounds=6), ended([Quantise(bits=16, download=8)], rounds=6)
    first = model(state)
    assert np.linalg.norm(coarse - exact) < 0.5 * np.linalg.norm(exact - first)


def test_sites_that_train_different_parts_send_vectors_of_their_own():
    data = small.digits((20, 20, 20, 20, 20, 20))
    level = Trainable(level=(Level(sites=(0, 1, 2), freeze=("1",)),))
    what = partly(small.problem(data), level, 5)
    for masked in (False, True):
        choices = {"local": UNIFORM, "public": {}, "what": what}
        choices |= {"sum": MASKED} if masked else {}
        run = small.run_masked if masked else small.run
        plain = small.training(data, **choices)
        packed = small.training(data, transforms=FINE, **choices)
        assert len(parts_of(what)[0]) == 2
        start = model(plain.start())
        one, other = model(run(plain, data)), model(run(packed, data))
        assert np.linalg.norm(one - other) < 0.35 * np.linalg.norm(one - start)


# Privacy


def context(program, data, site=0):
    host = TrainingHost(program.problem, data)
    return SiteContext(site, data.site(site), host.workspace(), StateStore(), 5)


@pytest.mark.parametrize(
    "steps",
    [
        [Quantise(bits=8)],
        [Quantise(bits=3)],
        [Quantise(bits=2)],
        [Sparsify(share=0.3, feedback=False)],
        [Sparsify(share=0.3, feedback=False), Quantise(bits=4)],
        [TopK(share=0.1, feedback=False)],
    ],
    ids=lambda steps: "+".join(f"{s.kind}" for s in steps),
)
@pytest.mark.parametrize("clip", [1e-3, 0.1, 100.0])
@pytest.mark.parametrize("levels", [False, True])
def test_what_a_site_adds_is_never_longer_than_its_clip(steps, clip, levels):
    """The noise is for sums of updates that long, in the arithmetic that undoes the transforms."""
    data = small.digits((20, 20, 20, 20, 20, 20))
    what = small.problem(data)
    if levels:
        what = partly(what, Trainable(level=(Level(sites=(0,), freeze=("1",)),)), 5)
    privacy = CENTRAL.model_copy(update={"clip": clip})
    for scale in (1.0, 1e-3):  # longer than the clip, and shorter
        local = UNIFORM.model_copy(update={"lr": 0.3 * scale})
        program = small.training(
            data, what=what, local=local, public={}, privacy=privacy, transforms=tuple(steps)
        )
        state = program.start()
        ask = program.ask(state)
        for site in (0, 3):
            with small.engine(program, data) as reach:
                total = reach.sum(ask.question, [site])
            assert "beyond" not in total.arrays
            opened = unpacked_total(total, program, state, 1)
            assert np.linalg.norm(flat_total(opened, state)) <= clip * (1 + 1e-6)


def test_a_crafted_range_cannot_make_an_update_longer():
    """The range is the coordinator's word; a site keeps to its clip whatever it says."""
    program, data = training([Quantise(bits=4)], local=UNIFORM, privacy=CENTRAL)
    state = program.start()
    question = program.ask(state).question
    for wrong in (1e-9, 1e-3, 1.0, 1e9):
        asked = replace(question, arrays={**question.arrays, RANGE: np.array([wrong])})
        with small.engine(program, data) as reach:
            total = reach.sum(asked, [1])
        step = wrong / Quantise(bits=4).levels(None)
        assert np.linalg.norm(total.arrays["packed/0"]) * step <= 0.1 * (1 + 1e-6)
    for wrong in (0.0, -1.0, math.nan, math.inf):
        asked = replace(question, arrays={**question.arrays, RANGE: np.array([wrong])})
        with pytest.raises(Declined, match="not possible"):
            train(context(program, data), asked)


def test_a_site_hides_counts_and_memory_whatever_a_question_says():
    """It adds nothing later and counts nothing where whole sites are hidden."""
    program, data = training([Quantise(bits=8)], local=UNIFORM, privacy=CENTRAL)
    question = program.ask(program.start()).question
    told = dict(question.options["transforms"])
    told["list"] = [{"kind": "sparsify", "share": 0.5, "feedback": True}, *told["list"]]
    crafted = replace(question, options={**question.options, "transforms": told})
    with pytest.raises(Declined, match="keep to the clip"):
        train(context(program, data), crafted)
    assert "beyond" not in train(context(program, data), question).arrays


@pytest.mark.parametrize(
    "change",
    [
        {"seed": "1"},
        {"room": 0},
        {"room": True},
        {"room": 2**30},
        {"list": [{"kind": "no"}]},
        {"list": 3},
        {"list": []},
        {"list": [{"kind": "quantise", "bits": 1}]},
    ],
)
def test_transforms_that_make_no_sense_are_declined(change):
    program, data = training([Quantise(bits=8)])
    question = program.ask(program.start()).question
    told = {**question.options["transforms"], **change}
    asked = replace(question, options={**question.options, "transforms": told})
    with pytest.raises(Declined, match="not possible"):
        train(context(program, data), asked)


def test_a_real_site_answers_no_other_transforms_than_the_plans():
    plan = SimpleNamespace(
        local=LOCAL,
        personalise=None,
        participation=small.training(small.digits()).participation,
        privacy=Privacy(),
        transforms=(Quantise(bits=8),),
        method=None,
        server=Server(),
    )
    program, _ = training(plan.transforms)
    question = program.ask(program.start()).question
    assert deviation(plan, question) is None
    for other in ([], [Quantise(bits=4)], [Sparsify(), Quantise(bits=8)]):
        program, _ = training(other)
        question = program.ask(program.start()).question
        assert deviation(plan, question) == "transforms are not the plan's"


def test_rounding_at_a_real_site_is_not_drawn_from_the_plans_seed():
    program, data = training([Quantise(bits=8)])
    question = program.ask(program.start()).question
    here = context(program, data)
    one, two = (train(here, question).arrays["packed/0"] for _ in range(2))
    assert (one == two).all()
    here = replace(here, real=True)
    one, two = (train(here, question).arrays["packed/0"] for _ in range(2))
    assert (one != two).any()


# Refusals


@pytest.mark.parametrize(
    ("steps", "choices", "said"),
    [
        ([TopK()], {"sum": MASKED}, "top-k cannot be masked.*sparsify"),
        ([TopK()], {"local": UNIFORM, "method": TrimmedMean()}, "top-k with.*zero for good"),
        ([Quantise(bits=3)], {"sum": MASKED}, "no room for masked totals of 5 sites: at least 4"),
        ([Quantise(), Sparsify()], {}, "'quantise' must be the last"),
        ([TopK(), Quantise()], {}, "'top-k' must be the last"),
        ([Sparsify()], {"local": UNIFORM, "privacy": CENTRAL}, "feedback and privacy.mech.*false"),
        (
            [Quantise()],
            {
                "local": UNIFORM,
                "sum": MASKED,
                "privacy": Privacy(mechanism="distributed", noise_multiplier=1.0),
            },
            "distributed.*grid",
        ),
        (
            [],
            {"local": UNIFORM, "sum": SHORT, "privacy": NOISED},
            "sum.bits = 16: rounding.*longer",
        ),
        ([Quantise()], {"task": "half"}, "need task = 'train'"),
        ([Negated()], {"local": UNIFORM, "privacy": CENTRAL}, "Negated.*promise.*keeps_clip"),
    ],
)
def test_what_does_not_go_together_is_refused(steps, choices, said):
    with pytest.raises(PlanError, match=said):
        training(steps, **choices)


def test_rounding_under_masks_makes_no_update_longer_than_its_noise_allows():
    """Numbers just above half a step become a whole one: such sums are refused. Digits are whole
    numbers before they are masked."""
    lengths = {}
    for bits in (16, 32):
        place = entry("model", (100_000,), "float", 1 + ROUNDING, 100, bits)
        step = 2.0**-place.fraction
        update = np.zeros(place.size)
        many = min(place.size, int((0.5001 * step) ** -2))
        update[:many] = many**-0.5
        lengths[bits] = np.linalg.norm(encode(place, update).astype(float)) * step
    assert lengths[16] > 1.2
    assert lengths[32] < 1 + ROUNDING / 2
    training([Quantise(bits=8)], local=UNIFORM, sum=SHORT, privacy=NOISED)


def test_a_site_alone_packs_what_the_coordinator_opens():
    """The two halves against each other, without an engine."""
    program, data = training([Sparsify(share=1.0, feedback=False)], local=UNIFORM)
    state = program.start()
    question = program.ask(state).question
    here = context(program, data)
    sent = train(here, question)
    assert contribution_size(sent.arrays) < 8 * 610 + 200
    plain = replace(
        question, options={n: o for n, o in question.options.items() if n != "transforms"}
    )
    whole = train(here, plain)
    order = [f"model/{n}" for n in NAMES]
    assert joined([whole.arrays[n] for n in order]) == pytest.approx(sent.arrays["packed/0"])


@pytest.mark.parametrize(
    ("method", "masked"),
    [(TrimmedMean(trim=0.2), False), (GeometricMedian(group=3), True), (FedDyn(), True)],
)
def test_methods_see_updates_without_their_transforms(method, masked):
    """Those of single sites, of groups and of all."""
    choices = {"sizes": (20,) * 6, "local": UNIFORM, "rounds": 4, "method": method}
    choices |= {"sum": MASKED} if masked else {}
    run = small.run_masked if masked else small.run
    plain, coarse = ended((), run, **choices), ended(FINE, run, **choices)
    first = model(training((), **choices)[0].start())
    assert np.linalg.norm(coarse - plain) < 0.45 * np.linalg.norm(plain - first)
    program, data = training([Quantise(bits=8)], **choices)
    assert RANGE in run(program, data).arrays
