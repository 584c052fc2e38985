"""Pictures of hits and their neighbours in the report."""

import re

import numpy as np
import pytest
from cohorts import cut, write_bim
from linked import linked

import cupola
from cupola.association.compare import Table
from cupola.association.manhattan import manhattan, quantiles
from cupola.association.regional_plot import _COLOURS, _HIT, _UNKNOWN, Region, draw, regions


def _table(p, position=None):
    m = len(p)
    names = np.array([f"rs{i}" for i in range(m)], object)
    position = 10_000 * np.arange(1, m + 1) if position is None else position
    return Table(names, np.ones(m, np.int64), position, np.log10(p), ["SNP"], [[n] for n in names])


def test_hits_are_far_from_better_ones():
    p = np.full(200, 0.5)
    p[[20, 25, 60, 120]] = 1e-9, 1e-12, 1e-7, 1e-4
    found = regions(_table(p), None)
    assert [r.hit for r in found] == [25, 60]  # 20 is near 25; 120 is not small enough


def test_colours_say_how_a_variant_is_linked():
    p = np.array([0.1, 0.01, 1e-9, 0.02, 0.3, 0.4])
    drawn = draw(_table(p), Region(2, {"rs1": 0.95, "rs3": 0.1, "rs4": 0.5}))
    dots = re.findall(r'<circle[^>]*fill="(#\w+)"><title>(\w+)', drawn)
    assert {name: colour for colour, name in dots} == {
        "rs1": _COLOURS[4], "rs3": _COLOURS[0], "rs4": _COLOURS[2], "rs0": _UNKNOWN,
        "rs5": _UNKNOWN,
    }  # fmt: skip
    assert drawn.count(_HIT) == 1
    assert "rs1, 1:20,000, -log10 p 2.00, r² 0.95" in drawn
    heights = [float(v) for v in re.findall(r'cy="([-\d.]+)"', drawn)]
    assert min(heights) > 0  # nothing is above the picture


def test_a_better_neighbour_is_inside_the_picture():
    p = np.array([1e-30, 1e-9])
    drawn = draw(_table(p), Region(1))
    assert min(float(v) for v in re.findall(r'cy="([-\d.]+)"', drawn)) > 0


def test_dots_are_named_where_the_pointer_is():
    rng = np.random.default_rng(2)
    p = rng.random(400)
    p[7] = 1e-8
    names = np.array([f"rs{i}<" for i in range(400)], object)
    chromosome, position = np.full(400, 23), 1000 * np.arange(1, 401)
    assert "rs7&lt;: X:8,000, -log10 p 8.00" in manhattan(
        chromosome, position, -np.log10(p), names, [5e-8]
    )
    qq = quantiles(-np.log10(p), names)
    assert "<title>rs7&lt;: 8.00, expected 2.90</title>" in qq
    assert "<title>" not in quantiles(-np.log10(p))


@pytest.mark.parametrize("clump", [None, {"p1": 1e-4, "p2": 0.05, "r2": 0.2}])
def test_the_report_shows_regions(tmp_path, clump):
    made = linked(5, n=600, m=120)
    cut(tmp_path, made, np.array_split(np.arange(600), 3))
    write_bim(tmp_path / "public.bim", made.variants)
    plan = {
        "test": "linear", "trait": {"column": "QT"}, "variants": "public.bim", "covariates": [],
        "folder": str(tmp_path), "ambiguous_sex": True,
        "cohorts": [{"name": n, "bfile": n, "pheno": f"{n}.pheno"} for n in ("c0", "c1", "c2")],
        **({} if clump is None else {"clump": clump}),
    }  # fmt: skip
    cupola.run(plan, tmp_path / "out")
    page = (tmp_path / "out/report.html").read_text()
    assert 'aria-label="p-values around rs40"' in page
    assert ("r² with the hit" in page) == (clump is not None)
    assert "http" not in page.partition("Regions")[2].partition("Top hits")[0]
