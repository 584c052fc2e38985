"""What a cohort refuses, whoever asks: an attacker at the coordinator's place."""

import pickle
from dataclasses import fields, replace

import numpy as np
import pytest
from cohorts import cut, people, sites, study

from cupola.association import Association, StudyHost, variant_list_codec
from cupola.association.questions import Asker
from cupola.association.site import Site, most_iterations
from cupola.engines.in_process import InProcess
from cupola.federation import Declined, State, drive
from cupola.federation.site import find_task
from cupola.secure.durable_dict import Memory


@pytest.fixture
def standing(tmp_path):
    """A logistic study stopped at its first Newton question: engine, question, cohorts."""
    data = people(31)
    chosen = study("logistic")
    cohorts = sites(chosen, cut(tmp_path, data, np.array_split(np.arange(90), 3)))
    program = Association(chosen, 3, data.variants)
    engine = InProcess(StudyHost(cohorts), workers=1, quorum=1.0)
    held: list[State] = []

    class Stop(Exception):
        pass

    def after(state):
        held[:] = [state]
        if state.values.get("part") == "newton":
            raise Stop

    with pytest.raises(Stop):
        drive(program, engine, after=after)
    return engine, program.ask(held[0]).question, cohorts, program, held[0]


def _ask(engine, question):
    return find_task(question.task)(engine.context(0), question)


@pytest.mark.parametrize(
    "change",
    [
        lambda b: np.concatenate([b, b]),  # more rows than variants: the kernel must not read on
        lambda b: b[:, :-1],
        lambda b: b * np.float32(1e4),
        lambda b: b * np.float32(np.nan),
    ],
)
def test_coefficients_that_do_not_fit_or_pick_people(standing, change):
    engine, question, *_ = standing
    assert _ask(engine, question).arrays
    bad = replace(question, arrays={**question.arrays, "beta": change(question.arrays["beta"])})
    with pytest.raises(Declined, match="coefficients-refused"):
        _ask(engine, bad)


def test_weights_on_one_person_are_withheld_even_without_following(standing):
    engine, question, cohorts, *_ = standing
    made = cohorts[0].design(question)
    own = made.columns[np.argmax((made.columns**2).sum(axis=1)), 1:]
    beta = np.zeros_like(question.arrays["beta"])
    beta[:, 0], beta[:, 1:-1] = -29.5, np.clip(29.5 * own / (own @ own), -30, 30)
    told = _ask(engine, replace(question, arrays={**question.arrays, "beta": beta})).arrays
    assert told["withheld"].all()
    assert not told["gradient"].any()
    assert not told["genotype"].any()
    assert not _ask(engine, question).arrays["withheld"].any()


def test_likelihoods_at_ever_more_points(standing):
    engine, question, cohorts, *_ = standing
    cohorts[0].iterations = 3
    for step in range(3):
        _ask(engine, replace(question, step=question.step + step))
    _ask(engine, question)  # the same step again is no new question
    with pytest.raises(Declined, match="asked-too-often"):
        _ask(engine, replace(question, step=question.step + 3))


def test_what_was_counted_is_known_after_a_restart(standing, tmp_path):
    """A cohort that is stopped while it computes an answer is asked again, for what it may tell
    once; and for nothing else."""
    _, question, cohorts, *_ = standing
    where = np.arange(3)
    for turn in range(3):
        again = pickle.loads(pickle.dumps(cohorts[0]))
        again.memory, again.folder = Memory(tmp_path / "asked.jsonl"), tmp_path / "own"
        again.count(question, "once", where, 9, 1)
        if turn == 2:
            with pytest.raises(Declined, match="asked-too-often"):
                again.count(replace(question, step=question.step + 1), "once", where, 9, 1)
        again.close()


def test_another_model_under_the_same_step_counts_too(standing):
    _, question, cohorts, *_ = standing
    where, other = np.arange(3), {**question.options, "prediction": [1, 0.0, 2.0]}
    cohorts[0].count(question, "once", where, 9, 1)
    with pytest.raises(Declined, match="asked-too-often"):
        cohorts[0].count(replace(question, options=other), "once", where, 9, 1)


def test_a_cohort_in_another_process_has_agreed_to_the_same(standing):
    made = {"released", "step_ones", "log", "memory", "folder", "own_log", "unlisted", "made",
            "tables", "scores"}  # fmt: skip
    agreed = {one.name for one in fields(Site) if not one.name.startswith("_")} - made
    other = replace(standing[2][1], apart=7, rare=3, salt=b"s", proposes=False, iterations=4)
    sent = pickle.loads(pickle.dumps(other))
    assert {n: getattr(sent, n) for n in agreed} == {n: getattr(other, n) for n in agreed}
    assert sent.study is not None


def test_other_coefficients_under_the_same_step_count_too(standing):
    engine, question, cohorts, *_ = standing
    cohorts[0].iterations = 3
    beta = question.arrays["beta"]
    points = [replace(question, arrays={**question.arrays, "beta": beta + i}) for i in range(4)]
    for point in points[:3]:
        _ask(engine, point)
    with pytest.raises(Declined, match="asked-too-often"):
        _ask(engine, points[3])


