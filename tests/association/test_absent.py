"""Variants that some cohorts lack are tested in the others, as if calls were missing; differences
of totals tell of no fewer cohorts than a total may have."""

import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from cohorts import carry_out, people, sites, study, write
from replayed import record, repeat, saved_and_loaded

import cupola
from cupola.analysis.plan_file import load
from cupola.association import Association, results
from cupola.association.agreement import R_ABSENT, R_APART, R_FEW, REASONS
from cupola.association.compare import read_results
from cupola.association.plan import StudyPlan
from cupola.engines.in_process import InProcess
from cupola.errors import PlanError
from cupola.federation import Declined
from cupola.federation.site import find_task

PLINK = shutil.which("plink1.9")
M = 16
CHIPS = {1: [3, 4, 5, 11], 2: [4, 6]}  # cohort -> variants that it lacks


def _data(seed=71, cohorts=3, each=70, **options):
    data = people(seed, n=cohorts * each, m=M, missing=0.03, **options)
    return data, np.array_split(np.arange(cohorts * each), cohorts)


def _cohorts(folder, data, parts, lacks):
    """Each without the variants that it lacks."""
    kept = [np.delete(np.arange(M), lacks.get(i, [])) for i in range(len(parts))]
    return [write(folder, f"c{i}", data, who, kept[i]) for i, who in enumerate(parts)]


def _emptied(data, parts, lacks):
    """All people, without the calls of variants that their cohort lacks."""
    copies = data.copies.copy()
    for i, rows in lacks.items():
        copies[np.ix_(rows, parts[i])] = 3
    return replace(data, copies=copies)


def _same(found, expected, rtol):
    names = found.variants.name.tolist()
    at = [expected.variants.name.tolist().index(name) for name in names]
    assert (found.variants.a1 == expected.variants.a1[np.array(at)]).all()
    for name, column in found.columns.items():
        np.testing.assert_allclose(column, expected.columns[name][at], rtol, 1e-7, err_msg=name)


TESTS = {
    "chi-square": study("chi-square", trend=True),
    "linear": study("linear"),
    "logistic": study("logistic"),
    "firth": study("logistic", newton={"firth": True}),
}


@pytest.mark.parametrize("name", TESTS)
def test_it_equals_one_file_without_these_calls(tmp_path, name):
    data, parts = _data(chromosomes=(1, 23))
    data.copies[3, parts[0]] = 2 * (data.cc[parts[0]] == 2)  # separated in the cohorts that have it
    data.copies[3, parts[2]] = 2 * (data.cc[parts[2]] == 2)
    one = write(tmp_path, "one", _emptied(data, parts, CHIPS))
    chosen = TESTS[name].model_copy(update={"least_cohorts": 1})
    pooled = carry_out(TESTS[name], sites(TESTS[name], [one]), data.variants)
    bases = _cohorts(tmp_path, data, parts, CHIPS)
    program, state, _ = carry_out(chosen, sites(chosen, bases), data.variants)
    found = results(program, state)
    assert found.variants.name.tolist() == data.variants.name.tolist()
    assert found.cohorts.tolist() == [3, 3, 3, 2, 1, 2, 2, 3, 3, 3, 3, 2, 3, 3, 3, 3]
    _same(found, results(*pooled[:2]), 1e-5 if name in ("logistic", "firth") else 1e-6)
    assert (found.status == results(*pooled[:2]).status).all()


@pytest.mark.parametrize("name", TESTS)
def test_masked_sums_give_the_same_and_tell_of_three_cohorts_at_least(tmp_path, name):
    data, parts = _data(cohorts=6, each=40)
    lacks = {i: [2, 3, 7] for i in (1, 3, 4)} | {i: [8, 9] for i in (0, 2, 5)}
    lacks[4] = [*lacks[4], 12]  # alone
    bases = _cohorts(tmp_path, data, parts, lacks)
    chosen = TESTS[name].model_copy(update={"least_cohorts": 3})
    own = sites(chosen, bases, apart=3)
    masked, state, _ = carry_out(chosen, own, data.variants, masked=True, apart=3)
    plain = carry_out(chosen, sites(chosen, bases), data.variants)
    assert state.values["groups"] == [0, 1, 0, 1, 1, 0]
    assert np.flatnonzero(state.arrays["reason"] == R_APART).tolist() == [12]
    found = results(masked, state)
    assert found.cohorts.tolist() == [6, 6, 3, 3, 6, 6, 6, 3, 3, 3, 6, 6, 6, 6, 6]
    _same(found, results(*plain[:2]), 1e-4)
    assert results(*plain[:2]).cohorts.tolist()[12] == 5


