"""Heterogeneity between cohorts: Cochran's Q and I^2, from sums of the cohorts' own effects.

Cochran (1954): with effects b and weights w = 1 / SE^2 of k cohorts, Q = sum w b^2 - (sum w b)^2 /
sum w, a chi-square of k - 1 degrees of freedom if all cohorts have one effect; I^2 (Higgins 2002) =
1 - (k - 1) / Q. First cohorts count who has an effect of its own; where fewer have one than a total
may be of, nothing is added up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from cupola.association.own_fit import FITS, LEAST_NOISE, SPREAD
from cupola.association.questions import Asker, Chunk, first_chunk
from cupola.association.site import LARGEST
from cupola.federation.message import Question, Spec
from cupola.federation.program import State

if TYPE_CHECKING:
    from cupola.association.files import Variants
    from cupola.association.part import Outlined
    from cupola.association.study_choices import Study
    from cupola.association.study_program import Association
    from cupola.federation.federation import Total


class Heterogeneity:
    """The phase at one state. State: 'own/i' (k, 4) of a chunk: cohorts with an effect, sums of w,
    w b, w b^2; 'own' (k,) cohorts of the chunk that is under way."""

    def __init__(self, program: Association, state: State) -> None:
        self.program, self.state = program, state
        self.chunks = program.chunks(state)
        self.at = sum(name.startswith("own/") for name in state.arrays)
        self.chunk = self.chunks[self.at]
        self.counted: np.ndarray | None = state.arrays.get("own")

    @property
    def told(self) -> np.ndarray:
        """Variants of the chunk that enough cohorts have an effect of."""
        assert self.counted is not None
        return self.counted >= least(self.program.sites, self.program.apart)

    def ask(self) -> Question | None:
        asker = self.program.asker(self.state)
        if self.counted is None:
            return question(asker, self.chunk)
        apart = self.program.apart
        return question(asker, self.chunk, self.told, apart) if self.told.any() else None

    def answer(self, total: Total | None) -> State:
        if self.counted is None:
            assert total is not None
            return self.state.next({"own": np.rint(total.arrays["cohorts"]).astype(np.int64)})
        found = np.zeros((len(self.chunk.index), 4))
        found[:, 0] = self.counted
        if total is not None:
            found[self.told, 1:] = total.arrays["effects"]
        return self._store(found)

    def _store(self, found: np.ndarray) -> State:
        arrays = {n: a for n, a in self.state.arrays.items() if n != "own"}
        arrays[f"own/{self.at}"] = found
        last = self.at + 1 == len(self.chunks)
        phase = self.program.after("heterogeneity") if last else "heterogeneity"
        values = {**self.state.values, "phase": phase, "at": 0}
        return State(self.state.step + 1, arrays, values)

    def skip(self) -> State:
        k = len(self.chunk.index)
        if self.counted is None:
            return self.state.next({"own": np.full(k, self.program.sites)})
        return self._store(np.full((k, 4), np.nan))

    def progress(self) -> tuple[int, int]:
        """In variants."""
        sizes = [len(chunk.index) for chunk in self.chunks]
        return sum(sizes[: self.at]), sum(sizes)

    @classmethod
    def tasks(cls, study: Study) -> tuple[str, ...]:  # noqa: ARG003
        return FITS, SPREAD

    @classmethod
    def outline(cls, program: Association, asker: Asker, variants: Variants) -> Iterator[Outlined]:
        size = program.study.chunk
        chunk, chunks = first_chunk(len(variants), size), -(-len(variants) // size)
        yield "sum", question(asker, chunk), chunks
        everyone = np.ones(len(chunk.index), bool)
        yield "sum", question(asker, chunk, everyone, program.apart), chunks


def least(sites: int, apart: int) -> int:
    """Cohorts that a total of effects is of at least. apart: that any total is of; who has no
    effect adds zeros, so a total of fewer would be theirs."""
    return max(min(3, max(2, sites)), apart)


def question(
    asker: Asker, chunk: Chunk, told: np.ndarray | None = None, apart: int = 1
) -> Question:
    """told: the variants whose effects are added up; without it, who has one is counted."""
    options = asker._test(chunk, test=asker.study.test)
    if told is None:
        return Question(
            FITS,
            chunk.arrays(),
            options,
            {"cohorts": Spec((len(chunk.index),), "int", 1)},
            reveals="per variant, how many cohorts have an estimate of their own",
        )
    # In standardised units no information is larger than four times the people (copies squared).
    weight = asker.n * (4 / LEAST_NOISE if asker.study.test == "linear" else 1)
    return Question(
        SPREAD,
        chunk.arrays(told),
        options,
        {"effects": Spec((int(told.sum()), 3), "float", LARGEST**2 * weight)},
        reveals="per variant, sums over cohorts of their own effects b by weights w = 1 / SE^2: of "
        f"w, w b, w b^2, where at least {least(asker.sites, apart)} cohorts have one"
        + WHO_LEARNS.get(asker.sites, ""),
        decides=False,
    )


WHO_LEARNS = {
    2: "; of two cohorts each learns the other's effects",
    3: "; of three cohorts each learns three numbers about four of the other two",
}


def columns(program: Association, state: State, kept: np.ndarray) -> dict[str, np.ndarray]:
    """COCHRAN_Q, its p (Q, as PLINK calls it), I^2 in per cent (I), EFFECTS of cohorts; NaN
    where too few have one, and where a score test has not let a variant go on."""
    found = np.full((len(kept), 4), np.nan)
    for i, chunk in enumerate(program.chunks(state)):
        found[np.searchsorted(kept, chunk.index)] = state.arrays[f"own/{i}"]
    cohorts, w, wb, wbb = found.T
    with np.errstate(invalid="ignore", divide="ignore"):
        q = np.maximum(wbb - wb * wb / w, 0.0)
        q[~((w > 0) & (cohorts >= least(program.sites, program.apart)))] = np.nan
        share = np.where(q > 0, np.maximum(0.0, 1 - (cohorts - 1) / q), 0.0)
    told: dict[str, Any] = {
        "COCHRAN_Q": q, "Q": special.chdtrc(cohorts - 1, q),
        "I": np.where(np.isnan(q), np.nan, 100 * share), "EFFECTS": cohorts,
    }  # fmt: skip
    return told
