"""Choosing among runs of a training: on validation data, and on nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cupola.base.formatting import LOWER_IS_BETTER
from cupola.errors import PlanError
from cupola.training.build import federated_data
from cupola.training.plan import Plan

if TYPE_CHECKING:
    from cupola.pages.folder import RunFolder

_HELD_OUT = ("test", "sites_test")
_VALIDATION = ("validation", "sites_validation")


def require_validation(plan: Plan) -> None:
    """Refuse to select on anything but validation data."""
    one = plan.change({"seed": plan.seeds[0]}) if plan.seeds else plan
    data = federated_data(one)
    if len(data.public.get("validation", ())) or one.data.partition.validation:
        return
    raise PlanError(
        f"plan '{plan.name}' has no validation data, and test data must not select a setting: add "
        "--set data.partition.public_validation=0.5 (a share of the public test data) or "
        "--set data.partition.validation=0.1 (a share of each site's data)"
    )


def kept(run: RunFolder, metric: str, validation: bool = False) -> float | None:
    """The metric of the model the run leaves behind, on test or on validation data.

    That is its last model, or with evaluation.best the one that was best on validation data.
    """
    splits = _VALIDATION if validation else _HELD_OUT
    judged = [(r, v) for split in splits for r, v in run.curve(metric, split)]
    if not judged:
        return None
    evaluation = run.plan.get("evaluation")
    evaluation = evaluation if isinstance(evaluation, dict) else {}
    if not evaluation.get("best"):
        return _last(judged)
    by = str(evaluation.get("metric", "accuracy"))
    choice = [(v, r) for split in _VALIDATION for r, v in run.curve(by, split)]
    if not choice:
        return _last(judged)
    best = (min if by in LOWER_IS_BETTER else max)(choice, key=lambda pair: pair[0])[1]
    return next((v for r, v in judged if r is best), None)


def _last(judged: list) -> float:
    """Of the last round; public data before sites."""
    final = max(r.get("round", 0) for r, _ in judged)
    return next(v for r, v in judged if r.get("round", 0) == final)
