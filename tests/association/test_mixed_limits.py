"""What a cohort refuses of a mixed model, each with what would leak without it."""

from dataclasses import replace

import numpy as np
import pytest
from cohorts import cut, people, sites, study

from cupola.association import Association, StudyHost
from cupola.association.limits import ENOUGH
from cupola.association.site import released_numbers
from cupola.association.structure import mixed_tasks
from cupola.association.structure.markers import MARKERS
from cupola.association.study_choices import Limits, Mixed
from cupola.engines.in_process import InProcess
from cupola.errors import DataError, FederationError
from cupola.federation import Declined, Spec
from cupola.federation.site import find_task

LIMITS, NO_LIMIT = Limits(people=1), Limits(effective=0.0, people=1)


class Study:
    """A study whose totals the coordinator sees; it may ask what it likes."""

    def __init__(self, folder, data, parts, people=1, least_cell=0, **mixed):
        given = {"calibration": 10, "maf": 0.1, "heritability": 0.5, "groups": 2}
        trait = {"column": "QT", "kind": "quantitative"}
        self.study = study("mixed", trait=trait, mixed={**given, **mixed}, rare=0,
                           limits={"people": people, "least_cell": least_cell})  # fmt: skip
        self.cohorts = sites(self.study, cut(folder, data, parts))
        self.program = Association(self.study, len(parts), data.variants)
        self.engine = InProcess(StudyHost(self.cohorts), workers=1, quorum=1.0)
        self.state = self.program.start()

    def until(self, task):
        """The first question of this task."""
        while (question := self.next()).task != task:
            self.step()
        return question

    def next(self):
        ask = self.program.ask(self.state)
        return None if ask is None else ask.question

    def step(self):
        ask = self.program.ask(self.state)
        asked = {"sum": self.engine.sum, "gather": self.engine.gather, "alone": lambda *_: None}
        reply = asked[ask.kind](ask.question, ask.sites)
        self.state = self.program.answer(self.state, reply)
        return reply

    def told(self, question):
        """A total that the coordinator takes for itself."""
        answers = [find_task(question.task)(self.engine.context(i), question).arrays
                   for i in range(len(self.cohorts))]  # fmt: skip
        return {name: sum(a[name] for a in answers) for name in answers[0]}


def _data(n, m, chromosomes=(1, 2)):
    return people(12, n=n, m=m, missing=0.0, chromosomes=chromosomes)


def _centred(data):
    x = data.copies.astype(float).T
    return x - x.mean(axis=0)


@pytest.fixture
def standing(tmp_path):
    """At the first residual; 120 people and 1,500 markers."""
    data = _data(120, 1500)
    made = Study(tmp_path, data, np.array_split(np.arange(120), 3))
    return made, made.until(mixed_tasks.RESIDUAL), data


def _half_a_genome(question, data, person):
    """Coefficients that are a person's genotypes on chromosome 1, for one right-hand side."""
    known = data.variants.chromosome == 1
    x = _centred(data)
    a = np.zeros_like(question.arrays["markers"])
    a[known, 0] = x[person, known]
    a *= 0.01
    zero = {n: np.zeros_like(question.arrays[n]) for n in ("trait", "covariates")}
    return replace(question, arrays={**zero, "markers": a}), ~known, x


def test_half_a_genome_reads_the_other_half_unless_few_people_are_refused(standing):
    made, question, data = standing
    asked, unknown, x = _half_a_genome(question, data, person=7)
    for cohort in made.cohorts:
        cohort.limits = NO_LIMIT
    told = made.told(asked)["products"][:, 0]
    assert np.corrcoef(told[unknown], x[7, unknown])[0, 1] > 0.9
    other = np.corrcoef(told[unknown], x[8, unknown])[0, 1]
    assert abs(other) < 0.3
    for cohort in made.cohorts:
        cohort.limits = LIMITS
        cohort.memory = type(cohort.memory)()
    with pytest.raises(Declined, match="weights-on-few-people"):
        made.told(asked)


def test_a_solution_that_rests_on_one_person_is_refused(standing):
    made, question, data = standing
    asked, *_ = _half_a_genome(question, data, person=7)
    asked = replace(asked, task=mixed_tasks.SOLUTION, expects={})
    with pytest.raises(Declined, match="weights-on-few-people"):
        made.told(asked)


