"""Output and objective perturbation for linear classifiers with logistic loss.

A site minimises, over its n rows x_i with labels y_i = +-1,

    F(w) = 1/n sum_i log(1 + exp(-y_i w.x_i)) + mu/2 |w - w0|^2

and releases the minimiser with noise (Chaudhuri, Monteleoni and Sarwate, 2011; Upcycled-FL,
theorems 5.2 and 5.3, whose conditions are enforced here and whose first bound is corrected).
Two classes are one such problem, K > 2 classes are K of them, one against the rest.

Neighbours: data sets of the same size n in which one row (features and label) is *replaced*; n,
the classes, w0 and all settings are public. Rows are finite numbers and valid labels.

G = `bound` is the Lipschitz constant of a row's loss, because |x_i| <= bound is enforced by
clipping, with the constant bias feature inside the bound, and |l'| <= 1; l'' <= 1/4.

Output perturbation. |w(D) - w(D')| <= 2 G / (n mu). A solver that stops at a gradient of norm t is
off by at most t / mu, so the released sensitivity is 2 (G/n + t) / mu, or 2 `clip` if that is less.

Objective perturbation. With noise b in the objective (+ b.w), density ~ exp(-alpha |b|), the exact
minimiser has the privacy loss 2 alpha G / n + log(1 + G^2 / (4 n mu)): the second term is the ratio
of the Jacobians det(H0 + l'' x x'/n), whose rows beside the replaced one cancel in H0 >= mu.
(The published 2.8 u_2/(n mu) and Chaudhuri's 2 log(1 + c/(n mu)) bound the same ratio more
loosely.) Where that term would take more than half of epsilon, mu is raised instead. The computed
minimiser is off by a known bound e; noise of density ~ exp(-|v| s/(2e)) with s a hundredth of
epsilon is added, so that the pair (exact minimiser, error + v) is private and the release is its
sum. A draw |b| above a bound B, which has a probability below 2^-100, is drawn again: so the event
is (epsilon, 2^-100), not (epsilon, 0), and no bounded sampler can do better.

Floating point. The tolerance covers the rounding of every gradient (a-priori bound from public
numbers), minimisers are rounded to a public grid (accounted, see `noise`) and noise to the same
grid, so that the sum is exact and its low bits say nothing. Assumed: the generator's normal draws
follow their distribution as finely as float64 can, and running time is not observed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn

from cupola.errors import DataError, PlanError
from cupola.privacy.events import (
    Approximate,
    Event,
    Gaussian,
    Neighbours,
    check_count,
    check_number,
)
from cupola.privacy.newton import minimise
from cupola.privacy.noise import Source, add_noise, grid

NEIGHBOURS: Neighbours = "replace-one"
UNIT = 2.0**-53  # relative rounding error of float64
LOST = 2.0**-100  # delta of objective perturbation, per problem
SOLVER_SHARE = 0.01  # of epsilon, for what the solver leaves open in objective perturbation
INSTEAD = "use mechanism = 'dp-sgd', which needs no convexity"


@dataclass(frozen=True)
class Release:
    """What leaves the site, and what it cost.

    weights: (problems, p), the last column for the constant feature if there is one.
    events: what was spent. sensitivity: L2, of one problem's minimiser, solver error included
    (objective perturbation does not use it).
    tolerance: bound on the norm of the true gradient at what was solved. mu: as used.
    scale: standard deviation of the noise (output) or 1 / alpha (objective). grid: the weights
    are multiples of it.
    """

    weights: np.ndarray
    events: tuple[Event, ...]
    sensitivity: float
    tolerance: float
    mu: float
    scale: float
    grid: float


@dataclass(frozen=True)
class Logistic:
    """The public facts of a site's problem.

    mu: strength of the proximal term. bound: norm of a row, the constant included. constant: value
    of the bias feature (0: the model has no bias). classes: 2, or K > 2 for one against the rest.
    tolerance: norm of the gradient to reach; never below what float64 can certify.
    """

    mu: float
    bound: float = 1.0
    constant: float = 0.0
    classes: int = 2
    tolerance: float = 1e-12

    def __post_init__(self) -> None:
        if not (self.mu > 0 and math.isfinite(self.mu)):
            raise PlanError(
                f"mu = {self.mu} (local.proximal) must be above 0: without strong convexity one "
                f"row can move the minimiser arbitrarily far; raise it, or {INSTEAD}"
            )
        check_number("bound", self.bound, above=0)
        if not 0 <= self.constant < self.bound:
            raise PlanError(
                f"constant = {self.constant} must be in [0, bound = {self.bound}): the bias "
                "feature lies inside the norm bound"
            )
        check_count("classes", self.classes, least=2)
        check_number("tolerance", self.tolerance, above=0)

    @property
    def problems(self) -> int:
        """Binary problems solved, each on all rows."""
        return 1 if self.classes == 2 else self.classes

    def width(self, features: int) -> int:
        """Parameters of one problem."""
        return features + (self.constant > 0)

    def rows(self, x: np.ndarray) -> np.ndarray:
        """Features (n, ...) flattened, clipped and joined by the constant: (n, p), norms <= bound.

        Judge a model on rows made by the same function: it has seen no others.
        """
        flat = np.asarray(x, np.float64).reshape(len(x), -1)
        room = math.sqrt(self.bound**2 - self.constant**2)
        room *= 1 - 4 * (flat.shape[1] + 8) * UNIT  # so that the true norm, too, is below
        with np.errstate(over="ignore"):
            norms = np.sqrt(np.einsum("ij,ij->i", flat, flat))  # inf: the row becomes 0
        flat = flat * (room / np.maximum(norms, room))[:, None]
        if not self.constant:
            return flat
        return np.hstack([flat, np.full((len(flat), 1), self.constant)])

    def signs(self, y: np.ndarray) -> np.ndarray:
        """Labels (n,) of 0 .. classes-1 as +-1, (problems, n)."""
        labels = np.asarray(y)
        whole = labels.ndim == 1 and np.all(labels == np.round(labels))
        if not whole or np.any(labels < 0) or np.any(labels >= self.classes):
            raise DataError(
                f"labels must be whole numbers from 0 to {self.classes - 1}, shape (n,)"
            )
        targets = [1] if self.classes == 2 else range(self.classes)
        return np.stack([np.where(labels == k, 1.0, -1.0) for k in targets])


def output_events(problem: Logistic, noise: float) -> tuple[Event, ...]:
    """What `output_perturbation` will spend; needs no data, so it can be charged before."""
    noise = check_number("noise", noise, above=0)
    return (Gaussian(noise, problem.problems, NEIGHBOURS),)


def objective_events(problem: Logistic, epsilon: float) -> tuple[Event, ...]:
    """What `objective_perturbation` will spend: epsilon in all, shared by the problems."""
    epsilon = check_number("epsilon", epsilon, above=0)
    return (Approximate(epsilon / problem.problems, LOST, problem.problems, NEIGHBOURS),)


def output_perturbation(
    problem: Logistic,
    x: np.ndarray,
    y: np.ndarray,
    start: np.ndarray,
    *,
    noise: float,
    rng: Source,
    clip: float = math.inf,
) -> Release:
    """The minimiser plus Gaussian noise of standard deviation `noise` times its sensitivity.

    x: (n, ...) features; y: (n,) labels; start: w0, (problems, p). noise: multiplier, as in the
    Gaussian event; K problems are K such events. clip: the change from w0 is projected to this
    norm, which helps where it is below G / (n mu). rng: see `noise.source`.
    """
    events = output_events(problem, noise)
    clip = check_number("clip", clip, above=0, infinite=True)
    rows, signs, start = _checked(problem, x, y, start)
    n, p = rows.shape
    reach = _reach(problem, problem.mu, start)
    tolerance = _tolerance(problem, n, p, reach, 0.0)
    # The projection is computed, too: relative error (p + 8) UNIT, of vectors up to `reach`.
    error = tolerance / problem.mu + 4 * (p + 8) * UNIT * min(clip, reach)
    moved = 2 * (problem.bound / (n * problem.mu) + error)
    sensitivity = min(moved, 2 * clip) + 8 * UNIT * reach
    sensitivity *= 1 + 1e-12
    scale = noise * sensitivity
    step = grid(scale)
    if reach + 40 * scale >= step * 2.0**52:
        raise PlanError("the received model is too large for exact noise; scale the features up")
    weights = np.empty_like(start)
    for k, (sign, w0) in enumerate(zip(signs, start)):
        change = minimise(rows, sign, w0, problem.mu, tolerance, reach) - w0
        change *= min(1.0, clip * (1 - 4 * (p + 8) * UNIT) / max(np.linalg.norm(change), 1e-300))
        weights[k] = add_noise(w0 + change, sensitivity, noise, rng)
    return Release(weights, events, sensitivity, tolerance, problem.mu, scale, step)


def objective_perturbation(
    problem: Logistic,
    x: np.ndarray,
    y: np.ndarray,
    start: np.ndarray,
    *,
    epsilon: float,
    rng: Source,
) -> Release:
    """The minimiser of an objective with a random linear term; `epsilon` for all problems together.

    x: (n, ...) features; y: (n,) labels; start: w0, (problems, p). rng: as above.
    """
    events = objective_events(problem, epsilon)
    rows, signs, start = _checked(problem, x, y, start)
    n, p = rows.shape
    each = epsilon / problem.problems
    mu, alpha = objective_noise(problem, n, each)
    # P(Gamma(p) > 2 (p ln 2 + a)) <= exp(-a): by Markov's inequality on exp(|b| alpha / 2).
    far = 2 * (p * math.log(2) - math.log(LOST) + np.logaddexp(0, each)) / alpha
    if not far < 1e150:  # its square is no number: no norm would ever be found to be below
        raise PlanError(f"epsilon = {epsilon:g} is too small: its noise has no finite norm")
    reach = _reach(problem, mu, start, far)
    tolerance = _tolerance(problem, n, p, reach, far)
    step = 2.0 ** math.ceil(math.log2(max(tolerance / mu / math.sqrt(p), reach * 2.0**-50)))
    error = tolerance / mu + math.sqrt(p) * step / 2
    weights = np.empty_like(start)
    for k, (sign, w0) in enumerate(zip(signs, start)):
        b = _spherical(rng, p) / alpha
        while np.linalg.norm(b) > far:
            b = _spherical(rng, p) / alpha
        found = minimise(rows, sign, w0, mu, tolerance, reach, b)
        v = _spherical(rng, p) * (2 * error / (SOLVER_SHARE * each)) * (1 + 1e-12)
        weights[k] = (np.rint(found / step) + np.rint(v / step)) * step
    moved = 2 * (problem.bound / n + tolerance) / mu
    return Release(weights, events, moved, tolerance, mu, 1 / alpha, step)


def objective_noise(problem: Logistic, n: int, epsilon: float) -> tuple[float, float]:
    """(mu, alpha) of one problem at `epsilon`: mu as used, noise density ~ exp(-alpha |b|)."""
    least = problem.bound**2 / (4 * n * math.expm1(epsilon / 2))
    mu = max(problem.mu, least)
    jacobian = math.log1p(problem.bound**2 / (4 * n * mu))
    alpha = ((1 - SOLVER_SHARE) * epsilon - jacobian) * n / (2 * problem.bound)
    return mu, alpha * (1 - 1e-12)


def refusal(
    module: nn.Module,
    loss: str,
    *,
    one_vs_rest: bool = False,
    options: Mapping[str, Any] | None = None,
) -> str | None:
    """Why these mechanisms cannot be used for this model and loss; None if they can.

    loss: 'log', or 'cross_entropy' for two outputs, or with `one_vs_rest` (the site then trains K
    binary problems). options: of the loss; only neutral ones keep it logistic.
    """
    linear = 0
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear):
            linear += 1
        elif not isinstance(layer, nn.Sequential | nn.Flatten | nn.Identity):
            where = f" ('{name}')" if name else ""
            return f"{type(layer).__name__}{where} makes the model more than linear; {INSTEAD}"
    if linear != 1:
        return f"the model has {linear} linear layers, not one; {INSTEAD}"
    outputs = next(m for m in module.modules() if isinstance(m, nn.Linear)).out_features
    if loss not in ("log", "cross_entropy"):
        return f"loss '{loss}' is not the logistic loss; {INSTEAD}"
    if (options or {}).get("label_smoothing"):
        return f"label smoothing is not the logistic loss; leave it out, or {INSTEAD}"
    if loss == "cross_entropy" and outputs == 1:
        return "cross-entropy needs two outputs or more; use loss = 'log'"
    if outputs > 2 and not one_vs_rest:
        return (
            f"a softmax over {outputs} classes is no sum of binary problems (a row changes the "
            f"Hessian by more than rank one); choose one_vs_rest, or {INSTEAD}"
        )
    return None


def to_start(problem: Logistic, weight: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """A linear layer's weight (outputs, d) and bias (outputs,) as w0, (problems, p)."""
    rows = np.asarray(weight, np.float64)
    if (bias is not None) != (problem.constant > 0):
        raise PlanError("a model with bias needs constant above 0, one without needs constant = 0")
    if bias is not None:
        column = np.asarray(bias, np.float64)[:, None] / problem.constant
        rows = np.hstack([rows, column])
    if problem.classes == 2 and len(rows) == 2:  # two logits: only their difference counts
        rows = rows[1:] - rows[:1]
    return rows


