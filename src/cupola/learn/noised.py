"""The coordinator's noise: sites send clipped updates, and only noised sums go into the model.

central: every round's sum gets its own noise. dp-ftrl (Kairouz et al. 2021): the sum of all rounds
so far gets noise that is correlated from round to round, so that little of it adds up. Both divide
by the expected number of sites, never by the number that came: that would tell who did. So does
distributed, where the sites have added the noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cupola.errors import FederationError
from cupola.federation import Arrays, State, Total
from cupola.learn.choices import Participation, Privacy, Server
from cupola.learn.frozen import Levels
from cupola.learn.participation import expected_sites, most_participations, separation
from cupola.learn.private import ROUNDING
from cupola.privacy.matrix import find as find_matrix
from cupola.privacy.noise import Source, add_noise, noise_scale, round_to_grid, source


@dataclass(frozen=True)
class Coordinator:
    """The coordinator's part of 'central' and 'dp-ftrl'.

    seed: None draws from the system; for 'central' only, since dp-ftrl's noise comes again.
    levels: where sites train different parts. A site's clip is over all that it trains, and so is
    the noise; each tensor's sum is then divided by the expected number of its own sites, which is
    public as well.
    """

    privacy: Privacy
    participation: Participation
    server: Server
    sites: int
    rounds: int
    seed: int | None
    levels: Levels | None = None

    def _by_trainers(
        self, flat: np.ndarray, names: Sequence[str], model: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """From means over all sites to means over the sites that train each tensor."""
        if self.levels is None:
            return flat
        trainers = [self.levels.trainers(n) for n in names]
        # What none of these sites trains stays: there is nothing to divide by, nor to hide.
        more = [self.levels.sites / many if many else 0.0 for many in trainers]
        return flat * np.repeat(more, [model[f"model/{n}"].size for n in names])

    @property
    def expected(self) -> float:
        """Sites a round, on average."""
        return expected_sites(self.participation, self.sites)

    def clip(self, state: State) -> float:
        """The clip of this round; it moves where it follows a quantile."""
        return float(state.values.get("clip", self.privacy.clip))

    # central

    def mean(self, state: State, total: Total, round: int) -> tuple[Arrays, dict[str, float]]:
        """The noised mean update by parameter, and the next clip where it moves."""
        names = parameter_names(state.arrays)
        clip, random = self.clip(state), source(self.seed, "coordinator noise", round)
        flat = _flat(total, names, state.arrays)
        noised = add_noise(flat, clip * (1 + ROUNDING), self._update_noise(), random)
        mean = self._by_trainers(noised / self.expected, names, state.arrays)
        update = _split(mean, names, state.arrays)
        return update, {} if self.privacy.quantile is None else self._next_clip(clip, total, random)

    def mean_of_shares(self, state: State, total: Total) -> Arrays:
        """distributed: the mean update by parameter; its noise is in the total already."""
        names = parameter_names(state.arrays)
        return _split(_flat(total, names, state.arrays) / self.expected, names, state.arrays)

    @property
    def counts_noise(self) -> float:
        """Standard deviation of the noise on the count of updates below the clip."""
        return self.privacy.counts_noise or max(self.expected / 20, self.privacy.noise or 0.0)

    def _update_noise(self) -> float:
        """Noise multiplier of the sum itself.

        With a moving clip the count (halves, so that its sensitivity is 1/2) is released as well;
        the two together are one Gaussian of multiplier `noise` (Andrew et al. 2021, theorem 1).
        """
        noise = self.privacy.noise or 0.0
        if self.privacy.quantile is None or noise == 0:
            return noise
        return (noise**-2 - (2 * self.counts_noise) ** -2) ** -0.5

    def _next_clip(self, clip: float, total: Total, random: Source) -> dict[str, float]:
        halves = np.atleast_1d(total.arrays.get("below", 0.0))
        deviation = self.counts_noise if self.privacy.noise else 0.0
        noised = float(add_noise(halves, 0.5, 2 * deviation, random)[0])
        below = noised / self.expected + 0.5
        rate, quantile = self.privacy.clip_rate, self.privacy.quantile or 0.0
        return {"clip": clip * math.exp(-rate * (min(max(below, 0.0), 1.0) - quantile))}

    # dp-ftrl

    def pattern(self, round: int) -> dict[str, int]:
        """What a site may rely on in the period that holds this round: steps in it, how often it
        is asked at most, how many rounds lie between, and the round before the period."""
        whole = self.privacy.restart or self.rounds
        after = (round - 1) // whole * whole
        steps = min(whole, self.rounds - after)
        return {
            "after": after,
            "steps": steps,
            "participations": most_participations(self.participation, self.sites, steps),
            "separation": separation(self.participation, self.sites),
        }

    def follow(self, state: State, total: Total, round: int, lr: float) -> Arrays:
        """DP-FTRL: model = start of the period - lr * (noised sum of its updates), with momentum.

        sum += update; velocity = momentum * velocity + sum + noise; model = start - lr * velocity.
        """
        names = parameter_names(state.arrays)
        pattern = self.pattern(round)
        step = round - pattern["after"]
        model = _join([state.arrays[f"model/{n}"] for n in names])
        start, kept, velocity = (
            state.arrays.get(f"ftrl/{what}", np.zeros(0)) for what in ("start", "sum", "velocity")
        )
        if step == 1:
            start, kept, velocity = model, np.zeros_like(model), np.zeros_like(model)
        update = _flat(total, names, state.arrays) / self.expected
        kept = kept + update
        noised = self._by_trainers(self._prefix(kept, step, pattern), names, state.arrays)
        velocity = self.server.momentum * velocity + noised
        moved = _split(start - lr * velocity, names, state.arrays)
        return {
            **{f"model/{n}": a.astype(state.arrays[f"model/{n}"].dtype) for n, a in moved.items()},
            "ftrl/start": start,
            "ftrl/sum": kept,
            "ftrl/velocity": velocity,
        }

    def _prefix(self, kept: np.ndarray, step: int, pattern: dict[str, int]) -> np.ndarray:
        noise, after = self.privacy.noise or 0.0, pattern["after"]
        if noise == 0:
            return kept

        if self.seed is None:
            raise FederationError("dp-ftrl draws the same noise again: it needs a seed to keep")

        def draw(number: int) -> np.ndarray:
            random = source(self.seed, f"ftrl noise {number}", after)
            return random.normals(len(kept))

        matrix = find_matrix(self.privacy.matrix)
        sensitivity = self.privacy.clip * (1 + ROUNDING) / self.expected
        # All releases of a period are rounded to the grid.
        deviation = noise_scale(sensitivity, noise, 2 * pattern["steps"] * len(kept))
        return round_to_grid(kept, deviation * matrix.noise(step, draw), deviation)


def parameter_names(arrays: Mapping[str, np.ndarray]) -> list[str]:
    """Parameters of a state, without their prefix."""
    return [n.removeprefix("model/") for n in arrays if n.startswith("model/")]


def _flat(total: Total, names: Sequence[str], model: Mapping[str, np.ndarray]) -> np.ndarray:
    """The summed updates as one vector; zeros where nobody came."""
    like = {n: model[f"model/{n}"] for n in names}
    return _join([total.arrays.get(f"model/{n}", np.zeros(a.shape)) for n, a in like.items()])


def _join(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.asarray(a, np.float64).reshape(-1) for a in arrays])


def _split(flat: np.ndarray, names: Sequence[str], model: Mapping[str, np.ndarray]) -> Arrays:
    arrays, start = {}, 0
    for name in names:
        like = model[f"model/{name}"]
        arrays[name] = flat[start : start + like.size].reshape(like.shape)
        start += like.size
    return arrays
