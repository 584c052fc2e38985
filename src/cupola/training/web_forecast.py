"""What a training will send and spend, for the web: also one whose data only its sites hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from cupola.analysis.preview import simulated_roster
from cupola.base.formatting import count, number, size, text, times
from cupola.data.dataset import FederatedData, SiteData
from cupola.pages import page
from cupola.pages.plan_facts import alert, party_table
from cupola.training import build
from cupola.training.analysis import TrainingAnalysis
from cupola.training.check import facts
from cupola.training.plan import Plan
from cupola.training.site_preview import training_answers
from cupola.training.workspace import TrainingHost

ESTIMATE = (
    "only sites know their numbers of samples: each works out its own epsilon before it joins"
)
UNJUDGED = (
    "a site with a budget of its own refuses answers that nothing protects: if all have one, there "
    "are no metrics on what they hold out"
)
SAMPLES = (100, 1000, 10_000)  # of a site whose number is its own secret; epsilon depends on it
_LISTED = 20  # groups of sites


def foresee(analysis: TrainingAnalysis) -> dict[str, Any]:
    """What `cupola check` says, and what sites are asked."""
    plan = analysis.plan
    if analysis.needs_real_sites(plan.given()):
        found, host = check_elsewhere(plan)
    else:
        host = analysis.host()
        found = facts(plan, host)
    whole, roster = analysis.program(host), simulated_roster(analysis, len(host))
    assert analysis.training is not None
    return {**found, "answers": training_answers(plan, analysis.training, whole, roster)}


def check_elsewhere(plan: Plan) -> tuple[dict[str, Any], TrainingHost]:
    """What `cupola check` says of sites of which nothing is known: epsilon for a few sizes. And a
    host like them."""
    known = build.federated_data(plan)
    hosts = {samples: _alike(plan, known, samples) for samples in SAMPLES}
    told = {samples: facts(plan, host) for samples, host in hosts.items()}
    found = told[SAMPLES[1]]
    if found["privacy"]:
        found["privacy"]["groups"] = [one["privacy"]["groups"][0] for one in told.values()]
        found["privacy"]["status"] = ESTIMATE
        if plan.evaluation.on != "public":
            found["privacy"]["warnings"].append(UNJUDGED)
    found["assumed"] = SAMPLES[1]
    return found, hosts[SAMPLES[1]]


def _alike(plan: Plan, known: FederatedData, samples: int) -> TrainingHost:
    """Sites that hold so many samples each, of the plan's kind."""
    none = known.site(0).train
    shape = none.x.shape[1:]
    x = torch.zeros((1, *shape), dtype=none.x.dtype).expand(samples, *shape)  # one row in memory
    some = replace(none, x=x, y=none.y.new_zeros(samples))
    data = FederatedData(
        len(known), lambda _: SiteData(some, test=some), kind=known.kind, classes=known.classes,
        input_shape=known.input_shape, class_names=known.class_names, public=known.public,
        name=known.name, **known.token_facts,
    )  # fmt: skip
    return TrainingHost(build.problem(plan, data), data)


def sections(facts: Mapping[str, Any]) -> list[str]:
    """The same as HTML, part by part."""
    return [
        _numbers(facts),
        *(_epsilon(facts) if facts["privacy"] and facts["privacy"]["groups"] else ()),
        party_table(facts["parties"]),
        _utility(facts["utility"]),
    ]


def _numbers(facts: Mapping[str, Any]) -> str:
    sent, model = facts["bytes"], facts["model"]
    each = f"{size(sent['per_site_down'])} to and {size(sent['per_site_up'])} from each of "
    rounds = count(facts["rounds"], "round")
    rounds += " and personalisation" if facts["personalise"] else ""
    epsilon = ("Epsilon", "∞", "no privacy mechanism")
    if spent := facts["privacy"]:
        said = [f"at delta {spent['delta']} ({spent['neighbours']}), hides every {spent['unit']}"]
        said += _at_most(spent["at_most"])
        if facts.get("assumed"):
            said.append(f"of a site with {number(facts['assumed'])} samples")
        epsilon = ("Epsilon", number(spent["epsilon"]), "; ".join(said))
    trained = f"parameters trained, of {number(model['parameters'])}"
    return page.numbers(
        [
            ("Sent in a round", size(sent["per_round"]), f"{each}{number(sent['sites'])} sites"),
            ("Sent in all", size(sent["total"]), "; ".join([rounds, *_at_most(sent["at_most"])])),
            epsilon,
            ("Model", number(model["trainable"]), trained),
        ]
    )


def _at_most(reasons: list[str]) -> list[str]:
    return [f"at most: {'; '.join(reasons)}"] if reasons else []


def _epsilon(facts: Mapping[str, Any]) -> list[str]:
    spent = facts["privacy"]
    rows = [
        (
            "any with" if facts.get("assumed") else number(group["sites"]),
            number(group["samples"]) if group["samples"] else "–",
            times(group["answers"]),
            number(group["epsilon"]),
        )
        for group in spent["groups"][:_LISTED]
    ]
    head = [("sites", False), ("samples", True), ("asked", True), ("epsilon", True)]
    status = f"{spent['status'].capitalize()}. Against {spent['against']}."
    return [
        page.figure("Epsilon of each site", page.table(head, rows)),
        f'<p class="note">{text(status)}</p>',
        *(alert(f"{said[:1].upper()}{said[1:]}.") for said in spent["warnings"]),
        *(alert(f"Nothing protects {said}.") for said in spent["unprotected"]),
    ]


def _utility(utility: Mapping[str, Any]) -> str:
    lines = []
    for condition in utility["conditions"]:
        word = "yes" if condition["holds"] else "no"
        why = f": {condition['reason']}" if condition["reason"] else ""
        lines.append(f'<li class="{word}"><b>{word}</b> {text(condition["name"] + why)}</li>')
    equal = "yes" if utility["preserved"] else "no"
    listing = f'<ul class="conditions">{"".join(lines)}</ul>'
    return page.figure(f"Equal to training on pooled data: {equal}", listing)