@pytest.mark.skipif(PLINK is None, reason="needs plink1.9")
@pytest.mark.parametrize("test", ["chi-square", "linear", "logistic"])
def test_plink_prints_the_same_of_the_pooled_file_without_these_calls(tmp_path, test):
    data, parts = _data(chromosomes=(1,))
    pooled = _emptied(data, parts, CHIPS)
    one = write(tmp_path, "one", pooled)
    how = {"chi-square": ["--assoc"], "linear": ["--linear", "hide-covar"],
           "logistic": ["--logistic", "hide-covar"]}[test]  # fmt: skip
    more = ["--pheno-name", "QT" if test == "linear" else "CC"]
    if test != "chi-square":
        more += ["--covar", f"{one}.cov"]
    command = [PLINK, "--silent", "--bfile", str(one), "--pheno", f"{one}.pheno", *more, *how,
               "--allow-no-sex", "--out", str(tmp_path / "plink")]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    bases = _cohorts(tmp_path, data, parts, CHIPS)
    chosen = study(test, least_cohorts=1, ambiguous_sex=True)
    program, state, _ = carry_out(chosen, sites(chosen, bases), data.variants)
    ours = results(program, state)
    theirs = read_results(next(tmp_path.glob("plink.assoc*")))
    assert theirs.name.tolist() == ours.variants.name.tolist()
    np.testing.assert_allclose(10**theirs.log10_p, ours.columns["P"], rtol=2e-3)
    if test != "chi-square":
        at = theirs.head.index("NMISS")
        assert [float(row[at]) for row in theirs.fields] == ours.columns["NMISS"].tolist()


def test_filters_count_the_people_of_the_cohorts_that_have_a_variant(tmp_path):
    data, parts = _data(chromosomes=(1, 23, 24))
    data.copies[3, parts[0][:30]] = 3  # missing for many where it is
    bases = _cohorts(tmp_path, data, parts, CHIPS)
    chosen = study("chi-square", least_cohorts=1, quality={"missing": 0.15})
    program, state, _ = carry_out(chosen, sites(chosen, bases), data.variants)
    assert REASONS[state.arrays["reason"][3]] == "missing calls"
    kept = np.delete(np.arange(M), 3)
    assert not state.arrays["reason"][kept].any()
    expected = program.expected_alleles(state, np.arange(M))
    assert (state.arrays["alleles"].sum(axis=1)[:, 1] <= expected).all()


def test_at_least_so_many_cohorts_and_so_many_people(tmp_path):
    data, parts = _data()
    bases = _cohorts(tmp_path, data, parts, CHIPS)
    chosen = study("linear", least_cohorts=2)
    _, state, _ = carry_out(chosen, sites(chosen, bases), data.variants)
    assert np.flatnonzero(state.arrays["reason"] == R_ABSENT).tolist() == [4]
    few = study("linear", least_cohorts=1, people_per_column=30)  # five columns: 150 people
    _, state, _ = carry_out(few, sites(few, bases), data.variants)
    assert np.flatnonzero(state.arrays["reason"] == R_FEW).tolist() == [3, 4, 5, 6, 11]
    everywhere = _cohorts(tmp_path, data, parts, {})
    program, state, _ = carry_out(chosen, sites(chosen, everywhere), data.variants)
    assert results(program, state).cohorts is None


def test_the_order_of_cohorts_does_not_matter(tmp_path):
    data, parts = _data(cohorts=4, each=50)
    bases = _cohorts(tmp_path, data, parts, {0: [1, 2, 3], 2: [3, 5], 3: [9]})
    chosen = study("linear", least_cohorts=2)
    tables = []
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]):
        own = sites(chosen, [bases[i] for i in order])
        program, state, _ = carry_out(chosen, own)
        tables.append(results(program, state))
    for other in tables[1:]:
        assert other.variants.name.tolist() == tables[0].variants.name.tolist()
        assert other.cohorts.tolist() == tables[0].cohorts.tolist()
        _same(other, tables[0], 1e-6)


def test_whoever_repeats_it_asks_the_same(tmp_path):
    data, parts = _data()
    bases = _cohorts(tmp_path, data, parts, CHIPS)
    chosen = study("logistic", least_cohorts=1, chunk=8)
    asked, replies = record(chosen, bases)
    assert repeat(chosen, 3, replies, between=saved_and_loaded) == asked


# What would be told


def _of_one_cohort(folder, apart):
    """Three of six cohorts lack a variant, four another one: the totals of what they lack."""
    data, parts = _data(cohorts=6, each=40)
    data.copies[data.copies == 3] = 0
    lacks = {i: [2, 3] for i in (0, 1, 2)} | {3: [3]}
    bases = _cohorts(folder, data, parts, lacks)
    chosen = study("linear", least_cohorts=2)
    own = sites(chosen, bases, apart=apart)
    totals = {}

    class Told(InProcess):
        def sum(self, question, sites):
            total = super().sum(question, sites)
            if question.task in ("gwas linear", "gwas shared"):
                totals[question.task] = total.arrays
            return total

    _, state, _ = carry_out(chosen, own, data.variants, engine=Told, apart=apart)
    asked = np.flatnonzero(state.arrays["reason"] == 0)
    off = dict(zip(asked.tolist(), totals["gwas linear"]["off"]))
    return state, own, off


