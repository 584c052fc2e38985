"""A site's own model, or its own parts of one: what a method keeps there and never sends."""

from __future__ import annotations

import numpy as np
from torch import nn

from cupola.federation.message import Arrays, Declined, Question
from cupola.federation.site import SiteContext
from cupola.training.choices import Local
from cupola.training.methods.method import OWN, Method, overrides
from cupola.training.turn import Turn
from cupola.training.workspace import Workspace

HANDED = "handed"  # option of a question: the parts that stay were sent in an earlier round
MISSED = "has not received the parts that stay here"


def staying(method: Method | None, model: nn.Module) -> frozenset[str]:
    """Arrays of a model that never leave a site, by their names in messages."""
    if method is None or not overrides(method, "stays"):
        return frozenset()
    found = method.stays(model)
    trained = (n for n, p in model.named_parameters() if p.requires_grad and n in found)
    buffers = (n for n, b in model.named_buffers() if b.is_floating_point() and n in found)
    return frozenset([*(f"model/{n}" for n in trained), *(f"buffer/{n}" for n in buffers)])


def with_own_parts(turn: Turn, method: Method | None) -> Arrays:
    """What was received, and this site's own parts of the model: as it kept them, or as they were
    handed to it, or those of the initial model."""
    arrays = turn.question.arrays
    own = staying(method, turn.space.module)
    if method is None or not own:
        return arrays
    kept = turn.site.recall(turn.question)
    parts = {name: kept[key] for name in own if (key := method.named(OWN, name)) in kept}
    parts |= {name: arrays[name] for name in own if name in arrays}
    if len(parts) < len(own):
        if turn.question.options.get(HANDED):
            raise Declined(MISSED)
        parts = {name: a for name, a in _initial(turn.space).items() if name in own} | parts
    return {**arrays, **parts}


def judged(site: SiteContext, question: Question, method: Method | None) -> Arrays:
    """The model by which this site is judged."""
    if method is None:
        return question.arrays
    turn = Turn(site, question, Local())
    return {**with_own_parts(turn, method), **method.personal(turn)}


def _initial(space: Workspace) -> dict[str, np.ndarray]:
    if "initial" not in space.cache:
        module = space.problem.module()
        named = [
            *((f"model/{n}", p) for n, p in module.named_parameters()),
            *((f"buffer/{n}", b) for n, b in module.named_buffers()),
        ]
        space.cache["initial"] = {n: t.detach().cpu().numpy() for n, t in named}
    return space.cache["initial"]
