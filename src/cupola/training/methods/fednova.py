"""FedNova (Wang, Liu, Liang, Joshi and Poor 2020): changes normalised by the local work.

Sites that make more steps would pull the mean towards their own optimum. Each sends its change
divided by |a|_1, how far its optimizer moves in units of the rate if every gradient is 1; the mean
is then multiplied by the mean of |a|_1.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from cupola.federation.message import Arrays, Spec
from cupola.training.methods.method import Method, Round
from cupola.training.optimizers import effective_steps
from cupola.training.turn import Turn


class FedNova(Method):
    """Changes divided by the effective number of local steps (`local.send = 'normalised'`)."""

    post_processing = True
    stackable = True
    alters = ""

    def update(self, turn: Turn, update: list[Tensor], steps: int) -> list[Tensor]:
        effective = effective_steps(turn.local, steps, turn.lr)
        return [change / effective for change in update]

    def answer(self, turn: Turn, steps: int) -> Arrays:
        return {"steps": np.array(effective_steps(turn.local, steps, turn.lr))}

    def expects(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Spec]:  # noqa: ARG002
        return {"steps": Spec(())}

    def combine(self, round: Round, update: Arrays) -> tuple[Arrays, Arrays]:
        scale = float(round.mean("steps"))
        return {name: scale * change for name, change in update.items()}, {}