def test_honest_vectors_are_far_from_the_limit(tmp_path, monkeypatch):
    """Of 200 people of a cohort, the fewest that take part."""
    data = people(13, n=600, m=300, chromosomes=(1, 2, 3, 4))
    made = Study(tmp_path, data, np.array_split(np.arange(600), 3), people=190, calibration=30)
    effective, honest = [], mixed_tasks._many

    def seen(own, vectors):
        weights = vectors**2
        effective.extend(weights.sum(axis=0) ** 2 / (weights**2).sum(axis=0))
        return honest(own, vectors)

    monkeypatch.setattr(mixed_tasks, "_many", seen)
    while made.next() is not None:
        made.step()
    assert len(effective) > 500
    least = min(0.2 * 200 / 2, ENOUGH)  # a normal vector has 67
    assert min(effective) > 1.5 * least


def _outlier(data):
    data.qt[:] = np.random.default_rng(3).normal(size=len(data))
    data.qt[5] = 400.0
    return data


def test_a_trait_with_one_outlier_is_that_persons_genotypes_unless_it_is_refused(tmp_path):
    data = _outlier(_data(600, 400))
    (tmp_path / "a").mkdir()
    made = Study(tmp_path / "a", data, np.array_split(np.arange(600), 3))
    with pytest.raises(Declined, match="weights-on-few-people"):
        made.told(made.until(mixed_tasks.CROSS))
    made = Study(tmp_path / "a", data, np.array_split(np.arange(600), 3))
    for cohort in made.cohorts:
        cohort.limits = NO_LIMIT
    told = made.told(made.until(mixed_tasks.CROSS))["products"]
    with_trait = told[:, 3]  # after intercept and two covariates
    assert np.corrcoef(with_trait, _centred(data)[5])[0, 1] > 0.99


def _ld_from_totals(made):
    """X'X as far as the totals of an honest study hold it: G = X'X is known on the span of all
    coefficients, and on a space as large as the people that is everywhere."""
    crossed = None
    a, told = [], []
    while (question := made.next()) is not None and question.task != mixed_tasks.SOLUTION:
        arrays = question.arrays
        reply = made.step()
        if question.task == mixed_tasks.CROSS:
            crossed = reply.arrays["products"]
        if question.task == mixed_tasks.RESIDUAL:
            p = len(arrays["covariates"])
            known = crossed[:, :p] @ arrays["covariates"] + crossed[:, p : p + 1] @ arrays["trait"]
            a.append(arrays["markers"])
            told.append(reply.arrays["products"] - known)
    a, told = np.hstack(a), np.hstack(told)
    keep = np.linalg.norm(a, axis=0) > 0
    a, told = a[:, keep], told[:, keep]
    scale = np.linalg.norm(a, axis=0)
    a, told = a / scale, told / scale
    return told @ np.linalg.pinv(a.T @ told, rcond=1e-9, hermitian=False) @ told.T, a.shape[1]


def test_as_many_sums_as_people_are_the_whole_ld_matrix(tmp_path):
    (tmp_path / "few").mkdir()
    (tmp_path / "many").mkdir()
    errors = {}
    for name, n in (("few", 60), ("many", 900)):
        data = _data(n, 1500)
        made = Study(tmp_path / name, data, np.array_split(np.arange(n), 3), calibration=40)
        for cohort in made.cohorts:
            cohort.limits = NO_LIMIT
        found, columns = _ld_from_totals(made)
        frequency = data.copies.mean(axis=1) / 2
        x = _centred(data)[:, np.minimum(frequency, 1 - frequency) >= 0.1]
        truth = x.T @ x
        off = ~np.eye(len(truth), dtype=bool)
        errors[name] = np.corrcoef(found[off], truth[off])[0, 1]
        assert (columns > n) == (name == "few")
    assert errors["few"] > 0.9999
    assert errors["many"] < 0.95


def test_too_few_people_in_all_or_in_a_cohort_are_refused(standing):
    made, question, _ = standing
    made.told(question)
    cohort = made.cohorts[0]
    cohort.limits = Limits(people=41)  # it has 40
    with pytest.raises(Declined, match="too-few-people"):
        made.told(question)
    cohort.limits = LIMITS
    cohort.people_per_column = 20  # 120 people, 13 right-hand sides, 30 sums
    with pytest.raises(Declined, match="too-few-people"):
        made.told(question)


def test_a_cohort_with_too_few_people_refuses_the_first_question(tmp_path):
    data = _data(120, 50)
    data.qt[:2] = np.nan  # two of the first 40 are not tested
    made = Study(tmp_path, data, np.array_split(np.arange(120), 3), people=39)
    with pytest.raises(FederationError, match="too-few-people"):
        made.step()
    assert "has 38 people with trait and covariates" in made.cohorts[0].log[0]
    assert not any(cohort.log for cohort in made.cohorts[1:])


