"""What the totals of an honest logistic study tell about single people: the best reader we know.

    python benchmarks/gwas/leak.py --hm3 HM3.tar.xz --data FOLDER [--out leak.json] [--variants 40]

The study is carried out by the real program over masked sums; every total about variants is kept
(first and Newton sums; allele counts are of untested people, too). What a person adds depends on
its genotype, 0, 1 or 2, and on covariates, trait and coefficients: so all totals are *linear* in
two unknowns a person. The reader solves that system for the most probable genotypes: everybody else
is Gaussian with the frequencies that their ancestry suggests, and who is certain is put in, again
and again. 'everybody known': it knows covariates and trait of all. 'target known': of one person
only, and of the others how their parts are distributed. Ten most unusual people (leverage of
covariates) and fifty at random, variants without missing calls. Shares of genotypes that are right;
'ancestry': by those frequencies alone; 'guess': always the commonest; 'certain': share with a
probability above 0.99.
Results are kept as they come: begun again, it goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import hapmap

from cupola.analysis.plan_file import load
from cupola.analysis.simulated import federation
from cupola.association import read_variants, results
from cupola.association.analysis import AssociationAnalysis
from cupola.association.bed import COPIES, unpacked
from cupola.association.plan import StudyPlan
from cupola.base.randomness import generator
from cupola.federation import Ledger, drive

MANY = (2, 4, 10, 14)
#: Limits of a study, by the table's name for them; and its iterations.
CHOICES: dict[str, tuple[dict[str, float], int]] = {
    "no limits, 20 iterations": ({"effective": 0.0}, 20),
    "as it comes": ({}, 12),
    "grid 0.01": ({"grid": 0.01}, 12),
    "grid 0.1": ({"grid": 0.1}, 12),
    "outliers 1.25": ({"outliers": 1.25}, 12),
    "grid 0.1, outliers 1.25": ({"grid": 0.1, "outliers": 1.25}, 12),
}
ROUNDS = 6  # in which those who are certain are put in
UNUSUAL, USUAL = 10, 50  # people that are read


def carried_out(given: dict[str, Any]) -> dict[str, Any]:
    """The study's totals, by question, and what there is to know of people."""
    analysis, kept = AssociationAnalysis(load(given, of=StudyPlan)), []
    host = analysis.host()
    program = analysis.program(host)
    with (
        tempfile.TemporaryDirectory() as folder,
        federation(analysis, host, Ledger(lambda _: None), Path(folder)) as reach,
    ):
        plain = reach.sum

        def keeping(question: Any, sites: Any) -> Any:
            total = plain(question, sites)
            if question.task in ("gwas first", "gwas newton"):
                kept.append((question, dict(total.arrays)))
            return total

        reach.sum = keeping
        state = drive(program, reach)
        designs = [next(iter(s._designs.values())) for s in host.cohorts]
        index = np.arange(len(program.listed))
        copies = []
        for site, made in zip(host.cohorts, designs):
            rows, _ = site.index.find(program.listed)
            calls = unpacked(site.cohort.bed.rows(rows), made.everybody)[:, made.people]
            copies.append(COPIES[calls])
    return {
        "kept": kept,
        "columns": np.concatenate([made.columns for made in designs]),
        "y": np.concatenate([made.y for made in designs]),
        "copies": np.concatenate(copies, axis=1),
        "index": index,
        "found": results(program, state),
    }


