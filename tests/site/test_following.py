"""Cohorts follow the study: they answer what their own copy of the program asks next, and nothing
else, on totals that the coordinator cannot make up."""

from dataclasses import replace

import numpy as np
import pytest
from traits import association, cohorts, witnessed

from cupola.association import Association, Site, results, variant_list_codec
from cupola.association.forecast import foresee_study
from cupola.association.plan import CohortFiles
from cupola.errors import DataError, FederationError, PlanError
from cupola.federation import Failure, drive
from cupola.federation.message import WITNESS
from cupola.federation.replay import OFF_PATH
from cupola.secure.replayed_totals import FALSE, HEAR

SUMS = ("compensator", "pairwise", "plain")


class Stopped(Exception):
    pass


def run(trial, plan, until=None, reach=None):
    """Drive the study, up to the first state that `until` says; program, reach, state."""
    program = Association(plan.study(), 3)
    reach = witnessed(trial, *trial.open()) if reach is None else reach
    last = []

    def after(state):
        last[:] = [state]
        if until is not None and until(program.ask(state)):
            raise Stopped

    try:
        state = drive(program, reach, None, after)
    except Stopped:
        state = last[0]
    return program, reach, state


def newton(ask):
    return ask is not None and ask.question.task == "gwas newton"


@pytest.fixture
def logistic(tmp_path, opened):
    trial, plan = association(tmp_path / "all", "logistic")
    opened.append(trial)
    return trial, plan


@pytest.mark.parametrize("sums", SUMS)
def test_every_way_of_adding_up_gives_the_study(tmp_path, opened, sums):
    trial, plan = association(tmp_path / "all", "linear", sums)
    opened.append(trial)
    reach, entries = witnessed(trial, *trial.open()), []
    reach.ledger.write = entries.append
    program, reach, state = run(trial, plan, reach=reach)
    assert np.isfinite(results(program, state).log10_p).any()
    kinds = [entry["kind"] for entry in entries]
    untold = [entry["task"] for entry in entries].count("gwas fingerprints")  # hashes of people
    assert kinds.count("tell") == kinds.count("sum") + kinds.count("gather") - untold > 5
    assert untold == 1


def aimed(question, site):
    """Coefficients whose weights fall on the most unusual person of a cohort, and how much of them
    does."""
    from cupola.association.design import design

    options = question.options
    facts = (np.array(options["shift"]), np.array(options["width"]), options["sex_on_x"])
    made = design(site.cohort, options["kind"], options["binary"], *facts)
    person = np.argmax((made.columns**2).sum(axis=1))
    own = made.columns[person, 1:]
    beta = np.zeros_like(question.arrays["beta"])
    beta[:, 0], beta[:, 1:-1] = -29.5, np.clip(29.5 * own / (own @ own), -30, 30)
    p = 1 / (1 + np.exp(-(made.columns @ beta[0, :-1].astype(float))))
    weight = p * (1 - p)
    return beta, weight[person] / weight.sum()


@pytest.mark.parametrize("covariates", [1, 10, 20])
@pytest.mark.parametrize("sums", SUMS)
def test_coefficients_of_the_coordinators_own_are_refused(tmp_path, opened, sums, covariates):
    few = {"people_per_column": 0, "newton": {"iterations": 3}}  # 150 people are all there are
    trial, plan = association(tmp_path / "all", "logistic", sums, covariates, **few)
    opened.append(trial)
    program, reach, state = run(trial, plan, until=newton)
    ask = program.ask(state)
    files = CohortFiles(name="0", bfile="c", pheno="c.pheno", cov="c.cov")
    site = Site(files.files(trial.site(0)), plan.wanted)
    crafted, share = aimed(ask.question, site)
    assert share > 0.9 or covariates == 1  # answered, it would be that person's genotype
    question = replace(ask.question, arrays={**ask.question.arrays, "beta": crafted})
    for again in range(2):  # also after a restart of every party
        reach = witnessed(trial, *trial.open()) if again else reach
        reach.engine.quorum = 1.0
        with pytest.raises(FederationError, match=OFF_PATH):
            reach.sum(question, [0, 1, 2])
    reach.sum(ask.question, [0, 1, 2])  # the honest one is answered still


def test_a_bit_more_or_less_is_another_question(logistic):
    trial, plan = logistic
    program, reach, state = run(trial, plan, until=newton)
    reach.engine.quorum = 1.0
    ask = program.ask(state)
    beta = ask.question.arrays["beta"].copy()
    beta.flat[0] = np.nextafter(beta.flat[0], np.float32(9))
    other = {
        "a coefficient": replace(ask.question, arrays={**ask.question.arrays, "beta": beta}),
        "an option": replace(ask.question, options={**ask.question.options, "tested": 1}),
        "a bound": replace(
            ask.question,
            expects={n: replace(s, bound=9e9) for n, s in ask.question.expects.items()},
        ),
        "the step after": replace(ask.question, step=ask.question.step + 1),
    }
    for question in other.values():
        with pytest.raises(FederationError, match=r"does not follow|was not told"):
            reach.sum(question, [0, 1, 2])


