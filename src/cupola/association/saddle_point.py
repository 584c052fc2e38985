"""Saddle-point approximation of a score test's p, by sums, for unbalanced binary traits.

Where cases are few the score of a rare variant is far from normal. Its distribution follows from
its cumulant generating function K(t) = sum over people of log(1 - p + p e^(t g)) - t p g, where p
is the probability of the model without a genotype and g the genotype less its regression on the
covariates. K adds up over cohorts, as K' and K'' do, at a t that is the same everywhere. The t with
K'(t) = U, and that with K'(t) = -U, are found by Newton's method between two bounds: K' grows with
t. (Kuonen 1999; Dey et al. 2017; Zhou et al. 2018.) Logarithms are taken by cohorts, of their own
people, and by `tail` once the study is over: between a total and the next question there are none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from cupola.association import fit
from cupola.association.design import SEX_X
from cupola.association.limits import told_of
from cupola.association.questions import Asker, first_chunk
from cupola.association.score_tasks import SADDLE
from cupola.association.site import LARGEST
from cupola.federation.program import State

if TYPE_CHECKING:
    from cupola.association.files import Variants
    from cupola.association.part import Outlined
    from cupola.association.questions import Chunk
    from cupola.association.study_choices import Study
    from cupola.association.study_program import Association
    from cupola.federation.federation import Total
    from cupola.federation.message import Arrays, Question

_CLOSE = 3e-7  # of t: told in 32 bits, it comes no closer than 6e-8
_LONGEST = 2.0  # step: the first, q / V, leads far beyond where few carry the allele


class SaddlePoint:
    """The phase 'saddle' of a study at one state: per chunk as many questions as the variant that
    takes longest. Work arrays, (k, 2) for U and -U: at (where the next sums are taken), low, high
    (bounds of the root), value (K), curve (K''), done; and (k,) status, active."""

    def __init__(self, program: Association, state: State) -> None:
        self.program, self.state = program, state
        self.chunk: Chunk = program.chunks(state)[state.values["at"]]
        self.null = state.values["null"][self.chunk.model]
        # The rows of the array 'tilt/kind' that belong to this chunk.
        before = program.chunks(state)[: state.values["at"]]
        start = sum(len(chunk.index) for chunk in before if chunk.model == self.chunk.model)
        tilts = state.arrays[f"tilt/kind {self.chunk.model}"]
        self.tilt = tilts[start : start + len(self.chunk.index)]
        # U of either tail: with covariates at their estimates it is that of the residual genotype.
        self.goal = self.tilt[:, -2:-1] * np.array([1.0, -1.0])

    def _work(self) -> Arrays:
        if "work/at" in self.state.arrays:
            return {name: self.state.arrays[f"work/{name}"].copy() for name in _WORK}
        k = len(self.tilt)
        first = np.clip(self.goal / self.tilt[:, -1:], -_LONGEST, _LONGEST)
        return {
            "at": _told(first), "low": np.where(self.goal < 0, -np.inf, 0.0),
            "high": np.where(self.goal < 0, 0.0, np.inf), "value": np.zeros((k, 2)),
            "curve": np.full((k, 2), np.nan), "done": np.zeros((k, 2), bool),
            "status": np.full(k, fit.SADDLE, np.uint8), "active": np.ones(k, bool),
        }  # fmt: skip

    def ask(self) -> Question:
        work = self._work()
        active = work["active"]
        tilt, at = self.tilt[active, :-2].astype(np.float32), work["at"][active].astype(np.float32)
        beta = np.array(self.null["beta"])
        return self.program.asker(self.state).saddle(self.chunk, active, tilt, at, beta)

    def answer(self, total: Total | None) -> State:
        assert total is not None
        work, spent = self._work(), self.state.values.get("iteration", 0) + 1
        sums, withheld = told_of(total.arrays)
        lost = np.flatnonzero(work["active"])[withheld]
        work["status"][lost], work["active"][lost] = fit.WITHHELD, False
        rows = np.flatnonzero(work["active"])
        told = {name: array[~withheld] for name, array in sums.items()}
        self._advance(work, rows, told)
        if spent >= self.program.study.newton.iterations or not work["active"].any():
            return self._store(work)
        more = {f"work/{name}": array for name, array in work.items()}
        return self.state.next(more, iteration=spent)

    def _advance(self, work: Arrays, rows: np.ndarray, told: Arrays) -> None:
        """One step of Newton's method towards both roots, between their bounds."""
        slope, curve = told["slope"], told["curve"]
        at, low, high = work["at"][rows], work["low"][rows], work["high"][rows]
        short, going = slope < self.goal[rows], ~work["done"][rows]
        low, high = np.where(short, at, low), np.where(short, high, at)
        with np.errstate(all="ignore"):
            step = (self.goal[rows] - slope) / curve
            step = np.minimum(np.maximum(step, -_LONGEST), _LONGEST)
            closer, between = at + step, (low + high) / 2
            # Newton's step may leave the bounds; half-way between them it cannot.
            inside = (closer > low) & (closer < high)
            closer = np.where(inside | ~np.isfinite(between), closer, between)
            near = np.abs(step) <= _CLOSE * np.abs(at)
        for name in ("value", "curve"):
            work[name][rows] = np.where(going, told[name], work[name][rows])
        work["low"][rows], work["high"][rows] = low, high
        work["done"][rows] |= near
        over = ~(np.abs(closer) <= LARGEST)  # no root: nobody can have so large a score
        moved = np.where(work["done"][rows] | over, at, _told(closer))
        work["at"][rows] = moved
        work["active"][rows] = ~(work["done"][rows] | over).all(axis=1)

    def skip(self) -> State:
        """As if no root were found."""
        work, spent = self._work(), self.state.values.get("iteration", 0) + 1
        if spent >= self.program.study.newton.iterations:
            return self._store(work)
        return self.state.next({f"work/{n}": array for n, array in work.items()}, iteration=spent)

    @classmethod
    def tasks(cls, study: Study) -> tuple[str, ...]:  # noqa: ARG003
        return (SADDLE,)

    @classmethod
    def outline(cls, program: Association, asker: Asker, variants: Variants) -> Iterator[Outlined]:
        chunk, fixed = first_chunk(len(variants), program.study.chunk), program.columns(SEX_X)
        k, c = len(chunk.index), 1 + len(fixed)
        tilt, at = np.zeros((k, c + 1), np.float32), np.zeros((k, 2), np.float32)
        yield "sum", asker.saddle(chunk, np.ones(k, bool), tilt, at, np.zeros(c)), None

    def progress(self) -> tuple[int, int]:
        return self.state.values["at"], len(self.program.chunks(self.state))

    def _store(self, work: Arrays) -> State:
        """The chunk's results: status, then t, K and K'' of U and -U. Without a root K'' is NaN.
        That of U exists: where it was not found the score test stands."""
        state, at = self.state, self.state.values["at"]
        work["curve"][~work["done"]] = np.nan
        stuck = ~work["done"][:, 0] & (work["status"] == fit.SADDLE)
        work["status"][stuck] = fit.SCORE
        table = np.column_stack([work[name] for name in ("status", "at", "value", "curve")])
        arrays = {n: a for n, a in state.arrays.items() if not n.startswith("work/")}
        arrays[f"saddle/{at}"] = table
        last = at + 1 == len(self.program.chunks(state))
        values = {**state.values, "at": at + 1, "iteration": 0}
        if last:
            values |= {"phase": self.program.after("saddle"), "at": 0}
        return State(state.step + 1, arrays, values)


