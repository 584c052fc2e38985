"""What whole-genome regression would tell of single people, and by what cohorts refuse to."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from cohorts import carry_out, cut, people, sites, study
from pydantic import ValidationError
from test_whole_genome import SMALL, THIRDS, M, N, carried_out, chosen, family, small_plan

from cupola.analysis.protocol import OwnSite
from cupola.association import Association, StudyHost
from cupola.association.own_cohort import own_host, weaker_limits
from cupola.association.site import released_numbers
from cupola.association.structure import genome_tasks, predictions
from cupola.association.structure.step_ones import StepOnes
from cupola.association.study_choices import WholeGenome
from cupola.engines import InProcess
from cupola.errors import CupolaError, DataError, FederationError
from cupola.federation import Declined
from cupola.secure.durable_dict import Memory
from cupola.site.settings import TotalLimits


def asked(given, cohorts, data, until, changed=lambda question: question):
    """The first question of a task, as it was asked or changed, and each cohort's answer."""
    program = Association(given, len(cohorts), data.variants)
    state = program.start()
    with InProcess(StudyHost(cohorts), workers=1, quorum=1.0) as reach:
        while True:
            ask = program.ask(state)
            if ask.question.task == until:
                question = changed(ask.question)
                return question, dict(reach.ask(question, ask.sites)), reach
            reply = None if ask.kind == "alone" else reach.sum(ask.question, ask.sites)
            state = program.answer(state, reply)


def code(answer):
    return getattr(answer, "code", None)


