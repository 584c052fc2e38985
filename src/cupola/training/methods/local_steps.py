"""A site's local work of a round in pieces, for methods that order it themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from cupola.training.optimizers import LocalOptimizer
from cupola.training.turn import Turn


@dataclass(frozen=True)
class LocalSteps:
    """batches: places in the training data, in their order. gradient: of the mean loss of a batch,
    by parameter, at the parameters as they are now. corrections: of other methods, each called with
    a gradient that it changes.
    """

    turn: Turn
    batches: Sequence[np.ndarray]
    gradient: Callable[[np.ndarray], list[Tensor]]
    corrections: Sequence[Callable[[list[Tensor]], object]] = ()

    def optimizer(self) -> LocalOptimizer:
        """The plan's local optimizer, as it starts a round."""
        return LocalOptimizer(self.turn.local, self.turn.lr)

    def take(self, batches: Sequence[np.ndarray] | None = None, only: Collection[str] = ()) -> None:
        """The loop's own steps on these batches (None: all); only: move these parameters alone."""
        names, optimizer = self.turn.space.names, self.optimizer()
        moved = [i for i, name in enumerate(names) if not only or name in only]
        params = [self.turn.params[i] for i in moved]
        for index in self.batches if batches is None else batches:
            grads = self.gradient(index)
            for correct in self.corrections:
                correct(grads)
            optimizer.step(params, [grads[i] for i in moved])
