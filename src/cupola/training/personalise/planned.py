"""The personalisation of a plan: what follows from its federated model, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cupola.errors import PlanError
from cupola.training.build import own_method
from cupola.training.choices import Evaluation
from cupola.training.loop import Training
from cupola.training.personalise.personal_program import Personalisation
from cupola.training.plan import Plan
from cupola.training.workspace import Problem


def personalisation(
    plan: Plan, whole: Training, problem: Problem, splits: frozenset[str]
) -> Personalisation:
    """`whole` and, after it, each site's own model. splits: what sites hold out."""
    assert plan.personalise is not None
    choice, adapted = plan.personalise, plan.adaptation()
    if adapted.local.control_variates:
        raise PlanError(
            "personalise: control variates belong to the federation they were made in; choose "
            "another recipe for the groups (personalise.adapt.recipe)"
        )
    for one, key in ((plan, "method.name"), (adapted, "personalise.adapt.recipe")):
        own = own_method(one)
        if own is not None and own.makes_personal:
            raise PlanError(
                f"personalise starts from one model for all, and {own.key} makes one for each site "
                f"({key}): train by another method, and name this one in personalise.methods"
            )
    if "distill" in choice.methods and problem.kind == "regression":
        raise PlanError("personalise: method 'distill' needs classes, the data have none")

    drawn = adapted.participation
    leaves = drawn.dropouts or (drawn.stragglers and not drawn.keep_stragglers)
    if "pfa" in choice.methods and choice.groups != 1 and plan.engine.quorum and leaves:
        raise PlanError(
            "engine.quorum with simulated drop-outs: a group of a few sites may miss it, which "
            "would end the run; set engine.quorum = 0 or personalise.groups = 1, or let nobody "
            "drop out of groups (personalise.adapt.participation.dropouts = 0)"
        )

    def make(sites: Sequence[int], seed: int) -> Training:
        return replace(
            whole,
            rounds=adapted.rounds,
            sites=len(sites),
            seed=seed,
            local=adapted.local,
            server=adapted.server,
            method=own_method(adapted),
            participation=adapted.participation,
            evaluation=Evaluation(),
            site_splits=frozenset(),
            members=tuple(sites),
            federation=whole.sites,
            label_map=None,  # that of the federated model stays
        )

    return Personalisation(whole, choice, make, splits, private=plan.privacy.budget is not None)