def parts(study: dict[str, Any], v: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of one variant: what each person adds to each number told if it had 0, 1, 2 copies
    (numbers, people, 3), the totals, and whether each is told with 32 bits."""
    x, y = study["columns"], study["y"]
    n, q = x.shape
    g = np.broadcast_to(np.arange(3.0), (n, 3))
    i, j = np.triu_indices(q)
    rows, told, coarse = [], [], []

    def add(part: np.ndarray, total: np.ndarray, rough: bool = False) -> None:
        rows.append(part)
        told.append(np.ravel(total))
        coarse.append(np.full(len(part), rough))

    for question, total in study["kept"]:
        bits = np.unpackbits(question.arrays["variants"]).astype(bool)
        index = np.flatnonzero(bits) + question.options["start"]
        at = np.searchsorted(index, v)
        if at == len(index) or index[at] != v:
            continue
        beta = question.arrays["beta"].astype(float)
        b = np.append(beta, 0.0) if question.task == "gwas first" else beta[at]
        p = 1 / (1 + np.exp(-(x @ b[:-1])[:, None] - g * b[-1]))
        w, r = p * (1 - p), y[:, None] - p
        by_column = x.T[:, :, None]
        if question.task == "gwas first":
            cross = [by_column * w * g, (r * g)[None], (w * g * g)[None]]
            add(np.concatenate(cross), total["cross"][at])
            add(g[None], total["counts"][at, :1])
            continue
        add(np.concatenate([by_column * r, (r * g)[None]]), total["gradient"][at])
        add((x[:, i] * x[:, j]).T[:, :, None] * w, total["fixed"][at], True)
        add(np.concatenate([by_column * w * g, (w * g * g)[None]]), total["genotype"][at])
    return np.concatenate(rows), np.concatenate(told), np.concatenate(coarse)


def prior_of(study: dict[str, Any], v: int) -> np.ndarray:
    """(people, 3): Hardy-Weinberg at the frequency that a person's covariates suggest (ancestry),
    which the totals tell: the first sums are those of a regression of genotypes on covariates."""
    x, y = study["columns"], study["y"]
    question, total = study["kept"][0]
    p = 1 / (1 + np.exp(-(x @ question.arrays["beta"])))
    at = np.searchsorted(np.flatnonzero(np.unpackbits(question.arrays["variants"])), v)
    slopes = np.linalg.solve((x.T * (p * (1 - p))) @ x, total["cross"][at, : x.shape[1]])
    f = np.clip(x @ slopes / 2, 1 / len(y), 1 - 1 / len(y))
    return np.column_stack([(1 - f) ** 2, 2 * f * (1 - f), f**2])


def read(whole: np.ndarray, told: np.ndarray, noise: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Probabilities (people, 3) of genotypes, everybody's covariates known. whole: (numbers,
    people, 3). noise: the variance of what rounding adds to each number."""
    m, n, _ = whole.shape
    a = whole[:, :, 1:] - whole[:, :, :1]
    rest = told - whole[:, :, 0].sum(axis=1)
    belief = prior.copy()
    for _ in range(ROUNDS):
        sure = belief.max(axis=1) > 0.999
        mean = np.where(sure[:, None], np.rint(belief), prior)[:, 1:]
        cov = -mean[:, :, None] * mean[:, None, :]
        cov[:, (0, 1), (0, 1)] += mean
        cov[sure] = 0
        spread = np.einsum("mni,nij->mnj", a, cov)
        k = np.einsum("mni,pni->mp", spread, a, optimize=True) + np.diag(noise)
        left = rest - np.einsum("mni,ni->m", a, mean)
        solved = _solve(k, np.column_stack([left, a.reshape(m, -1)]))
        flat = a.reshape(m, n, 2)
        h = np.einsum("mni,m->ni", flat, solved[:, 0])
        gram = np.einsum("mni,mnj->nij", flat, solved[:, 1:].reshape(m, n, 2))
        new = _genotypes(h, gram, mean, cov, prior)
        new[sure] = belief[sure]
        if np.allclose(new, belief, atol=1e-4):
            break
        belief = new
    return belief


def read_alone(
    whole: np.ndarray, told: np.ndarray, noise: np.ndarray, prior: np.ndarray, who: np.ndarray
) -> np.ndarray:
    """The same of people `who`, each without knowing the others, but how they are distributed."""
    m, n, _ = whole.shape
    expected = np.einsum("mng,ng->mn", whole, prior)
    second = np.einsum("mng,ng,png->mp", whole, prior, whole, optimize=True)
    mean = expected.mean(axis=1)
    k = second - n * np.outer(mean, mean) + np.diag(noise)
    a = (whole[:, :, 1:] - whole[:, :, :1])[:, who]
    first = whole[:, who, 0]
    left = (told - (n - 1) * mean)[:, None] - first
    solved = _solve(k, np.column_stack([left, a.reshape(m, -1)]))
    cut = solved[:, len(who) :].reshape(m, len(who), 2)
    h = np.einsum("mni,mn->ni", cut, left)
    gram = np.einsum("mni,mnj->nij", a, cut)
    nothing = np.zeros((len(who), 2))
    return _genotypes(h, gram, nothing, np.zeros((len(who), 2, 2)), prior[who])


def _solve(k: np.ndarray, right: np.ndarray) -> np.ndarray:
    """k^-1 right, leaving out directions in which there are no digits."""
    scale = 1 / np.sqrt(np.maximum(np.diag(k), 1e-300))
    size, vectors = np.linalg.eigh(k * scale[:, None] * scale)
    kept = size > 1e-13 * size[-1]
    inside = vectors[:, kept].T @ (right * scale[:, None])
    return scale[:, None] * (vectors[:, kept] @ (inside / size[kept, None]))


def _genotypes(
    h: np.ndarray, gram: np.ndarray, mean: np.ndarray, cov: np.ndarray, prior: np.ndarray
) -> np.ndarray:
    """Probabilities of 0, 1, 2 copies of each, given the totals: the person itself is taken out of
    the others' spread (Woodbury)."""
    without = np.linalg.inv(np.eye(2) - gram @ cov + 1e-9 * np.eye(2))
    gram, h = without @ gram, np.einsum("nij,nj->ni", without, h)
    unit = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    d = unit[None] - mean[:, None]
    log = np.einsum("ngi,ni->ng", d, h) - 0.5 * np.einsum("ngi,nij,ngj->ng", d, gram, d)
    log = np.nan_to_num(log, nan=0.0) + np.log(np.maximum(prior, 1e-300))
    log -= log.max(axis=1, keepdims=True)
    found = np.exp(log)
    return found / found.sum(axis=1, keepdims=True)


def leverages(x: np.ndarray) -> np.ndarray:
    return np.einsum("ni,ij,nj->n", x, np.linalg.inv(x.T @ x), x)


def measured(
    study: dict[str, Any], grid: float, leverage: np.ndarray, sites: int = 3
) -> dict[str, Any]:
    """leverage: of people as they are, whatever the study made of their covariates."""
    n = len(study["y"])
    unusual = np.argsort(-leverage)[:UNUSUAL]
    others = np.setdiff1d(np.arange(n), unusual)
    usual = generator(3, "leak people").choice(others, USUAL, replace=False)
    who = {"unusual": unusual, "random": usual}
    names = ("everybody", "certain", "target", "ancestry", "guess")
    found: dict[str, Any] = {kind: {name: [] for name in names} for kind in who}
    numbers = 0
    for v in study["index"].tolist():
        whole, told, coarse = parts(study, v)
        numbers = max(numbers, len(told))
        right = study["copies"][v].astype(int)
        prior = prior_of(study, v)
        commonest = np.bincount(right, minlength=3).argmax()
        step = np.where(coarse, 4 * sites * n / 2.0**32, 1e-9)
        true = np.take_along_axis(whole, right[None, :, None], axis=2).sum(axis=(1, 2))
        assert (np.abs(true - told) <= sites * np.maximum(step, grid) + 1e-7).all()
        noise = sites * np.maximum(step, grid) ** 2 / 12
        all_known = read(whole, told, noise, prior)
        for kind, people in who.items():
            truth = right[people]
            seen = all_known[people]
            alone = read_alone(whole, told, noise, prior, people)
            own = found[kind]
            own["everybody"].append((seen.argmax(axis=1) == truth).mean())
            own["certain"].append((seen.max(axis=1) > 0.99).mean())
            own["target"].append((alone.argmax(axis=1) == truth).mean())
            own["ancestry"].append((prior[people].argmax(axis=1) == truth).mean())
            own["guess"].append((commonest == truth).mean())
    told = {k: {name: round(float(np.mean(a)), 3) for name, a in own.items()}
            for k, own in found.items()}  # fmt: skip
    return {"people": n, "numbers": numbers, **told}


def common(base: Path, folder: Path, many: int) -> Path:
    """A public list of some common variants whose calls nobody lacks."""
    copies = hapmap.genotypes(base)
    listed = read_variants(base.with_suffix(".bim"))
    rate = np.nanmean(copies, axis=1) / 2
    fine = ~np.isnan(copies).any(axis=1) & (np.minimum(rate, 1 - rate) > 0.1)
    fine &= listed.chromosome < 23
    chosen = generator(4, "leak variants").choice(np.flatnonzero(fine), many, replace=False)
    lines = base.with_suffix(".bim").read_text().splitlines()
    path = folder / f"leak-{many}.bim"
    path.write_text("".join(lines[i] + "\n" for i in sorted(chosen.tolist())))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hm3", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("leak.json"))
    parser.add_argument("--variants", type=int, default=40)
    options = parser.parse_args()
    base = hapmap.unpack(options.hm3, options.data)
    lists = hapmap.keeps(base, options.data, "balanced")
    listed = common(base, options.data, options.variants)
    kept = json.loads(options.out.read_text()) if options.out.exists() else {}
    for many in MANY:
        exact, leverage = None, None
        for name, (limits, iterations) in CHOICES.items():
            key = f"{many} covariates, {name}"
            more = {"variants": str(listed), "limits": limits, "sum": "masked"}
            given = hapmap.study(
                base, lists, "logistic", many, newton={"iterations": iterations}, **more
            )
            if key in kept and name != "as it comes":
                continue
            start, study = time.process_time(), carried_out(given)
            statistic = study["found"].columns["STAT"]
            if leverage is None:  # the first study shortens nobody's covariates
                leverage = leverages(study["columns"])
            exact = statistic if name == "as it comes" else exact
            if key not in kept:
                kept[key] = measured(study, limits.get("grid", 0.0), leverage)
                off = np.abs(statistic - exact).max() if exact is not None else 0.0
                kept[key] |= {"statistics_off": round(float(off), 5),
                              "seconds": round(time.process_time() - start, 1)}  # fmt: skip
                options.out.write_text(json.dumps(kept, indent=1) + "\n")
            print(key, kept[key], flush=True)


if __name__ == "__main__":
    main()
