"""The Triton kernel in Triton's interpreter against the CPU form."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from cupola.errors import PlanError
from cupola.nn import fused

CODE = """
import torch
from cupola.nn import fused
from cupola.nn.triton_statistics import window_statistics

torch.manual_seed(0)
for channels, sizes, kernel, stride, padding, dilation, p, masked in [
    (3, (9, 8), (3, 3), (1, 1), (1, 1), (1, 1), 0.0, False),
    (40, (7, 6), (2, 3), (2, 1), (1, 0), (1, 2), 0.3, False),
    (33, (12, 9), (3, 2), (1, 2), (2, 1), (2, 1), 0.3, True),
    (5, (4, 4), (1, 1), (1, 1), (0, 0), (1, 1), 0.1, True),
]:
    x = torch.rand(2, channels, *sizes) + 3
    drop = torch.rand_like(x) < p if masked else None
    at = fused.Geometry(kernel, stride, padding, dilation, 1e-5, p)
    wide = fused._statistics(x.double(), drop, at)
    for found, expected in zip(window_statistics(x, drop, at), wide, strict=True):
        assert found.shape == expected.shape
        assert float((found / expected - 1).abs().max()) < 1e-5, (channels, kernel)
print("equal")
"""


@pytest.mark.slow
def test_the_kernel_finds_what_the_cpu_does():
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs the extra 'triton'")
    found = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.stdout.strip() == "equal", found.stderr[-2000:]


def test_without_triton_it_is_refused():
    if importlib.util.find_spec("triton") is not None:
        pytest.skip("Triton is installed")
    with pytest.raises(PlanError, match=r"cupola\[triton\]"):
        fused.use_triton()
    fused.use_triton(False)