def square_of(linked, size):
    """The first block's products."""
    block = np.zeros((size, size))
    block[np.triu_indices(size)] = linked[: size * (size + 1) // 2]
    return block + np.triu(block, 1).T


def with_singleton(seed=8):
    """Of the second marker of the first chromosome one person has a copy, in the first cohort."""
    data = people(seed, n=N, m=M, missing=0.0, chromosomes=(1, 2))
    data.copies[1] = 0
    data.copies[1, 7] = 1
    return data


def test_the_row_of_a_singleton_is_that_persons_genotypes(tmp_path):
    """Without the limit on carriers. Read from the totals of all cohorts."""
    data, given = with_singleton(), chosen(carriers=0, maf=0.0)
    cohorts = sites(given, cut(tmp_path, data, THIRDS))
    question, answers, _ = asked(given, cohorts, data, genome_tasks.BLOCKS)
    linked = sum(answer.arrays["linked"] for answer in answers.values())
    size, mean = int(question.arrays["size"][0]), question.arrays["mean"]
    block = square_of(linked, size)
    # sum_i (x_i1 - m1)(x_ij - mj) = (x_7j - mj), since columns are centred and one person has 1
    read = np.rint(block[1] + mean[:size])
    others = np.arange(size) != 1
    np.testing.assert_array_equal(read[others], data.copies[:size, 7][others])
    assert len(set(read[others])) > 1


def test_a_marker_with_few_carriers_in_one_cohort_is_used_nowhere(tmp_path):
    data, given = with_singleton(), chosen(carriers=1, maf=0.0)
    cohorts = sites(given, cut(tmp_path, data, THIRDS))
    _, answers, _ = asked(given, cohorts, data, genome_tasks.START)
    few = [answer.arrays["withheld"][1] for answer in answers.values()]
    assert few == [0, 1, 1]  # one copy is enough for the first, none is not for the others
    _, state, _ = carried_out(tmp_path, given, data)
    assert state.values["genome_facts"]["withheld"] == 1
    assert state.values["genome_facts"]["markers"] == M - 1


def test_a_cohort_refuses_a_block_with_a_marker_that_it_withholds(tmp_path):
    """Whoever asks: the study's author may forget what was withheld."""
    data, given = with_singleton(), chosen(carriers=0, maf=0.0)
    cohorts = sites(given, cut(tmp_path, data, THIRDS))

    def forgotten(question):
        for site in cohorts:
            site.whole_genome = chosen(carriers=2, maf=0.0).whole_genome
        return question

    _, answers, _ = asked(given, cohorts, data, genome_tasks.BLOCKS, forgotten)
    assert {code(answer) for answer in answers.values()} == {"too-few-carriers"}


@pytest.mark.parametrize(
    ("whole", "said"),
    [
        ({"people": N + 1}, "whole_genome.people"),
        ({"people_per_marker": 1 + N / 6}, "people_per_marker"),
        ({"own_people": 1 + N // 3}, "each of 3 folds"),
    ],
)
def test_a_study_with_too_few_people_ends_before_its_first_product(tmp_path, whole, said):
    with pytest.raises(DataError, match=said):
        carried_out(tmp_path, chosen(**whole), family())


@pytest.mark.parametrize(
    "whole",
    [{"people": N + 1}, {"people_per_marker": 1 + N / 6}, {"own_people": 1 + N // 3}],
)
def test_cohorts_refuse_too_few_people_whatever_the_study_says(tmp_path, whole):
    data, given = family(), chosen()
    cohorts = sites(given, cut(tmp_path, data, THIRDS))
    for site in cohorts:
        site.whole_genome = chosen(**whole).whole_genome
    _, answers, _ = asked(given, cohorts, data, genome_tasks.START)
    assert {code(answer) for answer in answers.values()} == {"too-few-people"}


def test_a_small_cohort_refuses_by_its_own_people_alone(tmp_path):
    """All together would be enough; the others may collude."""
    data, given = family(), chosen(own_people=30)
    parts = np.array_split(np.arange(N), [25, 120])
    cohorts = sites(given, cut(tmp_path, data, parts))
    _, answers, _ = asked(given, cohorts, data, genome_tasks.START)
    assert [code(answer) for answer in answers.values()] == ["too-few-people", None, None]
    assert "has 25 people tested" in cohorts[0].log[-1]


def test_fewer_people_than_markers_are_read_from_a_blocks_products(tmp_path):
    """Without the limits on people. Products of a cohort's markers are spanned by its people: who
    has whole numbers of copies at some markers and in that span at all of them is one of them."""
    data = people(9, n=N, m=M, missing=0.0, chromosomes=(1, 2))
    given = chosen(carriers=0, block=40)
    cohorts = sites(given, cut(tmp_path, data, np.array_split(np.arange(N), [3, 120])))
    question, answers, _ = asked(given, cohorts, data, genome_tasks.BLOCKS)
    size, mean = int(question.arrays["size"][0]), question.arrays["mean"]
    linked, mean = square_of(answers[0].arrays["linked"], size), mean[:size]
    span = np.linalg.svd(linked)[0][:, :3]
    assert np.linalg.matrix_rank(linked) == 3
    some = np.argsort(-np.abs(span).sum(axis=1))[:3]
    read = set()
    for copies in product(range(3), repeat=3):
        whole = span @ np.linalg.solve(span[some], np.array(copies) - mean[some]) + mean
        if np.abs(whole - np.rint(whole)).max() < 1e-6 and (whole.min() + 1e-6 >= 0):
            read.add(tuple(np.rint(whole).astype(int).tolist()))
    assert {tuple(data.copies[:size, i].tolist()) for i in range(3)} == read


def test_blocks_are_at_most_400():
    with pytest.raises(ValidationError, match="less than or equal to 400"):
        WholeGenome(block=401)


def test_too_many_predictions_are_refused(tmp_path):
    data = family()
    with pytest.raises(DataError, match="people_per_prediction"):
        carried_out(tmp_path, chosen(people_per_prediction=50), data)
    given = chosen()
    cohorts = sites(given, cut(tmp_path, data, THIRDS))
    for site in cohorts:
        site.whole_genome = chosen(people_per_prediction=50).whole_genome
    _, answers, _ = asked(given, cohorts, data, genome_tasks.BLOCKS)
    assert {code(answer) for answer in answers.values()} == {"too-few-people"}


def _twice(given, cohorts, data, until, changed):
    """A question, then the same changed, as a coordinator that does not keep to the study."""
    question, first, reach = asked(given, cohorts, data, until)
    again = dict(reach.ask(replace(changed(question), step=question.step + 1), [0, 1, 2]))
    return [code(a) for a in first.values()], {code(a) for a in again.values()}


def _with(**arrays):
    def changed(question):
        given = {n: f(question.arrays[n].copy()) for n, f in arrays.items()}
        return replace(question, arrays={**question.arrays, **given})

    return changed


def _halved(array):
    return array / 2


@pytest.mark.parametrize(
    ("task", "changed"),
    [
        (genome_tasks.START, _with(variants=lambda bits: bits & np.uint8(0x7F))),
        (genome_tasks.BLOCKS, _with(gamma=_halved)),
        (genome_tasks.BLOCKS, _with(mean=_halved)),
        (genome_tasks.PREDICTED, _with(beta=_halved)),
        (genome_tasks.STACKED, _with(inverse_width=_halved)),
        (genome_tasks.ERRORS, _with(weights=_halved)),
        (genome_tasks.LEFT_OUT, _with(weights=_halved)),
    ],
)
def test_a_second_form_of_a_question_is_refused(tmp_path, task, changed):
    """Two forms of a sum tell its parts: coefficients along one person's genotypes, say."""
    data, given = family(), chosen()
    cohorts = sites(given, cut(tmp_path, data, THIRDS))
    first, second = _twice(given, cohorts, data, task, changed)
    assert first == [None] * 3
    assert second == {"asked-otherwise-before"}


@pytest.mark.parametrize(
    ("task", "arrays"),
    [
        (genome_tasks.PREDICTED, {"beta": lambda a: a + 31}),
        (genome_tasks.ERRORS, {"weights": lambda a: a * np.nan}),
        (genome_tasks.BLOCKS, {"gamma": lambda a: a + 31}),
    ],
)
def test_coefficients_that_single_people_out_are_refused(tmp_path, task, arrays):
    data, given = family(), chosen()
    cohorts = sites(given, cut(tmp_path, data, THIRDS))
    _, answers, _ = asked(given, cohorts, data, task, _with(**arrays))
    assert {code(answer) for answer in answers.values()} == {"coefficients-refused"}


@pytest.mark.parametrize("task", [genome_tasks.PREDICTED, genome_tasks.ERRORS])
def test_in_folds_of_their_own_people_are_told_one_by_one_unless_folds_are_the_same(tmp_path, task):
    """As many folds as people, each with coefficients of its own: a sum is one person's."""

    def alone(question):
        name = {genome_tasks.PREDICTED: "beta", genome_tasks.ERRORS: "weights"}[task]
        arrays, axis = dict(question.arrays), 1 if name == "beta" else 0
        arrays[name] = np.repeat(arrays[name], N, axis=axis)
        if name == "beta":
            arrays["fixed"] = np.repeat(arrays["fixed"], N, axis=2)
        folds = N * question.options["folds"]
        return replace(question, arrays=arrays, options={**question.options, "folds": folds})

    data, given = family(), chosen()
    cohorts = sites(given, cut(tmp_path, data, THIRDS))
    _, answers, _ = asked(given, cohorts, data, task, alone)
    assert {code(answer) for answer in answers.values()} == {"asked-otherwise-before"}


def test_errors_are_told_of_as_many_penalties_as_agreed(tmp_path):
    """Each column of weights is a quadratic form of predictions: many are all products."""
    data, given = family(), chosen()
    cohorts = sites(given, cut(tmp_path, data, THIRDS))
    more = _with(weights=lambda a: np.repeat(a, 40, axis=2))
    _, answers, _ = asked(given, cohorts, data, genome_tasks.ERRORS, more)
    assert {code(answer) for answer in answers.values()} == {"question-not-understood"}


def test_a_test_with_another_prediction_is_refused(tmp_path):
    data, given = family(), chosen()
    cohorts = sites(given, cut(tmp_path, data, THIRDS))

    def moved(question):
        number, mean, width = question.options["prediction"]
        return replace(
            question, options={**question.options, "prediction": [number, mean, 2 * width]}
        )

    first, second = _twice(given, cohorts, data, "gwas shared", moved)
    assert (first, second) == ([None] * 3, {"asked-otherwise-before"})


# Differences


def test_two_step_ones_that_differ_by_a_person_tell_that_persons_genotypes(tmp_path):
    """Without the book."""
    data, given = family(), chosen(carriers=0)
    told = []
    for left_out in ([], [3]):
        changed = family()
        changed.qt[left_out] = np.nan
        folder = tmp_path / f"{len(left_out)}"
        folder.mkdir()
        cohorts = sites(given, cut(folder, changed, THIRDS))
        question, answers, _ = asked(given, cohorts, changed, genome_tasks.BLOCKS)
        told.append(sum(answer.arrays["linked"] for answer in answers.values()))
        size, mean = int(question.arrays["size"][0]), question.arrays["mean"]
    square = (told[0] - told[1])[: size * (size + 1) // 2]
    row = square[:size]  # (x_31 - m1)(x_3j - mj)
    copies = data.copies[:size, 3]
    theirs = np.where(copies == 3, 0, copies - mean[:size])
    np.testing.assert_allclose(row, theirs[0] * theirs, atol=1e-9)


class _Cohort:
    person = tuple(f"f{i} p{i}" for i in range(600))


def charged(memory, study, trait, who, least=200):
    StepOnes(memory, study, trait, least).charge(_Cohort, np.asarray(who))


def test_the_book_keeps_step_ones_apart():
    memory, everybody = Memory(), np.arange(600)
    charged(memory, "a", "height", everybody)
    charged(memory, "a", "height", everybody)  # asked again after a restart
    charged(memory, "b", "weight", everybody)  # the same people: the same products
    charged(memory, "c", "weight", np.arange(350))
    for name, trait, who, said in (
        ("a", "height", np.arange(599), "asked-otherwise-before"),
        ("d", "height", everybody, "step-one-made-before"),
        ("e", "age", np.arange(1, 600), "too-few-other-people"),
        ("f", "height", np.arange(349), "too-few-other-people"),
    ):
        with pytest.raises(Exception, match=said):
            charged(memory, name, trait, who)


def test_the_book_is_kept_at_the_cohort(tmp_path):
    data, given = family(), chosen()
    memory = Memory()
    for trait, ends in (("one", None), ("two", None), ("one", "step-one-made-before")):
        cohorts = sites(given, cut(tmp_path, data, THIRDS))
        name = f"study {len(memory.listed(''))} {ends}"
        cohorts[0].step_ones = StepOnes(memory, name, trait, 10)
        if ends is None:
            carry_out(given, cohorts, data.variants)
        else:
            with pytest.raises(FederationError, match=ends):
                carry_out(given, cohorts, data.variants)


def test_a_real_cohort_keeps_the_book_beside_what_it_has_spent(tmp_path):
    plan, site = own_site(tmp_path)
    for name, refused in (("a" * 64, False), ("b" * 64, True)):
        host = own_host(plan, replace(site, study=name, place=tmp_path / name))
        try:
            own = host.data(0)
            assert own.whole_genome == plan.whole_genome
            people = np.flatnonzero(own.cohort.loaded)
            if refused:
                with pytest.raises(Declined, match="step-one-made-before"):
                    own.step_ones.charge(own.cohort, people)
            else:
                own.step_ones.charge(own.cohort, people)
        finally:
            host.close()


@pytest.mark.parametrize("key", ["people", "own_people", "carriers", "people_per_marker"])
def test_a_site_joins_no_study_with_weaker_limits(tmp_path, key):
    plan, site = own_site(tmp_path)
    told = "\n".join(weaker_limits(plan, site.rules))
    assert f"whole_genome.{key} is" in told
    assert f"limits.genome_{key}" in told
    strict = plan.model_copy(update={"whole_genome": WholeGenome(components_elsewhere=True)})
    assert not [line for line in weaker_limits(strict, site.rules) if "whole_genome" in line]


def own_site(folder):
    """A plan with small limits, and the first cohort's own settings."""
    plan = small_plan(folder, "linear")
    data = {"bfile": "c0", "pheno": "c0.pheno", "cov": "c0.cov"}
    rules = SimpleNamespace(name="c0", budget=None, limits=TotalLimits(), salt=None)
    return plan, OwnSite(0, 3, data, folder, folder, rules, book=folder / "spent.jsonl")


# Bounds


def test_predictions_are_cut_so_that_sums_have_bounds():
    rng = np.random.default_rng(1)
    standard, fold = rng.normal(size=(50, 4)), rng.integers(0, 2, 50)
    found = predictions.weighted(standard, fold, np.full((2, 4, 1), 30.0))
    assert np.abs(found).max() == predictions.CLIP


@pytest.mark.parametrize("seed", range(3))
def test_what_a_cohort_adds_is_within_its_bounds(tmp_path, seed):
    """Extreme people: one cohort holds nearly all that varies."""
    data = family(seed)
    data.age[:4] = 10.0 ** np.arange(3, 7) / 100
    data.qt[5] = 500.0
    given = chosen()
    cohorts = sites(given, cut(tmp_path, data, THIRDS))
    seen = []

    class Watched(InProcess):
        def ask(self, question, who):
            for site, answer in super().ask(question, who):
                if question.task in genome_tasks.TASKS:
                    seen.append((question.expects, answer.arrays))
                yield site, answer

    carry_out(given, cohorts, data.variants, engine=Watched)
    assert len(seen) >= 18
    for expects, arrays in seen:
        for name, array in arrays.items():
            assert np.abs(array).max() <= expects[name].bound
            assert array.shape == expects[name].shape


# Plans


def test_components_are_compulsory():
    facts = {"test": "linear", "whole_genome": WholeGenome()}
    with pytest.raises(ValidationError, match="components_elsewhere"):
        study(**facts)
    named = study(**facts, covariates=("AGE", "PC1"))
    assert named.parts == ("whole-genome", "test")
    ranged = study(**facts, covariates=("AGE", "PC1-10"))
    assert ranged.whole_genome is not None
    elsewhere = WholeGenome(components_elsewhere=True)
    assert study("linear", whole_genome=elsewhere).whole_genome is elsewhere


def test_a_chi_square_test_takes_no_prediction():
    with pytest.raises(ValidationError, match="goes with test"):
        study("chi-square", whole_genome=WholeGenome(components_elsewhere=True))


def test_a_table_that_is_not_used_is_as_if_it_was_not_there():
    assert study("linear", whole_genome={"use": False}).whole_genome is None


def test_markers_on_one_chromosome_leave_nothing_out(tmp_path):
    with pytest.raises(DataError, match="two chromosomes"):
        carried_out(tmp_path, chosen(), family(chromosomes=(1, 23)))


def test_its_numbers_count_among_those_released():
    whole = SMALL.model_copy(update={"block": 200, "folds": 5})
    with_it = released_numbers(study("linear", whole_genome=whole))
    assert with_it == released_numbers(study("linear")) + 1 + 100 + 3 + 5


def test_errors_name_no_path_of_a_cohort(tmp_path):
    data, given = family(), chosen(own_people=30)
    cohorts = sites(given, cut(tmp_path, data, np.array_split(np.arange(N), [25, 120])))
    with pytest.raises(CupolaError, match="too-few-people") as error:
        carry_out(given, cohorts, data.variants)
    assert str(tmp_path) not in str(error.value)
