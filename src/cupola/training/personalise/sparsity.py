"""PFE: how often the channels of a layer are silent on a site's data (002, section 4.1).

The sparsity of a channel is the share of zeros after its ReLU, over all places and samples. A ReLU
gives zero where its input is not positive; other activations have no exact zeros, and there the
share of non-positive inputs counts. So one rule serves all: count what is not positive. Counts are
integers, so that batches of any size give the same vector.

Released with differential privacy: the mean over n samples of vectors in [0, 1]^q moves by at most
sqrt(q) / (2n) with one example more or less (each is told as its distance from 1/2, over the public
n), and by sqrt(q) / n with one replaced.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from cupola.base.randomness import generator
from cupola.data.dataset import Dataset
from cupola.federation.message import Arrays, Contribution, Declined, Question, Spec, blank
from cupola.federation.program import State
from cupola.federation.site import Charge, SiteContext, task
from cupola.privacy.accounting import calibrate, epsilon
from cupola.privacy.events import Gaussian, Neighbours
from cupola.privacy.noise import Source, add_noise, source
from cupola.training.personalise.layers import Layer, watch
from cupola.training.personalise.personal_choices import Release
from cupola.training.workspace import Workspace, workspace_of

BATCH = 256  # samples per pass; changes no result


def sparsity_of(
    space: Workspace, data: Dataset, channels: Mapping[str, Sequence[int]], batch: int = BATCH
) -> dict[str, np.ndarray]:
    """Share of non-positive values in these channels of these layers, in one pass, float64."""
    silent = {name: np.zeros(len(chosen), np.int64) for name, chosen in channels.items()}
    whole = dict.fromkeys(channels, 0)
    picked = {name: torch.as_tensor(list(chosen)) for name, chosen in channels.items()}
    for start in range(0, len(data), batch):
        x, _ = space.batch(data, slice(start, start + batch), whole=True)
        for name, values in watch(space.module, x, list(channels)).items():
            values = values.flatten(0, -2)
            chosen = picked[name].to(values.device)
            silent[name] += (values.index_select(1, chosen) <= 0).sum(0).cpu().numpy()
            whole[name] += len(values)
    return {name: silent[name] / whole[name] for name in channels}


def sensitivity(channels: int, n: int) -> float:
    """L2, of a site's vectors of so many numbers in all, with one of n examples more or less."""
    return math.sqrt(channels) / (2 * n)


def released(vector: np.ndarray, n: int, noise: float, random: Source) -> np.ndarray:
    """A vector of shares over n examples with noise, back in [0, 1]. All of a site's vectors must
    be noised as one."""
    return np.clip(add_noise(vector, sensitivity(vector.size, n), noise, random), 0.0, 1.0)


def noise_of(release: Release) -> float:
    """The noise multiplier of a release."""
    if release.noise_multiplier is not None:
        return release.noise_multiplier
    assert release.epsilon is not None
    return calibrate(
        lambda noise: [Gaussian(noise)],
        release.epsilon,
        release.delta,
        neighbours=release.neighbours,
    )


def epsilon_of(
    release: Release, neighbours: Neighbours | None = None, delta: float | None = None
) -> float:
    """What a site's vectors spend, by the release's own neighbours and delta unless others are
    given: its noise is measured against one example more or less, and counts in either."""
    return epsilon(
        [Gaussian(noise_of(release))],
        delta or release.delta,
        neighbours=neighbours or release.neighbours,
    )


def drawn_channels(layers: Sequence[Layer], count: int, seed: int) -> list[list[int]]:
    """The same channels of each layer for all sites; the first of a longer draw are a shorter."""
    return [
        generator(seed, f"sparsity channels of {layer.name}")
        .permutation(layer.channels)[:count]
        .tolist()
        for layer in layers
    ]


@task("sparsity", random=lambda question: question.options.get("noise") is not None)
def sparsity(site: SiteContext, question: Question) -> Contribution:
    """The sparsity of the received model's channels on this site's training data.

    Options: 'layers': [[name, channels]]; 'noise': multiplier of the noise, or nothing.
    Answer: 'sparsity/i' of the i-th layer, float32 in [0, 1].
    """
    layers, data = _asked(question), site.data.train
    if not len(data):
        raise Declined("no samples")
    space = workspace_of(site)
    space.load(question.arrays)
    found = sparsity_of(space, data, dict(layers))
    vector = np.concatenate([found[name] for name, _ in layers])
    noise = question.options.get("noise")
    if noise is not None:
        random = source(site.secret_seed, "sparsity noise", question.round, site.index)
        vector = released(vector, len(data), noise, random)
    ends = np.cumsum([len(channels) for _, channels in layers])[:-1]
    parts = np.split(vector.astype(np.float32), ends)
    return Contribution({f"sparsity/{i}": part for i, part in enumerate(parts)})


@sparsity.rehearses
def _rehearsed(sites: Sequence[SiteContext], question: Question) -> list[Arrays | str]:
    """Shares are told in float32."""
    one = np.zeros((), np.float32)
    arrays: Arrays = {name: blank(spec, one) for name, spec in question.expects.items()}
    return [arrays if len(site.data.train) else "no samples" for site in sites]


@sparsity.charges
def charge(site: SiteContext, question: Question) -> Charge | None:
    noise = question.options.get("noise")
    if noise is None:
        return None
    if not len(site.data.train):
        return Charge(())  # it will give no answer
    if not noise > 0:
        raise Declined("noise must be above 0")
    return Charge((Gaussian(float(noise)),))


def _asked(question: Question) -> list[tuple[str, list[int]]]:
    layers = [(str(name), [int(c) for c in chosen]) for name, chosen in question.options["layers"]]
    if len({name for name, _ in layers}) < len(layers) or not all(c for _, c in layers):
        raise Declined("question is not well formed")
    return layers


def ask_sparsity(
    state: State,
    arrays: Mapping[str, np.ndarray],
    layers: Sequence[tuple[str, list[int]]],
    release: Release | None,
    round: int,
) -> Question:
    """The question for the vectors of every site, asked once in a study."""
    options: dict[str, Any] = {"layers": [[name, chosen] for name, chosen in layers]}
    protection = "none"
    if release is not None:
        options["noise"] = noise_of(release)
        protection = (
            f"gaussian noise at the site, multiplier {options['noise']:.4g}, of examples: epsilon "
            f"{epsilon_of(release):.3g} at delta {release.delta:g} ({release.neighbours})"
        )
    q = sum(len(chosen) for _, chosen in layers)
    return Question(
        "sparsity",
        dict(arrays),
        options,
        {f"sparsity/{i}": Spec((len(chosen),)) for i, (_, chosen) in enumerate(layers)},
        step=state.step,
        round=round,
        reveals=f"each site's own: how often {q} channels are silent on its training data, and so "
        "which sites hold similar data",
        protection=protection,
    )
