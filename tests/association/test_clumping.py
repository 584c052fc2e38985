"""Hits that belong together: pairs, what cohorts tell of them, and PLINK's --clump."""

import shutil
import subprocess

import numpy as np
import pytest
from cohorts import carry_out, cut, sites, study, write, write_bim
from linked import linked
from replayed import lying_otherwise, record, repeat, saved_and_loaded

import cupola
from cupola.association import clumping, linkage_counts, pvalues, results
from cupola.association.clumps import clumps, r_squared
from cupola.association.linkage_counts import NO_CALL, pair_counts
from cupola.association.study_choices import Clump
from cupola.errors import FederationError, PlanError

SCORE = {"score": {"below": 0.02}}
CHOSEN = {"p1": 1e-3, "p2": 0.05, "r2": 0.2}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Three cohorts of 200, and all of them in one file."""
    folder = tmp_path_factory.mktemp("linked")
    made = linked(5)
    cut(folder, made, np.array_split(np.arange(600), 3))
    write(folder, "all", made)
    write_bim(folder / "public.bim", made.variants)
    return folder, made


def _plan(folder, test, **options):
    names = ("c0", "c1", "c2")
    cohorts = [{"name": n, "bfile": n, "pheno": f"{n}.pheno", "cov": f"{n}.cov"} for n in names]
    column = "QT" if test == "linear" else "CC"
    return {
        "test": test, "trait": {"column": column}, "variants": "public.bim", "clump": CHOSEN,
        "covariates": [] if test == "chi-square" else ["AGE"], "cohorts": cohorts, "sum": "masked",
        "folder": str(folder), "name": "t", **options,
    }  # fmt: skip


def _printed(path):
    rows = [line.split() for line in path.read_text().splitlines() if line.strip()]
    names = ("SNP", "S05", "S01", "S001", "S0001", "SP2")
    return [{n: row[rows[0].index(n)] for n in names} for row in rows[1:]]


@pytest.mark.skipif(shutil.which("plink1.9") is None, reason="needs plink1.9")
@pytest.mark.parametrize(
    ("test", "more"),
    [("chi-square", {}), ("linear", {}), ("logistic", {}), ("logistic", SCORE)],
)
def test_clumps_are_plinks_on_the_pooled_data(data, tmp_path, test, more):
    folder, _ = data
    done = cupola.run(_plan(folder, test, **more), tmp_path / "out").result
    command = ["plink1.9", "--bfile", folder / "all", "--clump", tmp_path / "out" / done.files[0],
               "--clump-p1", "1e-3", "--clump-p2", "0.05", "--clump-r2", "0.2",
               "--allow-no-sex", "--out", tmp_path / "p"]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    theirs = _printed(tmp_path / "p.clumped")
    assert len(theirs) >= 3
    assert sum(len(row["SP2"].split(",")) for row in theirs) >= 15
    assert _printed(tmp_path / "out/t.clumped") == theirs


def test_masked_sums_tell_what_plain_ones_do(data, tmp_path):
    folder, _ = data
    for kind in ("plain", "masked"):
        cupola.run(_plan(folder, "linear", sum=kind), tmp_path / kind, report=False)
    for name in ("t.clumped", "t.clumped.ld.tsv"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "masked" / name).read_bytes()


def test_counts_of_pairs_are_those_of_counting_one_by_one():
    rng = np.random.default_rng(3)
    copies = rng.integers(0, 4, (9, 70)).astype(np.int8)
    pairs = np.array([(i, j) for i in range(9) for j in range(9) if i != j and (i + j) % 2])
    slow = np.zeros((len(pairs), 5), int)
    halves = {0: "22", 1: "12", 2: "11"}
    for k, (i, j) in enumerate(pairs.tolist()):
        for a, b in zip(copies[i].tolist(), copies[j].tolist()):
            if NO_CALL in (a, b):
                continue
            if a == b == 1:
                slow[k, 4] += 1
                continue
            both = zip(sorted(halves[a]), sorted(halves[b]))
            for mine, other in both:
                slow[k, 2 * (mine == "2") + (other == "2")] += 1
    assert (pair_counts(copies, pairs) == slow).all()


def _slow_r2(counts):
    """By expectation and maximisation, from where it is likeliest of a few starts."""
    k, both = counts[:4].reshape(2, 2).astype(float), float(counts[4])
    whole, best = k.sum() + 2 * both, (-np.inf, np.nan)
    for share in (0.01, 0.5, 0.99):
        for _ in range(5000):
            p = (k + both * np.array([[share, 1 - share], [1 - share, share]])) / whole
            x, y = p[0, 0] * p[1, 1], p[0, 1] * p[1, 0]
            before, share = share, x / (x + y)
            if abs(share - before) < 1e-12:
                break
        likely = (k * np.log(np.maximum(p, 1e-300))).sum() + both * np.log(2 * (x + y))
        a, b = p[0].sum(), p[:, 0].sum()
        d = p[0, 0] - a * b
        best = max(best, (likely, d * d / (a * (1 - a) * b * (1 - b))))
    return best[1]


def test_r2_is_that_of_the_likeliest_haplotypes():
    rng = np.random.default_rng(4)
    copies = linked(6, n=150, m=12).copies.astype(np.int8)
    pairs = np.column_stack(np.triu_indices(12, 1))
    counts = np.concatenate([pair_counts(copies, pairs), rng.integers(0, 40, (6, 5))])
    slow = np.array([_slow_r2(row) for row in counts])
    assert r_squared(counts) == pytest.approx(slow, abs=2e-6)
    assert np.isnan(r_squared(np.array([[-1] * 5, [10, 0, 10, 0, 0]]))).all()


def test_pairs_are_those_of_looking_at_all():
    rng = np.random.default_rng(8)
    made = linked(7, n=20, m=200)
    kept = np.sort(rng.permutation(300)[:200])  # rows of a longer list
    statistic = rng.chisquare(1, 200) * 4
    statistic[5] = np.nan
    clump = Clump(p1=0.01, p2=0.1, kb=40)
    parts, crowded = clumping.choose(made.variants, kept, statistic, clump)
    asked = [tuple(row) for part in parts for row in part.rows[part.pairs].tolist()]
    near = np.flatnonzero(statistic >= pvalues.chi2_of(0.1) - 1e-3)
    index = set(np.flatnonzero(statistic >= pvalues.chi2_of(0.01) - 1e-3).tolist())
    v = made.variants
    expected = {
        frozenset((int(kept[i]), int(kept[j])))
        for i in index
        for j in near.tolist()
        if i != j
        and v.chromosome[i] == v.chromosome[j]
        and abs(v.position[i] - v.position[j]) <= 40_000
    }
    assert len(asked) == len(expected) > 50
    assert {frozenset(pair) for pair in asked} == expected
    assert crowded == 0
    rows = np.concatenate([part.rows for part in parts])
    assert len(set(rows.tolist())) == len(rows)  # no variant is in two questions


def test_crowded_regions_keep_their_best_and_say_so(monkeypatch):
    monkeypatch.setattr(clumping, "MOST", 10)
    made, statistic = linked(7, n=20, m=60, spacing=100), np.linspace(30, 40, 60)
    parts, crowded = clumping.choose(made.variants, np.arange(60), statistic, Clump())
    assert crowded == 40
    assert sorted(np.concatenate([p.rows for p in parts]).tolist()) == [
        *range(20, 30), *range(50, 60),
    ]  # fmt: skip


def test_of_t_p_is_never_below_what_the_constant_asks_for():
    for p in (1e-8, 1e-4, 0.01):
        edge = np.sqrt(clumping.threshold(p))
        t = edge * np.linspace(0.9, 1 - 1e-9, 50)
        for freedom in (5, 50, 5000):
            assert (pvalues.student(t, np.full(50, freedom)) > p).all()


@pytest.mark.parametrize("test", ["chi-square", "linear"])
@pytest.mark.parametrize("between", [saved_and_loaded, lying_otherwise])
def test_who_repeats_the_study_asks_for_the_same_pairs(tmp_path, test, between):
    bases = cut(tmp_path, linked(5), np.array_split(np.arange(600), 3))
    chosen = study(test, clump=CHOSEN, chunk=64)
    asked, replies = record(chosen, bases)
    assert len(record(study(test, chunk=64), bases)[0]) < len(asked)
    assert repeat(chosen, 3, replies, between=between) == asked


# What it tells


def _one_carrier(tmp_path, monkeypatch, least):
    """A cohort whose variant 39, next to a hit, has one carrier there; what is told of it."""
    made = linked(5)
    own = np.arange(200)
    made.copies[39, own] = 0
    made.copies[39, 7] = 1
    bases = cut(tmp_path, made, np.array_split(np.arange(600), 3))
    monkeypatch.setattr(linkage_counts, "LEAST_MINOR", least)
    copies = np.where(made.copies == 3, NO_CALL, made.copies)[:, own].astype(np.int8)
    pairs = np.array([(39, j) for j in range(30, 39)])
    told = pair_counts(copies, pairs)
    return made, bases, told, linkage_counts.withheld(copies, pairs)


def test_a_single_carrier_is_read_off_the_counts_unless_they_are_withheld(tmp_path, monkeypatch):
    made, bases, told, withheld = _one_carrier(tmp_path, monkeypatch, 0)
    assert not withheld.any()
    for counts, genotype in zip(told, made.copies[30:39, 7].tolist()):
        # Known haplotypes with the carried allele: one of each kind says which she has beside it.
        read = 1 if counts[4] else 2 if counts[0] else 0
        if genotype != 3:
            assert read == genotype  # her genotypes, one after another
    monkeypatch.setattr(linkage_counts, "LEAST_MINOR", 50)
    assert _one_carrier(tmp_path, monkeypatch, 50)[3].all()
    chosen = study("linear", clump=CHOSEN)
    program, state, _ = carry_out(chosen, sites(chosen, bases), made.variants, masked=True)
    found = results(program, state)
    best = clumps(program, state, found)[0]
    assert found.variants.name[best.index] == "rs40"
    row = found.variants.name.tolist().index("rs39")
    assert found.log10_p[row] < np.log10(0.05)  # it would be asked about
    assert row not in best.near
    assert best.unknown >= 1


def test_many_partners_are_told_of_many_people_only():
    copies = linked(9, n=200, m=60, missing=0).copies.astype(np.int8)
    star = np.array([(0, j) for j in range(1, 60)])
    assert linkage_counts.withheld(copies, star).all()  # 59 partners, 200 people
    assert not linkage_counts.withheld(copies, star[:40]).any()


def test_a_variant_is_asked_about_once(tmp_path, monkeypatch):
    bases = cut(tmp_path, linked(5), np.array_split(np.arange(600), 3))
    chosen = study("linear", clump=CHOSEN)
    real = clumping.Pairs.question

    def nosy(self, people):
        question = real(self, people)
        question.arrays["pairs"] = question.arrays["pairs"][:-1]
        spec = question.expects["haplotypes"]
        k = spec.shape[0] - 1
        question.expects["haplotypes"] = type(spec)((k, 5), spec.kind, spec.bound)
        withheld = question.expects["withheld"]
        question.expects["withheld"] = type(withheld)((k,), withheld.kind, withheld.bound)
        return question

    cohorts = sites(chosen, bases)
    carry_out(chosen, cohorts)
    monkeypatch.setattr(clumping.Pairs, "question", nosy)
    with pytest.raises(FederationError, match="asked-too-often"):
        carry_out(chosen, cohorts)


def test_a_plan_is_checked_and_foreseen(data):
    folder, _ = data
    with pytest.raises(PlanError, match=r"clump.p1 = 0.1 is larger than clump.p2 = 0.01"):
        cupola.load(_plan(folder, "linear", clump={"p1": 0.1}))
    told = cupola.check(_plan(folder, "linear"))
    (row,) = [row for row in told["bytes"]["rows"] if row["task"] == "gwas linkage"]
    assert row["up"] > 300 * 299 / 2 * 5 * 3
    assert any("one region" in reason for reason in told["bytes"]["at_most"])


def test_a_study_of_all_parts_goes_on_after_a_stop(data, tmp_path):
    folder, _ = data
    more = {"heterogeneity": True, "quality": {"report": True}, "checkpoint_seconds": 0}
    plan = _plan(folder, "linear", **more)
    cupola.run(plan, tmp_path / "whole", report=False)
    for part in ("quality report", "heterogeneity", "clump"):

        def stop(now, part=part):
            if now.part == part:
                raise KeyboardInterrupt

        out = tmp_path / part
        with pytest.raises(KeyboardInterrupt):
            cupola.run(plan, out, progress=stop, report=False)
        cupola.resume(out, report=False)
        for name in ("t.assoc.linear", "t.clumped", "t.clumped.ld.tsv"):
            assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), part


@pytest.mark.slow
def test_cohorts_in_processes_of_their_own_know_the_parts(data, tmp_path):
    folder, _ = data
    more = {"heterogeneity": True, "quality": {"report": True}, "sum": "plain"}
    plan = _plan(folder, "linear", **more)
    for kind in ("in-process", "processes"):
        cupola.run({**plan, "engine": {"kind": kind}}, tmp_path / kind, report=False)
    for name in ("t.assoc.linear", "t.clumped", "t.clumped.ld.tsv"):
        same = [(tmp_path / kind / name).read_bytes() for kind in ("in-process", "processes")]
        assert same[0] == same[1]
