"""What a study writes for other programs."""

import csv
import gzip
import json
import subprocess
import venv

import numpy as np
import pytest
from cohorts import cut, people, write_bim

import cupola
from cupola.analysis.plan_file import load
from cupola.association.analysis import AssociationAnalysis
from cupola.association.compare import read_results
from cupola.association.files import Variants
from cupola.association.plan import StudyPlan
from cupola.base import renaming

COHORTS = ("c0", "c1", "c2")


def _study(folder, test="logistic", variants=12, **options):
    data = people(41, n=180, m=variants, chromosomes=(1, 2, 23, 26))
    if variants > 26:
        data.variants.chromosome[:] = np.arange(variants) % 22 + 1
    data.copies[3] = 0
    data.copies[3, np.flatnonzero(data.cc == 2)[::8]] = 1  # separated: no estimate but Firth's
    v = data.variants
    name, a1, a2 = v.name.tolist(), v.a1.tolist(), v.a2.tolist()
    a1[5], a2[6], name[7], name[8] = "ACGT" * 3, "<DEL>", "1:8000:A:G", "rs8008"
    data.variants = Variants(v.chromosome, v.position, name, a1, a2)
    cut(folder, data, np.array_split(np.arange(180), 3))
    write_bim(folder / "public.bim", data.variants)
    return {
        "test": test, "trait": {"column": "QT" if test == "linear" else "CC"},
        "covariates": [] if test == "chi-square" else ["AGE", "DOSE"], "variants": "public.bim",
        "cohorts": [{"name": n, "bfile": n, "pheno": f"{n}.pheno", "cov": f"{n}.cov"}
                    for n in COHORTS],
        "folder": str(folder), "people_per_column": 10, "name": "my traits", **options,
    }  # fmt: skip


def _rows(path, separator):
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        return list(csv.DictReader(file, delimiter=separator))


@pytest.mark.parametrize("test", ["chi-square", "linear", "logistic"])
def test_tables_for_other_programs_say_the_same(tmp_path, test):
    parquet = pytest.importorskip("pyarrow.parquet")
    kinds = ["plink", "ssf", "regenie", "ldsc", "parquet"]
    out = tmp_path / "out"
    done = cupola.run(_study(tmp_path, test, tables=kinds), out).result
    assert all(name.startswith("my_traits.") and (out / name).is_file() for name in done["files"])
    exact = parquet.read_table(out / "my_traits.parquet").to_pylist()
    log_odds = [np.log(row["OR"]) if test == "chi-square" else row["BETA"] for row in exact]
    told = [i for i, row in enumerate(exact) if np.isfinite(row["P"] + log_odds[i])]
    regenie = _rows(out / "my_traits.regenie", " ")
    assert list(regenie[0]) == [
        "CHROM", "GENPOS", "ID", "ALLELE0", "ALLELE1", "A1FREQ", "N", "TEST", "BETA", "SE",
        "CHISQ", "LOG10P", "EXTRA",
    ]  # fmt: skip
    assert [row["ID"] for row in regenie] == [row["SNP"] for row in exact]
    for row, other, effect in zip(regenie, exact, log_odds):
        assert (row["ALLELE1"], row["ALLELE0"]) == (other["A1"], other["A2"])
        if row["EXTRA"] == "TEST_FAIL":
            assert row["BETA"] == row["SE"] == "NA" or test == "chi-square"
            continue
        assert float(row["BETA"]) == pytest.approx(effect, rel=1e-5)
        assert float(row["LOG10P"]) == pytest.approx(-other["LOG10P"], rel=1e-5)
        z = effect / other["SE"] if test != "chi-square" else np.sqrt(other["CHISQ"])
        assert float(row["CHISQ"]) == pytest.approx(z * z, rel=1e-5)
    ldsc = _rows(out / "my_traits.sumstats.gz", "\t")
    assert [row["SNP"] for row in ldsc] == [exact[i]["SNP"] for i in told]
    assert list(ldsc[0]) == ["SNP", "A1", "A2", "N", "Z", "P", "FRQ"]
    for row, i in zip(ldsc, told):
        assert float(row["P"]) == pytest.approx(exact[i]["P"], rel=1e-5)
        assert np.sign(float(row["Z"])) == np.sign(log_odds[i])
    for ending in (".regenie", ".sumstats.gz", ".ssf.tsv"):  # `gwas compare` reads them all
        printed = read_results(out / f"my_traits{ending}")
        assert len(printed.name) in (len(exact), len(told), len(told) - 1)


