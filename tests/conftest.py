"""Tests run on two workers with one thread each: more threads only fight for the cores."""

import torch

torch.set_num_threads(1)
