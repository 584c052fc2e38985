"""The coordinator's part of a mechanism: what it makes of a round's total.

Where whole sites are hidden, sums are divided by the expected number of sites, never by the number
that came: that would tell who did.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from cupola.federation.message import Arrays
from cupola.training.participation import expected_sites

if TYPE_CHECKING:
    from cupola.federation.federation import Total
    from cupola.federation.program import State
    from cupola.training.choices import Participation, Privacy, Server
    from cupola.training.frozen import Levels
    from cupola.training.loop import Training


Moved = tuple[Arrays, dict[str, Any]]  # arrays and values of the next state


@dataclass(frozen=True)
class Coordinator:
    """What the coordinator knows of a training; by itself, the mean over the sites that came.

    seed: None draws noise from the system. levels: where sites train different parts. A site's clip
    is over all that it trains, and so is the noise; each tensor's sum is then divided by the
    expected number of its own sites, which is public as well.
    """

    privacy: Privacy
    participation: Participation
    server: Server
    sites: int
    rounds: int
    seed: int | None
    levels: Levels | None = None

    @classmethod
    def of(cls, training: Training, **more: Any) -> Self:
        return cls(
            training.privacy,
            training.participation,
            training.server,
            training.sites,
            training.training_rounds,
            training.seed,
            training.levels,
            **more,
        )

    @property
    def expected(self) -> float:
        """Sites a round, on average."""
        return expected_sites(self.participation, self.sites)

    def clip(self, state: State) -> float:
        """The clip of this round; it moves where it follows a quantile."""
        return float(state.values.get("clip", self.privacy.clip))

    def step(self, training: Training, state: State, total: Total, round: int) -> Moved:
        """Arrays and values of the state after a training round."""
        return training.mean_step(state, total, round) if total.weight > 0 else {}, {}

    def mean(self, state: State, total: Total, round: int) -> tuple[Arrays, dict[str, float]]:
        """The mean update by parameter, and the next clip where it moves."""
        raise NotImplementedError

    def watched(
        self, training: Training, rounds: Sequence[tuple[State, int]], totals: Sequence[Total]
    ) -> Iterator[tuple[np.ndarray, float | None]]:
        """For an auditor: what those who see models learn of these rounds, each with its state and
        number, as a vector; and the next clip, where it moves."""
        del training
        for (state, round), total in zip(rounds, totals):
            update, values = self.mean(state, total, round)
            yield joined(list(update.values())), values.get("clip")

    def by_trainers(self, flat: np.ndarray, state: State) -> np.ndarray:
        """From means over all sites to means over the sites that train each tensor."""
        if self.levels is None:
            return flat
        names = parameter_names(state.arrays)
        trainers = [self.levels.trainers(n) for n in names]
        # What none of these sites trains stays: there is nothing to divide by, nor to hide.
        more = [self.levels.sites / many if many else 0.0 for many in trainers]
        return flat * np.repeat(more, [state.arrays[f"model/{n}"].size for n in names])


class SiteCoordinator(Coordinator):
    """One that moves the model by the mean update, divided by the expected number of sites."""

    def step(self, training: Training, state: State, total: Total, round: int) -> Moved:
        update, values = self.mean(state, total, round)
        share = self.expected / self.sites  # of the total itself, methods see nothing
        return training.methods.step(state, update, None, round, share), values


def parameter_names(arrays: Mapping[str, np.ndarray]) -> list[str]:
    """Parameters of a state, without their prefix."""
    return [n.removeprefix("model/") for n in arrays if n.startswith("model/")]


def flat_total(total: Total, state: State) -> np.ndarray:
    """The summed updates as one vector; zeros where nobody came."""
    like = {n: a for n, a in state.arrays.items() if n.startswith("model/")}
    return joined([total.arrays.get(n, np.zeros(a.shape)) for n, a in like.items()])


def flat_model(state: State) -> np.ndarray:
    """The parameters as one vector."""
    return joined([a for n, a in state.arrays.items() if n.startswith("model/")])


def joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.asarray(a, np.float64).reshape(-1) for a in arrays])


def split(flat: np.ndarray, state: State) -> Arrays:
    """One vector by parameter."""
    arrays, start = {}, 0
    for name in parameter_names(state.arrays):
        like = state.arrays[f"model/{name}"]
        arrays[name] = flat[start : start + like.size].reshape(like.shape)
        start += like.size
    return arrays