def test_the_same_question_is_not_asked_later_either(logistic):
    """Not even one that was honest once, under a new step."""
    trial, plan = logistic
    program, reach, state = run(trial, plan, until=newton)
    reach.engine.quorum = 1.0
    old = replace(program.ask(program.start()).question, step=state.step, round=state.step)
    with pytest.raises(FederationError, match=OFF_PATH):
        reach.sum(old, [0, 1, 2])


def lies(question):
    """What a coordinator might say instead of a total."""
    arrays, sites = question.arrays, question.options["sites"]
    names = [n for n in arrays if not n.startswith("#") and arrays[n].size]
    first = names[0]

    def with_(name, array):
        return replace(question, arrays={**arrays, name: array})

    one = arrays[first].copy()
    one[0] += 1
    high = arrays[first].copy()
    high[0] ^= np.array(1 << (8 * high.itemsize - 1)).astype(high.dtype)
    limbs = arrays[WITNESS].copy()
    limbs[0] += 1
    twice = {n: a * 2 for n, a in arrays.items()}
    return {
        "one unit more": with_(first, one),
        "the highest bit": with_(first, high),
        "another witness": with_(WITNESS, limbs),
        "twice as much": replace(question, arrays=twice),
        "nothing": replace(question, arrays={n: a * 0 for n, a in arrays.items()}),
        "a site left out": replace(question, options={"sites": sites[:-1]}),
        "a site twice": replace(question, options={"sites": [*sites, sites[-1]]}),
        "an array left out": replace(
            question, arrays={n: a for n, a in arrays.items() if n != first}
        ),
        "no witness": replace(question, arrays={n: a for n, a in arrays.items() if n != WITNESS}),
    }


@pytest.mark.parametrize("sums", SUMS)
def test_a_total_cannot_be_made_up(tmp_path, opened, sums):
    trial, plan = association(tmp_path / "all", "logistic", sums)
    opened.append(trial)
    program, reach, state = run(trial, plan, until=newton)
    told = []

    class Held(Exception):
        pass

    def hold(question, sites):
        if question.task == HEAR:
            told.append(question)
            raise Held
        return ask(question, sites)

    ask, reach._sites.ask = reach._sites.ask, hold
    with pytest.raises(Held):
        reach.sum(program.ask(state).question, [0, 1, 2])
    reach._sites.ask = ask
    for what, question in lies(told[0]).items():
        for _, answer in ask(question, [0, 1, 2]):
            assert isinstance(answer, Failure), what
            assert answer.code in (FALSE, "question is not well formed"), what
    answers = [answer for _, answer in ask(told[0], [0, 1, 2])]
    assert not any(isinstance(answer, Failure) for answer in answers)


def test_an_old_total_is_no_new_one(logistic):
    trial, plan = logistic
    told = []

    def keep(question, sites):
        if question.task == HEAR:
            told.append(question)
        return ask(question, sites)

    reach = witnessed(trial, *trial.open())
    ask, reach._sites.ask = reach._sites.ask, keep
    _, reach, state = run(trial, plan, until=newton, reach=reach)
    due = state.step
    alike = [q for q in told if q.arrays.keys() == told[-1].arrays.keys()]
    for question in alike:
        for _, answer in ask(replace(question, step=due), [0]):
            assert isinstance(answer, Failure)


def test_a_list_that_a_cohort_did_not_propose_is_refused(logistic):
    """What one cohort told, others are told as it was."""
    trial, plan = logistic
    reach = witnessed(trial, *trial.open())

    def change(question, sites):
        if question.task == HEAR and "0/list" in question.arrays:
            other = question.arrays["0/list"].copy()
            other[-1] ^= 1
            question = replace(question, arrays={**question.arrays, "0/list": other})
        return ask(question, sites)

    ask, reach._sites.ask = reach._sites.ask, change
    with pytest.raises(FederationError, match=FALSE):
        run(trial, plan, reach=reach)


def _rarely_carried(trial, least):
    """Rewrite the second cohort's calls: its third variant is rare, and common elsewhere."""
    made = cohorts().people(1, n=150)
    made.copies[2, :100] = 0
    made.copies[2, :least] = 1
    made.copies[3, 50:] = 0
    for i in range(3):
        cohorts().write(trial.site(i), "c", made, range(50 * i, 50 * i + 50))


