"""Studies as files: what is wrong with data is said in one line, and nothing is half done."""

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest
from cohorts import cut, people, write_bim
from typer.testing import CliRunner

import cupola
from cupola.analysis.plan_file import load
from cupola.association.compare import compare_results, read_results
from cupola.association.plan import StudyPlan, leave
from cupola.base.chain import read_result
from cupola.cli import app
from cupola.errors import DataError, PlanError


@pytest.fixture(autouse=True)
def _data(tmp_path):
    made = people(21, n=120, m=10)
    cut(tmp_path, made, np.array_split(np.arange(120), 3))
    write_bim(tmp_path / "public.bim", made.variants)


def _study(folder, test="linear", **options):
    column = "QT" if test == "linear" else "CC"
    cohorts = [
        {"name": n, "bfile": n, "pheno": f"{n}.pheno", "cov": f"{n}.cov"}
        for n in ("c0", "c1", "c2")
    ]
    covariates = [] if test == "chi-square" else ["AGE", "DOSE"]
    return {
        "test": test, "trait": {"column": column}, "covariates": covariates, "cohorts": cohorts,
        "folder": str(folder), "variants": "public.bim", "people_per_column": 10, "workers": 1,
        **options,
    }  # fmt: skip


def _edit(path, line, change):
    lines = path.read_text().splitlines()
    lines[line - 1] = change(lines[line - 1])
    path.write_text("\n".join(lines) + "\n")


def _cut_bed(folder):
    path = folder / "c1.bed"
    path.write_bytes(path.read_bytes()[:-3])


def _last(value):
    return lambda line: line.rsplit(None, 1)[0] + " " + value


BAD = {
    "truncated bed": (_cut_bed, "c1.bed: is truncated", "bed-size"),
    "magic": (
        lambda f: (f / "c1.bed").write_bytes(b"BGEN" + bytes(500)),
        "c1.bed: is no .bed",
        "bed-magic",
    ),
    "no bim": (lambda f: (f / "c1.bim").unlink(), "c1.bim: no such file", "bim-unreadable"),
    "bim line": (
        lambda f: _edit(f / "c1.bim", 3, lambda _: "1 rs 5"),
        "c1.bim, line 3: 3 columns",
        "bim-columns",
    ),
    "position": (
        lambda f: _edit(f / "c1.bim", 2, lambda line: line.replace("2000", "far")),
        "c1.bim, line 2: 'far' is no position",
        "bim-position",
    ),
    "duplicate": (
        lambda f: _edit(f / "c1.fam", 4, lambda line: " ".join(["f40 p40", *line.split()[2:]])),
        "c1.fam, line 4: 'f40 p40' was in line 1 before",
        "fam-duplicate-person",
    ),
    "other people": (
        lambda f: (f / "c1.pheno").write_text((f / "c0.pheno").read_text()),
        "c1.pheno: names nobody of",
        "pheno-nobody",
    ),
    "no column": (
        lambda f: _edit(f / "c1.cov", 1, lambda _: "FID IID AGE WEIGHT"),
        "c1.cov: has no column 'DOSE'; it has AGE, WEIGHT",
        "cov-column-missing",
    ),
    "words": (
        lambda f: _edit(f / "c1.cov", 7, _last("tall")),
        "c1.cov, line 7: DOSE = 'tall' is no number",
        "cov-not-a-number",
    ),
    "infinite": (
        lambda f: _edit(f / "c1.pheno", 3, _last("inf")),
        "c1.pheno, line 3: QT = 'inf' is no number",
        "pheno-not-a-number",
    ),
    "header": (
        lambda f: _edit(f / "c1.cov", 1, lambda _: "a b c d"),
        "c1.cov, line 1: must be 'FID IID'",
        "cov-header",
    ),
    "ragged": (
        lambda f: _edit(f / "c1.cov", 5, lambda line: line + " 7"),
        "c1.cov, line 5: 5 columns, 4",
        "cov-columns",
    ),
    "huge": (
        lambda f: _edit(f / "c1.cov", 5, _last("1e9")),
        "c1.cov, line 5: DOSE = 1e+09 exceeds largest = 1e+06",
        "value-too-large",
    ),
    "gzip": (
        lambda f: (f / "c1.cov").write_bytes(b"\x1f\x8b\x08nonsense"),
        "c1.cov: is a broken gzip",
        "cov-gzip",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_are_named_at_the_cohort_and_coded_outside(tmp_path, case):
    spoil, message, code = BAD[case]
    spoil(tmp_path)
    with pytest.raises(DataError) as raised:
        cupola.run(_study(tmp_path), tmp_path / "out")
    text = str(raised.value)
    assert text.startswith("cohort 'c1': ")
    assert message in text
    assert "\n" not in text
    entries = [json.loads(x) for x in (tmp_path / "out/ledger.jsonl").read_text().splitlines()]
    assert entries[-1]["failed"] == {"1": code}
    left = {p.name for p in (tmp_path / "out").iterdir()}
    assert not any(name.startswith("study.assoc") or name.endswith(".part") for name in left)
    assert text.partition("': ")[2] in (tmp_path / "out/sites/c1.log").read_text()


def test_cohorts_without_cases_and_with_other_files(tmp_path):
    for line in range(2, 42):
        _edit(tmp_path / "c1.pheno", line, lambda x: " ".join([*x.split()[:2], "1", x.split()[3]]))
    with pytest.raises(DataError, match="cohort 'c1': has no cases among those tested"):
        cupola.run(_study(tmp_path, "logistic"), tmp_path / "out")
    done = cupola.run(
        _study(tmp_path, "logistic", one_sided=True), tmp_path / "two", report=False
    ).result
    assert done["tested"] == 10
    other = _study(tmp_path)
    other["cohorts"][2] = {"name": "c2", "bed": "x.bcf", "bim": "c2.bim", "fam": "c2.fam"}
    with pytest.raises(DataError, match="BCF cannot be read; PLINK 2 rewrites it"):
        cupola.run(other, tmp_path / "three")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"covariate": ["AGE"]}, "covariate is unknown; did you mean covariates"),
        ({"quality": {"maff": 0.1}}, "quality.maff is unknown; did you mean quality.maf"),
        ({"test": "chisq"}, "must be 'chi-square', 'linear', 'logistic' or 'mixed'"),
        ({"cohorts": [{"name": "a", "beds": "x"}]}, "beds is unknown"),
        ({"cohorts": [{"name": "a"}]}, "cohort 'a' needs bfile (or bed, bim and fam), pfile,"),
        ({"sum": {"kind": "masked", "minimum": 4}}, "no masked sum can be told"),
        ({"covariates": ["AGE", "DOSE", "AGE"]}, "covariates: 'AGE' stands there twice"),
    ],
)
def test_studies_are_checked_like_plans(tmp_path, change, message):
    with pytest.raises(PlanError) as raised:
        load({**_study(tmp_path), **change}, of=StudyPlan)
    assert message in str(raised.value)