def test_sets_of_cohorts_that_differ_by_one_would_tell_its_own_products(tmp_path):
    state, own, off = _of_one_cohort(tmp_path, 1)
    told = off[3] - off[2]  # what four cohorts have, less what three of them have
    design = next(iter(own[3]._designs.values()))
    np.testing.assert_allclose(told, design.products.sum(axis=0)[1:], rtol=1e-5, atol=1e-4)
    state, own, off = _of_one_cohort(tmp_path, 3)
    assert state.arrays["reason"][3] == R_APART
    assert 3 not in off
    assert [state.values["groups"].count(g) for g in range(2)] == [3, 3]


def _asking(folder, groups, apart=3):
    data, parts = _data(cohorts=6, each=40)
    chosen = study("linear", least_cohorts=3)
    own = sites(chosen, _cohorts(folder, data, parts, {i: [2] for i in range(3)}), apart=apart)
    program, state, engine = carry_out(chosen, own, data.variants, apart=3)
    question = program.asker(state).groups(groups)
    return find_task("gwas groups")(engine.context(0), question)


def test_a_cohort_refuses_groups_that_are_too_small_or_others_than_before(tmp_path):
    assert _asking(tmp_path, [0, 0, 0, 1, 1, 1]).arrays
    with pytest.raises(Declined, match="asked-otherwise-before"):
        _asking(tmp_path, [0, 0, 0, 0, 1, 1])
    data, parts = _data(cohorts=6, each=40)
    chosen = study("linear", least_cohorts=3)
    for least, groups in ((3, [0, 0, 0, 0, 1, 1]), (None, [0, 0, 0, 1, 1, 1])):
        had = study("linear", least_cohorts=least)
        own = sites(had, _cohorts(tmp_path, data, parts, {}), apart=3)
        program, state, engine = carry_out(study("linear"), own, data.variants)
        asked = type(program)(chosen, 6).asker(state).groups(groups)
        with pytest.raises(Declined, match="groups-too-small"):
            find_task("gwas groups")(engine.context(0), asked)


def test_without_groups_a_cohort_answers_nothing_about_what_it_lacks(tmp_path):
    data, parts = _data()
    bases = _cohorts(tmp_path, data, parts, {0: [3]})
    chosen = study("chi-square", least_cohorts=2)
    program, state, engine = carry_out(chosen, sites(chosen, bases), data.variants)
    question = program.ask(replace(state, values={**state.values, "phase": "counts", "at": 0}))
    engine.context(0).data.memory = type(engine.context(0).data.memory)()  # forgets the groups
    with pytest.raises(Declined, match="variants-not-agreed"):
        find_task("gwas counts")(engine.context(0), question.question)


def _plan(folder, cohorts, **options):
    names = [f"c{i}" for i in range(cohorts)]
    files = [{"name": n, "bfile": n, "pheno": f"{n}.pheno", "cov": f"{n}.cov"} for n in names]
    return load({"test": "chi-square", "trait": {"column": "CC"}, "cohorts": files,
                 "folder": str(folder), **options}, of=StudyPlan)  # fmt: skip


@pytest.mark.parametrize(
    ("cohorts", "least", "said"),
    [(6, 2, "masked totals are of at least 3"), (4, 3, "difference of two totals"),
     (6, 4, "difference of two totals"), (3, 4, "there are 3 cohorts")],
)  # fmt: skip
def test_a_plan_that_would_tell_of_single_cohorts_is_refused(cohorts, least, said):
    with pytest.raises(PlanError, match=said):
        _plan(".", cohorts, least_cohorts=least, sum="masked")
    assert _plan(".", 6, least_cohorts=3, sum="masked").apart == 3
    assert _plan(".", 6, least_cohorts=1).apart == 1


def test_result_report_and_table_say_in_how_many_cohorts(tmp_path):
    data, parts = _data(cohorts=6, each=40)
    lacks = {i: [2] for i in (0, 1, 2)} | {3: [3], 4: [4, 5], 5: [4]}
    _cohorts(tmp_path, data, parts, lacks)
    plan = _plan(tmp_path, 6, least_cohorts=3, sum="masked", tables=["plink", "parquet"], rare=1)
    done = cupola.run(plan, tmp_path / "run")
    assert done.result["agreement"]["in_fewer"] == 1
    assert done.result["left_out"] == {REASONS[R_APART]: 3}
    table = read_results(tmp_path / "run" / "study.assoc")
    told = dict(
        zip(table.name.tolist(), (row[table.head.index("COHORTS")] for row in table.fields))
    )
    assert told.pop(data.variants.name[2]) == "3"
    assert set(told.values()) == {"6"}
    assert "in some cohorts only" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("change", [{"score": {"below": 0.01}}, {"test": "mixed"}])
def test_where_people_without_a_genotype_count_as_the_mean_it_is_refused(change):
    options = {"covariates": (), "least_cohorts": 2, **change}
    with pytest.raises(PlanError, match="least_cohorts goes with"):
        Association(study(options.pop("test", "logistic"), **options), 3)
