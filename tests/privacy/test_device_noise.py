"""Noise drawn on a device: the law and the grid of `add_noise`, by torch's generators."""

import numpy as np
import torch
from scipy.stats import kstest

from cupola.privacy.device_noise import add_noise_on, device_generator
from cupola.privacy.noise import add_noise, grid, noise_scale

CPU = torch.device("cpu")


class Given:
    """A source that gives the numbers that a generator of torch draws."""

    def __init__(self, generator):
        self.generator = generator

    def rounded_normals(self, n, deviation):
        drawn = torch.randn(n, generator=self.generator, dtype=torch.float64)
        return np.rint(drawn.numpy() * deviation)


def test_it_is_add_noise_with_other_draws():
    value = torch.randn(10_001, generator=torch.Generator().manual_seed(1))
    for sensitivity, noise in ((1.0, 1.0), (1e-6, 0.3), (1e5, 20.0), (1.0, 0.0)):
        found = add_noise_on(value, sensitivity, noise, device_generator(CPU, 7, "noise", 2, 3))
        random = Given(device_generator(CPU, 7, "noise", 2, 3))
        expected = add_noise(value.numpy(), sensitivity, noise, random)
        assert found.dtype == torch.float64
        assert (found.numpy() == expected).all()


def test_every_round_and_site_has_its_own():
    value = torch.zeros(100)
    named = ((1, "a", 0, 0), (1, "a", 0, 1), (1, "a", 1, 0), (1, "b", 0, 0), (2, "a", 0, 0))
    generators = [device_generator(CPU, *one) for one in named]
    drawn = {tuple(add_noise_on(value, 1.0, 1.0, one).tolist()) for one in generators}
    assert len(drawn) == 5


def test_the_low_bits_tell_nothing_of_the_value():
    """All results lie on the grid, whatever the value; and the noise is normal."""
    value = torch.rand(100_000, generator=torch.Generator().manual_seed(1)) * 1e-3
    noised = add_noise_on(value, 1.0, 1.5, device_generator(CPU, 1, "noise", 0))
    deviation = noise_scale(1.0, 1.5, len(value))
    steps = noised / grid(deviation)
    assert torch.equal(steps, steps.round())
    assert kstest(((noised - value) / deviation).numpy(), "norm").pvalue > 1e-3
