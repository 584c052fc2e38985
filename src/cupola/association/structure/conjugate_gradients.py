"""Conjugate gradients for the mixed model of people whose entries never leave their cohort.

For every right-hand side k the system V_k u = b_k is solved in the space without covariates Z,

    V_k = h P X D_k X'P / M_k + (1 - h) I,    P = I - Z (Z'Z)^-1 Z',

with X the standardised markers, D_k those that k does not leave out, M_k their number, and b_k =
P y (trait) or P x_j (a marker, for the calibration). Every vector of the iteration is a combination

    r = X a + y s + Z c,

so it is known by its coefficients; c follows from a and s, as Z'r = 0. Cohorts are told them, form
r for their own people, and give X'r and r'r, the only sums of an iteration. The rest follows: the
directions d_k = r_k + beta d_{k-1} have X'd = X'r + beta X'd_{k-1} and, since r_k is orthogonal to
d_{k-1}, d'd = r'r + beta^2 d'd. The bits are the same everywhere (see `portable_algebra`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cupola.association.portable_algebra import combined, products, total

Arrays = dict[str, np.ndarray]
NONE = -1  # leaves no marker out


@dataclass(frozen=True)
class Systems:
    """heritability: h. group: of each marker (M,). used: whether it varies at all (M,). left: which
    group each right-hand side leaves out (R,)."""

    heritability: float
    group: np.ndarray
    used: np.ndarray
    left: np.ndarray

    def weights(self) -> np.ndarray:
        """D_k / M_k, (M, R)."""
        use = (self.group[:, None] != self.left) & self.used[:, None]
        count = np.count_nonzero(use, axis=0)
        return use / np.maximum(count, 1)

    @property
    def condition(self) -> float:
        """(1 - h) / h bounds the least eigenvalue of V; K's are at most its trace, which is the
        number of people: V's largest over its smallest is at most people times this, and 1."""
        return self.heritability / (1 - self.heritability)

    def start(self, a: np.ndarray, s: np.ndarray) -> Arrays:
        """The state before the first iteration: residuals are right-hand sides X a + y s + Z c."""
        zero, none = np.zeros_like(a), np.zeros_like(s)
        return {
            "residual": a, "residual_y": s, "direction": zero, "direction_y": none,
            "solution": zero, "solution_y": none, "markers": zero, "rr": none, "dd": none,
            "bb": none, "bu": none,
        }  # fmt: skip

    def step(self, state: Arrays, xr: np.ndarray, rr: np.ndarray) -> Arrays:
        """The state after the sums X'r (M, R) and r'r (R,) of its residuals."""
        h, weights, first = self.heritability, self.weights(), not state["rr"].any()
        beta = np.zeros_like(rr) if first else _ratio(rr, state["rr"])
        direction = state["residual"] + beta * state["direction"]
        direction_y = state["residual_y"] + beta * state["direction_y"]
        markers = xr + beta * state["markers"]
        dd = rr + beta * beta * state["dd"]
        shared = weights * markers
        dvd = h * total(shared * markers) + (1 - h) * dd
        alpha = _ratio(rr, dvd)
        return {
            "residual": state["residual"] - alpha * (h * shared + (1 - h) * direction),
            "residual_y": state["residual_y"] - alpha * ((1 - h) * direction_y),
            "direction": direction,
            "direction_y": direction_y,
            "solution": state["solution"] + alpha * direction,
            "solution_y": state["solution_y"] + alpha * direction_y,
            "markers": markers,
            "rr": rr,
            "dd": dd,
            "bb": rr if first else state["bb"],
            "bu": state["bu"] + alpha * rr,  # b'd_i is r_i'r_i
        }


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b, 0 where there is nothing left."""
    return np.where(b > 0, a / np.where(b > 0, b, 1.0), 0.0)


def converged(state: Arrays, rr: np.ndarray, tolerance: float) -> bool:
    """Whether the residuals of all right-hand sides are small enough."""
    bb = state["bb"]
    return bool(bb.any() and (rr <= tolerance * tolerance * bb).all())


@dataclass(frozen=True)
class Projection:
    """Takes covariates out. inverse: (Z'Z)^-1, (p, p). markers: X'Z, (M, p). trait: Z'y, (p,)."""

    inverse: np.ndarray
    markers: np.ndarray
    trait: np.ndarray

    def coefficients(self, a: np.ndarray, s: np.ndarray) -> np.ndarray:
        """c, (p, R), for which X a + y s + Z c has no part along Z."""
        along = products(self.markers, a) + self.trait[:, None] * s
        return -combined(self.inverse, along)

    def out_of(self, products_with: np.ndarray, along: np.ndarray) -> np.ndarray:
        """X'P v (M, r) from X'v and Z'v."""
        return products_with - combined(self.markers, combined(self.inverse, along))

    def squares(self, own: np.ndarray) -> np.ndarray:
        """x'P x of every marker, (M,), from x'x."""
        inside = combined(self.markers, self.inverse)
        found = own.copy()
        for j in range(inside.shape[1]):
            found -= inside[:, j] * self.markers[:, j]
        return found


def heritability(
    trait: float, squares: float, trace: float, trace2: float, freedom: float
) -> float:
    """Haseman and Elston's: y'K y and y'y regressed on tr K, tr K^2; not bounded yet."""
    determinant = trace2 * freedom - trace * trace
    if not determinant > 0:
        return 0.0
    g = (trait * freedom - trace * squares) / determinant
    e = (trace2 * squares - trace * trait) / determinant
    return g / (g + e) if g + e > 0 else 0.0
