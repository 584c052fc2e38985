"""People in more than one cohort are looked for without being asked for."""

from dataclasses import replace

import numpy as np
import pytest
from cohorts import carry_out, cut, people, sites, study
from typer.testing import CliRunner

import cupola
from cupola.analysis.plan_file import load
from cupola.association import StudyHost
from cupola.association.plan import StudyPlan
from cupola.association.questions import Asker
from cupola.cli import app
from cupola.engines.in_process import InProcess
from cupola.errors import DataError
from cupola.federation.site import find_task

PARTS = [np.arange(40), np.arange(37, 70), np.arange(70, 90)]


def _plan(folder, **options):
    files = [{"name": f"c{i}", "bfile": f"c{i}", "pheno": f"c{i}.pheno"} for i in range(3)]
    return load({"test": "chi-square", "trait": {"column": "CC"}, "cohorts": files,
                 "folder": str(folder), "workers": 1, **options}, of=StudyPlan)  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    cut(tmp_path, people(14), PARTS)
    return tmp_path


@pytest.mark.parametrize("sums", ["plain", "masked"])
def test_a_study_warns_of_them_by_default(folder, sums):
    done = cupola.run(_plan(folder, sum=sums), folder / "run")
    assert done.result["shared_people"] == [["c0", "c1", 3]]
    assert "share 3 people" in (folder / "run" / "report.html").read_text()
    (folder / "study.toml").write_text(_plan(folder, sum=sums).to_toml())
    for command in (["check"], ["run", "--out", str(folder / "again")]):
        told = CliRunner().invoke(app, ["gwas", *command, str(folder / "study.toml")])
        assert "'c0' and 'c1' share 3 people" in told.output.replace("\n", " "), told.output


def test_or_stops_before_a_genotype_is_counted(folder):
    plan = _plan(folder, shared="stop")
    with pytest.raises(DataError, match=r"'c0' and 'c1' 3\. Leave them out"):
        cupola.run(plan, folder / "run")
    assert "gwas counts" not in (folder / "run" / "ledger.jsonl").read_text()
    keep = (folder / "c1.fam").read_text().splitlines()[3:]
    (folder / "c1.keep").write_text("\n".join(" ".join(line.split()[:2]) for line in keep))
    files = [c.model_dump(exclude_none=True) for c in plan.cohorts]
    files[1]["keep"] = "c1.keep"
    alone = cupola.run(_plan(folder, shared="stop", cohorts=files), folder / "again")
    assert alone.result["shared_people"] == []
    assert alone.result["warnings"] == []


def test_without_it_nobody_is_asked(folder):
    done = cupola.run(_plan(folder, fingerprints=False), folder / "run")
    assert done.result["shared_people"] == []
    assert "gwas fingerprints" not in (folder / "run" / "ledger.jsonl").read_text()


def test_a_cohort_without_a_salt_or_with_another_is_named(folder):
    chosen = study("chi-square", fingerprints=True)
    data = people(14)
    for salts, said in (
        ([b"one", None, b"one"], ["not looked for in '2'"]),
        ([b"one", b"one", b"two"], ["different salts"]),
        ([None, b"one", b"two"], ["not looked for in '1'", "different salts"]),
        ([b"one", b"one", b"one"], []),
    ):
        own = sites(chosen, [folder / f"c{i}" for i in range(3)])
        for site, salt in zip(own, salts):
            site.salt = salt
        _, state, _ = carry_out(chosen, own, data.variants)
        warnings = state.values["warnings"]
        assert len(warnings) == len(said)
        assert all(words in told for words, told in zip(said, warnings))
        alike = salts[0] == salts[1] is not None
        assert state.values["shared_people"] == ([[0, 1, 3]] if alike else [])
        assert [bool(site.log) for site in own] == [salt is None for salt in salts]


def _answer(folder, of_study=""):
    """The first cohort's hashes, and the most it may tell of."""
    chosen = study("chi-square", fingerprints=True)
    own = sites(chosen, [folder / f"c{i}" for i in range(3)])[0]
    own.salt, own.of_study = b"a salt of many studies", of_study
    question = Asker(chosen, 3, people=90).fingerprints()
    context = InProcess(StudyHost([own]), workers=1, quorum=1.0).context(0)
    real = replace(context, real=True)  # its random numbers are of the operating system
    found = find_task(question.task)(real, question).arrays["hashes"].astype(np.uint8)
    assert np.array_equal(find_task(question.task)(real, question).arrays["hashes"], found)
    return set(map(bytes, found))


def test_fingerprints_of_two_studies_have_no_hash_in_common(folder):
    """What two answers have in common would be the people, and tell how many there are."""
    assert len(_answer(folder) & _answer(folder)) == 40  # as it would be
    assert not _answer(folder, "one") & _answer(folder, "another")
    assert len(_answer(folder, "one") & _answer(folder, "one")) == 40


def test_a_cohort_alone_tells_of_no_more_people_than_it_counts(tmp_path):
    """One of its people has no trait, and is not counted (`limits.least_cell`)."""
    cut(tmp_path, people(14), [np.arange(40)])
    table = (tmp_path / "c0.pheno").read_text().splitlines()
    at = table[0].split().index("CC")
    fields = [line.split() for line in table]
    for i, row in enumerate(fields[1:]):
        row[at] = "-9" if i == 0 else str(1 + i % 2)
    (tmp_path / "c0.pheno").write_text("\n".join(" ".join(row) for row in fields) + "\n")
    files = [{"name": "c0", "bfile": "c0", "pheno": "c0.pheno"}]
    plan = _plan(tmp_path, cohorts=files, limits={"least_cell": 3}, ambiguous_sex=True)
    assert cupola.run(plan, tmp_path / "run").result["people"]["loaded"] == 39
