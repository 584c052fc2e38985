"""No mechanism: updates as they are. Nothing is charged, and nothing is promised."""

from __future__ import annotations

from torch import Tensor

from cupola.federation.message import Arrays
from cupola.federation.site import Charge
from cupola.training.mechanisms.base import Mechanism
from cupola.training.turn import Turn


class NoMechanism(Mechanism):
    """Answers without protection; under a budget, sites refuse them."""

    name = "none"
    on = False
    keys = frozenset()
    stackable = True

    def charge(self, turn: Turn) -> Charge | None:  # noqa: ARG002
        return None

    def at_site(self, turn: Turn, update: list[Tensor]) -> Arrays:
        space = turn.space
        buffers = {f"buffer/{n}": b.cpu().numpy().copy() for n, b in space.buffers.items()}
        return space.named("model", update) | buffers

    def describe(self, clip: float) -> str:  # noqa: ARG002
        return "none"
