"""Tests run on two workers with one thread each: more threads only fight for the cores."""

import torch
from hypothesis import settings

torch.set_num_threads(1)

# The same examples every time: a test that fails now and then tells nobody anything.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")
