"""Epsilon by the formulas of Upcycled-FL (003) for the noise that a run has really added."""

from __future__ import annotations

from statistics import fmean

from cupola.privacy.perturbation import Logistic, objective_noise
from cupola.report import RunFolder
from cupola.training import Server
from cupola.training.upcycle import training_rounds
from reproduce.paper_figures import Objective, Output


def upcycled_epsilon(run: RunFolder) -> float | None:
    """Theorem 5.2 or 5.3 as printed, mean over sites; None for other mechanisms.

    Cupola gives every site the same epsilon, so that its noise depends on its size; the paper gives
    every site the same noise. Beyond two classes the theorem is read as the paper reads it, for one
    softmax problem, and holds for none.
    """
    spent, privacy = run.result.get("privacy") or {}, run.plan.get("privacy", {})
    mechanism = spent.get("mechanism")
    sizes = [n for n in run.partition.get("sizes", ()) if n]
    if mechanism not in ("output", "objective") or not sizes:
        return None
    releases = training_rounds(Server(**run.plan.get("server", {})).upcycle, run.rounds)
    mu, delta = float(run.plan["local"]["proximal"]), float(spent["delta"])
    bound, clip = float(privacy.get("feature_norm", 1.0)), float(spent["clip"])
    if mechanism == "output":

        def one(n: int) -> float:
            moved = min(2 * clip, 2 * bound / (n * mu))
            noise = float(spent["noise"]) * moved
            return Output(releases, clip, noise, n, delta).as_printed()
    else:
        problems = len(run.partition.get("classes", ())) or 2
        each = spent["answer_epsilon"] / (problems if problems > 2 else 1)

        def one(n: int) -> float:
            _, alpha = objective_noise(Logistic(mu=mu, bound=bound), n, each)
            return Objective(releases, alpha, n, mu, gradient=bound).as_printed()

    return fmean(one(n) for n in sizes)