def _told(t: np.ndarray) -> np.ndarray:
    """As cohorts are told it, in 32 bits."""
    return t.astype(np.float32).astype(np.float64)


_WORK = ("at", "low", "high", "value", "curve", "done", "status", "active")


# Afterwards


def log_p(u: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The logarithm of the two-sided p, (k,), of variants with scores u and rows of 'saddle/i'; NaN
    without a root for u. A tail without a root has no probability."""
    t, value, curve = table[:, 1:3], table[:, 3:5], table[:, 5:7]
    near, far = (_log_tail(t[:, i], s * u, value[:, i], curve[:, i]) for i, s in ((0, 1), (1, -1)))
    none = np.isnan(near)
    both = np.logaddexp(np.where(none, 0.0, near), np.where(np.isnan(far), -np.inf, far))
    return np.where(none, np.nan, np.minimum(both, 0.0))


def _log_tail(t: np.ndarray, q: np.ndarray, value: np.ndarray, curve: np.ndarray) -> np.ndarray:
    """log P(S beyond q), on q's side of 0 (Barndorff-Nielsen 1990)."""
    with np.errstate(all="ignore"):
        w = np.sqrt(np.maximum(2 * (t * q - value), 0.0))
        v = np.abs(t) * np.sqrt(curve)
        return special.log_ndtr(-(w + np.log(v / w) / w))
