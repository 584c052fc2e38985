"""Hardy-Weinberg equilibrium is tested in the people that PLINK takes: controls without parents."""

import shutil
import subprocess

import numpy as np
import pytest
from cohorts import carry_out, people, sites, study, write

from cupola.association.agreement import R_HARDY
from cupola.association.design import FEWEST_CHILDREN
from cupola.association.files import read_people

PLINK = shutil.which("plink1.9")
PARTS = [np.arange(0, 120), np.arange(120, 240)]
CHILDREN = np.r_[60:120, 180:240]


def _family(folder, name, data, who, children):
    """Files of which some people have a father: in the data, or not."""
    base = write(folder, name, data, who)
    lines = [line.split() for line in base.with_suffix(".fam").read_text().splitlines()]
    for i, person in enumerate(who):
        if person in children:
            lines[i][2] = "gone" if person % 2 else "p0"
    base.with_suffix(".fam").write_text("".join(" ".join(line) + "\n" for line in lines))
    return base


def _data():
    """At every third variant all children are alike, at others founders are."""
    data = people(81, n=240, m=24, missing=0.01, chromosomes=(1, 23))
    data.copies[::3, CHILDREN] = 2
    data.copies[1::3, :60] = np.where(data.cc[:60] == 1, 2, data.copies[1::3, :60])
    return data


def _dropped(folder, data, children, **options):
    bases = [_family(folder, f"c{i}", data, who, children) for i, who in enumerate(PARTS)]
    chosen = study("chi-square", quality={"hardy_weinberg": 0.01, **options})
    _, state, _ = carry_out(chosen, sites(chosen, bases), data.variants)
    return set(data.variants.name[state.arrays["reason"] == R_HARDY].tolist())


@pytest.mark.skipif(PLINK is None, reason="needs plink1.9")
def test_plink_leaves_the_same_variants_out(tmp_path):
    data = _data()
    base = _family(tmp_path, "all", data, np.arange(240), CHILDREN)
    for more, founders in ((), True), (("--nonfounders",), False):
        command = [PLINK, "--silent", "--bfile", str(base), "--hardy", *more, "--out",
                   str(tmp_path / "plink")]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        rows = [line.split() for line in (tmp_path / "plink.hwe").read_text().splitlines()[1:]]
        theirs = {row[1] for row in rows if row[2] == "UNAFF" and float(row[8]) < 0.01}
        assert _dropped(tmp_path, data, CHILDREN, founders=founders) == theirs
        assert theirs
    assert _dropped(tmp_path, data, CHILDREN) != _dropped(tmp_path, data, [])


def test_few_children_of_a_cohort_count_as_founders(tmp_path):
    """The alleles of one child would be the difference of two totals."""
    data = _data()
    controls = np.flatnonzero(data.cc == 1)
    for count in (FEWEST_CHILDREN - 1, FEWEST_CHILDREN):
        few = controls[(controls >= 60) & (controls < 120)][:count]
        same = _dropped(tmp_path, data, few, maf=0) == _dropped(tmp_path, data, [])
        base = _family(tmp_path, "c0", data, PARTS[0], few)
        chosen = study("chi-square", quality={"hardy_weinberg": 0.01})
        own = sites(chosen, [base, tmp_path / "c1"])
        _, state, _ = carry_out(chosen, own, data.variants)
        whole, founders = state.arrays["alleles"][:, 1, 1], state.arrays["genotypes"][:, -1]
        autosome = data.variants.chromosome == 1
        lost = (whole - 2 * founders.sum(axis=1))[autosome]
        assert (lost.max() > 0) == (count == FEWEST_CHILDREN)
        assert same or count == FEWEST_CHILDREN


def test_who_has_parents_is_read_from_fam_and_psam(tmp_path):
    (tmp_path / "a.fam").write_text("f a 0 0 1 1\nf b x 0 1 1\nf c 0 y 2 1\n")
    assert read_people(tmp_path / "a.fam").child.tolist() == [False, True, True]
    (tmp_path / "a.psam").write_text("#FID\tIID\tPAT\tMAT\tSEX\nf\ta\t0\t0\t1\nf\tb\tx\t0\t1\n")
    assert read_people(tmp_path / "a.psam").child.tolist() == [False, True]
    (tmp_path / "b.psam").write_text("#IID\tSEX\na\t1\n")
    assert read_people(tmp_path / "b.psam").child.tolist() == [False]
