"""Other people on a study's components, beside its own scores and PLINK 2."""

import json
import shutil
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from cohorts import cut, people, write
from test_components import THREE, drawn
from typer.testing import CliRunner

import cupola
from cupola.analysis.plan_file import load
from cupola.association.component_plan import ComponentsPlan
from cupola.association.file_sets import named_files
from cupola.association.structure.projection import project, read_loadings
from cupola.cli import app
from cupola.errors import DataError

OTHER = dict(zip("ACGT", "TGCA"))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A study of components in a folder, and its people."""
    folder, data = tmp_path_factory.mktemp("study"), drawn()
    cut(folder, data, THREE)
    plan = {
        "kind": "pca", "folder": str(folder), "components": {"count": 3, "maf": 0.01},
        "cohorts": [{"name": f"c{i}", "bfile": f"c{i}"} for i in range(3)],
        "limits": {"people": 20, "directions": 100, "carriers": 0},
    }  # fmt: skip
    cupola.run(load(plan, of=ComponentsPlan), folder / "run", report=False)
    return SimpleNamespace(folder=folder, data=data, loadings=folder / "run/study.loadings.tsv")


def _own(study, i):
    lines = (study.folder / "run/sites" / f"c{i}.components.tsv").read_text().splitlines()[1:]
    return np.array([line.split()[2:] for line in lines], float)


def _otherwise(data, flip=False):
    """The same genotypes with other names, every second variant with its alleles in the other
    order, and on the other strand."""
    v, copies = data.variants, data.copies.copy()
    a1, a2 = (np.array(x, str) for x in (v.a1, v.a2))
    odd = np.arange(len(v)) % 2 == 1
    copies[odd] = np.where(copies[odd] == 3, 3, 2 - copies[odd])
    a1, a2 = np.where(odd, a2, a1), np.where(odd, a1, a2)
    if flip:
        a1, a2 = (np.array([OTHER[x] for x in alleles.tolist()]) for alleles in (a1, a2))
    names = [f"other{i}" for i in range(len(v))]
    listed = type(v)(v.chromosome, v.position, names, a1, a2)
    return replace(data, copies=copies, variants=listed)


@pytest.mark.parametrize("form", ["same", "other alleles first", "another order"])
def test_a_studys_own_people_have_their_scores_again(study, tmp_path, form):
    data = _otherwise(study.data) if form == "other alleles first" else study.data
    order = np.arange(len(data.variants))[:: -1 if form == "another order" else 1]
    for i, who in enumerate(THREE):
        found = project(
            read_loadings(study.loadings), named_files(write(tmp_path, "x", data, who, order))
        )
        np.testing.assert_allclose(found.scores, _own(study, i), rtol=1e-9, atol=1e-12)
        assert found.person == [f"f{k} p{k}" for k in who]
        assert (found.found, found.missed, found.flipped) == (found.markers, {}, 0)
        assert (found.swapped > 0) == (form == "other alleles first")


def _alone(study, told):
    """Scores of the pooled people by these markers alone, the obvious way."""
    loadings, data = read_loadings(study.loadings), study.data
    at = {name: i for i, name in enumerate(np.array(data.variants.name, str).tolist())}
    total = np.zeros((len(data), loadings.weights.shape[1]))
    names = np.array(loadings.variants.name, str).tolist()
    for k in np.flatnonzero(told):
        copies, f = data.copies[at[names[k]]], loadings.frequency[k]
        z = np.where(copies == 3, 0, (copies - 2 * f) / np.sqrt(2 * f * (1 - f)))
        total += z[:, None] * loadings.weights[k]
    return total


def test_on_the_other_strand_markers_of_complementary_alleles_are_left_out(study, tmp_path):
    base = write(tmp_path, "x", _otherwise(study.data, flip=True))
    found, loadings = (
        project(read_loadings(study.loadings), named_files(base)),
        read_loadings(study.loadings),
    )
    a1, a2 = (np.array(x, str).tolist() for x in (loadings.variants.a1, loadings.variants.a2))
    told = np.array([OTHER[a] != b for a, b in zip(a1, a2)])
    assert 0 < told.sum() < len(told)
    assert found.found == found.flipped == told.sum()
    assert list(found.missed.values()) == [int((~told).sum())]
    np.testing.assert_allclose(found.scores, _alone(study, told), atol=1e-9)


def test_markers_that_are_not_there_count_as_the_mean(study, tmp_path):
    some = np.arange(0, len(study.data.variants), 3)
    found = project(
        read_loadings(study.loadings), named_files(write(tmp_path, "x", study.data, order=some))
    )
    loadings = read_loadings(study.loadings)
    here = set(np.array(study.data.variants.name, str)[some].tolist())
    told = np.array([name in here for name in np.array(loadings.variants.name, str).tolist()])
    np.testing.assert_allclose(found.scores, _alone(study, told), atol=1e-9)
    assert found.missed == {"absent": int((~told).sum())}
    assert 0.03 < found.missing < 0.07


@pytest.mark.skipif(shutil.which("plink2") is None, reason="needs plink2")
def test_other_people_have_the_scores_of_plink(study, tmp_path):
    data = replace(drawn(seed=8), variants=study.data.variants)
    base = write(tmp_path, "x", data)
    found = project(read_loadings(study.loadings), named_files(base))
    rows = [line.split() for line in study.loadings.read_text().splitlines()[1:]]
    lines = ["#CHROM\tID\tREF\tALT\tALT_FREQS\tOBS_CT"]
    lines += ["\t".join([c, name, a2, a1, f, "300"]) for c, name, _, a1, a2, f, *_ in rows]
    (tmp_path / "f.afreq").write_text("\n".join(lines) + "\n")
    # Without "no-mean-imputation" PLINK adds 2 f times the weight for a missing call.
    how = ["2", "4", "header-read", "no-mean-imputation", "variance-standardize", "cols=+scoresums"]
    command = [
        "plink2",
        "--bfile",
        base,
        "--read-freq",
        tmp_path / "f.afreq",
        "--score",
        study.loadings,
        *how,
        "--score-col-nums",
        "7-9",
        "--out",
        tmp_path / "p",
    ]
    subprocess.run(command, check=True, capture_output=True)
    head, *lines = (tmp_path / "p.sscore").read_text().splitlines()
    at = [head.split().index(f"PC{i}_SUM") for i in (1, 2, 3)]
    theirs = np.array([[float(line.split()[i]) for i in at] for line in lines])
    np.testing.assert_allclose(found.scores, theirs, rtol=1e-4, atol=1e-5)


def test_by_hand(study, tmp_path):
    base = write(tmp_path, "x", study.data, THREE[1])
    out = tmp_path / "scores.tsv"
    asked = ["gwas", "project", str(study.loadings), str(base), "--out", str(out)]
    told = CliRunner().invoke(app, asked)
    assert told.exit_code == 0
    assert "markers with loadings found" in told.output
    ours, theirs = (
        p.read_text().splitlines() for p in (out, study.folder / "run/sites/c1.components.tsv")
    )
    assert ours[0] == theirs[0]
    assert [line.split()[:2] for line in ours] == [line.split()[:2] for line in theirs]
    facts = json.loads(CliRunner().invoke(app, [*asked, "--json"]).output)
    assert facts["found"] == facts["markers"]
    assert facts["people"] == len(THREE[1])


def test_other_tables_and_files_without_any_marker_are_refused(study, tmp_path):
    with pytest.raises(
        DataError, match=r"c0.fam: begins with the columns f0 p0 .* a study's loadings"
    ):
        read_loadings(study.folder / "c0.fam")
    text = study.loadings.read_text().splitlines()
    for change, said in ((lambda c: [*c[:5], "0", *c[6:]], "A1_FREQ is between 0 and 1"),
                         (lambda c: [*c[:5], "x", *c[6:]], "line 2: could not convert"),
                         (lambda c: c[:-1], "line 2: 8 columns, not 9")):  # fmt: skip
        changed = "\t".join(change(text[1].split("\t")))
        (tmp_path / "bad.tsv").write_text("\n".join([text[0], changed]) + "\n")
        with pytest.raises(DataError, match=said):
            read_loadings(tmp_path / "bad.tsv")
    (tmp_path / "bad.tsv").write_text(text[0] + "\n")
    with pytest.raises(DataError, match="nothing"):
        read_loadings(tmp_path / "bad.tsv")
    other = people(3, n=9, m=5, chromosomes=(4,))
    with pytest.raises(DataError, match=r"x.bim: has none of"):
        project(read_loadings(study.loadings), named_files(write(tmp_path, "x", other)))