@pytest.mark.parametrize("sums", SUMS)
def test_every_cohort_proposes_and_all_are_told_to_the_byte(tmp_path, opened, sums):
    trial, plan = association(tmp_path / "all", "chi-square", sums)
    opened.append(trial)
    _rarely_carried(trial, 4)
    reach, entries = witnessed(trial, *trial.open()), []
    reach.ledger.write = entries.append
    program, reach, state = run(trial, plan, reach=reach)
    assert state.values["proposed"] == [11, 0, 1]  # what is rare in the first and second
    assert len(results(program, state).variants) == 12
    here = [
        CohortFiles(name=c.name, bfile=f"site-{i}/c", pheno=f"site-{i}/c.pheno")
        for i, c in enumerate(plan.cohorts)
    ]
    told = foresee_study(plan.model_copy(update={"cohorts": tuple(here)}))
    sent = [e for e in entries if e["kind"] == "tell"]
    assert told.told == sum(len(e["sites"]) * (e["bytes_down"] + e["bytes_up"]) for e in sent)


def test_only_the_cohort_whose_turn_it_is_proposes(logistic):
    trial, plan = logistic
    program, reach, state = run(
        trial, plan, until=lambda ask: ask.question.task == "gwas propose" and ask.sites == [1]
    )
    question = replace(program.ask(state).question, witnessed=True)
    rarer = replace(question, options={"rare": 0})
    for asked, site in ((question, 0), (question, 2), (rarer, 1)):
        ((_, answer),) = reach._sites.ask(asked, [site])
        assert isinstance(answer, Failure)
        assert OFF_PATH in answer.code
    ((_, answer),) = reach._sites.ask(question, [1])
    assert not isinstance(answer, Failure)


def test_a_folder_from_yesterday_is_noticed(logistic, tmp_path):
    """A site that is restored from an old copy is behind, says so, and tells nothing anew."""
    import shutil

    trial, plan = logistic
    program, reach, state = run(trial, plan, until=lambda ask: ask.question.task == "gwas shared")
    trial.close()
    shutil.copytree(trial.site(1), tmp_path / "old")
    program, reach, state = run(trial, plan, until=newton)
    trial.close()
    shutil.rmtree(trial.site(1))
    shutil.copytree(tmp_path / "old", trial.site(1))
    reach = witnessed(trial, *trial.open())
    reach.engine.quorum = 1.0
    with pytest.raises(FederationError, match="was not told to this site"):
        reach.sum(program.ask(state).question, [0, 1, 2])


def test_what_a_site_remembers_of_a_study_shows_damage(logistic):
    trial, plan = logistic
    program, reach, state = run(trial, plan, until=newton)
    trial.close()
    place = next((trial.site(2) / "studies").iterdir()) / "replay"
    for path in sorted(place.iterdir()):
        whole = path.read_bytes()
        changed = bytearray(whole)
        changed[len(whole) // 2] ^= 1
        path.write_bytes(bytes(changed))
        reach = witnessed(trial, *trial.open())
        reach.engine.quorum = 1.0
        with pytest.raises(FederationError):
            reach.sum(program.ask(state).question, [0, 1, 2])
        trial.close()
        path.write_bytes(whole)
    witnessed(trial, *trial.open()).sum(program.ask(state).question, [0, 1, 2])


def test_a_public_list_is_the_one_that_was_joined(tmp_path, opened):
    """No study with a list that is not pinned is joined; another list is not gone on with."""
    with pytest.raises(PlanError, match="author adds variants_hash"):
        association(tmp_path / "open", "chi-square", variants="public.bim")
    listed = cohorts().people(1, n=150).variants
    hashed = variant_list_codec.fingerprint(listed)
    trial, plan = association(
        tmp_path / "all", "chi-square", variants="public.bim", variants_hash=hashed
    )
    opened.append(trial)
    other = replace(listed, name=np.array([f"x{i}" for i in range(len(listed))]))
    with pytest.raises(DataError, match="not the one that the study names"):
        drive(Association(plan.study(), 3, other, pinned=hashed), witnessed(trial, *trial.open()))
    reach = witnessed(trial, *trial.open())
    reach.engine.quorum = 1.0
    with pytest.raises(FederationError, match="the study is over"):
        drive(Association(plan.study(), 3, other), reach)


def test_the_list_that_was_joined_is_taken(tmp_path, opened):
    listed = cohorts().people(1, n=150).variants
    pinned = {"variants": "public.bim", "variants_hash": variant_list_codec.fingerprint(listed)}
    trial, plan = association(tmp_path / "all", "chi-square", **pinned)
    opened.append(trial)
    program = Association(plan.study(), 3, listed, pinned=plan.variants_hash)
    state = drive(program, witnessed(trial, *trial.open()))
    assert len(results(program, state).variants) == 12
