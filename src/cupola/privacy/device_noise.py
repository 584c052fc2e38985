"""Noise of simulations, drawn on the device that computes the model.

It has the same law, on the same grid, as `noise.add_noise`; a GPU draws it many at a time and
spares the way to the CPU and back. No generator of torch is a cryptographic source: a real site's
noise comes from the operating system, on its CPU, whatever computes its model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cupola.base.randomness import derive
from cupola.privacy.noise import grid, noise_scale


def device_generator(
    device: torch.device, seed: int, purpose: str, round: int, site: int = 0
) -> torch.Generator:
    """Simulated randomness of a device: other numbers than the CPU's `Simulated`, and repeatable
    on the same kind of device."""
    return torch.Generator(device).manual_seed(derive(seed, purpose, round, site))


def add_noise_on(
    value: Tensor, sensitivity: float, noise: float, generator: torch.Generator
) -> Tensor:
    """value + N(0, (noise * sensitivity)^2) on a grid, in float64; see `noise.add_noise`.

    generator: of the value's device, or of the CPU to have its numbers moved there.
    """
    if noise == 0:
        return value.double()
    deviation = noise_scale(sensitivity, noise, value.numel())
    step = grid(deviation)
    drawn = torch.randn(
        value.shape, generator=generator, dtype=torch.float64, device=generator.device
    )
    drawn = drawn.to(value.device).mul_(deviation / step).round_()
    return value.double().mul(1 / step).round_().add_(drawn).mul_(step)
