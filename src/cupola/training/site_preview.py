"""What a training would ask of a site: its program rehearsed (see `cupola.training.forecast`) as if
every site had this one's data."""

from __future__ import annotations

from functools import partial
from typing import Any

from cupola.analysis.preview import AnswerRows, Preview
from cupola.analysis.protocol import OwnSite, SiteRules
from cupola.analysis.rehearsal import asked
from cupola.federation.program import Program
from cupola.secure.roster import Roster
from cupola.training import build
from cupola.training.changing_sites import told
from cupola.training.disclosure import learned
from cupola.training.forecast import Forecast, forecast
from cupola.training.loop import Training
from cupola.training.own_data import own_data
from cupola.training.personalise.personal_program import Personalisation
from cupola.training.plan import Plan
from cupola.training.privacy_promise import unprotected
from cupola.training.workspace import TrainingHost


def preview(plan: Plan, site: OwnSite, roster: Roster) -> Preview:
    """Questions, and what answering them all costs."""
    data = own_data(plan, site)
    host = TrainingHost(build.problem(plan, data), data)
    training = build.training(plan, host)
    whole = build.program(plan, host, training)
    cost = forecast(plan, host, training, whole)
    return Preview(
        training_answers(plan, training, whole, roster),
        complete=not (cost.bytes_vary or cost.epsilon_vary),
        parties=learned(training, told(plan)),
        epsilon=_cost(training, cost, site.rules),
    )


def training_answers(
    plan: Plan, training: Training, whole: Program, roster: Roster
) -> list[dict[str, Any]]:
    """Every kind of answer that a training's program asks for, with how often."""
    skip = training.skip
    if isinstance(whole, Personalisation):  # as if all sites were alike
        skip = partial(whole.skip, groups=dict.fromkeys(range(training.sites), 0))
    rows = AnswerRows(plan.sum, roster)
    for ask in asked(whole, skip):
        rows.add(ask.kind, ask.question)
    return rows.rows


def _cost(training: Training, cost: Forecast, rules: SiteRules) -> dict[str, Any] | None:
    spent = cost.privacy
    if spent is None:
        return None
    return {
        "epsilon": spent["epsilon"],
        "at_most": list(cost.epsilon_vary),
        "delta": spent["delta"],
        "neighbours": spent["neighbours"],
        "against": training.mechanism.against(training),
        "unit": spent["unit"],
        "unprotected": list(unprotected(training)),
        "budget": None if rules.budget is None else rules.budget.epsilon,
    }
