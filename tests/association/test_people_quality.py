"""Quality of people by pooled frequencies: PLINK's --missing, --het and --check-sex."""

import csv
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from cohorts import cut, people, sites, study, write, write_bim
from replayed import record, repeat, saved_and_loaded

import cupola
from cupola.association import Association, StudyHost
from cupola.association.people_quality import MISSING, F
from cupola.engines import InProcess
from cupola.errors import FederationError

COHORTS = ("c0", "c1", "c2")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("people")
    made = people(3, n=240, m=300, chromosomes=(1, 2, 23))
    made.sex[:3] = 3 - made.sex[:3]  # three swapped samples
    cut(folder, made, np.array_split(np.arange(240), 3))
    write(folder, "all", made)
    write_bim(folder / "public.bim", made.variants)
    return folder, made


def _plan(folder, **options):
    cohorts = [{"name": n, "bfile": n, "pheno": f"{n}.pheno"} for n in COHORTS]
    return {
        "test": "chi-square", "trait": {"column": "CC"}, "sum": "masked", "cohorts": cohorts,
        "folder": str(folder), "variants": "public.bim", "quality": {"report": True}, **options,
    }  # fmt: skip


def _tables(folder):
    rows = []
    for name in COHORTS:
        with (folder / "sites" / f"{name}.people.tsv").open() as file:
            rows += list(csv.DictReader(file, delimiter="\t"))
    return rows


def _plink(folder, out, *what):
    command = ["plink1.9", "--bfile", folder / "all", "--allow-no-sex", *what, "--out", out / "p"]
    subprocess.run(command, check=True, capture_output=True)


def _printed(path):
    head, *rows = [line.split() for line in path.read_text().splitlines()]
    return {row[1]: dict(zip(head, row)) for row in rows}


@pytest.mark.skipif(shutil.which("plink1.9") is None, reason="needs plink1.9")
def test_each_cohorts_own_table_is_plinks_on_the_pooled_data(data, tmp_path):
    folder, _ = data
    result = cupola.run(_plan(folder), tmp_path / "out").result
    _plink(folder, tmp_path, "--freq")
    for what in ("--missing", "--het", "--check-sex"):
        more = [] if what == "--missing" else ["--read-freq", tmp_path / "p.frq"]
        _plink(folder, tmp_path, what, *more)
    missing, het, sex = (_printed(tmp_path / f"p.{e}") for e in ("imiss", "het", "sexcheck"))
    rows = _tables(tmp_path / "out")
    assert len(rows) == 240
    for row in rows:
        who = row["IID"]
        assert float(row["F_MISS"]) == pytest.approx(float(missing[who]["F_MISS"]), abs=1e-4)
        assert (row["O_HOM"], row["N_NM"]) == (het[who]["O(HOM)"], het[who]["N(NM)"])
        assert float(row["E_HOM"]) == pytest.approx(float(het[who]["E(HOM)"]), rel=1e-3)
        assert float(row["F"]) == pytest.approx(float(het[who]["F"]), abs=2e-3)
        told = (row["PEDSEX"], row["SNPSEX"], row["STATUS"])
        assert told == tuple(sex[who][n] for n in ("PEDSEX", "SNPSEX", "STATUS"))
        assert float(row["F_X"]) == pytest.approx(float(sex[who]["F"]), abs=2e-3)
    # What is told of all: the same counts.
    told = result["people_quality"]
    problems = sum(row["STATUS"] == "PROBLEM" for row in rows)
    assert told["sex"] == [240, problems]
    assert problems >= 3
    shares = np.array([float(row["F_MISS"]) for row in rows])
    assert told["missing"] == np.histogram(shares, [-1, *MISSING, 2])[0].tolist()
    assert sum(told["f"]) == 240
    report = (tmp_path / "out/report.html").read_text()
    assert "Quality of people" in report
    assert "p239" not in report  # who it is stays with the cohort


def test_small_counts_stay_with_the_cohort(data, tmp_path):
    folder, _ = data
    plan = _plan(folder, limits={"least_cell": 5}, sum="plain")
    told = cupola.run(plan, tmp_path / "out", report=False).result["people_quality"]
    whole = cupola.run(_plan(folder), tmp_path / "whole", report=False).result["people_quality"]
    assert told["held_back"] == [3]
    assert sum(told["f"]) < sum(whole["f"]) == 240
    rows = _tables(tmp_path / "out")
    by_cohort = [rows[i : i + 80] for i in range(0, 240, 80)]
    expected = np.zeros(len(F) + 1, int)
    for part in by_cohort:
        own = np.histogram([float(r["F"]) for r in part], [-9, *F, 9])[0]
        expected += np.where(own < 5, 0, own)
    assert told["f"] == expected.tolist()


def test_frequencies_far_from_the_pooled_ones_are_counted(tmp_path):
    made = people(5, n=240, m=40)
    where = np.array_split(np.arange(240), 3)
    made.copies[7, where[2]] = 2  # only at one cohort
    cut(tmp_path, made, where)
    write_bim(tmp_path / "public.bim", made.variants)
    told = cupola.run(_plan(tmp_path), tmp_path / "out", report=False).result["people_quality"]
    copies = np.where(made.copies == 3, np.nan, made.copies).astype(float)
    pooled = np.nanmean(copies, axis=1) / 2
    apart = [np.abs(np.nanmean(copies[:, w], axis=1) / 2 - pooled) for w in where]
    assert told["far"] == [int((np.array(apart) > edge).sum()) for edge in (0.05, 0.1, 0.2)]
    assert told["far"][2] >= 2


def test_who_repeats_the_study_asks_the_same(tmp_path):
    bases = cut(tmp_path, people(6, n=120, m=20, chromosomes=(1, 23)), np.split(np.arange(120), 3))
    chosen = study("linear", quality={"report": True})
    asked, replies = record(chosen, bases)
    assert repeat(chosen, 3, replies, between=saved_and_loaded) == asked
    assert len(asked) == 1 + len(record(study("linear"), bases)[0])


def test_it_is_told_at_one_set_of_frequencies(tmp_path):
    """At others, counts of people by F would move with the genotypes of few."""
    data = people(6, n=120, m=20)
    chosen = study("linear", quality={"report": True})
    own = sites(chosen, cut(tmp_path, data, np.split(np.arange(120), 3)))
    program = Association(chosen, 3, data.variants)
    with InProcess(StudyHost(own), workers=1, quorum=1.0) as reach:
        state = program.start()
        while state.values["phase"] != "quality report":
            ask = program.ask(state)
            reply = (
                None if ask.kind == "alone" else getattr(reach, ask.kind)(ask.question, ask.sites)
            )
            state = program.answer(state, reply)
        question = program.ask(state).question
        told = reach.sum(question, [0, 1, 2]).arrays
        again = reach.sum(question, [0, 1, 2]).arrays  # bit for bit: nothing new
        assert all(np.array_equal(told[name], again[name]) for name in told)
        other = question.arrays | {"frequency": 1 - question.arrays["frequency"]}
        with pytest.raises(FederationError, match="asked-too-often"):
            reach.sum(replace(question, arrays=other), [0, 1, 2])


def test_it_is_foreseen(data):
    told = cupola.check(_plan(data[0]))
    assert "gwas people quality" in {row["task"] for row in told["bytes"]["rows"]}
