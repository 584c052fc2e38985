"""Pruning of markers over cohorts, beside PLINK 1.9 and an obvious form on the pooled people."""

import json
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from cohorts import carry_out, cut, sites, study, write
from linked import linked
from replayed import bare, lying_otherwise, record, repeat, saved_and_loaded

import cupola
from cupola.analysis.plan_file import load
from cupola.association import Association, StudyHost
from cupola.association.component_choices import Prune
from cupola.association.component_plan import ComponentsPlan
from cupola.association.forecast import foresee_study
from cupola.association.structure import pruning
from cupola.association.structure.component_results import used_markers
from cupola.engines import InProcess
from cupola.errors import DataError, FederationError, PlanError

LIMITS = {"people": 1, "directions": 100, "carriers": 0}
SHORT = {"r2": 0.2, "window": 11, "step": 3}  # a cohort needs 100 people
N, M = 1200, 90


def _chosen(prune, **options):
    found = {"count": 2, "block": 3, "sums": 2, "maf": 0.01, "prune": prune}
    return study(None, components=found, limits=LIMITS, **options)


def _parts(n):
    return np.split(np.arange(n), [n // 3, n // 3 + n // 4])


def _left(folder, data, prune, masked=False):
    """Names of the markers that components are made of."""
    made = _chosen(prune)
    program, state, _ = carry_out(
        made, sites(made, cut(folder, data, _parts(len(data)))), masked=masked
    )
    names = program.variants(state).name[used_markers(program, state).index]
    return set(np.array(names, str).tolist()), state


def _plain(data, prune):
    """The obvious form: every window anew, every r^2 from the pooled people."""
    x = data.copies.astype(float)
    x[x == 3] = np.nan
    p = np.nanmean(x, axis=1) / 2
    z = np.nan_to_num(x - 2 * p[:, None])
    minor, left = np.minimum(p, 1 - p), np.ones(len(x), bool)
    for c in np.unique(data.variants.chromosome):
        rows = np.flatnonzero(data.variants.chromosome == c)
        for first in range(0, len(rows), prune["step"]):
            window, again = rows[first : first + prune["window"]], True
            while again:
                again = False
                for i in window:
                    for j in window[window > i]:
                        r2 = (z[i] @ z[j]) ** 2 / ((z[i] @ z[i]) * (z[j] @ z[j]))
                        if left[i] and left[j] and r2 > prune["r2"]:
                            left[i if minor[i] < minor[j] * (1 - 1e-12) else j] = False
                            again = True
                            break
    return set(np.array(data.variants.name, str)[left].tolist())


@pytest.mark.parametrize("missing", [0.0, 0.05])
@pytest.mark.parametrize("masked", [False, True])
def test_markers_that_are_left_are_those_of_the_obvious_form(tmp_path, masked, missing):
    data = linked(3, n=N, m=M, missing=missing)
    found, state = _left(tmp_path, data, SHORT, masked)
    assert found == _plain(data, SHORT)
    assert 10 < len(found) < M - 20
    assert state.values["components"]["pruned"] == M - len(found)
    assert state.values["components"]["markers"] == len(found)


def _plink(folder, data, prune):
    base = write(folder, "all", data)
    how = [str(prune[key]) for key in ("window", "step", "r2")]
    command = ["plink1.9", "--bfile", base, "--indep-pairwise", *how, "--out", folder / "p"]
    subprocess.run(command, check=True, capture_output=True)
    return set((folder / "p.prune.in").read_text().split())


@pytest.mark.skipif(shutil.which("plink1.9") is None, reason="needs plink1.9")
@pytest.mark.parametrize("prune", [{"r2": 0.2, "window": 50, "step": 5}, SHORT,
                                   {"r2": 0.5, "window": 20, "step": 1}])  # fmt: skip
def test_markers_that_are_left_are_those_of_plink(tmp_path, prune):
    data = linked(4, n=2100, m=240, missing=0.0, rho=0.97)
    found, _ = _left(tmp_path, data, prune)
    assert found == _plink(tmp_path, data, prune)
    assert 5 < len(found) < 200


@pytest.mark.skipif(shutil.which("plink1.9") is None, reason="needs plink1.9")
def test_with_missing_calls_nearly_all_are(tmp_path):
    """PLINK leaves out people without one of two calls, we take the mean: r^2 at the threshold."""
    data = linked(4, n=2100, m=240, missing=0.02, rho=0.97)
    found, theirs = _left(tmp_path, data, SHORT)[0], _plink(tmp_path, data, SHORT)
    assert len(found ^ theirs) <= 0.1 * len(theirs)


def test_a_list_in_another_order_leaves_the_same(tmp_path):
    data = linked(3, n=N, m=M)
    order = np.random.default_rng(1).permutation(M)
    moved = replace(data, copies=data.copies[order], variants=data.variants[order])
    (tmp_path / "other").mkdir()
    assert _left(tmp_path, data, SHORT)[0] == _left(tmp_path / "other", moved, SHORT)[0]


@pytest.mark.parametrize("block", [7, 30])
def test_questions_about_fewer_markers_lead_to_the_same(tmp_path, monkeypatch, block):
    from cupola.association.structure import components

    data = linked(3, n=N, m=M)
    whole = _left(tmp_path, data, SHORT)[0]
    for module in (components, pruning):
        monkeypatch.setattr(module, "BLOCK", block)
    assert _left(tmp_path, data, SHORT)[0] == whole


@pytest.mark.parametrize("between", [saved_and_loaded, lying_otherwise])
def test_whoever_repeats_the_steps_asks_the_same(tmp_path, between, monkeypatch):
    from cupola.association.structure import components

    for module in (components, pruning):
        monkeypatch.setattr(module, "BLOCK", 40)
    made = _chosen(SHORT)
    asked, replies = record(made, cut(tmp_path, linked(3, n=N, m=M), _parts(N)))
    assert repeat(made, 3, replies, between=between) == asked
    assert repeat(made, 3, replies, changed=bare) == asked


# What a cohort refuses


def _at_pruning(folder, data, prune=SHORT):
    made = _chosen(prune)
    cohorts = sites(made, cut(folder, data, _parts(len(data))))
    program = Association(made, 3)
    state, reach = program.start(), InProcess(StudyHost(cohorts), workers=1, quorum=1.0)
    while (ask := program.ask(state)).question.task != pruning.PRUNING:
        answered = {"sum": reach.sum, "gather": reach.gather, "alone": lambda *_: None}
        state = program.answer(state, answered[ask.kind](ask.question, ask.sites))
    return ask.question, reach, program, state


def test_a_marker_with_few_carriers_in_a_cohort_is_in_no_product(tmp_path):
    data = linked(3, n=N, m=M, missing=0.0)
    last = _parts(N)[2]
    data.copies[5, last] = 0
    data.copies[5, last[:49]] = 1  # 49 copies there; more in all
    question, reach, program, state = _at_pruning(tmp_path, data)
    used = program.part(state).used
    assert 5 not in used.index
    assert state.values["components"]["withheld"] == 1
    everything = replace(question, arrays={"kept": np.packbits(np.ones(M, bool))})
    with pytest.raises(FederationError, match="few-carriers"):
        reach.sum(everything, [2])


def test_a_cohort_tells_of_one_set_of_markers_and_once(tmp_path):
    question, reach, *_ = _at_pruning(tmp_path, linked(3, n=N, m=M))
    reach.sum(question, [0])
    other = np.ones(M, bool)
    other[3] = False
    with pytest.raises(FederationError, match="asked-otherwise-before"):
        reach.sum(replace(question, arrays={"kept": np.packbits(other)}), [0])
    with pytest.raises(FederationError, match="asked-too-often"):
        reach.sum(replace(question, step=question.step + 1), [0])


def test_products_are_within_their_bound(tmp_path):
    data = linked(3, n=N, m=M)
    data.copies[1] = data.copies[0]  # as linked as can be
    question, reach, *_ = _at_pruning(tmp_path, data)
    for i in range(3):
        told = np.abs(reach.sum(question, [i]).arrays["products"]).max()
        assert 0 < told < question.expects["products"].bound


# A study from its plan


def _plan(folder, **prune):
    found = {"count": 2, "block": 3, "sums": 2, "maf": 0.01, "prune": {**SHORT, **prune}}
    cohorts = [{"name": f"c{i}", "bfile": f"c{i}"} for i in range(3)]
    return load({"kind": "pca", "components": found, "limits": LIMITS, "cohorts": cohorts,
                 "folder": str(folder), "sum": "masked"}, of=ComponentsPlan)  # fmt: skip


def test_it_is_foreseen_told_and_read_again(tmp_path):
    cut(tmp_path, linked(3, n=N, m=M), _parts(N))
    plan = _plan(tmp_path)
    told = foresee_study(plan)
    result = cupola.run(plan, tmp_path / "run").result
    assert result["bytes_up"] <= told.up
    assert result["bytes_down"] <= told.down
    spent = [json.loads(line) for line in (tmp_path / "run/ledger.jsonl").read_text().splitlines()]
    assert pruning.PRUNING in {entry["task"] for entry in spent}
    assert pruning.PRUNING in {row["task"] for row in told.rows}
    assert result["components"]["pruned"] > 20
    (tmp_path / "again.toml").write_text(plan.to_toml())
    assert load(tmp_path / "again.toml", of=ComponentsPlan) == plan


class _Stopped(Exception):
    pass


def _stopping(after):
    seen = []

    def watch(*facts):
        seen.append(facts)
        if len(seen) == after:
            raise _Stopped

    return watch


@pytest.mark.parametrize("after", range(3, 9))  # from before pruning to the last directions
def test_stopped_and_gone_on_with(tmp_path, monkeypatch, after):
    from cupola.association.structure import components

    for module in (components, pruning):
        monkeypatch.setattr(module, "BLOCK", 40)
    cut(tmp_path, linked(3, n=N, m=M), _parts(N))
    plan = _plan(tmp_path).model_copy(update={"checkpoint_seconds": 0})
    whole = cupola.run(plan, tmp_path / "whole", report=False).result
    with pytest.raises(_Stopped):
        cupola.run(plan, tmp_path / "run", report=False, progress=_stopping(after))
    again = cupola.resume(tmp_path / "run", report=False)[0].result
    for name in ("study.loadings.tsv", "study.components.tsv", "sites/c1.components.tsv"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert (again["bytes_up"], again["components"]) == (whole["bytes_up"], whole["components"])


def test_a_cohort_with_too_few_people_for_the_window_refuses_at_once(tmp_path):
    cut(tmp_path, linked(3, n=N, m=M), _parts(N))
    with pytest.raises(DataError, match=r"'c1': has 300 people; windows of 32 markers .* 310"):
        foresee_study(_plan(tmp_path, window=32))
    with pytest.raises(PlanError, match="step is larger than window"):
        _plan(tmp_path, step=13)


def test_windows_do_not_reach_over_chromosomes():
    close = np.ones((6, 3), bool)
    chromosome, minor = np.array([1, 1, 1, 2, 2, 2]), np.full(6, 0.3)
    close[np.arange(6)[:, None] // 3 != (np.arange(6)[:, None] + 1 + np.arange(3)) // 3] = False
    left = pruning.independent(close, minor, chromosome, Prune(window=4, step=1))
    assert left.tolist() == [True, False, False, True, False, False]
