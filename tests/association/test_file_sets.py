"""What belongs to a data set is found by name, in every format that a study reads."""

import imputed
import pytest
from imputed import has_plink2
from typer.testing import CliRunner

from cupola.analysis.plan_file import load
from cupola.association.cohort import Wanted, problems
from cupola.association.file_sets import file_set, file_sets
from cupola.association.plan import CohortFiles, StudyPlan
from cupola.cli import app
from cupola.errors import DataError


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(b"")


def test_a_data_set_is_known_by_any_of_its_names(tmp_path):
    touch(tmp_path, "a.bed", "a.bim", "a.fam", "a.pheno", "b.pgen", "b.pvar", "b.psam", "b.cov",
          "c.bgen", "c.sample", "d.vcf.gz", "d.psam", "b.north.keep", "e.vcf")  # fmt: skip
    at = str(tmp_path) + "/"
    bed = {"bfile": at + "a", "pheno": at + "a.pheno"}
    pgen = {"pfile": at + "b", "cov": at + "b.cov"}
    for name in ("a", "a.bed", "a.fam"):
        assert file_set(tmp_path / name) == bed
    for name in ("b", "b.pgen", "b.psam"):
        assert file_set(tmp_path / name) == pgen
    assert file_set(tmp_path / "b.north.keep") == {**pgen, "keep": at + "b.north.keep"}
    assert file_set(tmp_path / "c.sample") == {"bgen": at + "c.bgen"}
    assert file_set(tmp_path / "d") == {"vcf": at + "d.vcf.gz", "fam": at + "d.psam"}
    assert file_set(tmp_path / "e.vcf") == {"vcf": at + "e.vcf"}
    with pytest.raises(DataError, match=r"no genotypes .*x: neither \.bed, \.bim and \.fam"):
        file_set(tmp_path / "x")
    for name in ("a", "b", "c", "d", "e"):
        given = CohortFiles.model_validate({"name": name, **file_set(tmp_path / name)})
        assert given.files(tmp_path).bed.is_file()
        assert given.files(tmp_path).fam.is_file()


def test_all_data_sets_below_a_folder(tmp_path):
    touch(tmp_path, "n/a.bed", "n/a.bim", "n/a.fam", "n/a.pgen", "n/a.pvar", "n/a.psam",
          "n/lonely.pgen", "c.bgen", "c.sample", "d.vcf", "d.1.keep", "d.2.keep")  # fmt: skip
    assert file_sets(tmp_path) == {
        "n/a": {"bfile": "n/a"},
        "n/a.pgen": {"pfile": "n/a"},
        "c": {"bgen": "c.bgen"},
        "d.1": {"vcf": "d.vcf", "keep": "d.1.keep"},
        "d.2": {"vcf": "d.vcf", "keep": "d.2.keep"},
    }


@has_plink2
def test_a_cohort_is_told_before_it_joins_that_its_files_are_imputed(tmp_path):
    pytest.importorskip("pgenlib")
    hard, soft = tmp_path / "hard", tmp_path / "soft"
    for folder, dosages in ((hard, 0), (soft, 0.5)):
        folder.mkdir()
        imputed.make(folder, people=40, variants=8, dosages=dosages)
    study = {"kind": "association", "test": "linear", "cohorts": [{"name": "a", "pfile": "all"}]}
    files = [load(study, of=StudyPlan).cohorts[0].files(at) for at in (hard, soft)]
    assert problems(files[0], Wanted()) == []
    assert problems(files[1], Wanted(dosages=True)) == []
    (line,) = problems(files[1], Wanted())
    assert "say dosages = true" in line


@has_plink2
def test_lists_of_people_are_cut_from_any_format(tmp_path):
    base = imputed.make(tmp_path, people=60, variants=8)
    imputed.plink2("--pfile", base, "--export", "bgen-1.2", out=tmp_path / "x")
    run = CliRunner().invoke(
        app, ["gwas", "split", str(tmp_path / "x"), "--sizes", "1,2", "--out", str(tmp_path / "o")]
    )
    assert run.exit_code == 0, run.output
    kept = [(tmp_path / f"o/x.{i}.keep").read_text().split("\n")[:-1] for i in range(2)]
    assert [len(people) for people in kept] == [20, 40]
    assert kept[0][0].startswith("0 per")
    table = ["--table", str(base.with_suffix(".cov")), "--column", "AGE", "--parts", "3"]
    run = CliRunner().invoke(
        app, ["gwas", "split", str(tmp_path / "x"), *table, "--out", str(tmp_path / "p")]
    )
    assert run.exit_code == 0, run.output
    assert len((tmp_path / "p/x.2.keep").read_text().splitlines()) == 20
