"""The loss around a trained model: a plane through its weights along two random directions.

Li et al., "Visualizing the loss landscape of neural nets" (NeurIPS 2018): each filter of a
direction has the norm of the model's own filter, so that models of different scale can be compared;
biases and the scales and shifts of normalisations stay as they are.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from cupola.federation import randomness
from cupola.nn.losses import Loss

Direction = dict[str, Tensor]


def direction(module: nn.Module, seed: int, number: int) -> Direction:
    """A random direction in the space of the parameters, normalised by filter."""
    generator = randomness.torch_generator(seed, "landscape", number)
    found = {}
    for name, p in module.named_parameters():
        drawn = torch.randn(p.shape, generator=generator).to(p.device, p.dtype)
        if p.dim() < 2:
            found[name] = torch.zeros_like(drawn)
            continue
        own, random = (t.flatten(1).norm(dim=1) for t in (p.detach(), drawn))
        found[name] = drawn * (own / random.clamp_min(1e-12)).view(-1, *[1] * (p.dim() - 1))
    return found


@torch.no_grad()
def landscape(
    module: nn.Module,
    loss: Loss,
    x: Tensor,
    y: Tensor,
    *,
    seed: int,
    reach: float = 1.0,
    points: int = 11,
    batch: int = 250,
) -> tuple[np.ndarray, np.ndarray]:
    """Steps (points,) in -reach..reach, and mean losses (points, points) of the samples there.

    In evaluation mode; the module is as it was afterwards. A step of 1 is as long as the weights.
    """
    first, second = direction(module, seed, 1), direction(module, seed, 2)
    start = {name: p.detach().clone() for name, p in module.named_parameters()}
    modes = {part: part.training for part in module.modules()}
    steps, found = np.linspace(-reach, reach, points), np.empty((points, points))
    module.eval()
    try:
        for i, a in enumerate(steps):
            for j, b in enumerate(steps):
                for name, p in module.named_parameters():
                    p.copy_(start[name] + a * first[name] + b * second[name])
                pieces = zip(x.split(batch), y.split(batch))
                total = sum(float(loss(module(u), v).sum()) for u, v in pieces)
                found[i, j] = total / len(x)
    finally:
        for name, p in module.named_parameters():
            p.copy_(start[name])
        for part, training in modes.items():
            part.training = training
    return steps, found
