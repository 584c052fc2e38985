"""Whole-genome regression by sums equals the textbook's on the pooled people."""

import os
import signal
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from cohorts import carry_out, cut, people, sites, study, write_bim
from pooled_genome import pooled, pooled_predictions
from replayed import saved_and_loaded
from test_killed import CHILD

import cupola
from cupola.association import Association, StudyHost, questions, results
from cupola.association.forecast import foresee_study
from cupola.association.plan import StudyPlan
from cupola.association.structure import genome_tasks, predictions
from cupola.association.structure.whole_genome import Blocks
from cupola.association.study_choices import WholeGenome
from cupola.base.chain import read_result
from cupola.engines import InProcess
from cupola.federation import SiteContext
from cupola.federation.site import StateStore

SMALL = WholeGenome(
    block=6, folds=3, components_elsewhere=True, people=0, own_people=0, carriers=3,
    people_per_marker=0, people_per_prediction=0, maf=0.05,
)  # fmt: skip
N, M = 240, 60
THIRDS = np.array_split(np.arange(N), 3)


def family(seed=5, n=N, m=M, chromosomes=(1, 2, 3, 23, 24, 26), noise=1.0):
    """People whose trait many markers shape."""
    data = people(seed, n=n, m=m, missing=0.02, chromosomes=chromosomes)
    rng = np.random.default_rng(seed)
    copies = np.where(data.copies == 3, 1, data.copies).astype(float)
    level = rng.normal(size=m) @ (copies - copies.mean(axis=1, keepdims=True))
    data.qt = (level / level.std() + noise * rng.normal(size=n) + 0.02 * data.age).round(4)
    data.cc = 1.0 + (data.qt > np.quantile(data.qt, 0.6))
    return data


def chosen(test="linear", **whole):
    return study(test, whole_genome=SMALL.model_copy(update=whole), chunk=16)


def carried_out(folder, given, data, masked=False):
    cohorts = sites(given, cut(folder, data, THIRDS))
    program, state, _ = carry_out(given, cohorts, data.variants, masked)
    return program, state, cohorts


def folds(count=3):
    """Of everybody tested, as simulated cohorts draw them."""
    contexts = [SiteContext(i, None, None, StateStore(), 0) for i in range(3)]
    parts = zip(contexts, THIRDS)
    return np.concatenate([predictions.folds_of(None, c, len(p), count) for c, p in parts])


@pytest.mark.parametrize("test", ["linear", "logistic"])
@pytest.mark.parametrize("masked", [False, True])
def test_federated_equals_pooled(tmp_path, monkeypatch, test, masked):
    monkeypatch.setattr(questions, "COARSE", 0)  # sums over missing calls with 64 bits, too
    data, given = family(), chosen(test)
    program, state, _ = carried_out(tmp_path, given, data, masked)
    ours = results(program, state)
    beta, error = pooled(data, given, folds())
    np.testing.assert_allclose(ours.columns["BETA"], beta, rtol=1e-9, atol=1e-11)
    # Newton takes its sums at coefficients of 32 bits, and the last step after them.
    exact = 1e-9 if test == "linear" else 1e-5
    np.testing.assert_allclose(ours.columns["SE"], error, rtol=exact)
    assert set(ours.variants.chromosome) == {1, 2, 3, 23, 24, 26}
    assert np.isfinite(beta).sum() > 50


def test_predictions_equal_those_of_the_pooled_people(tmp_path):
    data, given = family(), chosen()
    asked, seen = [], {}

    class Watched(InProcess):
        def ask(self, question, who):
            if question.task == genome_tasks.LEFT_OUT:
                asked.append(question)
            return super().ask(question, who)

    cohorts = sites(given, cut(tmp_path, data, THIRDS))
    carry_out(given, cohorts, data.variants, engine=Watched)
    for i, site in enumerate(cohorts):
        seen[i] = site.made["left out"][1]
    theirs = pooled_predictions(data, given, folds())
    ours = np.vstack([seen[i] for i in range(3)])
    assert len(asked) == 1
    np.testing.assert_allclose(ours, np.column_stack(list(theirs.values())), atol=1e-11)
    assert ours.std(axis=0).min() > 0.04


def test_a_prediction_that_helps_narrows_standard_errors(tmp_path):
    data = family(noise=0.2, chromosomes=(1, 2, 3))
    program, state, _ = carried_out(tmp_path, chosen(), data)
    with_it = results(program, state).columns["SE"]
    program, state, _ = carried_out(tmp_path, study("linear", chunk=16), data)
    without = results(program, state).columns["SE"]
    assert np.nanmedian(with_it / without) < 0.95
    assert state.values.get("genome_facts") is None


def test_chunks_are_of_one_chromosome_and_models_too(tmp_path):
    program, state, _ = carried_out(tmp_path, chosen("logistic"), family())
    for chunk in program.chunks(state):
        numbers = set(program.variants(state).chromosome[chunk.index].tolist())
        assert len(numbers) == 1
        assert chunk.prediction[0] == (numbers.pop() if chunk.kind == 0 else 0)
    assert set(state.values["null"]) == {"0/1", "0/2", "0/3", "1/0", "2/0", "3/0"}
    assert not [name for name in state.arrays if name.startswith("genome/")]


