"""Tests run on two workers with one thread each: more threads only fight for the cores."""

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# The same examples every time: a test that fails now and then tells nobody anything.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _repeatable():
    """What a test draws without a generator of its own is the same every time, too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