def test_a_study_of_too_few_people_is_refused_before_any_genotype(tmp_path):
    data = _data(120, 50)
    made = Study(tmp_path, data, np.array_split(np.arange(120), 3))
    made.program.study = made.study.model_copy(update={"people_per_column": 20})
    with pytest.raises(DataError, match=r"by 390 vectors over them \(13 in each of 30 sums"):
        made.until(mixed_tasks.CROSS)


def _after(question, **options):
    return replace(question, options={**question.options, **options})


def test_each_sum_is_about_one_set_of_residuals(standing):
    made, question, _ = standing
    made.told(question)
    made.told(question)  # the same again is no new question
    bent = {**question.arrays, "trait": question.arrays["trait"] * 1.01}
    with pytest.raises(Declined, match="asked-otherwise-before"):
        made.told(replace(question, arrays=bent))
    made.told(_after(replace(question, arrays=bent), sum=1))
    for at in (30, -1):
        with pytest.raises(Declined, match="asked-too-often"):
            made.told(_after(question, sum=at))


def test_no_more_vectors_than_the_plan_has(standing):
    made, question, _ = standing
    twice = {n: np.hstack([a, a]) for n, a in question.arrays.items()}
    expects = {"products": Spec((1500, 26)), "squares": Spec((26,), bound=1e9)}
    with pytest.raises(Declined, match="too-many-vectors"):
        made.told(replace(question, arrays=twice, expects=expects))


def test_many_random_signs_are_the_ld_matrix_unless_they_are_refused(tmp_path):
    """Nobody knows the signs, but X'V V'X is nearly X'X all the same."""
    data = _data(300, 30)
    made = Study(tmp_path, data, np.array_split(np.arange(300), 3), heritability=None)
    question = made.until(mixed_tasks.CROSS)
    many = {**question.expects, "along": Spec((3, 20_000))}
    with pytest.raises(Declined, match="too-many-vectors"):
        made.told(replace(question, expects=many))
    frequency = data.copies.mean(axis=1) / 2
    x = _centred(data)[:, np.minimum(frequency, 1 - frequency) >= 0.1]
    truth, off = x.T @ x, ~np.eye(x.shape[1], dtype=bool)
    r = {}
    for probes in (20, 20_000):
        for cohort in made.cohorts:
            given = {**made.study.mixed.model_dump(), "probes": probes}
            mixed = Mixed.model_construct(**given)
            cohort.study = made.study.model_copy(update={"mixed": mixed})
            cohort.memory = type(cohort.memory)()
        told = made.told(replace(question, expects={**many, "along": Spec((3, probes))}))
        signs = told["products"][:, 4:]
        r[probes] = np.corrcoef((signs @ signs.T)[off], truth[off])[0, 1]
    assert r[20_000] > 0.95
    assert r[20] < 0.5


def test_the_same_signs_are_not_told_in_rows_of_another_length(tmp_path):
    """With 19 in a row each vector is another one: many such are many vectors."""
    made = Study(tmp_path, _data(120, 40), np.array_split(np.arange(120), 3), heritability=None)
    question = made.until(mixed_tasks.CROSS)
    made.told(question)
    with pytest.raises(Declined, match="asked-otherwise-before"):
        made.told(replace(question, expects={**question.expects, "along": Spec((3, 19))}))


@pytest.mark.parametrize("size", [1e-95, 1e-60, 1e60])
def test_few_people_are_few_whatever_the_size_of_a_vector(standing, size):
    """Fourth powers of tiny numbers are 0, as are all limits then; plain sums tell the numbers."""
    made, question, data = standing
    asked, *_ = _half_a_genome(question, data, person=7)
    asked = replace(asked, arrays={n: a * size for n, a in asked.arrays.items()})
    with pytest.raises(Declined, match="weights-on-few-people"):
        made.told(asked)


def test_vectors_without_an_end_are_refused(standing):
    made, question, _ = standing
    endless = {n: np.full_like(a, 1e308) for n, a in question.arrays.items()}
    endless["markers"][::2] *= -1
    with np.errstate(all="ignore"), pytest.raises(Declined, match="coefficients-refused"):
        made.told(replace(question, arrays=endless))


def test_there_is_one_set_of_markers(standing):
    made, question, _ = standing
    context = made.engine.context(0)
    kept = context.recall(question)
    fewer = {n: kept[n][:-1] for n in ("marker_row", "marker_swapped", "marker_mean")}
    asked = {**question.arrays, "markers": question.arrays["markers"][:-1]}
    context.keep(replace(question, step=question.step - 1), {**kept, **fewer})
    with pytest.raises(Declined, match="asked-otherwise-before"):
        find_task(question.task)(context, replace(question, arrays=asked))