def test_after_a_restart_predictions_are_made_again_and_equal(tmp_path):
    """Cohorts lose what they made at every step, and the state is as a checkpoint keeps it."""
    data, given = family(), chosen("logistic")
    program, whole, _ = carried_out(tmp_path, given, data)
    cohorts = sites(given, cut(tmp_path, data, THIRDS))
    again = Association(given, 3, data.variants)
    state = again.start()
    with InProcess(StudyHost(cohorts), workers=1, quorum=1.0) as reach:
        while (ask := again.ask(saved_and_loaded(state))) is not None:
            for site in cohorts:
                site.made.clear()
            kinds = {"sum": reach.sum, "alone": lambda *_: None}
            reply = kinds[ask.kind](ask.question, ask.sites)
            state = again.answer(saved_and_loaded(state), reply)
    for name, column in results(program, whole).columns.items():
        np.testing.assert_array_equal(column, results(again, state).columns[name])


def test_blocks_lie_in_one_chromosome_and_are_even():
    chromosome = np.repeat([1, 2, 5], [25, 7, 40])
    made = Blocks.of(chromosome, 12)
    assert made.sizes.tolist() == [8, 8, 9, 7, 10, 10, 10, 10]
    assert made.chromosome.tolist() == [1, 1, 1, 2, 5, 5, 5, 5]
    assert made.stretches == [slice(0, 8)]
    many = Blocks.of(np.repeat(np.arange(1, 23), 4000), 400)
    assert len(many.stretches) > 10
    stretches = [many.markers(s) for s in many.stretches]
    assert stretches[0].start == 0
    assert stretches[-1].stop == 88_000
    assert all(a.stop == b.start for a, b in pairwise(stretches))


def test_several_stretches_are_one_regression(tmp_path, monkeypatch):
    data, given = family(), chosen()
    program, state, _ = carried_out(tmp_path, given, data)
    whole = results(program, state).columns["BETA"]
    from cupola.association.structure import whole_genome

    monkeypatch.setattr(whole_genome, "MOST_NUMBERS", 30)
    program, state, _ = carried_out(tmp_path, given, data)
    np.testing.assert_allclose(results(program, state).columns["BETA"], whole, rtol=1e-10)


def test_the_list_need_not_be_along_the_genome(tmp_path):
    data, given = family(), chosen()
    program, state, _ = carried_out(tmp_path, given, data)
    ours = results(program, state)
    order = np.random.default_rng(1).permutation(M)
    cohorts = sites(given, cut(tmp_path, data, THIRDS))
    program, state, _ = carry_out(given, cohorts, data.variants[order])
    theirs = results(program, state)
    names = {name: i for i, name in enumerate(theirs.variants.name)}
    at = [names[name] for name in ours.variants.name]
    np.testing.assert_allclose(theirs.columns["BETA"][at], ours.columns["BETA"], rtol=1e-8)


def test_products_of_32_bits_change_little(tmp_path):
    data = family()
    told = {}
    for bits in (32, 64):
        program, state, _ = carried_out(tmp_path, chosen(bits=bits), data, masked=True)
        told[bits] = results(program, state).columns["LOG10P"]
    assert 0 < np.nanmax(np.abs(told[32] - told[64])) < 1e-3


# Plans, forecasts, and runs that are killed


def small_plan(folder, test="logistic", **whole):
    data = family(n=N)
    cut(folder, data, THIRDS)
    write_bim(folder / "public.bim", data.variants)
    given = {**SMALL.model_dump(mode="json"), **whole}
    cohorts = [
        {"name": n, "bfile": n, "pheno": f"{n}.pheno", "cov": f"{n}.cov"}
        for n in ("c0", "c1", "c2")
    ]
    plan = StudyPlan.model_validate(
        {
            "test": test, "trait": {"column": "QT" if test == "linear" else "CC"},
            "covariates": ["AGE", "DOSE"], "variants": "public.bim", "sum": "masked",
            "engine": {"quorum": 1.0, "workers": 1}, "chunk": 16, "checkpoint_seconds": 0,
            "people_per_column": 0, "whole_genome": given, "cohorts": cohorts,
        }
    )  # fmt: skip
    return plan.model_copy(update={"folder": str(folder)})


@pytest.mark.parametrize("test", ["linear", "logistic"])
def test_a_forecast_is_no_less_than_what_is_sent(tmp_path, test):
    plan = small_plan(tmp_path, test)
    told = foresee_study(plan)
    found = cupola.run(plan, tmp_path / "run", report=True).result
    assert found.bytes_down + found.bytes_up <= told.total
    rows = {row["task"]: row["up"] for row in told.rows}
    assert set(genome_tasks.TASKS) <= set(rows)
    assert any("linkage" in line for line in told.limits)
    assert any("would keep" in line for line in told.limits)
    assert found.whole_genome.markers > 20
    assert "Whole-genome regression" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.parametrize("at", [7, 9, 11, 16])
def test_killed_and_gone_on_with(tmp_path, at):
    plan = small_plan(tmp_path)
    (tmp_path / "study.toml").write_text(plan.to_toml())
    whole = cupola.run(tmp_path / "study.toml", tmp_path / "whole", report=False).result
    out = tmp_path / "killed"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path), str(out), str(at)],
        stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline().strip() == b"here"
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(30) == -signal.SIGKILL
    child.stdout.close()
    assert read_result(out) == {}
    again = cupola.resume(out, report=False)[0].result
    for name in whole.files:
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    for name in ("tested", "bytes_up", "bytes_down"):
        assert again[name] == whole[name]
