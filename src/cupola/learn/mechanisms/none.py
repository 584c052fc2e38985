"""No mechanism: updates as they are. Nothing is charged, and nothing is promised."""

from __future__ import annotations

from torch import Tensor

from cupola.federation import Arrays, Charge, Question, SiteContext
from cupola.learn.choices import Local
from cupola.learn.mechanisms.base import Mechanism
from cupola.learn.workspace import Workspace


class NoMechanism(Mechanism):
    """Answers without protection; under a budget, sites refuse them."""

    name = "none"
    on = False
    keys = frozenset()
    noised_at_site = False
    sends = sends_alone = "updates"

    def charge(self, site: SiteContext, question: Question, local: Local) -> Charge | None:
        del site, question, local
        return None

    def at_site(
        self, site: SiteContext, question: Question, space: Workspace, update: list[Tensor]
    ) -> Arrays:
        del site, question
        buffers = {f"buffer/{n}": b.cpu().numpy().copy() for n, b in space.buffers.items()}
        return space.named("model", update) | buffers

    def describe(self, clip: float) -> str:
        del clip
        return "none"
