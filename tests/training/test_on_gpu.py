"""On a real GPU: `pytest -m gpu -n 0 tests/training/test_on_gpu.py` on a machine that has one."""

import numpy as np
import pytest
import small
import torch
from test_on_device import CASES, convolutional, trained

from cupola.nn import find_loss
from cupola.privacy.device_noise import add_noise_on, device_generator
from cupola.privacy.noise import grid, noise_scale
from cupola.privacy.persample.clipping import PerSample
from cupola.privacy.persample.rules import ROUNDING
from cupola.training import Local

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
]


@pytest.mark.parametrize("name", CASES)
def test_models_are_those_of_the_cpu(name):
    """To rounding: in full precision, with the same batches and the same noise."""
    expected = trained("cpu", *CASES[name])
    found = trained("cuda", *CASES[name])
    for key, array in expected.arrays.items():
        np.testing.assert_allclose(found.arrays[key], array, rtol=1e-3, atol=1e-4, err_msg=key)


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_lower_precision_is_near(precision):
    choices = {"local": Local(lr=0.05, batch_size=8)}
    expected = trained("cpu", "one-by-one", convolutional, choices)
    found = trained("cuda", "one-by-one", convolutional, choices, precision=precision)
    assert small.largest_difference(found.arrays, expected.arrays) < 0.05


def test_full_precision_switches_tf32_off():
    """torch lets convolutions use it unasked."""
    torch.backends.cudnn.allow_tf32 = True
    trained("cuda", "one-by-one", convolutional, {})
    assert not torch.backends.cudnn.allow_tf32
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_an_example_moves_the_clipped_sum_by_the_clip_at_most(scale):
    """Also under weights and inputs of an adversary, with and without it among the same others."""
    from cupola.training.precision import set_products

    device = torch.device("cuda")
    set_products(device, "full")
    torch.manual_seed(0)
    module = convolutional().to(device)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(scale)
    engine = PerSample(module, find_loss("cross_entropy"))
    x = torch.randn(65, 1, 8, 8, device=device) * scale
    y = torch.randint(10, (65,), device=device)
    for clip in (0.01, 1.0):
        whole = engine.clipped_sum(x, y, clip, expected=64).sums
        for left_out in (0, 17, 64):
            kept = torch.arange(65, device=device) != left_out
            without = engine.clipped_sum(x[kept], y[kept], clip, expected=64).sums
            moved = torch.cat([(a - b).reshape(-1) for a, b in zip(whole, without)]).norm()
            assert float(moved) <= clip * (1 + ROUNDING)


def test_the_company_of_a_sample_changes_no_bit_of_it():
    device = torch.device("cuda")
    engine = PerSample(convolutional().to(device), find_loss("cross_entropy"))
    x, y = torch.randn(8, 1, 8, 8, device=device), torch.randint(10, (8,), device=device)
    form, wrong = engine.self_test(x, y, expected=32)
    assert wrong is None, (form, wrong)


def test_noise_has_its_law_and_its_grid():
    device = torch.device("cuda")
    value = torch.linspace(-3, 3, 1_000_003, dtype=torch.float64, device=device)
    noised = [
        add_noise_on(value, 0.5, 2.0, device_generator(device, 1, "noise", r)) for r in (0, 0, 1)
    ]
    assert torch.equal(noised[0], noised[1])
    assert not torch.equal(noised[0], noised[2])
    deviation = noise_scale(0.5, 2.0, len(value))
    steps = noised[0] / grid(deviation)
    assert torch.equal(steps, steps.round())
    drawn = (noised[0] - value) / deviation
    assert abs(float(drawn.mean())) < 5e-3
    assert abs(float(drawn.square().mean()) - 1) < 1e-2
