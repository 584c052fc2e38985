"""Small federations and problems for the tests of training; separate site processes import it."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from torch import nn

from cupola.data import Dataset, FederatedData, SiteData, load
from cupola.engines import InProcess, masked_sums
from cupola.federation import State, drive
from cupola.nn import find_loss
from cupola.secure.simulation import simulated_parties
from cupola.training import Evaluation, Problem, Training, TrainingHost

CROSS_ENTROPY = find_loss("cross_entropy")
DEVICES = ["cpu"]
DEVICES += ["cuda"] if torch.cuda.is_available() else []
DEVICES += ["mps"] if torch.backends.mps.is_available() else []


@cache
def source():
    return load("digits")


def digits(sizes=(20, 20, 20, 20), held=0, public=True):
    """Sites of these sizes, in the order of the data; `held` test and validation rows each."""
    train = source().train
    sites, start = [], 0
    for size in sizes:
        parts = []
        for n in (size, held, held):
            parts.append(train.subset(slice(start, start + n)))
            start += n
        sites.append(SiteData(*parts))
    return federation(sites, public={"test": source().test} if public else {})


def federation(sites, kind="classification", classes=10, input_shape=(1, 8, 8), public=None):
    return FederatedData.from_arrays(
        sites, kind=kind, classes=classes, input_shape=input_shape, public=public or {}
    )


def seeded(make, seed=1):
    """A builder whose module has the same initial weights every time."""

    def build():
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return make()

    return build


def perceptron(*between):
    """64-8-10, with these modules (made anew every time) between the linear layers."""
    return lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), *(make() for make in between), nn.Linear(8, 10)
    )


def problem(data, make=None, loss=CROSS_ENTROPY, dtype=torch.float64, device="cpu", **more):
    build = seeded(make or perceptron(nn.Tanh))
    return Problem(build, loss, data.kind, data.classes, data.input_shape, device, dtype, **more)


def training(data, rounds=3, what=None, seed=5, **choices):
    choices.setdefault("evaluation", Evaluation(every=10**6))
    choices.setdefault("public", data.public)
    return Training(what or problem(data), len(data), rounds, seed=seed, **choices)


def engine(program, data, mode="one-by-one", **more):
    host = TrainingHost(program.problem, data)
    return InProcess(host, seed=program.seed, mode=mode, workers=1, **more)


def run(program, data, mode="one-by-one", **more):
    """The state at the end."""
    with engine(program, data, mode, **more) as reach:
        return drive(program, reach)


def states(program, data, mode="one-by-one"):
    """Every state of a run, with what the sites kept before its step."""
    kept = [(program.start(), {})]
    with engine(program, data, mode) as reach:
        drive(program, reach, kept[0][0], lambda s: kept.append((s, reach.export(s.step - 1))))
    return kept


def assert_resumes(program, data, mode, found):
    """From each of its `states`, as a checkpoint holds them, a run ends in the same bits."""
    end = found[-1][0]
    for state, kept in found[:-1]:
        values = json.loads(json.dumps(state.values))
        other = replace(program)
        with engine(other, data, mode) as reach:
            reach.restore(state.step - 1, kept)
            again = drive(other, reach, State(state.step, dict(state.arrays), values))
        assert again.values == end.values
        assert again.step == end.step
        assert all((again.arrays[n] == a).all() for n, a in end.arrays.items())


def run_masked(program, data, book=None, **more):
    """The state at the end, with masked sums."""
    choice, sites = program.sum, len(data)
    parties = simulated_parties(
        "study", seed=program.seed, sites=sites, minimum=choice.minimum, protocol=choice.protocol
    )
    host = TrainingHost(program.problem, data, book)
    engine = InProcess(host, seed=program.seed, workers=1, parties=parties.member, **more)
    with masked_sums(engine, parties) as reach:
        return drive(program, reach)


def model_after(program, data, mode="one-by-one"):
    return program.model(run(program, data, mode))


def host(sizes):
    """For separate processes: the same federation from plain values."""
    data = digits(tuple(sizes))
    return TrainingHost(problem(data), data)


def largest_difference(a, b):
    assert a.keys() == b.keys()
    return max(float(np.abs(np.asarray(a[n]) - np.asarray(b[n])).max()) for n in a)


def rows(x, y):
    return Dataset(torch.as_tensor(x), torch.as_tensor(y))
