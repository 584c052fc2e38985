"""Mechanisms broken on purpose, by changing what the run calls."""

from dataclasses import replace

import numpy as np

from cupola.privacy import distributed
from cupola.privacy import perturbation as convex
from cupola.privacy.persample import PerSample, clipping
from cupola.training import loop as training_of
from cupola.training.mechanisms import central, dp_ftrl, dp_sgd, site_level
from cupola.training.mechanisms import convex as convex_task
from cupola.training.mechanisms import distributed as shares

SOURCES = {
    "dp-sgd": dp_sgd,
    "central": central,
    "dp-ftrl": dp_ftrl,
    "distributed": shares,
    "output": convex_task,
    "objective": convex_task,
}


def mechanism(kind):
    return kind.split(",")[0]


class Scaled:
    """Less noise."""

    def __init__(self, inner, factor):
        self.inner, self.factor = inner, factor

    def uniforms(self, n):
        return self.inner.uniforms(n)

    def normals(self, n):
        return self.inner.normals(n) * self.factor


def less_noise(kind, patch, factor):
    name = mechanism(kind)
    if name == "distributed":
        draw = distributed.discrete_gaussian
        patch.setattr(distributed, "discrete_gaussian", lambda s, *how: draw(s * factor, *how))
    elif name == "objective":
        draw_vector = convex._spherical
        patch.setattr(convex, "_spherical", lambda *how: factor * draw_vector(*how))
    elif name == "dp-ftrl":
        honest = dp_ftrl.source
        patch.setattr(dp_ftrl, "source", lambda *names: Scaled(honest(*names), factor))
    else:
        module = {"dp-sgd": clipping, "central": central, "output": convex}[name]
        add = module.add_noise
        patch.setattr(
            module,
            "add_noise",
            lambda value, s, noise, random: add(value, s, factor * noise, random),
        )


def half_noise(kind, patch):
    less_noise(kind, patch, 0.5)


def longer_clip(kind, patch, factor):
    name = mechanism(kind)
    if name == "dp-sgd":
        honest = PerSample.clipped_sum
        patch.setattr(
            PerSample,
            "clipped_sum",
            lambda self, x, y, clip, **more: honest(self, x, y, clip * factor, **more),
        )
        _longer_update(dp_sgd, patch, factor)  # of a gradient canary
    elif name in ("output", "objective"):
        rows = convex.Logistic.rows
        patch.setattr(
            convex.Logistic,
            "rows",
            lambda self, x: rows(replace(self, bound=min(factor, 1e6) * self.bound), x),
        )
    elif name == "distributed":
        rounded = distributed.Shares._rounded

        def longer(self, update):
            norm = float(np.linalg.norm(update))
            scaled = update * min(1.0, factor * self.clip / norm) if norm > 0 else update
            below = replace(self, clip=self.clip)
            object.__setattr__(below, "clip", 1e300)
            object.__setattr__(below, "fraction", self.fraction)
            return rounded(below, scaled)

        patch.setattr(distributed.Shares, "_rounded", longer)
    else:
        _longer_update(site_level, patch, factor)


def _longer_update(module, patch, factor):
    honest = module.clipped_update

    def longer(change, privacy):
        return honest(change, privacy.model_copy(update={"clip": privacy.clip * factor}))

    patch.setattr(module, "clipped_update", longer)


def double_clip(kind, patch):
    longer_clip(kind, patch, 2.0)


def no_clip(kind, patch):
    longer_clip(kind, patch, 1e12)


def double_rate(kind, patch):
    if mechanism(kind) == "dp-sgd":
        drawn = dp_sgd.drawn_batches
        patch.setattr(
            dp_sgd,
            "drawn_batches",
            lambda site, round, n, rate, steps: drawn(site, round, n, min(1.0, 2 * rate), steps),
        )
        return
    draw = training_of.draw

    def more(choice, *where):
        return draw(choice.model_copy(update={"fraction": min(1.0, 2 * choice.fraction)}), *where)

    patch.setattr(training_of, "draw", more)


def reused_noise(kind, patch):
    """The same noise in every round; batches stay fresh."""
    name, module = mechanism(kind), SOURCES[mechanism(kind)]
    honest = module.source

    def broken(seed, purpose, round, site=0):
        if name == "dp-ftrl":
            return honest(seed, "ftrl noise", round, site)
        return honest(seed, purpose, 0 if "noise" in purpose else round, site)

    patch.setattr(module, "source", broken)


def same_noise_at_all_sites(kind, patch):
    module = SOURCES[mechanism(kind)]
    honest = module.source
    patch.setattr(module, "source", lambda *names: honest(*names[:3], 0))


def same_noise_in_all_steps(kind, patch):  # noqa: ARG001
    honest = dp_sgd.PrivateGradient.__call__

    def again(self, index, augment):
        self.random = dp_sgd.source(7, "privacy noise", self.round)
        return honest(self, index, augment)

    patch.setattr(dp_sgd.PrivateGradient, "__call__", again)


def real_noise_that_repeats(kind, patch):
    """A real site or coordinator whose randomness is seeded after all."""
    module = SOURCES[mechanism(kind)]
    honest = module.source
    patch.setattr(
        module, "source", lambda seed, *names: honest(3 if seed is None else seed, *names)
    )


def drawn_division(kind, patch):
    """By what came, not by what was expected."""
    name = mechanism(kind)
    if name == "dp-sgd":
        honest = dp_sgd.PrivateGradient.__call__

        def by_drawn(self, index, augment):
            self.expected = max(len(index), 1)
            return honest(self, index, augment)

        patch.setattr(dp_sgd.PrivateGradient, "__call__", by_drawn)
        return
    coordinator, method = {
        "central": (central.CentralCoordinator, "mean"),
        "dp-ftrl": (dp_ftrl.FtrlCoordinator, "follow"),
        "distributed": (shares.DistributedCoordinator, "mean"),
    }[name]
    honest_mean = getattr(coordinator, method)

    def by_came(self, state, total, *more):
        class Came(coordinator):
            expected = max(len(total.sites), 1)

        return honest_mean(Came(**vars(self)), state, total, *more)

    patch.setattr(coordinator, method, by_came)


FAULTS = {
    "noise / 2": half_noise,
    "clip x 2": double_clip,
    "rate x 2": double_rate,
    "reused noise": reused_noise,
    "division by the drawn": drawn_division,
    "no clipping": no_clip,
}
#: Faults that a mechanism cannot have: it does not sample, or divides nothing.
LESS = {
    "central": {"rate x 2"},
    "dp-ftrl": {"rate x 2"},
    "distributed": {"rate x 2"},
    "output": {"rate x 2", "division by the drawn"},
    "objective": {"rate x 2", "division by the drawn"},
}
KINDS = ("dp-sgd, sampled", "dp-sgd, mlp", "central", "central, poisson", "dp-ftrl", "distributed",
         "output", "objective")  # fmt: skip
PAIRS = [(k, f) for k in KINDS for f in FAULTS if f not in LESS.get(k, ())]