def test_the_standard_of_the_catalog_gets_what_it_allows(tmp_path):
    about = {"trait": "Some disease", "build": "GRCh38", "ancestry": ["European"]}
    study = _study(tmp_path, tables=["ssf"], about=about, quality={"maf": 0.01})
    out = tmp_path / "out"
    run = cupola.run(study, out)
    rows = _rows(out / "my_traits.ssf.tsv", "\t")
    names = [row["variant_id"] for row in rows]
    assert "rs41_6" not in names  # <DEL>
    assert "rs41_3" not in names  # no estimate
    assert "1_8000_A_G" in names
    assert {row["rsid"] for row in rows} == {"#NA", "rs8008"}
    assert {row["chromosome"] for row in rows} <= {"1", "2", "23", "25"}
    first = rows[0]
    beta, error = float(first["beta"]), float(first["standard_error"])
    assert float(first["ci_upper"]) == pytest.approx(beta + 1.959964 * error, rel=1e-5)
    yaml = pytest.importorskip("yaml")
    facts = yaml.safe_load((out / "my_traits.ssf.tsv-meta.yaml").read_text())
    assert facts["genome_assembly"] == "GRCh38"
    assert facts["trait_description"] == ["Some disease"]
    assert facts["adjusted_covariates"] == ["AGE", "DOSE"]
    people, sample = run.result["people"], facts["samples"][0]
    assert sample["sample_size"] == sample["case_count"] + sample["control_count"]
    assert sample["case_count"] == people["cases"]
    assert f"{12 - len(rows)} variants" in facts["author_notes"]
    md5 = subprocess.run(["md5sum", out / "my_traits.ssf.tsv"], capture_output=True, text=True)
    assert facts["data_file_md5sum"] == md5.stdout.split()[0]


def test_which_results_are_firths_is_said_where_they_may_be(tmp_path):
    plain = cupola.run(_study(tmp_path), tmp_path / "plain", report=False)
    study = _study(tmp_path, newton={"firth": True}, covariate_rows=True)
    firth = cupola.run(study, tmp_path / "firth", report=False)
    before, after = (read_results(r.folder / r.result.files[0]) for r in (plain, firth))
    assert "FIRTH?" not in before.head
    assert after.head == [*before.head, "FIRTH?"]
    separated = before.name.tolist().index("rs41_3")
    assert before.fields[separated][-2] == "NA"
    for i in range(len(before.name)):
        assert after.fields[i][-1] == ("Y" if i == separated else "N")
        if i != separated:
            assert after.fields[i][:-1] == before.fields[i]


def test_files_carry_the_name_of_the_study_and_old_names_are_known():
    known = AssociationAnalysis.files_of("my traits")
    assert {"my_traits.assoc", "study.assoc", "study.dropped.tsv"} <= set(known)
    assert AssociationAnalysis.file_note("my_traits.ssf.tsv") == (
        "results for the GWAS catalog (GWAS-SSF)"
    )


def test_old_keys_of_tables_are_taken_for_a_release(tmp_path):
    renaming.warn_once.cache_clear()
    new = load(_study(tmp_path, tables=["plink", "ssf", "parquet"]), of=StudyPlan)
    with pytest.warns(FutureWarning, match="ssf = true, parquet = true is now tables"):
        old = load(_study(tmp_path, ssf=True, parquet=True), of=StudyPlan)
    assert old == new
    assert load(_study(tmp_path, ssf=False), of=StudyPlan).tables == ("plink",)


def test_what_was_agreed_on_stays_the_same_without_new_keys(tmp_path):
    facts = AssociationAnalysis(load(_study(tmp_path), of=StudyPlan)).agreement()
    assert not {"tables", "about"} & facts.keys()
    assert facts["ssf"] is False
    more = load(_study(tmp_path, tables=["ldsc"]), of=StudyPlan)
    assert AssociationAnalysis(more).agreement()["tables"] == ["ldsc"]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory):
    """The GWAS catalog's own tool, which cannot live with our versions of numpy and pydantic."""
    place = tmp_path_factory.mktemp("catalog")
    venv.create(place, with_pip=True)
    # six and an old click: the tool needs them and does not say so.
    wanted = ["gwas-sumstats-tools==1.0.25", "numpy<2", "click<8.2", "six"]
    made = subprocess.run(
        [place / "bin/pip", "install", "-q", "--disable-pip-version-check", *wanted],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip(f"gwas-sumstats-tools cannot be installed: {made.stderr.strip()[-200:]}")
    return place / "bin"


_METADATA = """
import json, sys, yaml
from gwas_sumstats_tools.schema.metadata import SumStatsMetadata
given = yaml.safe_load(open(sys.argv[1]))
unknown = set(given) - set(SumStatsMetadata.__fields__)
SumStatsMetadata(**given)
print(json.dumps(sorted(unknown)))
"""


@pytest.mark.long
@pytest.mark.parametrize("test", ["chi-square", "linear", "logistic"])
def test_the_catalogs_own_tool_accepts_table_and_metadata(tmp_path, catalog, test):
    study = _study(tmp_path, test, variants=60, tables=["ssf"], about={"build": "GRCh37"})
    cupola.run(study, tmp_path / "out", report=False)
    table = tmp_path / "out/my_traits.ssf.tsv"

    def validated():
        command = [catalog / "gwas-ssf", "validate", "--min-rows", "10", table]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    assert "is valid" in (told := validated()), told
    command = [catalog / "python", "-c", _METADATA, f"{table}-meta.yaml"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert json.loads(checked.stdout) == []
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines, lines[-1].replace(lines[-1].split("\t")[2], "<DEL>", 1)]))
    assert "is valid" not in validated()
