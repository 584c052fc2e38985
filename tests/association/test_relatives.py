"""Kinship within a cohort: the compiled form, the obvious one, and plink2's digits."""

import shutil
import subprocess

import numpy as np
import pytest
from cohorts import CALLS, people, sites, study, write
from typer.testing import CliRunner

from cupola.association.bed import Bed
from cupola.association.kernels import has_numba
from cupola.association.relatives import Pair, left_out, related, slow_related
from cupola.cli import app

TWIN, PARENT = 0.4, 0.177


def family(seed=5, n=70, m=900, missing=0.03):
    """People of whom the last three are a twin of the first, and its children with the second and
    the third."""
    data = people(seed, n=n, m=m, missing=missing, chromosomes=(1, 7, 22, 23, 25))
    rng = np.random.default_rng(seed)
    whole = np.where(data.copies == 3, 1, data.copies)

    def gamete(person):
        return rng.binomial(1, whole[:, person] / 2)

    data.copies[:, -3] = data.copies[:, 0]
    for child, other in ((-2, 1), (-1, 2)):
        data.copies[:, child] = gamete(0) + gamete(other)
    return data


@pytest.fixture
def made(tmp_path):
    data = family()
    base = write(tmp_path, "c", data)
    return data, base, Bed(base.with_suffix(".bed"), len(data), len(data.variants))


def as_rows(pairs):
    return np.array([(p.first, p.second, p.kinship) for p in pairs])


def test_the_compiled_form_equals_the_obvious_one(made, monkeypatch):
    data, _, bed = made
    who = np.flatnonzero(np.arange(len(data)) % 5 != 3)
    rows = (data.variants.chromosome != 23) & (data.variants.chromosome > 0)
    slow = slow_related(CALLS[data.copies[rows][:, who]], -2.0)
    slow[:, :2] = who[slow[:, :2].astype(int)]
    for numba in (True, False):
        monkeypatch.setattr(
            "cupola.association.relatives.has_numba", lambda numba=numba: numba and has_numba()
        )
        fast = as_rows(related(bed, data.variants, who, -2.0))
        np.testing.assert_allclose(fast, slow, atol=1e-12)
    assert len(slow) == len(who) * (len(who) - 1) // 2


@pytest.mark.skipif(shutil.which("plink2") is None, reason="needs plink2")
def test_kinship_is_that_of_plink2(made, tmp_path):
    data, base, bed = made
    words = ["plink2", "--bfile", base, "--make-king-table", "--out", tmp_path / "king"]
    subprocess.run(words, check=True, capture_output=True)
    head, *rows = [line.split() for line in (tmp_path / "king.kin0").read_text().splitlines()]
    one, two, kinship = (head.index(name) for name in ("IID1", "IID2", "KINSHIP"))
    theirs = {frozenset((r[one], r[two])): float(r[kinship]) for r in rows}
    ours = related(bed, data.variants, np.arange(len(data)), -2.0)
    assert len(ours) == len(theirs)
    for pair in ours:
        told = theirs[frozenset((f"p{pair.first}", f"p{pair.second}"))]
        assert pair.kinship == pytest.approx(told, abs=1e-5)


def test_who_has_most_relatives_is_left_out_first():
    star = [Pair(3, other, 0.25) for other in (0, 1, 2)]
    assert left_out(star) == [3]
    assert left_out([Pair(0, 1, 0.25)]) == [1]  # of two, the later one
    assert left_out([]) == []


def test_a_cohort_leaves_relatives_out_and_keeps_the_table(made, tmp_path):
    data, base, _ = made
    chosen = study("linear", quality={"kinship": PARENT})
    (site,) = sites(chosen, [base])
    site.folder = tmp_path / "asked"
    n = len(data)
    gone = np.flatnonzero(~site.cohort.loaded)
    pairs = related(site.cohort.bed, site.cohort.variants, np.flatnonzero(site.cohort.loaded), 0.0)
    assert max(p.kinship for p in pairs) < PARENT
    assert len(gone)
    assert set(gone) <= {0, 1, 2, n - 3, n - 2, n - 1}
    table = (tmp_path / "asked" / "relatives.tsv").read_text().splitlines()
    assert table[0].split("\t") == ["FID1", "IID1", "FID2", "IID2", "KINSHIP", "LEFT_OUT"]
    assert table[1].split("\t")[1::2][:2] == ["p0", f"p{n - 3}"]  # twins first
    assert float(table[1].split("\t")[4]) > TWIN


def test_relatives_from_the_command_line(made):
    data, base, _ = made
    done = CliRunner().invoke(app, ["gwas", "relatives", str(base), "--kinship", "0.35"])
    assert done.exit_code == 0
    assert f"f0\tp0\tf{len(data) - 3}\tp{len(data) - 3}\t0.5" in done.output
    assert "leaves out 1 of 70 people" in done.output
