"""Tests run on two workers with one thread each: more threads only fight for the cores."""

import os
import warnings

# Some virtual machines show AMX and do not allow it; oneDNN believes them and is killed.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import pytest
import torch
from hypothesis import settings

from cupola.engines import ray_connection

torch.set_num_threads(1)

# The same examples every time: a test that fails now and then tells nobody anything.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _repeatable():
    """What a test draws without a generator of its own is the same every time, too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The folder of a small trained model to build on, which Cupola knows meanwhile."""
    from tiny_sources import registered, write

    with registered():
        yield write(tmp_path_factory.mktemp("source") / "run")


@pytest.fixture(scope="session")
def cluster():
    """One Ray cluster on this machine for all tests that want real processes."""
    import ray

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module="ray")
        connection = ray_connection.connect(ray, None, 4)
    yield
    connection()
