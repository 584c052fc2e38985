"""Linear and logistic regression of one chunk after another, from pooled sums.

Logistic regression starts from the model without a genotype: its weights are the same for every
variant, so that the first iteration is as cheap as a linear one. After it each variant goes on for
itself, and leaves when it has converged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from cupola.association import agreed_variants, fit, portable_algebra
from cupola.association.design import SEX_X
from cupola.association.limits import told_of
from cupola.association.part import Outlined
from cupola.association.questions import Asker, Chunk, first_chunk
from cupola.association.site import FIRTH_ITERATIONS, LARGEST, NULL_ITERATIONS
from cupola.association.tasks import of_genotype
from cupola.federation.program import State

if TYPE_CHECKING:
    from cupola.association.files import Variants
    from cupola.association.study_choices import Study
    from cupola.association.study_program import Association
    from cupola.federation.federation import Total
    from cupola.federation.message import Arrays, Question

# The longest steps. With rare cases the first would lead so far that no other leads back: of 98
# groups of 2 to 30 carriers, not all cases, whole steps find the estimate of 24 at 5 % cases and
# of none at 0.1 %; cut to 2 they find all, in 8 iterations at 5 %, 10 at 0.1 %.
_LONGEST, _LONGEST_FIRTH = 2.0, 1.0


class Regression:
    """The test phase of a study at one state.

    Per chunk: 'shared' (if its kind of chromosome is new), then linear: one question; logistic:
    'first', 'newton' until all have converged or iterations are spent, 'firth'. The step within a
    chunk is the value 'part'. Work arrays: beta (k, p), error (k, p), people (k,), status (k,).
    """

    def __init__(self, program: Association, state: State) -> None:
        self.program, self.state = program, state
        self.study = program.study
        self.chunk: Chunk = program.chunks(state)[state.values["at"]]
        self.asker = program.asker(state)
        # Rounded sums leave a gain of this size where there is none.
        rounding = (program.sites * self.study.limits.grid) ** 2
        self.tolerance = max(self.study.newton.tolerance, rounding)
        self.fixed = 1 + len(program.columns(self.chunk.kind))
        self.null = state.values.get("null", {}).get(self.chunk.model)
        self.part = state.values.get("part", "shared") if self._ready() else "shared"

    def _ready(self) -> bool:
        return self.null is not None and self.null["done"]

    def _work(self, name: str) -> np.ndarray:
        return self.state.arrays[f"work/{name}"]

    def _copied(self) -> Arrays:
        return {name: self._work(name).copy() for name in _WORK}

    def _go_on(self, work: Arrays, **values: object) -> State:
        return self.state.next({f"work/{n}": array for n, array in work.items()}, **values)

    def ask(self) -> Question | None:
        """The next question; None where nothing of this kind of chromosome can be tested."""
        asker, chunk = self.asker, self.chunk
        if self._ready() and self.null.get("broken"):
            return None
        if self.part == "shared":
            if self.study.test == "linear":
                return asker.shared(chunk, self.fixed, None)
            beta = np.zeros(self.fixed) if self.null is None else np.array(self.null["beta"])
            return asker.shared(chunk, self.fixed, beta)
        if self.part == "sums":
            if self.study.test == "linear":
                return asker.linear(chunk, self.fixed, self._missing())
            return asker.first(chunk, np.array(self.null["beta"]), self._missing())
        active = self._work("active")
        beta = self._work("beta")[active]
        if self.part == "penalty":
            return asker.firth(chunk, active, beta, self._work("inverse"))
        return asker.newton(chunk, active, beta.astype(np.float32))

    def answer(self, total: Total | None) -> State:
        if total is None:
            return self._store(self._nothing(fit.COLLINEAR))
        parts = {
            "shared": self._shared,
            "sums": self._linear if self.study.test == "linear" else self._first,
            "newton": self._newton,
            "firth": self._firth,
            "penalty": self._penalty,
        }
        return parts[self.part](total.arrays)

    def skip(self) -> State:
        """The state after a question about variants, for a rehearsal: each of them is asked about
        for as long as a variant may be, and about the model without one for as long as that."""
        if self.part == "shared":
            return self._skip_shared()
        if self.study.test == "linear":
            return self._store(self._nothing(fit.OK))
        k, p, newton = len(self.chunk.index), self.fixed + 1, self.study.newton
        spent = 1 if self.part == "sums" else self.state.values["iteration"] + 1
        work = {
            "beta": np.zeros((k, p)),
            "inverse": np.zeros((k, p, p)),
            "active": np.ones(k, bool),
        }
        if self.part == "firth":
            return self._go_on(work, part="penalty")
        if self.part == "penalty" and spent < FIRTH_ITERATIONS:
            return self._go_on(work, part="firth", iteration=spent)
        if self.part in ("sums", "newton") and spent < newton.iterations:
            return self._go_on(work, part="newton", iteration=spent)
        if self.part in ("sums", "newton") and newton.firth:
            return self._go_on(work, part="firth", iteration=0)
        return self._store(self._nothing(fit.OK))

    def _skip_shared(self) -> State:
        p = self.fixed
        if self.study.test == "linear":
            return self._remember(products=[1.0] * ((p + 1) * (p + 2) // 2), done=True)
        spent = 0 if self.null is None else self.null["iterations"]
        facts = {"beta": [0.0] * p, "iterations": spent + 1, "broken": False}
        if spent < NULL_ITERATIONS:
            return self._remember(**facts, done=False)
        sums = {"gradient": [0.0] * p, "information": [1.0] * (p * (p + 1) // 2)}
        return self._remember(**facts, **sums, done=True)

    @classmethod
    def tasks(cls, study: Study) -> tuple[str, ...]:
        if study.test == "linear":
            return ("gwas shared", "gwas linear")
        firth = ("gwas firth",) if study.newton.firth else ()
        return ("gwas shared", "gwas first", "gwas newton", *firth)

    @classmethod
    def outline(cls, program: Association, asker: Asker, variants: Variants) -> Iterator[Outlined]:
        study, size = program.study, program.study.chunk
        chunk, chunks = first_chunk(len(variants), size), -(-len(variants) // size)
        fixed, k = 1 + len(program.columns(SEX_X)), len(chunk.index)
        if study.test == "linear":
            yield "sum", asker.shared(chunk, fixed, None), 1
            yield "sum", asker.linear(chunk, fixed, True), chunks
            return
        everything, beta = np.ones(k, bool), np.zeros((k, fixed + 1), np.float32)
        if study.scored:
            chunks = max(1, round(study.score.gone_on * chunks))
        else:
            yield "sum", asker.shared(chunk, fixed, np.zeros(fixed)), None
        yield "sum", asker.first(chunk, np.zeros(fixed), True), chunks
        yield "sum", asker.newton(chunk, everything, beta), None
        if study.newton.firth:
            inverse = np.zeros((k, (fixed + 1) ** 2))
            yield "sum", asker.firth(chunk, everything, beta, inverse), None

    def progress(self) -> tuple[int, int]:
        """In variants."""
        sizes = [len(chunk.index) for chunk in self.program.chunks(self.state)]
        return sum(sizes[: self.state.values["at"]]), sum(sizes)

    def _missing(self) -> bool:
        """Whether anybody lacks a call in this chunk: all of a cohort that lacks a variant do."""
        observed = self.state.arrays["alleles"][self.chunk.index, :, 1].sum(axis=1, dtype=np.int64)
        expected = self.program.expected_alleles(self.state, self.chunk.index)
        lacking = ~agreed_variants.everywhere(self.state)[self.chunk.index]
        return bool((observed < expected).any() or lacking.any())

    # What does not depend on a variant

    def _shared(self, sums: Arrays) -> State:
        if self.study.test == "linear":
            return self._remember(products=sums["products"].tolist(), done=True)
        before = np.zeros(self.fixed) if self.null is None else np.array(self.null["beta"])
        information = fit.symmetric(sums["information"], self.fixed)
        step, gain = fit.logistic_null(sums["gradient"], information)
        spent = 0 if self.null is None else self.null["iterations"]
        alike = (
            self.fixed > 1
            and spent == 0
            and fit.trouble(information[None], np.array([np.inf]), self.study.vif).any()
        )
        lost = not np.isfinite(step).all() or fit.runs_away(step, gain)
        if alike or lost or spent >= NULL_ITERATIONS or (np.abs(before + step) > LARGEST).any():
            # No variant of this kind can be tested: covariates are collinear or separate the trait.
            return self._remember(beta=before.tolist(), done=True, iterations=spent, broken=True)
        if gain < 1e-14:  # the sums are those of the model that variants start from
            facts = {"gradient": sums["gradient"].tolist(), "done": True, "broken": False,
                     "information": sums["information"].tolist()}  # fmt: skip
            return self._remember(beta=before.tolist(), iterations=spent, **facts)
        return self._remember(beta=(before + step).tolist(), done=False, iterations=spent + 1)

    def _remember(self, **facts: object) -> State:
        null = {**self.state.values.get("null", {}), self.chunk.model: facts}
        return self.state.next(null=null, part="sums")

    def _nothing(self, status: int) -> Arrays:
        """No result; how many people it would be about was not asked."""
        k = len(self.chunk.index)
        empty = np.full((k, self.fixed + 1), np.nan)
        return {"beta": empty, "error": empty, "people": np.full(k, np.nan),
                "status": np.full(k, status, np.uint8)}  # fmt: skip

    # Linear

    def _linear(self, sums: Arrays) -> State:
        p, k = self.fixed + 1, len(self.chunk.index)
        shared = np.array(self.null["products"])
        off = np.zeros((k, len(shared)))
        sums, withheld = told_of(sums)
        people = np.rint(sums["counts"][:, -1])
        total, cross, square = self._genotypes(sums)
        if "off" in sums:
            off[:, 1:] = sums["off"]
        off[:, 0] = shared[0] - people
        whole = fit.symmetric(shared - off, p)  # columns, then the trait
        products = np.empty((k, p, p))
        products[:, :-1, :-1] = whole[:, :-1, :-1]
        cross = np.concatenate([total[:, None], cross], axis=1)
        products[:, -1, :-1] = products[:, :-1, -1] = cross[:, :-1]
        products[:, -1, -1] = square
        with_y = np.concatenate([whole[:, :-1, -1], cross[:, -1:]], axis=1)
        work = self._nothing(fit.OK)
        status = fit.trouble(products, people, self.study.vif)
        status[withheld], people[withheld] = fit.WITHHELD, np.nan
        good = status == fit.OK
        facts = (products[good], with_y[good], whole[good, -1, -1], people[good])
        beta, error = fit.least_squares(*facts)
        work["beta"][good] = beta
        work["error"] = work["error"].copy()
        work["error"][good] = error
        return self._store({**work, "people": people, "status": status})

    def _genotypes(self, sums: Arrays) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of genotypes the sum, the sums of products with covariates and trait, that of squares."""
        if self.study.dosages:
            return sums["cross"][:, 0], sums["cross"][:, 1:-1], sums["cross"][:, -1]
        total, pairs, _ = np.rint(sums["counts"]).T
        return total, sums["cross"], total + 2 * pairs

    # Logistic

    def _first(self, sums: Arrays) -> State:
        p, k = self.fixed + 1, len(self.chunk.index)
        sums, withheld = told_of(sums)
        information = np.tile(np.array(self.null["information"]), (k, 1))
        gradient = np.tile(np.array(self.null["gradient"]), (k, 1))
        if "off" in sums:
            information -= sums["off"][:, : information.shape[1]]
            gradient -= sums["off"][:, information.shape[1] :]
        matrix = np.empty((k, p, p))
        matrix[:, :-1, :-1] = fit.symmetric(information, self.fixed)
        matrix[:, -1, :-1] = matrix[:, :-1, -1] = sums["cross"][:, : self.fixed]
        matrix[:, -1, -1] = sums["cross"][:, -1]
        whole = np.concatenate([gradient, sums["cross"][:, self.fixed, None]], axis=1)
        people = np.rint(sums["counts"][:, -1])
        status = fit.trouble(matrix, people, self.study.vif)
        status[withheld] = fit.WITHHELD
        people[withheld] = np.nan
        beta = np.zeros((k, p))
        beta[:, :-1] = self.null["beta"]
        work = {"beta": beta, "error": np.full((k, p), np.nan), "people": people,
                "status": status, "active": status == fit.OK}  # fmt: skip
        return self._advance(work, whole[work["active"]], matrix[work["active"]], 1)

    def _newton(self, sums: Arrays) -> State:
        work = self._copied()
        gradient, matrix = self._gathered(sums, work)
        # The sums were taken at coefficients of 32 bits.
        work["beta"][work["active"]] = work["beta"][work["active"]].astype(np.float32)
        return self._advance(work, gradient, matrix, self.state.values["iteration"] + 1)

    def _gathered(self, sums: Arrays, work: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and information of the variants that go on; those that a cohort withholds are
        over."""
        p = self.fixed + 1
        sums, withheld = told_of(sums)
        lost = np.flatnonzero(work["active"])[withheld]
        work["active"][lost], work["status"][lost] = False, fit.WITHHELD
        last = of_genotype(p)
        upper = np.empty((len(sums["gradient"]), len(last)))
        upper[:, ~last], upper[:, last] = sums["fixed"], sums["genotype"]
        return sums["gradient"][~withheld], fit.symmetric(upper[~withheld], p)

    def _advance(self, work: Arrays, gradient: np.ndarray, matrix: np.ndarray, spent: int) -> State:
        """One Newton step of the active variants; those that converge leave."""
        newton, active = self.study.newton, np.flatnonzero(work["active"])
        step, gain, error = fit.newton_step(gradient, matrix)
        lost = ~(np.isfinite(step).all(axis=1) & np.isfinite(error).all(axis=1) & (gain >= 0))
        lost |= fit.runs_away(step, gain)
        work["status"][active[lost]] = fit.SEPARATED
        fine = active[~lost]
        work["beta"][fine] += fit.at_most(step[~lost], _LONGEST)
        work["error"][fine] = error[~lost]
        done = (gain[~lost] < self.tolerance) & ~fit.is_long(step[~lost])
        work["active"][active[lost]] = False
        work["active"][fine[done]] = False
        far = work["active"] & (np.abs(work["beta"]) > LARGEST).any(axis=1)
        work["status"][far] = fit.SEPARATED
        work["active"][far] = False
        if spent >= newton.iterations:
            work["status"][work["active"]] = fit.SEPARATED
            work["active"][:] = False
        if work["active"].any():
            return self._go_on(work, part="newton", iteration=spent)
        stuck = work["status"] == fit.SEPARATED
        if newton.firth and stuck.any():
            work["active"] = stuck
            work["beta"][stuck, :-1], work["beta"][stuck, -1] = self.null["beta"], 0.0
            return self._go_on(work, part="firth", iteration=0)
        return self._store(work)

    # Firth's fallback: information first, then the penalty, which needs its inverse

    def _firth(self, sums: Arrays) -> State:
        work = self._copied()
        gradient, matrix = self._gathered(sums, work)
        beta, active = work["beta"], work["active"]
        beta[active] = beta[active].astype(np.float32)
        inverse = portable_algebra.inverse(matrix)
        told = np.isfinite(inverse).all(axis=(1, 2))
        active[np.flatnonzero(active)[~told]] = False  # give up those without information
        if not active.any():
            return self._store(work)
        more = {"gradient": gradient[told], "inverse": inverse[told]}
        return self._go_on({**work, **more}, part="penalty")

    def _penalty(self, sums: Arrays) -> State:
        work = self._copied()
        active = np.flatnonzero(work["active"])
        inverse, gradient = self._work("inverse"), self._work("gradient") + sums["penalty"]
        step = portable_algebra.times(inverse, gradient)
        gain = 0.5 * portable_algebra.dot(step, gradient)
        last = self.state.arrays.get("work/step", np.zeros_like(work["beta"]))
        # The penalty doubles the curvature where one person carries an allele: whole steps by the
        # information alone would leap to and fro for ever. So who turns back goes half the way.
        share = np.where(portable_algebra.dot(step, last[active]) < 0, 0.5, 1.0)
        work["beta"][active] += fit.at_most(share[:, None] * step, _LONGEST_FIRTH)
        work["step"] = np.zeros_like(work["beta"])
        work["step"][active] = step
        work["error"][active] = np.sqrt(np.diagonal(inverse, axis1=1, axis2=2))
        done = gain < self.tolerance
        work["status"][active[done]] = fit.FIRTH
        work["active"][active[done]] = False
        work["active"] &= (np.abs(work["beta"]) <= LARGEST).all(axis=1)
        spent = self.state.values["iteration"] + 1
        if spent >= FIRTH_ITERATIONS or not work["active"].any():
            return self._store(work)
        return self._go_on(work, part="firth", iteration=spent)

    # Results

    def _store(self, work: Arrays) -> State:
        """The chunk's results: people, status, then coefficients and errors of the rows to print
        (genotype first, then covariates), in the units of the data."""
        state = self.state
        covariates = range(1, self.fixed if self.study.covariate_rows else 1)
        rows = np.array([self.fixed, *covariates], int)
        unit = self._units()
        good = np.isin(work["status"], (fit.OK, fit.FIRTH))[:, None]
        beta = np.where(good, work["beta"] * unit, np.nan)[:, rows]
        error = np.where(good, work["error"] * unit, np.nan)[:, rows]
        facts = np.column_stack([work["people"], work["status"]])
        table = np.concatenate([facts, beta, error], axis=1)
        arrays = {n: a for n, a in state.arrays.items() if not n.startswith("work/")}
        arrays[f"test/{state.values['at']}"] = table
        last = state.values["at"] + 1 == len(self.program.chunks(state))
        values = {**state.values, "at": state.values["at"] + 1, "part": "sums", "iteration": 0}
        if last:
            values |= {"phase": self.program.after("test"), "at": 0}
        return State(state.step + 1, arrays, values)

    def _units(self) -> np.ndarray:
        """What a standardised coefficient is worth: (intercept, covariates, genotype)."""
        width = np.array(self.state.values["width"])
        y = 1.0 if self.state.values["binary"] else width[-1]
        extra = [1.0] * (self.fixed - len(width))
        return y / np.array([1.0, *width[:-1], *extra, 1.0])


_WORK = ("beta", "error", "people", "status", "active")
