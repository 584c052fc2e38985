"""The score test of logistic regression, by sums: before any variant is fitted.

U = sum of g (y - p) and its variance V are taken at the model without a genotype, whose weights all
variants share, so that one question is enough: z = U / sqrt(V), and one step from there gives the
estimate U / V with the standard error 1 / sqrt(V). A missing call counts as the mean genotype of
those called, as REGENIE and SAIGE have it: then what people without a call take off the
information matrix need not be sent. V = g'Wg - g'WX (X'WX)^-1 X'Wg, where (X'WX)^-1 is the same for
all variants (Rao 1948; Mbatchou et al. 2021; Zhou et al. 2018).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cupola.association import fit
from cupola.association.design import SEX_X
from cupola.association.limits import told_of
from cupola.association.part import Outlined
from cupola.association.portable_algebra import combined, dot, inverse
from cupola.association.questions import Asker, first_chunk
from cupola.association.regression import Regression
from cupola.association.score_tasks import SCORE
from cupola.association.score_threshold import threshold
from cupola.association.site import MOST_TILT
from cupola.federation.program import State

if TYPE_CHECKING:
    from cupola.association.files import Variants
    from cupola.association.study_choices import Study
    from cupola.association.study_program import Association
    from cupola.federation.federation import Total
    from cupola.federation.message import Arrays, Question

_FLAT = 0.1  # below this z the saddle point is at 0, where its formula is 0 / 0
FACTS = ("people", "status", "beta", "error")  # columns of the state's array 'score'


@dataclass(frozen=True)
class Scores:
    """Of many variants: U and V; tilt: the genotype's regression on the covariates (k, columns),
    and what stands for a missing call (k, 1), in 32 bits; status as in `fit`."""

    u: np.ndarray
    v: np.ndarray
    tilt: np.ndarray
    status: np.ndarray


def scores(
    information: np.ndarray, sums: Arrays, vif: float, people: np.ndarray, mean: np.ndarray
) -> Scores:
    """information: (c, c), of the model without a genotype. sums: totals of a 'gwas score'
    question. What cannot be told from the covariates has no score, as in `fit.trouble`."""
    c, square = len(information), sums["cross"][:, -1].copy()
    cross = sums["cross"][:, : c + 1].copy()
    if "off" in sums:
        cross += mean[:, None] * sums["off"]
        square += mean * mean * sums["off"][:, 0]
    with_columns, u = cross[:, :c], cross[:, c]
    solved = inverse(information[None])[0]
    slopes = combined(with_columns, solved)
    v = square - dot(slopes, with_columns)
    status = _trouble(information, solved, with_columns, square, slopes, v, vif)
    status[people <= c + 1] = fit.TOO_FEW
    status[(status == fit.OK) & ~(v > 0)] = fit.COLLINEAR
    tilt = np.concatenate([slopes, mean[:, None]], axis=1).astype(np.float32)
    return Scores(u, v, tilt, status)


def _trouble(
    information: np.ndarray,
    solved: np.ndarray,
    cross: np.ndarray,
    square: np.ndarray,
    slopes: np.ndarray,
    v: np.ndarray,
    vif: float,
) -> np.ndarray:
    """`fit.trouble` by what covariates and genotype share, without a matrix for each variant: a
    column joining X adds slope^2 / V to the diagonal of (X'WX)^-1."""
    count, status = information[0, 0], np.zeros(len(v), np.uint8)
    mean = cross[:, 0] / count
    variance = square - count * mean * mean
    status[variance <= 1e-7 * square + 1e-10 * count] = fit.MONOMORPHIC
    with np.errstate(all="ignore"):
        bad = ~(variance <= vif * v)
        for j in range(1, len(information)):
            own = information[j, j] - information[0, j] * information[0, j] / count
            shared = cross[:, j] - mean * information[0, j]
            bad |= np.abs(shared) > fit.ALIKE * np.sqrt(variance * own)
            bad |= ~(own * (solved[j, j] + slopes[:, j] * slopes[:, j] / v) <= vif)
    status[bad & (status == fit.OK)] = fit.COLLINEAR
    return status


class ScoreTest(Regression):
    """The phase 'score' of a study at one state: per chunk 'shared', if its kind of chromosome is
    new, then one question. State arrays while it lasts: 'score/i' (results of a chunk, by `FACTS`),
    'chosen/i', 'tilt/i' (of those that go on: `Scores.tilt`, U, V; saddle-point only). Afterwards:
    'score' and 'chosen' of all variants of the list, and 'tilt/kind' in place of 'tilt/i'.
    """

    @classmethod
    def tasks(cls, study: Study) -> tuple[str, ...]:  # noqa: ARG003
        return ("gwas shared", SCORE)

    @classmethod
    def outline(cls, program: Association, asker: Asker, variants: Variants) -> Iterator[Outlined]:
        size = program.study.chunk
        chunk, fixed = first_chunk(len(variants), size), 1 + len(program.columns(SEX_X))
        yield "sum", asker.shared(chunk, fixed, np.zeros(fixed)), None
        yield "sum", asker.score(chunk, np.zeros(fixed), True), -(-len(variants) // size)

    def ask(self) -> Question | None:
        if self.part == "sums" and not self.null.get("broken"):
            beta = np.array(self.null["beta"])
            return self.asker.score(self.chunk, beta, self._missing())
        return super().ask()

    def answer(self, total: Total | None) -> State:
        if total is None:
            return self._keep(np.full(len(self.chunk.index), np.nan), fit.COLLINEAR)
        return self._score(total.arrays) if self.part == "sums" else super().answer(total)

    def skip(self) -> State:
        """As if twice as many went on as do by chance."""
        if self.part == "shared":
            return self._skip_shared()
        k = len(self.chunk.index)
        go_on = np.zeros(k, bool)
        go_on[: int(np.ceil(self.study.score.gone_on * k))] = True
        nothing = np.zeros(k)
        tilt = np.ones((k, self.fixed + 3))
        return self._keep(nothing, fit.SCORE, nothing, nothing, go_on, tilt)

    def _score(self, sums: Arrays) -> State:
        sums, withheld = told_of(sums)
        people, total = np.rint(sums["counts"][:, -1]), np.rint(sums["counts"][:, 0])
        if self.study.dosages:
            total = sums["cross"][:, -2]
        # In 32 bits, as it is told to cohorts.
        mean = (total / np.maximum(people, 1.0)).astype(np.float32).astype(np.float64)
        information = fit.symmetric(np.array(self.null["information"]), self.fixed)
        found = scores(information, sums, self.study.vif, people, mean)
        status, z = found.status, threshold(self.study.score.below)
        if self.study.score.then == "saddle-point":
            z = max(z, _FLAT)
        status[withheld], people[withheld] = fit.WITHHELD, np.nan
        good = status == fit.OK
        go_on = good & (found.u * found.u >= z * z * found.v)
        if self.study.score.then == "saddle-point":
            wide = np.abs(found.tilt[:, 0]).astype(np.float64)
            for j in range(1, self.fixed):
                wide += np.abs(found.tilt[:, j])
            go_on &= wide <= MOST_TILT
        status[good] = fit.SCORE
        with np.errstate(all="ignore"):
            beta = np.where(good, found.u / found.v, np.nan)
            error = np.where(good, 1.0 / np.sqrt(found.v), np.nan)
        tilt = np.column_stack([found.tilt.astype(np.float64), found.u, found.v])
        return self._keep(people, status, beta, error, go_on, tilt)

    def _keep(
        self,
        people: np.ndarray,
        status: np.ndarray | int,
        beta: np.ndarray | float = np.nan,
        error: np.ndarray | float = np.nan,
        go_on: np.ndarray | None = None,
        tilt: np.ndarray | None = None,
    ) -> State:
        state, at, k = self.state, self.state.values["at"], len(self.chunk.index)
        table = np.empty((k, len(FACTS)))
        for j, column in enumerate((people, status, beta, error)):
            table[:, j] = column
        chosen = np.zeros(k, bool) if go_on is None else go_on
        more = {f"score/{at}": table, f"chosen/{at}": chosen}
        if self.study.score.then == "saddle-point":
            width = self.fixed + 3
            more[f"tilt/{at}"] = np.zeros((0, width)) if tilt is None else tilt[chosen]
        state = state.next(more, at=at + 1)
        return state if at + 1 < len(self.program.chunks(state)) else self._conclude(state)

    def _conclude(self, state: State) -> State:
        """Whole-study tables in place of those of chunks; the test of those that go on is next."""
        chunks, m = self.program.chunks(state), len(self.program.variants(state))
        arrays, score, chosen = (
            dict(state.arrays),
            np.full((m, len(FACTS)), np.nan),
            np.zeros(m, bool),
        )
        tilts: dict[str, list[np.ndarray]] = {}
        for i, chunk in enumerate(chunks):
            score[chunk.index], chosen[chunk.index] = (
                arrays.pop(f"score/{i}"),
                arrays.pop(f"chosen/{i}"),
            )
            if f"tilt/{i}" in arrays:
                tilts.setdefault(f"tilt/kind {chunk.model}", []).append(arrays.pop(f"tilt/{i}"))
        arrays |= {name: np.concatenate(parts) for name, parts in tilts.items()}
        arrays |= {"score": score, "chosen": chosen}
        phase = self.program.after("score")
        if not chosen.any():
            phase = self.program.after(phase)
        return State(state.step, arrays, {**state.values, "phase": phase, "at": 0, "part": "sums"})