def test_a_variant_is_tested_once_with_one_solution(tmp_path):
    made = Study(tmp_path, _data(300, 60), np.array_split(np.arange(300), 3))
    solution = made.until(mixed_tasks.SOLUTION)
    made.step()
    other = {**solution.arrays, "trait": solution.arrays["trait"] * 2}
    with pytest.raises(Declined, match="asked-otherwise-before"):
        made.told(replace(solution, arrays=other))
    question = made.next()
    made.told(question)
    bent = {**question.arrays, "frequency": question.arrays["frequency"] * 0.9}
    with pytest.raises(Declined, match="asked-otherwise-before"):
        made.told(replace(question, arrays=bent))
    with pytest.raises(Declined, match="asked-otherwise-before"):  # who lacks a call counts, or not
        made.told(_after(question, missing=not question.options["missing"]))


@pytest.mark.parametrize("name", ["markers", "trait", "covariates"])
def test_coefficients_that_do_not_fit(standing, name):
    made, question, _ = standing
    for bad in (question.arrays[name][:-1], question.arrays[name] * np.nan):
        with pytest.raises(Declined, match=r"coefficients-refused|question-not-understood"):
            made.told(replace(question, arrays={**question.arrays, name: bad}))
    large = {n: a * 1e6 for n, a in question.arrays.items()}
    with pytest.raises(Declined, match="coefficients-refused"):
        made.told(replace(question, arrays=large))


def test_random_signs_are_the_same_whenever_they_are_asked_for(tmp_path):
    made = Study(tmp_path, _data(120, 40), np.array_split(np.arange(120), 3), heritability=None)
    question = made.until(mixed_tasks.CROSS)
    again = replace(question, step=question.step + 1, round=9)
    for secret in (False, True):
        contexts = [made.engine.context(i) for i in range(3)]
        for context in contexts:
            context.real = secret
        told = [find_task(question.task)(contexts[0], q).arrays["along"] for q in (question, again)]
        np.testing.assert_array_equal(*told)
    signs = mixed_tasks._signs(made.cohorts[0], contexts[0], 1000, 20)
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert abs(signs.mean()) < 0.03
    assert (signs != mixed_tasks._signs(made.cohorts[1], contexts[1], 1000, 20)).any()


def test_the_book_counts_all_sums_that_the_plan_allows():
    chosen = study("mixed", mixed={"groups": 5, "calibration": 10, "sums": 15})
    assert released_numbers(chosen) == (2 + 2 + 1 + 1) + 16 * 15 + 20


def _clones(data):
    """Everybody is one of three people, but for a few calls: relationship as strong as it gets."""
    rng = np.random.default_rng(8)
    data.copies[:] = data.copies[:, np.arange(len(data)) % 3]
    other = rng.random(data.copies.shape) < 0.002
    data.copies[other] = rng.integers(0, 3, other.sum())
    return data


@pytest.mark.parametrize("made_up", [_clones, _outlier, lambda data: data])
@pytest.mark.parametrize("h2", [0.95, None])
def test_no_answer_exceeds_its_bound_whatever_the_data(tmp_path, made_up, h2):
    data = made_up(_data(300, 120, chromosomes=(1, 2, 23, 24, 26)))
    made = Study(tmp_path, data, np.array_split(np.arange(300), 3), heritability=h2, maf=0.0)
    for cohort in made.cohorts:
        cohort.limits = NO_LIMIT
    largest = {}
    while (question := made.next()) is not None:
        specs = {n: s for n, s in question.expects.items() if s.bound is not None}
        if question.task.startswith("gwas m") and specs:
            answers = [find_task(question.task)(made.engine.context(i), question).arrays
                       for i in range(3)]  # fmt: skip
            for name, spec in specs.items():
                share = max(float(np.abs(a[name]).max(initial=0)) for a in answers) / spec.bound
                key = (question.task, name)
                largest[key] = max(largest.get(key, 0.0), share)
        made.step()
    assert len(largest) >= 10
    assert max(largest.values()) <= 1.0, largest


@pytest.mark.parametrize("least", [0, 5])
def test_who_alone_is_not_tested_is_no_difference_of_squares_with_the_limit(tmp_path, least):
    """Squares of markers are summed over all who are counted, then over those tested."""
    data = _data(150, 300)
    data.qt[7] = np.nan
    made = Study(tmp_path, data, np.array_split(np.arange(150), 3), least_cell=least)
    made.until(MARKERS)
    all_people = made.step().arrays["squares"]
    frequency = made.program.part(made.state).markers.frequency
    index = made.program.part(made.state).markers.index
    made.until(mixed_tasks.CROSS)
    left = all_people - made.step().arrays["squares"]
    alone = (data.copies[index, 7] - 2 * frequency) ** 2
    np.testing.assert_allclose(left, 0 if least else alone, atol=1e-9)
