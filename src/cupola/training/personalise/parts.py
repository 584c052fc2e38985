"""Pieces of the program: scores, a group's questions within the whole, arrays by prefix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cupola.base.formatting import LOWER_IS_BETTER
from cupola.federation.message import Arrays, Contribution, Question, Spec
from cupola.federation.program import Ask, State
from cupola.training.metrics import expected, metrics
from cupola.training.workspace import Problem

SPLITS = ("validation", "test")


def scored(
    personal: Mapping[str, Any], method: str, reply: Mapping[int, Contribution]
) -> dict[str, Any]:
    """Scores of a method with those of these sites added, and the rounds that were kept."""
    own = dict(personal["scores"].get(method, {}))
    kept = dict(personal["kept"].get(method, {}))
    for site, answer in reply.items():
        mine = dict(own.get(str(site), {}))
        for split in SPLITS:
            counts = unprefixed(f"{split}/", answer.arrays)
            if counts:
                mine[split] = metrics(counts)
        own[str(site)] = mine
        if "round" in answer.arrays:
            kept[str(site)] = int(answer.arrays["round"])
    return {
        "scores": {**personal["scores"], method: own},
        "kept": {**personal["kept"], method: kept} if kept else personal["kept"],
    }


def pooled(
    scores: Mapping[str, Mapping[str, Any]], sites: Sequence[int], metric: str
) -> float | None:
    """A model on the validation data of these sites together, the higher the better."""
    told = [scores.get(str(s), {}).get("validation", {}) for s in sites]
    pairs = [(t[metric], t["samples"]) for t in told if metric in t]
    if not pairs or metric not in ("accuracy", "loss"):
        return None
    mean = sum(v * n for v, n in pairs) / sum(n for _, n in pairs)
    return -mean if metric in LOWER_IS_BETTER else mean


def within(ask: Ask, sites: Sequence[int], before: int, whose: str) -> Ask:
    """A group's question as the whole federation is asked it: to its sites, in rounds that follow
    those before."""
    options = dict(ask.question.options)
    if "pattern" in options:  # a site counts the rounds of its pattern as its questions do
        pattern = options["pattern"]
        options["pattern"] = {**pattern, "after": pattern["after"] + before}
    question = replace(
        ask.question,
        options=options,
        round=ask.question.round + before,
        reveals=f"{ask.question.reveals} {whose}",
    )
    return Ask(ask.kind, question, [sites[i] for i in ask.sites])


def course(method: str, group: int, record: Mapping[str, Any]) -> dict[str, Any]:
    """A round of a group, for the report."""
    told = {k: v for k, v in record.get("sites_validation", {}).items() if k != "confusion"}
    row = {"method": method, "group": group, "round": record["round"]}
    return {**row, "sites": record["sites"], "validation": told}


def model_of(arrays: Mapping[str, np.ndarray]) -> Arrays:
    return {n: a for n, a in arrays.items() if n.startswith(("model/", "buffer/"))}


def prefixed(prefix: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
    return {f"{prefix}{name}": array for name, array in arrays.items()}


def unprefixed(prefix: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
    return {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}


def with_facts(state: State, **personal: Any) -> State:
    """The same step with other facts about personalisation."""
    values = {**state.values, "personal": {**state.values["personal"], **personal}}
    return State(state.step, state.arrays, values)


def ask_adapt(
    problem: Problem, arrays: Arrays, options: Mapping[str, Any], step: int, round: int
) -> Question:
    """The question to sites that adapt the model in `arrays` alone."""
    return Question(
        "adapt",
        arrays,
        options,
        _answers(problem, options),
        step=step,
        round=round,
        partial=True,
        reveals="each site's own: counts of a model that it adapted alone and keeps, on its "
        "validation and test data; which round it kept",
    )


def _answers(problem: Problem, options: Mapping[str, Any]) -> dict[str, Spec]:
    """Names and shapes of the answer; a site without a part leaves it out."""
    counts = expected(problem, options)
    parts = {f"{split}/{name}": spec for split in SPLITS for name, spec in counts.items()}
    return {"round": Spec((), "int"), **parts}
