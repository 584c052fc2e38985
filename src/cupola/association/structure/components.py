"""Principal components of all people's genotypes by sums.

Block Lanczos on Z'Z, whose products with a block of directions are one total each. Directions
follow from the plan's seed and the totals, so that sites repeat them. It ends when the components'
residuals are small. Those no farther from a neighbour than they are uncertain are not determined.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from cupola.association.component_choices import Components
from cupola.association.limits import told_of
from cupola.association.part import Outlined
from cupola.association.portable_algebra import total as added
from cupola.association.structure import lanczos
from cupola.association.structure.component_tasks import BINS, DIRECTIONS, NAME, SCORES
from cupola.association.structure.lanczos import Krylov, Ritz
from cupola.association.structure.markers import MARKERS, Markers
from cupola.errors import DataError
from cupola.federation.message import Arrays, Question, Spec
from cupola.federation.program import State

if TYPE_CHECKING:
    from cupola.association.files import Variants
    from cupola.association.questions import Asker
    from cupola.association.study_choices import Study
    from cupola.association.study_program import Association
    from cupola.federation.federation import Total

_NOTHING = 1e-9  # of the largest eigenvalue: there is no component
_BLOCK = "components/block/"


class ComponentsPart:
    """State values 'components': 'stage' (markers, directions, scores), 'sums' (made so far) and,
    in the end, what is told of each component. Arrays: 'components/kept' (of the markers, by the
    study's filters, which are used), '.../block/i' (of the basis), '.../small' (T), '.../loadings',
    '.../density'."""

    def __init__(self, program: Association, state: State) -> None:
        self.program, self.state = program, state
        choice = program.study.components
        assert choice is not None
        self.choice: Components = choice
        self.known = state.values.get(NAME, {"stage": "markers", "sums": 0})
        self.people = int(state.values["people"]["loaded"])

    @cached_property
    def all(self) -> Markers:
        """Those that cohorts are told."""
        found = Markers.of(self.program, self.state, self.choice.maf)
        if self.choice.variants:
            names = self.program.variants(self.state).name[found.index]
            found = found[np.isin(np.asarray(names, str), np.array(self.choice.variants))]
        if len(found) <= self.choice.count:
            raise DataError(
                f"{len(found):,} markers (autosomal, minor allele at least {self.choice.maf:g}"
                f"{', named by the study' if self.choice.variants else ''}) are too few for "
                f"{self.choice.count} components"
            )
        return found

    @cached_property
    def used(self) -> Markers:
        return self.all[self.state.arrays["components/kept"]]

    def _kept(self) -> np.ndarray:
        return np.packbits(self.state.arrays["components/kept"])

    # Questions

    def ask(self) -> Question | None:
        if self.known["stage"] == "markers":
            facts = (self.choice.maf, self.program.study.limits.carriers)
            return self.all.question(self.people, NAME, *facts)
        if self.known["stage"] == "directions":
            return self._directions(self.used, self._kept(), self._block())
        return self._scores(self._kept(), self.state.arrays["components/loadings"])

    def _block(self) -> np.ndarray:
        name = f"{_BLOCK}{self.known['sums']}"
        if name in self.state.arrays:
            return self.state.arrays[name]
        return lanczos.start(self.program.seed, len(self.used), self.choice.block)

    def _most(self, used: Markers) -> tuple[float, float]:
        """The most that the squares of one column of Z, and of all, add up to at one cohort."""
        most = used.most_squares(self.people)
        scaled = most / used.scale**2
        return float(scaled.max()), float(added(scaled))

    def _directions(self, used: Markers, kept: np.ndarray, block: np.ndarray) -> Question:
        """By Cauchy and Schwarz |z_j'(Z v)| <= |z_j| |Z| |v|, and |Z| is at most the root of the
        sum of all squares."""
        column, whole = self._most(used)
        return Question(
            DIRECTIONS,
            {"kept": kept, "v": block},
            {"what": NAME},
            {"product": Spec(block.shape, "float", 1.01 * np.sqrt(column * whole).item())},
            reveals="per marker and direction, its genotypes times all people's projections on "
            "the direction",
        )

    def _scores(self, kept: np.ndarray, loadings: np.ndarray) -> Question:
        """A loading is v over the root of theta = v'Z'Z v: over all people the squares of scores
        add up to 1, and at no cohort to more."""
        expects = {"squares": Spec((self.choice.count,), "float", 2.0)}
        if self.choice.density:
            expects["density"] = Spec((BINS, BINS), "int", self.people)
        return Question(
            SCORES,
            {"kept": kept, "loadings": loadings},
            {"what": NAME, "people": self.people},
            expects,
            reveals="the sum of squares of every component over all people"
            + ("; how many people are in each square of the first two" if self.choice.density
               else ""),
        )  # fmt: skip

    # Totals

    def answer(self, total: Total | None) -> State:
        assert total is not None
        steps = {"markers": self._markers, "directions": self._direction, "scores": self._scored}
        return steps[self.known["stage"]](total.arrays)

    def _next(self, arrays: Arrays, **facts: object) -> State:
        return self.state.next(arrays, **{NAME: {**self.known, **facts}})

    def _markers(self, sums: Arrays) -> State:
        sums, withheld = told_of(sums)
        kept, chosen = ~withheld, self.all[~withheld]
        if len(chosen) <= self.choice.count:
            raise DataError(
                f"{len(chosen):,} markers are left for {self.choice.count} components: of "
                f"{withheld.sum():,} some cohort has few copies of the rarer allele "
                "(limits.carriers)"
            )
        scaled = sums["squares"][kept] / chosen.scale**2
        facts = {"markers": len(chosen), "withheld": int(withheld.sum()),
                 "variance": float(added(scaled))}  # fmt: skip
        return self._next({"components/kept": kept}, stage="directions", **facts)

    def _direction(self, sums: Arrays) -> State:
        spent, arrays, block = self.known["sums"], self.state.arrays, self._block()
        before = tuple(arrays[f"{_BLOCK}{i}"] for i in range(spent))
        known = Krylov(before, arrays.get("components/small", np.zeros((0, 0))))
        known, following, left = known.more(block, sums["product"])
        ritz, spent = known.pairs(left), spent + 1
        over = following.shape[1] == 0 or spent >= self.choice.sums
        if over or self._enough(ritz):
            return self._found(known, ritz, spent)
        kept = {f"{_BLOCK}{spent - 1}": block, f"{_BLOCK}{spent}": following,
                "components/small": known.small}  # fmt: skip
        return self._next(kept, sums=spent)

    def _enough(self, ritz: Ritz) -> bool:
        count = self.choice.count
        if len(ritz.values) <= count or not (ritz.values[:count] > 0).all():
            return False
        return bool((ritz.relative(count) < self.choice.residual).all())

    def _found(self, known: Krylov, ritz: Ritz, spent: int) -> State:
        count, values = self.choice.count, ritz.values
        real = int((values > _NOTHING * values[0]).sum())
        if real < count:
            raise DataError(
                f"these people and markers have {real} components, not {count} (components.count)"
            )
        vectors = known.vectors(ritz.vectors[:, :count])
        facts = {
            "eigenvalues": (values[:count] / self.known["markers"]).tolist(),
            "residuals": ritz.relative(count).tolist(),
            "gaps": ritz.gaps(count).tolist(),
            "determined": ritz.determined(count).tolist(),
        }
        arrays = {n: a for n, a in self.state.arrays.items()
                  if not n.startswith((_BLOCK, "components/small"))}  # fmt: skip
        arrays["components/loadings"] = vectors / np.sqrt(values[:count])
        values_now = {**self.state.values, NAME: {**self.known, **facts, "sums": spent,
                                                  "stage": "scores"}}  # fmt: skip
        return State(self.state.step + 1, arrays, values_now)

    def _scored(self, sums: Arrays) -> State:
        arrays = {"components/density": np.rint(sums["density"])} if "density" in sums else {}
        warnings = [*self.state.values["warnings"], *self._doubts()]
        facts = {**self.known, "squares": sums["squares"].tolist()}
        return self.state.next(
            arrays, **{NAME: facts}, phase=self.program.after(NAME), at=0, warnings=warnings
        )

    def _doubts(self) -> list[str]:
        known, found = self.known, []
        late = [i + 1 for i, r in enumerate(known["residuals"]) if r >= self.choice.residual]
        if late:
            found.append(
                f"after {known['sums']} sums (components.sums) {_listed(late)} not as exact as "
                f"asked for: residual {max(known['residuals']):.1e}, components.residual = "
                f"{self.choice.residual:g}"
            )
        unsure = [i + 1 for i, sure in enumerate(known["determined"]) if not sure]
        if unsure:
            found.append(
                f"{_listed(unsure)} not determined: their eigenvalues differ from a neighbour's by "
                "less than they are known, so that each may be mixed with its neighbour"
            )
        return found

    # Before and beside

    def skip(self) -> State:
        """As if nothing were withheld, no component were found before the last sum, and all are
        apart."""
        if self.known["stage"] == "markers":
            k = len(self.all)
            return self._markers({"squares": np.ones(k), "withheld": np.zeros(k)})
        if self.known["stage"] == "directions":
            spent, k = self.known["sums"] + 1, len(self.used)
            if spent < self.choice.sums:
                block = np.zeros((k, self.choice.block))
                return self._next({f"{_BLOCK}{spent}": block}, sums=spent)
            ones = np.ones(self.choice.count).tolist()
            facts = {"eigenvalues": ones, "residuals": [0.0] * len(ones), "gaps": ones,
                     "determined": [True] * len(ones)}  # fmt: skip
            loadings = np.full((k, self.choice.count), 1 / k)
            return self._next({"components/loadings": loadings}, **facts, stage="scores")
        return self._scored({"squares": np.ones(self.choice.count)})

    def progress(self) -> tuple[int, int]:
        stage, most = self.known["stage"], self.choice.sums + 2
        return {"markers": 0, "directions": 1 + self.known["sums"], "scores": most - 1}[stage], most

    @classmethod
    def tasks(cls, study: Study) -> tuple[str, ...]:
        del study
        return (MARKERS, DIRECTIONS, SCORES)

    @classmethod
    def outline(cls, program: Association, asker: Asker, variants: Variants) -> Iterator[Outlined]:
        m, choice, study = len(variants), program.study.components, program.study
        assert choice is not None
        people = {"loaded": asker.people}
        part = cls(program, State(values={"people": people}))
        half = np.full(m, 0.5)
        every = Markers(np.arange(m), variants.chromosome, half, m)
        facts = (choice.maf, study.limits.carriers)
        yield "sum", every.question(asker.people, NAME, *facts), 1
        kept = np.packbits(np.ones(m, bool))
        yield "sum", part._directions(every, kept, np.zeros((m, choice.block))), choice.sums
        yield "sum", part._scores(kept, np.full((m, choice.count), 1 / max(1, m))), 1


def _listed(components: list[int]) -> str:
    names = ", ".join(f"PC{i}" for i in components)
    return f"component {names} is" if len(components) == 1 else f"components {names} are"