def to_layer(
    problem: Logistic, weights: np.ndarray, outputs: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Released weights (problems, p) as a linear layer's weight (outputs, d) and bias."""
    if problem.classes == 2 and outputs == 2:
        weights = np.vstack([-weights / 2, weights / 2])
    if not problem.constant:
        return weights, None
    return weights[:, :-1], weights[:, -1] * problem.constant


def _checked(
    problem: Logistic, x: np.ndarray, y: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = np.asarray(x, np.float64)
    if len(x) == 0:
        raise DataError("a site without rows has nothing to release")
    if len(x) != len(y):
        raise DataError(f"{len(x)} rows of features, but {len(y)} labels")
    if not np.isfinite(x).all():
        raise DataError("features must be finite numbers")
    rows, signs = problem.rows(x), problem.signs(y)
    start = np.asarray(start, np.float64)
    if start.shape != (problem.problems, rows.shape[1]) or not np.isfinite(start).all():
        raise PlanError(
            f"start must be finite, shape {(problem.problems, rows.shape[1])}, not {start.shape}"
        )
    return rows, signs, start


def _reach(problem: Logistic, mu: float, start: np.ndarray, noise: float = 0.0) -> float:
    """No minimiser is longer: at it, mu (w - w0) = -(mean gradient) - b."""
    return float(np.linalg.norm(start, axis=1).max() + 1.01 * (problem.bound + noise) / mu)


def _tolerance(problem: Logistic, n: int, p: int, reach: float, noise: float) -> float:
    """Gradient norm that a solution will truly have: what is asked for plus rounding.

    Rounding of the computed gradient, first order in UNIT, with a tenth to spare: margins
    (p + 2) bound reach, times l'' <= 1/4 and a row's norm; the mean over n rows; the proximal
    and the noise term, and the making of the noise (p).
    """
    g = problem.bound
    rounding = 1.1 * UNIT * ((p + 2) * g**2 * reach / 4 + (n + 12) * g + (p + 16) * noise)
    return max(problem.tolerance, 8 * rounding) + rounding


def _spherical(source: Source, p: int) -> np.ndarray:
    """A vector of density ~ exp(-|v|): uniform direction, norm ~ Gamma(p, 1), half a chi-square."""
    direction, others = source.normals(p), source.normals(2 * p)
    return direction / np.linalg.norm(direction) * (float(others @ others) / 2)