def test_the_model_without_a_genotype_is_one_and_bounded(standing, monkeypatch):
    engine, question, *_ = standing
    columns = question.arrays["beta"].shape[1] - 1
    for name in ("gwas first", "gwas shared"):
        steep = replace(question, task=name)
        steep.arrays["beta"] = np.full(columns, 31.0)
        steep.options["missing"] = False
        with pytest.raises(Declined, match="coefficients-refused"):
            _ask(engine, steep)
    other = replace(question, task="gwas first")
    other.arrays["beta"] = np.full(columns, 0.5)
    with pytest.raises(Declined, match="asked-otherwise-before"):
        _ask(engine, other)
    monkeypatch.setattr("cupola.association.tasks.NULL_ITERATIONS", 1)
    with pytest.raises(Declined, match="asked-too-often"):
        _ask(engine, replace(other, task="gwas shared"))


def test_another_standardisation_and_other_variants(standing):
    engine, question, _, program, state = standing
    other = {**question.options, "shift": [1.0, 2.0, 0.0]}
    with pytest.raises(Declined, match="asked-otherwise-before"):
        _ask(engine, replace(question, options=other))
    asker = program.asker(state)
    moments = asker.moments("distance", True, [40.0, 0.0, 0.0], [1.0, 1.0, 1.0])
    with pytest.raises(Declined, match="asked-otherwise-before"):
        _ask(engine, moments)
    everybody = asker.people_question()
    otherwise = {**everybody.options, "regression": False}
    with pytest.raises(Declined, match="asked-otherwise-before"):
        _ask(engine, replace(everybody, options=otherwise))
    cases = asker.counts(program.chunks(state)[0], True, [0], True)
    with pytest.raises(Declined, match="asked-otherwise-before"):
        _ask(engine, replace(cases, step=state.step))
    with pytest.raises(Declined, match="variants-not-agreed"):
        _ask(engine, replace(question, options={**question.options, "stop": 10**6}))
    with pytest.raises(Declined, match="variants-not-agreed"):
        _ask(engine, replace(question, options={**question.options, "kind": 1}))
    greedy = Asker(study("logistic", rare=0), 3).propose(None)
    with pytest.raises(Declined, match="variants-not-proposed"):
        _ask(engine, greedy)
    with pytest.raises(Declined, match="question-not-understood"):
        _ask(engine, replace(question, options={}))


def test_another_list_or_more_of_it_once_it_is_in_use(standing):
    engine, _, cohorts, program, state = standing
    asker, listed = program.asker(state), program.variants(state)
    first = replace(asker.agree(0, variant_list_codec.pack(listed), len(listed)), step=3)
    assert _ask(engine, first).arrays  # the same list again tells nothing new
    probe = asker.agree(0, variant_list_codec.pack(listed[1:2]), 1)
    with pytest.raises(Declined, match="asked-otherwise-before"):
        _ask(engine, replace(probe, step=3))
    more = asker.agree(len(listed), variant_list_codec.pack(listed[1:2]), 1)
    with pytest.raises(Declined, match="variants-not-agreed"):
        _ask(engine, replace(more, step=state.step))
    cohorts[0].listed = False
    with pytest.raises(Declined, match="variants-not-agreed"):
        _ask(
            engine,
            replace(asker.agree(5, variant_list_codec.pack(listed[1:2]), 1), step=state.step),
        )


def test_limits_that_would_tell_a_single_cohorts_largest_value_or_size(standing):
    """A refusal is seen at the cohort that refuses: a limit that could be moved would be found out
    by trying, without any total."""
    engine, _, _, program, state = standing
    asker = program.asker(state)
    values = state.values
    asked = asker.moments("mean", True, [0.0] * len(values["shift"]), [1.0] * len(values["shift"]))
    assert _ask(engine, asked).arrays
    for largest in (50.0, 60.0):
        with pytest.raises(Declined, match="asked-otherwise-before"):
            _ask(engine, replace(asked, options={**asked.options, "largest": largest}))
    assert _ask(engine, replace(asker, people=90).fingerprints()).arrays
    for most in (10, 29, 30, 31):
        with pytest.raises(Declined, match="asked-otherwise-before"):
            _ask(engine, replace(asker, people=most).fingerprints())


def test_fingerprints_asked_for_twice_do_not_tell_who_is_real(standing):
    engine, _, _, program, state = standing
    asked = replace(program.asker(state).fingerprints(), step=state.step)
    for real in (False, True):
        context = replace(engine.context(0), real=real)
        answers = [
            find_task(asked.task)(context, replace(asked, step=state.step + i)).arrays["hashes"]
            for i in range(2)
        ]
        assert (answers[0] == answers[1]).all()
        first = answers[0].view(">u8")[:, 0]
        assert (np.diff(first.astype(np.uint64)) > 0).all()


def test_a_cohort_counts_people_itself(standing):
    engine, question, cohorts, *_ = standing
    cohorts[0].people_per_column = 10  # 5 columns, sex on X included: 50 of 90 people are told
    assert _ask(engine, question).arrays
    cohorts[0].people_per_column = 20
    with pytest.raises(Declined, match="too-few-people"):
        _ask(engine, question)
    with pytest.raises(Declined, match="asked-otherwise-before"):  # told so once, told so for ever
        _ask(engine, replace(question, options={**question.options, "tested": 10**6}))


def test_fewer_than_its_own_people_cannot_be_the_total(standing):
    engine, question, cohorts, *_ = standing
    fresh = cohorts[1]
    fresh.memory._held.clear()
    fresh.people_per_column = 1
    told = replace(question, options={**question.options, "tested": 12})
    with pytest.raises(Declined, match="too-few-people"):
        find_task(told.task)(engine.context(1), told)


def test_likelihoods_no_more_often_than_the_study_needs():
    assert most_iterations(study("logistic")) == 12
    assert most_iterations(study("logistic", newton={"firth": True, "iterations": 25})) == 75