def test_gzip_and_missing_codes(tmp_path):
    expected = cupola.run(_study(tmp_path), tmp_path / "plain", report=False).result
    _edit(tmp_path / "c0.cov", 2, _last("nan"))
    _edit(tmp_path / "c0.cov", 3, _last("NA"))
    path = tmp_path / "c0.cov"
    path.write_bytes(gzip.compress(path.read_bytes()))
    ours = cupola.run(_study(tmp_path), tmp_path / "zip", report=False).result
    assert ours["people"]["tested"] == expected["people"]["tested"] - 2


def test_every_text_file_may_be_compressed(tmp_path):
    expected = cupola.run(_study(tmp_path), tmp_path / "plain", report=False).result
    for ending in ("bim", "fam", "pheno", "cov"):
        path = tmp_path / f"c1.{ending}"
        path.write_bytes(gzip.compress(path.read_bytes()))
    ours = cupola.run(_study(tmp_path), tmp_path / "zip", report=False).result
    assert ours["people"] == expected["people"]
    tables = [(tmp_path / f / "study.assoc.linear").read_bytes() for f in ("plain", "zip")]
    assert tables[0] == tables[1]


@pytest.mark.parametrize("test", ["chi-square", "linear", "logistic"])
def test_parquet_and_ssf_hold_what_the_table_does(tmp_path, test):
    parquet = pytest.importorskip("pyarrow.parquet")
    options = {"tables": ["ssf", "parquet"], "covariate_rows": test != "chi-square"}
    done = cupola.run(_study(tmp_path, test, **options), tmp_path / "out").result
    assert done["files"][-3:] == ["study.ssf.tsv", "study.ssf.tsv-meta.yaml", "study.parquet"]
    printed = read_results(tmp_path / "out" / done["files"][0])
    columns = parquet.read_table(tmp_path / "out/study.parquet").to_pydict()
    assert columns["SNP"] == printed.name.tolist()
    for name in set(printed.head) & set(columns):
        texts = [fields[printed.head.index(name)] for fields in printed.fields]
        if name not in ("SNP", "A1", "A2"):  # the table is rounded, Parquet is not
            texts = [float(text) for text in texts]
            assert columns[name] == pytest.approx(texts, rel=6e-4, nan_ok=True), name
        else:
            assert columns[name] == texts
    assert any(f"{p:.4g}" != f"{p:.15g}" for p in columns["P"])
    assert columns["NOTE"] == [""] * 10
    assert ("BETA_AGE" in columns) == (test != "chi-square")
    rows = (tmp_path / "out/study.ssf.tsv").read_text().splitlines()
    head = rows[0].split("\t")
    first = dict(zip(head, rows[1].split("\t")))
    assert head[:4] == [
        "chromosome", "base_pair_location", "effect_allele", "other_allele",
    ]  # fmt: skip
    assert head[4] == ("odds_ratio" if test == "chi-square" else "beta")
    assert float(first["neg_log_10_p_value"]) == pytest.approx(-columns["LOG10P"][0], rel=1e-7)
    assert first["variant_id"] == columns["SNP"][0]


