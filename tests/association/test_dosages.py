"""Studies of imputed genotypes: equal to plink2 --glm over the pooled people, in any mix of
formats; of hard calls read as dosages, equal to those of hard calls."""

import gzip
import json
import shutil

import imputed
import numpy as np
import pytest
from cohorts import cut, people, write
from cohorts import study as small_study
from imputed import has_plink2

import cupola
from cupola.analysis.plan_file import load
from cupola.association import dosage_sums, reference
from cupola.association.cohort import Wanted, open_cohort
from cupola.association.compare import read_results
from cupola.association.files import CohortError, read_people, read_variants
from cupola.association.genotypes import open_genotypes
from cupola.association.plan import StudyPlan
from cupola.errors import DataError, PlanError

pytest.importorskip("pgenlib")
pytest.importorskip("bgen")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A .pgen file of everybody, and what a plan says of three cohorts: .pgen, BGEN and VCF."""
    base = imputed.make(tmp_path_factory.mktemp("imputed"))
    return base, imputed.cohorts(base)


def plan(base, given, test, **options):
    column = "QT" if test == "linear" else "CC"
    facts = {
        "kind": "association", "test": test, "trait": {"column": column}, "dosages": True,
        "covariates": ["AGE", "DOSE"], "people_per_column": 0, "tables": ["plink", "parquet"],
        "folder": str(base.parent), "cohorts": given,
    }  # fmt: skip
    return {**facts, **options}


def table(folder):
    """Unrounded columns of a run."""
    parquet = pytest.importorskip("pyarrow.parquet")
    return {
        n: np.array(v) for n, v in parquet.read_table(folder / "study.parquet").to_pydict().items()
    }


def ran(out, study):
    result = cupola.run(study, out, report=False).result
    return result, table(out)


@has_plink2
@pytest.mark.parametrize("source", ["pgen", "bgen", "vcf"])
@pytest.mark.parametrize("test", ["linear", "logistic"])
def test_three_cohorts_of_a_file_equal_plink2_on_it(data, tmp_path, test, source):
    base, _ = data
    given, file = imputed.one_file(base, source)
    _, found = ran(tmp_path / "out", plan(base, given, test))
    agree_with_plink2(found, base, test, 6e-6, file)


@has_plink2
@pytest.mark.parametrize("test", ["linear", "logistic"])
def test_three_formats_equal_plink2_over_the_pooled_people(data, tmp_path, test):
    base, given = data
    _, found = ran(tmp_path / "out", plan(base, given, test))
    agree_with_plink2(found, base, test, 1e-5)  # VCF is written with five digits


def agree_with_plink2(found, base, test, apart, file=None):
    """plink2 prints six digits: half a unit of the last is 5e-6 of the number."""
    trait, form = ("QT", "BETA") if test == "linear" else ("CC", "OR")
    told = imputed.glm(base, trait, *([] if test == "linear" else ["no-firth"]), source=file)
    assert len(told) == len(found["SNP"]) == 60
    for i, name in enumerate(found["SNP"]):
        row, beta = told[name], found["BETA"][i]
        beta = beta if row["A1"] == found["A1"][i] else -beta
        ours = beta if form == "BETA" else np.exp(beta)
        error = float(row["SE" if form == "BETA" else "LOG(OR)_SE"])
        assert ours == pytest.approx(float(row[form]), rel=apart, abs=apart * error)
        assert found["SE"][i] == pytest.approx(error, rel=apart)
        assert found["P"][i] == pytest.approx(float(row["P"]), rel=2 * apart)
        assert found["NMISS"][i] == int(row["OBS_CT"])


@has_plink2
def test_frequency_and_imputation_quality_are_plink2s(data, tmp_path):
    base, given = data
    out = imputed.plink2("--pfile", base, "--freq", "cols=+machr2", out=base.parent / "freq")
    lines = [x.split("\t") for x in out.with_suffix(".afreq").read_text().splitlines()]
    told = {row[1]: dict(zip(lines[0], row)) for row in lines[1:]}
    result, found = ran(tmp_path / "all", plan(base, given, "linear"))
    for name, alternative, rate, info in zip(*(found[n] for n in ("SNP", "A1", "A1_FREQ", "INFO"))):
        row = told[name]
        theirs = float(row["ALT_FREQS"])
        assert rate == pytest.approx(theirs if row["ALT"] == alternative else 1 - theirs, abs=2e-5)
        assert info == pytest.approx(float(row["MACH_R2"]), rel=2e-4)
    least = float(np.median(found["INFO"]))
    result, left = ran(tmp_path / "some", plan(base, given, "linear", quality={"info": least}))
    assert sorted(left["SNP"]) == sorted(found["SNP"][found["INFO"] >= least])
    assert result["left_out"] == {"imputation quality (info)": 60 - len(left["SNP"])}


@has_plink2
def test_tables_for_other_programs_have_the_imputation_quality(data, tmp_path):
    base, given = data
    study = plan(base, given, "linear", tables=["plink", "ssf", "regenie", "ldsc"], name="t")
    cupola.run(study, tmp_path / "out", report=False)
    found = []
    for ending, name in ((".ssf.tsv", "info"), (".regenie", "INFO"), (".sumstats.gz", "INFO")):
        read = read_results(tmp_path / "out" / f"t{ending}")
        found.append([float(row[read.head.index(name)]) for row in read.fields])
    assert found[1] == pytest.approx(found[2])
    assert found[0] == pytest.approx(np.clip(found[1], 0, 1), abs=1e-5)
    assert 0 < min(found[1]) < 0.99


@pytest.mark.parametrize("test", ["linear", "logistic"])
def test_federated_is_pooled_and_masked_is_plain(data, tmp_path, test):
    base, given = data
    whole = [{"name": "all", "pfile": "all", "pheno": "all.pheno", "cov": "all.cov"}]
    _, plain = ran(tmp_path / "plain", plan(base, given, test))
    _, masked = ran(tmp_path / "masked", plan(base, given, test, sum={"kind": "masked"}))
    _, pooled = ran(tmp_path / "pooled", plan(base, whole, test))
    for name in ("BETA", "SE", "A1_FREQ", "INFO"):
        # Sums without the genotype go with 32 bits.
        apart = np.abs(masked[name] - plain[name])
        assert (apart < 1e-6 * plain["SE"]).all()
        np.testing.assert_allclose(pooled[name], plain[name], rtol=2e-5, atol=2e-5)


@has_plink2
@pytest.mark.parametrize("test", ["chi-square", "linear", "logistic"])
def test_pgen_files_of_hard_calls_go_the_way_of_bed_files(tmp_path, test):
    base = imputed.make(tmp_path, dosages=0)
    imputed.plink2("--pfile", base, "--make-bed", out=tmp_path / "all")
    tables = []
    for form in ("pfile", "bfile"):
        given = [{"name": "a", form: "all", "pheno": "all.pheno", "cov": "all.cov"}]
        more = {} if test != "chi-square" else {"covariates": [], "trend": True}
        study = plan(base, given, test, dosages=False, **more)
        study["quality"] = {"hardy_weinberg": 1e-9, "person_missing": 0.5, "maf": 0.01}
        cupola.run(study, tmp_path / form, report=False)
        names = {p.name for p in (tmp_path / form).glob("study.*")}
        tables.append({n: (tmp_path / form / n).read_bytes() for n in names - {"study.parquet"}})
    assert tables[0] == tables[1]


@pytest.mark.parametrize("then", ["fit", "saddle-point"])
def test_a_score_test_of_hard_calls_read_as_dosages_is_the_same(tmp_path, then):
    made = people(4, n=240, m=40, missing=0.04)
    bases = cut(tmp_path, made, np.array_split(np.arange(240), 3))
    given = [
        {"name": b.name, "bfile": b.name, "pheno": f"{b.name}.pheno", "cov": f"{b.name}.cov"}
        for b in bases
    ]
    score = {"below": 0.3, "then": then}
    (_, hard), (_, soft) = (
        ran(tmp_path / str(d), plan(bases[0], given, "logistic", dosages=d, score=score))
        for d in (False, True)
    )
    assert (soft["METHOD"] == hard["METHOD"]).all()
    assert len(set(hard["METHOD"])) == 2
    for name in ("BETA", "SE", "P", "NMISS"):
        np.testing.assert_allclose(soft[name], hard[name], rtol=2e-6, err_msg=name)


@pytest.mark.parametrize("test", ["linear", "logistic"])
def test_hard_calls_read_as_dosages_give_the_same(tmp_path, test):
    """Sums over floats beside those over packed calls; rare variants go to Firth."""
    made = people(4, n=240, m=40, missing=0.04)
    rng = np.random.default_rng(0)
    carriers = [rng.choice(np.flatnonzero(made.cc == 2), 3, replace=False) for _ in range(8)]
    for row, who in enumerate(carriers):
        made.copies[row] = 0
        made.copies[row, who] = 1
    bases = cut(tmp_path, made, np.array_split(np.arange(240), 3))
    given = [
        {"name": b.name, "bfile": b.name, "pheno": f"{b.name}.pheno", "cov": f"{b.name}.cov"}
        for b in bases
    ]
    firth = {} if test == "linear" else {"newton": {"firth": True}}
    runs = [
        ran(tmp_path / str(dosages), plan(bases[0], given, test, rare=0, dosages=dosages, **firth))
        for dosages in (False, True)
    ]
    (calls, hard), (floats, soft) = runs
    assert calls["tested"] == floats["tested"] == 40
    assert calls["without_result"] == floats["without_result"]
    if test == "logistic":
        assert (hard["NOTE"] == "Firth's penalised likelihood").sum() >= 8
    for name in ("BETA", "SE", "P", "NMISS", "A1_FREQ"):
        np.testing.assert_allclose(soft[name], hard[name], rtol=1e-6, err_msg=name)


def test_kernels_agree_with_the_reference():
    rng = np.random.default_rng(3)
    dosages = rng.uniform(0, 2, (7, 50))
    dosages[rng.random(dosages.shape) < 0.2] = np.nan
    copies, off = rng.normal(size=(50, 3)), rng.normal(size=(50, 2))
    cross, count, lost = reference.dosage_sums(dosages, copies, copies[:, :1], off)
    value, known = dosage_sums.told(dosages)
    np.testing.assert_allclose(value @ copies, cross[:, :3])
    np.testing.assert_allclose(value**2 @ copies[:, :1], cross[:, 3:])
    np.testing.assert_array_equal(known.sum(axis=1), count)
    np.testing.assert_allclose((1 - known) @ off, lost)
    fixed, y = np.column_stack([np.ones(50), copies]), rng.integers(0, 2, 50).astype(float)
    beta = rng.normal(size=(7, 5)) / 3
    quick = dosage_sums.logistic_sums(dosages, fixed, y, beta)
    for one, other in zip(quick, reference.dosage_logistic_sums(dosages, fixed, y, beta)):
        np.testing.assert_allclose(one, other, rtol=1e-10)


@has_plink2
def test_formats_tell_the_same_dosages(data):
    base, _ = data
    folder = base.parent
    bgen = ["bgen-1.3", "bits=16", "ref-first"]
    imputed.plink2("--pfile", base, "--export", *bgen, out=folder / "x")
    imputed.plink2("--pfile", base, "--export", "vcf", "vcf-dosage=GP", out=folder / "gp")
    person, names = read_people(base.with_suffix(".psam")).person, None
    tables = {}
    for name in ("all.pgen", "x.bgen", "gp.vcf"):
        path = folder / name
        variants = read_variants(path.with_suffix(".pvar") if name == "all.pgen" else path)
        read = open_genotypes(path, person, len(variants))
        index = np.array([3, 50, 7])
        assert read.imputed
        assert read.dosages(index).shape == (3, 600)
        np.testing.assert_array_equal(read.dosages(slice(50, 51)), read.dosages(index)[1:2])
        tables[name] = read.dosages(slice(None))
        labels = [x.tolist() for x in (variants.chromosome, variants.position, variants.name,
                                       variants.a1, variants.a2)]  # fmt: skip
        assert names in (None, labels)
        names = labels
    for name in ("x.bgen", "gp.vcf"):
        np.testing.assert_allclose(tables[name], tables["all.pgen"], atol=2e-4, equal_nan=True)
    assert np.isnan(tables["all.pgen"]).any()


@has_plink2
def test_imputed_files_need_a_study_of_dosages(data, tmp_path):
    base, given = data
    with pytest.raises(DataError, match="say dosages = true"):
        cupola.run(plan(base, given, "linear", dosages=False), tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": "chi-square", "covariates": []}, "chi-square test counts alleles"),
        ({"quality": {"hardy_weinberg": 1e-6}}, "Hardy-Weinberg equilibrium is tested in hard"),
        ({"quality": {"kinship": 0.1}}, "kinship is computed from hard calls"),
        ({"dosages": False, "quality": {"info": 0.3}}, "quality.info is about dosages"),
        ({"cohorts": [{"name": "a", "pfile": "x", "bgen": "y"}]}, "names pfile and bgen"),
    ],
)
def test_what_dosages_cannot_do_is_refused_when_a_study_is_read(tmp_path, change, message):
    study = {**plan(tmp_path / "x", [{"name": "a", "pfile": "x"}], "logistic"), **change}
    with pytest.raises(PlanError, match=message):
        load(study, of=StudyPlan)


@has_plink2
def test_check_foresees_a_study_of_dosages(data, tmp_path):
    from cupola.association.forecast import foresee_study

    base, given = data
    study = load(plan(base, given, "linear", limits={"least_cell": 3}), of=StudyPlan)
    told = foresee_study(study)
    result, _ = ran(tmp_path / "out", study)
    sent = result["bytes_down"] + result["bytes_up"]
    assert sent <= told.total <= 1.3 * sent


def test_sex_chromosomes_are_left_out_by_name(tmp_path):
    made = people(4, n=90, m=30, chromosomes=(1, 23, 26))
    base = write(tmp_path, "a", made)
    given = [{"name": "a", "bfile": "a", "pheno": "a.pheno", "cov": "a.cov"}]
    result, found = ran(tmp_path / "out", plan(base, given, "linear"))
    elsewhere = int((made.variants.chromosome != 1).sum())
    assert elsewhere
    assert result["left_out"] == {"on X, Y or MT: dosages are tested on autosomes only": elsewhere}
    assert set(found["CHR"]) == {1}


@has_plink2
def test_small_sums_of_dosages_are_withheld(data, tmp_path):
    base, given = data
    _, everything = ran(tmp_path / "all", plan(base, given, "linear"))
    result, some = ran(tmp_path / "some", plan(base, given, "linear", limits={"least_cell": 90}))
    lost = result["left_out"]["withheld by a cohort: a count below limits.least_cell"]
    assert 0 < lost < 60
    assert len(some["SNP"]) + lost == len(everything["SNP"])


# Files


def test_vcf_prefers_ds_then_gp_then_calls(tmp_path):
    (tmp_path / "x.psam").write_text("#IID\tSEX\np\tM\nq\t2\nr\t1\ns\tNA\n")
    head = (
        "##fileformat=VCFv4.3\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\tp\tq\tr\ts\n"
    )
    with gzip.open(tmp_path / "x.vcf.gz", "wt") as file:
        file.write(head + "chr1\t5\t.\ta\tG\t.\t.\t.\tGT:DS:GP\t0|1:1.25:0,1,0\t1/1\t./.:.:0,.5,.5"
                   "\t./.\nX\t6\trs2\tA\tT\t.\t.\t.\tGT\t0\t0/1\t1\t.\n")  # fmt: skip
    path = tmp_path / "x.vcf.gz"
    variants = read_variants(path)
    assert variants.name.tolist() == ["1:5:A:G", "rs2"]
    assert (variants.a1.tolist(), variants.a2.tolist()) == (["G", "T"], ["A", "A"])
    found = read_people(tmp_path / "x.psam")
    assert found.sex.tolist() == [1, 2, 1, 0]
    got = open_genotypes(path, found.person, 2).dosages(slice(None))
    np.testing.assert_array_equal(got[0], [1.25, 2, 1.5, np.nan])
    assert np.isnan(got[1]).all()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("1\t5\trs1\tA\tG,C\t.\t.\t.\tDS\t1", "vcf-alleles"),
        ("1\t5\trs1\tA\tG\t.\t.\t.\tDS\t2.5", "vcf-genotype"),
        ("1\t5\trs1\tA\tG\t.\t.\t.\tGP\t0.5,0.9,0.3", "vcf-genotype"),
        ("1\t5\trs1\tA\tG\t.\t.\t.\tGT\t0/2", "vcf-genotype"),
        ("1\tx\trs1\tA\tG\t.\t.\t.\tDS\t1", "vcf-position"),
        ("1\t5\trs1\tA\tG\t.\t.\t.\tDS\t1\t1", "vcf-columns"),
    ],
)
def test_wrong_lines_of_vcf_are_named(tmp_path, text, code):
    path = tmp_path / "x.vcf"
    path.write_text("#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\tp\n" + text + "\n")

    def read():
        variants = read_variants(path)
        open_genotypes(path, ["0 p"], len(variants)).dosages(slice(None))

    with pytest.raises(CohortError, match=r"x\.vcf") as raised:
        read()
    assert raised.value.code == code


@has_plink2
@pytest.mark.parametrize("ending", [".pgen", ".bgen"])
def test_of_damaged_files_a_code_is_all_that_is_told(data, tmp_path, ending):
    """Whatever the packages that read them raise."""
    base, _ = data
    whole = base.with_suffix(".pgen") if ending == ".pgen" else base.parent / "b.bgen"
    raw, rng = whole.read_bytes(), np.random.default_rng(2)
    person, seen = read_people(base.with_suffix(".psam")).person, set()
    path = tmp_path / f"x{ending}"
    for turn in range(60):
        damaged = bytearray(raw[: int(rng.integers(1, len(raw)))] if turn % 3 == 0 else raw)
        for at in rng.integers(0, min(len(damaged), 300), 3).tolist():
            damaged[at] = int(rng.integers(0, 256))
        path.write_bytes(damaged)
        try:
            if ending == ".bgen":
                read_variants(path)
            open_genotypes(path, person, 60).dosages(slice(None))
        except CohortError as error:
            seen.add(error.code)
    assert seen >= {f"{ending[1:]}-unreadable", f"{ending[1:]}-size"}


@has_plink2
def test_files_that_do_not_belong_together(data, tmp_path):
    base, _ = data
    person = read_people(base.with_suffix(".psam")).person
    with pytest.raises(CohortError, match=r"60 variants of 600 people, but") as raised:
        open_genotypes(base.with_suffix(".pgen"), person[1:], 60)
    assert raised.value.code == "pgen-size"
    with pytest.raises(CohortError, match="its table of people names 599") as raised:
        open_genotypes(base.parent / "b.bgen", person[1:], 60)
    assert raised.value.code == "bgen-size"
    with pytest.raises(CohortError, match="both need the same order") as raised:
        open_genotypes(base.parent / "c.vcf.gz", person[:200], 60)
    assert raised.value.code == "vcf-people"
    for name, code in (("x.pgen", "pgen-magic"), ("x.bgen", "bgen-unreadable")):
        (tmp_path / name).write_bytes(b"no genotypes at all, but some bytes")
        with pytest.raises(CohortError) as raised:
            open_genotypes(tmp_path / name, person, 60)
        assert raised.value.code == code
    with pytest.raises(CohortError, match="plink2 --bcf"):
        open_genotypes(tmp_path / "x.bcf", person, 60)


@has_plink2
def test_traits_may_stand_in_the_table_of_people(data, tmp_path):
    """.psam and .sample files have columns with names, as tables of traits have."""
    base, _ = data
    for end in ("bgen", "sample"):
        shutil.copy(base.parent / f"b.{end}", tmp_path / f"b.{end}")
    lines = (tmp_path / "b.sample").read_text().splitlines()
    lines[0], lines[1] = lines[0] + " BMI CASE", lines[1] + " P B"
    lines[2:] = [f"{x} {20 + i / 10} {i % 2}" for i, x in enumerate(lines[2:])]
    (tmp_path / "b.sample").write_text("\n".join(lines) + "\n")
    files = (
        load(plan(tmp_path / "b", [{"name": "b", "bgen": "b.bgen"}], "linear"), of=StudyPlan)
        .cohorts[0]
        .files(tmp_path)
    )
    found = open_cohort(files, Wanted(trait="BMI", dosages=True))
    assert found.trait[:3].tolist() == [20.0, 20.1, 20.2]
    cases = open_cohort(files, Wanted(trait="CASE", dosages=True))
    assert cases.looks_binary
    assert cases.traits(True)[:4].tolist() == [0, 1, 0, 1]


def test_nobodys_sex_is_said(tmp_path):
    write(tmp_path, "a", people(1, n=20, m=4))
    fam = tmp_path / "a.fam"
    fam.write_text("".join(f"f{i} p{i} 0 0 0 1\n" for i in range(20)))
    small = small_study("linear")
    files = (
        load(
            plan(tmp_path / "a", [{"name": "a", "bfile": "a", "pheno": "a.pheno"}], "linear"),
            of=StudyPlan,
        )
        .cohorts[0]
        .files(tmp_path)
    )
    with pytest.raises(CohortError, match="ambiguous_sex = true") as raised:
        open_cohort(files, Wanted(trait=small.trait.column))
    assert raised.value.code == "sex-unknown"
    assert json.dumps(raised.value.code)


def test_children_and_sex_of_psam_files(tmp_path):
    path = tmp_path / "a.psam"
    path.write_text("#FID\tIID\tPAT\tMAT\tSEX\nf\ta\t0\t0\tM\nf\tb\ta\t0\tf\n")
    found = read_people(path)
    assert found.person == ["f a", "f b"]
    assert found.child.tolist() == [False, True]
    assert found.sex.tolist() == [1, 2]
    path.write_text("#FID\tIID\tSEX\nf\t0\t1\n")
    with pytest.raises(CohortError, match="its IID is 0") as raised:
        read_people(path)
    assert raised.value.code == "fam-no-id"


def test_a_position_of_more_than_64_bits_is_none(tmp_path):
    for name, text in (("x.pvar", "#CHROM\tPOS\tID\tREF\tALT\n1\t{}\trs1\tA\tG\n"),
                       ("x.bim", "1\trs1\t0\t{}\tA\tG\n")):  # fmt: skip
        (tmp_path / name).write_text(text.format("9" * 20))
        with pytest.raises(CohortError, match="is no position") as raised:
            read_variants(tmp_path / name)
        assert raised.value.code == f"{name[2:]}-position"


def test_packed_variants_are_refused_with_the_way_out(tmp_path):
    (tmp_path / "a.pvar.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    for name in ("a.pvar", "a.pvar.zst"):
        with pytest.raises(CohortError, match="plink2 --zst-decompress") as raised:
            read_variants(tmp_path / name)
        assert raised.value.code == "pvar-zst"


@has_plink2
def test_phased_genotypes_are_dosages_like_others(tmp_path):
    rng = np.random.default_rng(1)
    calls = rng.choice(["0|1", "1|0", "1|1", "0|0", "./."], (6, 30))
    head = ["#CHROM", "POS", "ID", "REF", "ALT", "QUAL", "FILTER", "INFO", "FORMAT"]
    lines = ["##fileformat=VCFv4.3", "##contig=<ID=1>",
             '##FORMAT=<ID=GT,Number=1,Type=String,Description="">',
             "\t".join([*head, *(f"s{i}" for i in range(30))])]  # fmt: skip
    lines += ["\t".join(["1", str(i + 1), ".", "A", "G", ".", ".", ".", "GT", *row])
              for i, row in enumerate(calls)]  # fmt: skip
    (tmp_path / "x.vcf").write_text("\n".join(lines) + "\n")
    imputed.plink2("--vcf", tmp_path / "x.vcf", "--make-pgen", out=tmp_path / "x")
    imputed.plink2(
        "--pfile", tmp_path / "x", "--export", "bgen-1.2", "ref-first", out=tmp_path / "x"
    )
    person = read_people(tmp_path / "x.psam").person
    copies = {"0|0": 0, "0|1": 1, "1|0": 1, "1|1": 2, "./.": np.nan}
    expected = np.vectorize(copies.get, otypes=[float])(calls)
    for name in ("x.pgen", "x.bgen", "x.vcf"):
        found = open_genotypes(tmp_path / name, person, 6).dosages(slice(None))
        np.testing.assert_array_equal(found, expected)
    assert not open_genotypes(tmp_path / "x.pgen", person, 6).imputed
