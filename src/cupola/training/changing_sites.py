"""Sites that change from total to total: where a plan has it so, and what that tells.

Masked totals over sets that differ by a site tell of it by their difference. Unless sites may
change (`sum.changes`), the compensator, or every site, keeps to sets whose combinations tell of the
minimum of sites (`cupola.secure.differences`). A plan that draws sites anew in each round needs
that they may. Who draws is the coordinator: whom it leaves out is its choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cupola.training.mechanisms import mechanism_of

if TYPE_CHECKING:
    from cupola.training.plan import Plan


def why(plan: Plan) -> str | None:
    """The choice of a plan by which sites change; None if all take part in all totals."""
    drawn, personal = plan.participation, plan.personalise
    if drawn.kind != "all":
        return f"participation.kind = '{drawn.kind}'"
    if drawn.dropouts:
        return f"participation.dropouts = {drawn.dropouts:g}"
    if drawn.stragglers and not drawn.keep_stragglers:
        return "participation.keep_stragglers = false"
    if personal is not None and personal.groups != 1:
        return "personalise: groups train apart"
    return None


def may_change(plan: Plan) -> bool:
    """Whether the plan's masked sums are told for changing sites."""
    own = plan.sum.changes
    return plan.sum.masked and (why(plan) is not None if own is None else own)


def check_changes(plan: Plan) -> None:
    """Refuse a plan whose totals would be refused."""
    reason = why(plan)
    if plan.sum.masked and plan.sum.changes is False and reason is not None:
        raise ValueError(
            f"sum.changes = false, but sites change from total to total ({reason}): differences of "
            "totals would tell of single sites, and no second total would be told. Let all sites "
            "take part in all rounds, or agree to it (sum.changes = true)"
        )


def told(plan: Plan) -> str | None:
    """What the coordinator learns if sites change, in plain words; None where they do not."""
    if not may_change(plan):
        return None
    reason = why(plan) or "sum.changes = true"
    if mechanism_of(plan.privacy).noised_at_site:
        return (
            f"over rounds, differences of totals, since sites change ({reason}): of a single "
            f"site's updates no more than the epsilon of '{plan.privacy.mechanism}' allows, but "
            "its metrics, where sites judge"
        )
    return (
        f"over rounds, differences of totals can tell about single sites, since sites change "
        f"({reason}) and the coordinator chooses them"
    )