def test_the_report_is_the_same_from_the_results_and_from_their_table(tmp_path):
    from cupola import report

    cupola.run(_study(tmp_path, "logistic"), tmp_path / "out")
    page = (tmp_path / "out/report.html").read_text()
    report.write(tmp_path / "out")
    again = (tmp_path / "out/report.html").read_text()
    assert page.partition("Top hits")[2] == again.partition("Top hits")[2]


def test_a_study_starts_without_torch():
    """Its processor time is seconds: loading what it does not need would be most of it."""
    program = (
        "import sys, cupola.cli.gwas, cupola.association.analysis\n"
        "import cupola.association.report_sections, cupola.cli.display, cupola.report\n"
        "heavy = {'torch', 'matplotlib', 'plotly', 'sklearn', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_dropped_cohort_is_waited_for_or_left_out_if_it_agreed(tmp_path):
    for kind in ("plain", "masked"):
        options = {"sum": {"kind": kind, "minimum": 2}, "checkpoint_seconds": 0}
        whole = cupola.run(_study(tmp_path, "logistic", **options), tmp_path / f"{kind}1").result
        assert whole["status"] == "finished"

        def interrupt(now, seen=[]):  # noqa: B006
            seen.append(now.part)
            if now.part == "counts" and not now.done and seen.count("counts") == 1:
                raise KeyboardInterrupt

        folder = tmp_path / f"{kind}2"
        study = _study(tmp_path, "logistic", **options)
        with pytest.raises(KeyboardInterrupt, match="cupola resume"):
            cupola.run(study, folder, progress=interrupt)
        assert read_result(folder)["status"] == "stopped"
        hidden = tmp_path / "c1.bed"
        hidden.rename(tmp_path / "away")
        with pytest.raises(DataError, match="cohort 'c1'"):
            cupola.resume(folder)
        with pytest.raises(PlanError, match="'c1' has not agreed that the study goes on"):
            leave(load(study, of=StudyPlan), folder, ["c1"])
        hidden = (tmp_path / "away").rename(hidden)
        again = cupola.resume(folder)[0].result
        assert (folder / "study.assoc.logistic").read_text() == (
            tmp_path / f"{kind}1/study.assoc.logistic"
        ).read_text()
        for name in ("bytes_up", "bytes_down"):
            assert again[name] == whole[name]
    study["cohorts"][1]["may_leave"] = True
    left = leave(load(study, of=StudyPlan), folder, ["c1"])
    less = cupola.run(left, folder, overwrite=True, report=False).result
    assert less["cohorts"] == ["c0", "c2"]
    assert less["people"]["loaded"] == 80


def test_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    lines = ['test = "chi-square"', "trend = true", "tables = ['ssf']", "trait.column = 'CC'"]
    lines += ['variants = "public.bim"', "one_sided = true", "sum = 'masked'"]
    for n in ("c0", "c1", "c2"):
        lines += ["[[cohorts]]", f"name = '{n}'", f"bfile = '{n}'", f"pheno = '{n}.pheno'"]
    (tmp_path / "mine.toml").write_text("\n".join(lines))
    done = runner.invoke(app, ["gwas", "run", "mine.toml", "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["folder"] == "runs/mine"
    assert facts["tested"] == 10
    ends = (".assoc", ".dropped.tsv", ".model", ".ssf.tsv", ".ssf.tsv-meta.yaml")
    assert facts["files"] == ["mine" + end for end in ends]
    page = (tmp_path / "runs/mine/report.html").read_text()
    assert "Manhattan" not in page
    assert "chromosome" in page
    assert "Who learned what" in page
    again = runner.invoke(app, ["gwas", "run", "mine.toml"])
    assert again.exit_code == 2
    assert "already holds this run" in again.stderr
    shown = runner.invoke(app, ["gwas", "resume", "runs/mine"])
    assert shown.exit_code == 0
    assert "10 of 10 variants tested" in shown.stdout
    table, ssf = "runs/mine/mine.assoc", "runs/mine/mine.ssf.tsv"
    same = runner.invoke(app, ["gwas", "compare", table, ssf, "--json"])
    assert json.loads(same.stdout)["pearson"] == pytest.approx(1, abs=1e-6)
    split = runner.invoke(
        app,
        ["gwas", "split", "c0", "--table", "c0.cov", "--column", "AGE", "--parts", "2", "-o", "k"],
    )
    assert split.exit_code == 0
    assert (tmp_path / "k/c0.1.keep").read_text().count("\n") == 20
    shares = ["--cases", "0.75,0.25", "--table", "c0.pheno", "--trait", "CC"]
    assert runner.invoke(app, ["gwas", "split", "c0", *shares, "-o", "s"]).exit_code == 0
    bad = runner.invoke(app, ["gwas", "split", "c0", "-o", "s"])
    assert bad.exit_code == 2
    assert "say how to cut" in bad.stderr


def test_comparison_tells_hits_gained_and_lost(tmp_path):
    (tmp_path / "a").write_text("SNP P\nr1 1e-400\nr2 0.5\nr3 NA\nr4 1e-9\n")
    (tmp_path / "b").write_text(
        "ID TEST P\nr1 ADD 1e-390\nr1 AGE 0.1\nr2 ADD 4e-9\nr3 ADD 0.2\nr4 ADD 0.1\n"
    )
    facts = compare_results(read_results(tmp_path / "a"), read_results(tmp_path / "b"))
    assert facts["hits"]["5e-8"] == {"both": 1, "gained": ["r4"], "lost": ["r2"]}
    assert facts["na_only_first"] == 1
    assert facts["largest_difference"]["log10_p"] == pytest.approx(10)


def test_how_far_a_study_is_is_told_in_steps_and_variants(tmp_path):
    told = []
    study = _study(tmp_path, "logistic", chunk=8)
    cupola.run(study, tmp_path / "out", progress=told.append, report=False)
    steps = list(dict.fromkeys((now.step, now.said) for now in told))
    assert [step for step, _ in steps] == [(2, 6), (3, 6), (4, 6), (5, 6), (6, 6), (6, 6)]
    assert [said for _, said in steps[2:]] == [
        "looking for people in two cohorts", "counting alleles", "testing variants",
        "writing the tables",
    ]  # fmt: skip
    assert [now.done for now in told if now.part == "test"] == [0, 8]
    assert {now.whole for now in told if now.part in ("counts", "test")} == {10}
    assert {now.whole for now in told if now.part == "standardise"} == {3}
    assert all(now.done <= now.whole for now in told)


def test_cohorts_of_given_sizes_are_cut_without_cases_or_a_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["gwas", "split", "c0", "--sizes", "2,1,1", "-o", "s", "--json"])
    assert done.exit_code == 0, done.output
    assert list(json.loads(done.stdout).values()) == [20, 10, 10]
    parts = [(tmp_path / f"s/c0.{i}.keep").read_text().splitlines() for i in range(3)]
    everybody = [
        " ".join(line.split()[:2]) for line in (tmp_path / "c0.fam").read_text().splitlines()
    ]
    assert sorted(" ".join(p.split()) for part in parts for p in part) == sorted(everybody)
    for sizes in ("1", "1,0"):
        bad = CliRunner().invoke(app, ["gwas", "split", "c0", "--sizes", sizes, "-o", "s"])
        assert bad.exit_code == 2
        assert "at least two cohorts" in bad.stderr


def test_every_phase_of_a_study_has_words():
    from cupola.association.study_parts import PARTS
    from cupola.association.study_program import Association
    from cupola.association.study_progress import WORDS

    phases = set(Association(load(_study("."), of=StudyPlan).study(), 3)._phases) | set(PARTS)
    assert phases - set(WORDS) == set()


def test_the_first_ten_minutes(tmp_path, monkeypatch):
    """What docs/gwas.md begins with, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    said = runner.invoke(app, ["gwas", "example", "example"])
    assert said.exit_code == 0, said.output
    commands = [line.split()[1:] for line in said.stdout.splitlines() if line.startswith("  ")]
    assert commands == [["check", "example/study.toml"], ["run", "example/study.toml"]]
    checked, ran = (runner.invoke(app, command) for command in commands)
    assert checked.exit_code == 0, checked.output
    assert "logistic regression of the .fam files' trait, corrected for AGE" in checked.stdout
    assert ran.exit_code == 0, ran.output
    assert "logistic regression, 3 cohorts, masked sums" in ran.stdout
    assert "cases" in ran.stdout
    assert (tmp_path / "runs/example/example.assoc.logistic").is_file()
    again = runner.invoke(app, ["gwas", "example", "example"])
    assert (again.exit_code, "is there already" in again.stderr) == (2, True)
