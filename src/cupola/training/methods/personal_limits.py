"""What methods that make a model for each site do not go with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cupola.errors import PlanError
from cupola.training.methods.method import Method, overrides

if TYPE_CHECKING:
    from cupola.training.loop import Training


def require_personal(own: Method, training: Training, stay: frozenset[str]) -> None:
    """Refuse what cannot be done with sites' own models. stay: arrays that never leave a site."""
    judge, local = training.evaluation, training.local
    if local.send == "gradients":
        raise PlanError(f"{own.key} makes models of steps: local.send = 'change'")
    if judge.best:
        raise PlanError(
            f"{own.key}: evaluation.best would keep an earlier model at the coordinator, and sites "
            "keep their last ones; leave it out (evaluation.patience can stop the training)"
        )
    if overrides(own, "stays"):
        _require_parts(own, training, stay)


def _require_parts(own: Method, training: Training, stay: frozenset[str]) -> None:
    judge, choice, mechanism = training.evaluation, training.participation, training.mechanism
    if mechanism.on:
        raise PlanError(
            f"{own.key}: {mechanism.key} clips a site's update over all parameters, and some stay "
            "there; leave one of them out, or take method.name = 'ditto'"
        )
    if training.transforms:
        raise PlanError(
            f"{own.key}: transforms pack a site's update as one vector of all parameters, and some "
            "stay there; leave transforms out, or take method.name = 'ditto'"
        )
    if training.levels is not None:
        raise PlanError(f"{own.key} with trainable.level: sites would keep parts that others train")
    if training.local.control_variates:
        raise PlanError(
            f"{own.key}: control variates are of all parameters, and some stay at their site; "
            "leave local.control_variates out"
        )
    if len(training.public.get("validation", ())) or (
        len(training.public.get("test", ())) and judge.on != "sites"
    ):
        raise PlanError(
            f"{own.key}: a part of the model stays at the sites, so that the coordinator has none "
            "to judge on public data; set evaluation.on = 'sites' with held-out data there "
            "(data.partition.test, .validation instead of .public_validation)"
        )
    leaves = choice.dropouts or (choice.stragglers and not choice.keep_stragglers)
    if training.goes_on and (choice.kind != "all" or leaves):
        raise PlanError(
            f"{own.key} goes on from the federated model, and its first round hands every site the "
            "parts that stay: let all take part in the adaptation "
            "(personalise.adapt.participation.kind = 'all', no drop-outs)"
        )
    arrays = training.problem.build().named_parameters()
    if stay.issuperset(f"model/{n}" for n, p in arrays if p.requires_grad):
        raise PlanError(f"{own.key} leaves nothing to train together: all parameters stay")
