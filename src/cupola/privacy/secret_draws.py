"""Draws that nobody can repeat: masks of dropout, augmentations, whatever private code draws.

The clip holds for a sample that keeps its own draws, whoever else is there (docs/privacy.md, "The
clip, proven"). Draws of a generator are handed out in order: with a seed that others know, leaving
one sample out gives all that follow other masks, and each of them moves the sum by up to a clip.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_WORDS = 624  # of a Mersenne twister: torch's, numpy's and Python's generators
STATE = slice(24, 24 + _WORDS * 8)  # of the bytes of torch's


def secret_generator() -> torch.Generator:
    """A generator whose whole state comes from the operating system.

    A seed would not do: torch's generator takes 32 bits of it, which can be tried one by one.
    """
    made = torch.Generator().manual_seed(int.from_bytes(os.urandom(7), "little"))
    state = made.get_state().numpy().copy()
    words = state[STATE].view(np.uint64)  # 32 bits in 64 each
    words[:] = _words()
    return made.set_state(torch.from_numpy(state))


def set_secret() -> None:
    """Put the generators of this process (torch's, numpy's, Python's) where nobody knows."""
    secret = secret_generator()
    if torch.accelerator.is_available():
        torch.manual_seed(secret.initial_seed())
    torch.default_generator.set_state(secret.get_state())
    np.random.seed(_words())  # noqa: NPY002 (user code may draw from it)
    random.seed(os.urandom(64))


@contextmanager
def secret_draws() -> Iterator[None]:
    """Inside, generators are secret; afterwards they are as they were."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        with torch.random.fork_rng():
            set_secret()
            yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)


def _words() -> np.ndarray:
    return np.frombuffer(os.urandom(4 * _WORDS), np.uint32)
