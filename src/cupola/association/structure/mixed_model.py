"""BOLT-LMM's infinitesimal mixed model (Loh et al. 2015) from pooled sums: its null model.

Parts: 'shared' (covariates and trait, for every kind of chromosome), 'markers', 'cross' (markers
with covariates, trait, random signs), 'spread' (heritability after Haseman and Elston, unless the
study states it), 'residual' (conjugate gradients, a sum each), 'solution'. What follows, a test of
every variant, is `mixed_test`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from cupola.association import fit, portable_algebra
from cupola.association.agreement import KEPT
from cupola.association.design import AUTOSOME, SEX_X, kinds
from cupola.association.part import Outlined
from cupola.association.structure.conjugate_gradients import (
    NONE,
    Projection,
    Systems,
    converged,
    heritability,
)
from cupola.association.structure.markers import LAST, MARKERS, Markers
from cupola.association.structure.mixed_questions import MixedAsker
from cupola.association.structure.mixed_tasks import CROSS, RESIDUAL, SOLUTION, SPREAD
from cupola.errors import DataError
from cupola.federation.federation import Total
from cupola.federation.message import Arrays, Question
from cupola.federation.program import State

if TYPE_CHECKING:
    from cupola.association.files import Variants
    from cupola.association.questions import Asker
    from cupola.association.study_choices import Study
    from cupola.association.study_program import Association

LEAST, MOST = 0.05, 0.95  # heritability
_COMMON = 0.2  # markers of the calibration: with rarer ones products would rest on few people
_SCALARS = ("residual_y", "direction_y", "solution_y", "rr", "dd", "bb", "bu")
_TABLES = ("residual", "direction", "solution", "markers")


class MixedModel:
    """State: the value 'mixed' (part, sums so far, heritability, what each right-hand side leaves
    out, calibration, ...), arrays 'mixed/...' of the markers, dropped at the end."""

    def __init__(self, program: Association, state: State) -> None:
        self.program, self.state, self.study = program, state, program.study
        self.choice = program.study.mixed
        self.facts: dict[str, Any] = state.values.get("mixed", {"part": "shared", "sums": 0})
        self.part: str = self.facts["part"]

    # What is asked

    @cached_property
    def markers(self) -> Markers:
        return Markers.of(self.program, self.state, self.choice.maf)

    @cached_property
    def kinds(self) -> list[int]:
        """Of chromosomes with variants to test; markers are on autosomes."""
        kept = self.state.arrays["reason"] == KEPT
        here = kinds(self.program.variants(self.state).chromosome[kept])
        return sorted({AUTOSOME, *np.unique(here).tolist()})

    def _columns(self, kind: int) -> int:
        return 1 + len(self.program.columns(kind))

    @property
    def asker(self) -> MixedAsker:
        made = self.program.asker(self.state)
        return MixedAsker(made, len(self.markers), self._columns(AUTOSOME))

    def _array(self, name: str) -> np.ndarray:
        return self.state.arrays[f"mixed/{name}"]

    def ask(self) -> Question | None:
        if self.part == "shared":
            null = self.state.values.get("null", {})
            kind = next(k for k in self.kinds if str(k) not in null)
            return self.program.asker(self.state).shared(kind, self._columns(kind), None)
        if self.part == "markers":
            people = self.state.values["people"]["loaded"]
            return self.markers.question(people, "mixed", self.choice.maf)
        if self.part == "cross":
            return self.asker.cross(self.choice.signs)
        if self.part == "spread":
            return self.asker.spread(self._array("probes") * self._array("unit")[:, None])
        h = self.facts["heritability"]
        if self.part == "residual":
            return self.asker.residual(
                self._vectors("residual", self._scale()), h, self.facts["sums"]
            )
        columns = {kind: self._columns(kind) for kind in self.kinds}
        return self.asker.solution(self._vectors("solution", None), h, columns)

    def _scale(self) -> np.ndarray:
        """Residuals travel as large as those before them were small: sums keep their digits."""
        rr = self._array("rr")
        return np.sqrt(self._people / np.where(rr > 0, rr, self._people))

    def _vectors(self, name: str, scale: np.ndarray | None) -> Arrays:
        """Coefficients of residuals or solutions, of the genotypes as they are centred."""
        a, s = self._array(name), self._array(f"{name}_y")
        if scale is None:  # the groups' alone
            a, s = a[:, : self._groups], s[: self._groups]
        else:
            a, s = a * scale, s * scale
        c = self._projection.coefficients(a, s)
        return {"markers": a * self._array("unit")[:, None], "trait": s[None], "covariates": c}

    # What answers become

    def answer(self, total: Total | None) -> State:
        assert total is not None
        return self._become(total.arrays)

    def _become(self, sums: Arrays) -> State:
        parts = {
            "shared": self._shared, "markers": self._told, "cross": self._crossed,
            "spread": self._spread, "residual": self._stepped, "solution": self._solved,
        }  # fmt: skip
        return parts[self.part](sums)

    def skip(self) -> State:
        """As if every variant were a marker of one variance, heritability as high as it may be (it
        decides the bits of masked sums), and nothing converged."""
        question = self.ask()
        assert question is not None
        sums: Arrays = {n: np.zeros(spec.shape) for n, spec in question.expects.items()}
        if self.part == "shared":  # columns that have nothing to do with each other
            i, j = np.triu_indices(round((2 * len(sums["products"])) ** 0.5 - 0.5))
            sums["products"][i == j] = self._people
        if self.part in ("cross", "residual"):
            sums["squares"] += self._people
        made = self._prepared({}, MOST, MOST) if self.part == "spread" else self._become(sums)
        warnings = self.state.values["warnings"]  # nothing was computed that one could be about
        return State(made.step, made.arrays, {**made.values, "warnings": warnings})

    def progress(self) -> tuple[int, int]:
        return self.facts["sums"], self.choice.sums

    def _next(self, arrays: Arrays | None = None, **facts: Any) -> State:
        named = {f"mixed/{name}": array for name, array in (arrays or {}).items()}
        return self.state.next(named, mixed={**self.facts, **facts})

    def _shared(self, sums: Arrays) -> State:
        null = self.state.values.get("null", {})
        kind = next(k for k in self.kinds if str(k) not in null)
        null = {**null, str(kind): {"products": sums["products"].tolist(), "done": True}}
        part = "markers" if all(str(k) in null for k in self.kinds) else "shared"
        if part == "markers" and len(self.markers) < 2:
            raise DataError(
                f"the mixed model needs markers: {len(self.markers)} variants of chromosomes 1 to "
                f"{LAST} have a minor allele frequency of {self.choice.maf:g} (mixed.maf)"
            )
        return self.state.next(null=null, mixed={**self.facts, "part": part})

    def _told(self, sums: Arrays) -> State:
        del sums  # variances of people who are not all tested
        if not np.isfinite(self._projection_of_null[0]).all():
            raise DataError("covariates are collinear; leave one out")
        return self._next(part="cross")

    @property
    def _people(self) -> float:
        return float(self.state.values["people"]["tested"])

    @cached_property
    def _projection_of_null(self) -> tuple[np.ndarray, np.ndarray, float]:
        """(Z'Z)^-1, Z'y, y'y."""
        null = self.state.values["null"][str(AUTOSOME)]
        whole = fit.symmetric(np.array(null["products"]), self._columns(AUTOSOME) + 1)
        return portable_algebra.inverse(whole[None, :-1, :-1])[0], whole[:-1, -1], whole[-1, -1]

    @cached_property
    def _projection(self) -> Projection:
        inverse, zy, _ = self._projection_of_null
        return Projection(inverse, self._array("along"), zy)

    def _crossed(self, sums: Arrays) -> State:
        """Standardise markers, with people without a call at the mean."""
        p, people = self._columns(AUTOSOME), self._people
        used = sums["squares"] > 1e-9 * people
        unit = np.where(used, np.sqrt(people / np.where(used, sums["squares"], 1.0)), 0.0)
        products = sums["products"] * unit[:, None]
        inverse, zy, _ = self._projection_of_null
        along = products[:, :p]
        projection = Projection(inverse, along, zy)
        signs = projection.out_of(products[:, p + 1 :], sums["along"])
        trait = projection.out_of(products[:, p : p + 1], zy[:, None])
        squares = projection.squares(np.where(used, people, 0.0))
        arrays = {"unit": unit, "along": along, "squares": squares}
        if self.choice.heritability is not None:
            return self._prepared(arrays, self.choice.heritability, None)
        length = portable_algebra.total(signs * signs)
        count = np.count_nonzero(used)
        root = np.sqrt(np.where(length > 0, length, 1.0) * count)
        told = {"length": length.tolist(), "trait": float(portable_algebra.total(trait * trait)[0])}
        return self._next({**arrays, "probes": signs / root}, part="spread", **told)

    def _spread(self, sums: Arrays) -> State:
        """Heritability from traces of the relationship matrix and of its square."""
        inverse, zy, yy = self._projection_of_null
        probes, length = self._array("probes"), np.array(self.facts["length"])
        count = float(np.count_nonzero(self._array("unit") > 0))
        along = portable_algebra.products(self._array("along"), probes)
        inside = portable_algebra.combined(inverse, along)
        squares = sums["squares"] - portable_algebra.total(along * inside)
        trace = float(portable_algebra.total(length) / len(length)) / count
        trace2 = float(portable_algebra.total(squares * length / count) / len(length))
        own = zy * portable_algebra.combined(inverse, zy[:, None])[:, 0]
        left = float(yy - portable_algebra.total(own))
        freedom = self._people - len(zy)
        found = heritability(self.facts["trait"] / count, left, trace, trace2, freedom)
        return self._prepared({}, min(max(found, LEAST), MOST), found)

    def _prepared(self, more: Arrays, h: float, estimated: float | None) -> State:
        """Right-hand sides: the trait for each group that is left out, markers of calibration."""
        known = {n: self._array(n) for n in ("unit", "squares") if n not in more} | more
        used, group = known["unit"] > 0, self.markers.chromosome % self.choice.groups
        present = np.unique(group[used]).astype(int).tolist()
        if len(present) < 2:
            raise DataError(
                "the mixed model leaves out one group of chromosomes at a time, but all markers "
                "are in one; use test = 'linear', or a list with more chromosomes"
            )
        pick = self._picked(known["squares"])
        left = [*present, *([NONE] if self._needs_all(present) else []), *group[pick].tolist()]
        groups, m = len(left) - len(pick), len(used)
        a, s = np.zeros((m, len(left))), np.zeros(len(left))
        a[pick, np.arange(groups, len(left))] = 1.0
        s[:groups] = 1.0
        systems = Systems(h, group, used, np.array(left))
        arrays = {**more, **systems.start(a, s)}
        facts = {"heritability": h, "estimated": estimated, "left": [int(g) for g in left],
                 "groups": groups, "systems": len(left),
                 "markers": int(np.count_nonzero(used)), "part": "residual"}  # fmt: skip
        warnings = list(self.state.values["warnings"])
        if estimated is not None and estimated != h:
            warnings.append(
                f"heritability is estimated as {estimated:.2f} and taken as {h:g}: without "
                "principal components among the covariates the estimate is too high where people "
                "are of several ancestries; state mixed.heritability if you know better"
            )
        made = self._next(arrays, **facts)
        kept = {n: a for n, a in made.arrays.items() if n != "mixed/probes"}
        return State(made.step, kept, {**made.values, "warnings": warnings})

    def _picked(self, squares: np.ndarray) -> np.ndarray:
        """Markers of the calibration: common ones, evenly over the genome."""
        f = self.markers.frequency
        usable = squares > 1e-3 * self._people
        common = np.flatnonzero(usable & (np.minimum(f, 1 - f) >= _COMMON))
        chosen = common if len(common) >= self.choice.calibration else np.flatnonzero(usable)
        count = min(self.choice.calibration, len(chosen))
        if not count:
            raise DataError("no marker is left once covariates are taken out: are there too many?")
        return chosen[(2 * np.arange(count) + 1) * len(chosen) // (2 * count)]

    def _needs_all(self, present: list[int]) -> bool:
        """Whether a variant to test is in no group of markers."""
        kept = self.state.arrays["reason"] == KEPT
        chromosome = np.unique(self.program.variants(self.state).chromosome[kept])
        return any(group_of(int(c), self.choice.groups, present) == NONE for c in chromosome)

    @property
    def _groups(self) -> int:
        return int(self.facts["groups"])

    def _systems(self) -> Systems:
        group = self.markers.chromosome % self.choice.groups
        used, left = self._array("unit") > 0, np.array(self.facts["left"])
        return Systems(self.facts["heritability"], group, used, left)

    def _stepped(self, sums: Arrays) -> State:
        """One iteration, or the end of it."""
        scale = self._scale()
        rr = sums["squares"] / (scale * scale)
        xr = sums["products"] * self._array("unit")[:, None] / scale
        work = {name: self._array(name) for name in (*_TABLES, *_SCALARS)}
        spent, done = self.facts["sums"] + 1, converged(work, rr, self.choice.tolerance)
        first = work["bb"] if work["bb"].any() else rr
        worst = float(np.sqrt(np.max(rr / np.where(first > 0, first, 1.0))))
        if not done:
            work = self._systems().step(work, xr, rr)
        warnings = list(self.state.values["warnings"])
        last = spent >= self.choice.sums
        if last and not done:
            warnings.append(
                f"the mixed model has not converged after {spent} sums (residual {worst:.1e}, "
                f"tolerance {self.choice.tolerance:g}): allow more (mixed.sums)"
            )
        made = self._next(work, sums=spent, residual=worst, converged=done,
                          part="solution" if done or last else "residual")  # fmt: skip
        return State(made.step, made.arrays, {**made.values, "warnings": warnings})

    def _solved(self, sums: Arrays) -> State:
        """Variance of each group, calibration; what is known of markers is not needed any more."""
        groups, freedom = self._groups, self._people - self._columns(AUTOSOME)
        bu, bb = self._array("bu"), self._array("bb")
        told = np.where(bb > 0, bu / np.where(bb > 0, bb, 1.0), 0.0)[groups:]
        facts = {
            "variance": (bu[:groups] / freedom).tolist(),
            "calibration": float(portable_algebra.total(told) / len(told)),
            "along": {name.removeprefix("along "): a.tolist() for name, a in sums.items()},
            "left": self.facts["left"][:groups],
        }
        made = self._next(**facts)
        kept = {n: a for n, a in made.arrays.items() if not n.startswith("mixed/")}
        values = {**made.values, "phase": self.program.after("mixed"), "at": 0}
        return State(made.step, kept, values)

    # Before anybody is asked

    @classmethod
    def tasks(cls, study: Study) -> tuple[str, ...]:
        spread = (SPREAD,) if study.mixed.heritability is None else ()
        return ("gwas shared", MARKERS, CROSS, *spread, RESIDUAL, SOLUTION)

    @classmethod
    def outline(cls, program: Association, asker: Asker, variants: Variants) -> Iterator[Outlined]:
        choice, p = program.study.mixed, 1 + len(program.columns(AUTOSOME))
        m = int(((variants.chromosome >= 1) & (variants.chromosome <= LAST)).sum())
        made, probes = MixedAsker(asker, m, p), choice.signs
        on_x = 1 + len(program.columns(SEX_X))
        yield "sum", asker.shared(SEX_X, on_x, None), 1
        half = np.full(m, 0.5)
        told = Markers(np.arange(m), variants.chromosome[:m], half, len(variants))
        yield "sum", told.question(asker.people, "mixed", choice.maf), 1
        yield "sum", made.cross(probes), 1
        if probes:
            yield "sum", made.spread(np.zeros((m, probes))), 1
        h, r = choice.heritability or MOST, choice.systems
        vectors = {"markers": np.zeros((m, r)), "trait": np.zeros((1, r)),
                   "covariates": np.zeros((p, r))}  # fmt: skip
        yield "sum", made.residual(vectors, h, 0), None
        few = {name: array[:, : choice.groups + 1] for name, array in vectors.items()}
        yield "sum", made.solution(few, h, {AUTOSOME: p, SEX_X: on_x}), 1


def group_of(chromosome: int, groups: int, present: list[int]) -> int:
    """Which group of markers is left out for a variant of this chromosome."""
    group = chromosome % groups
    return group if 1 <= chromosome <= LAST and group in present else NONE
