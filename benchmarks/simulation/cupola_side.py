"""Cupola's in-process engine on the benchmark's workloads, in each of its modes."""

from __future__ import annotations

import time

import contract
import models
import torch
import workloads

from cupola.data import Dataset, FederatedData, SiteData
from cupola.engines import InProcess
from cupola.federation import State
from cupola.nn import find_loss
from cupola.training import Evaluation, Local, Participation, Problem, Training, TrainingHost

MODES = ("auto", "one-by-one", "stacked", "explicit", "implicit", "compiled")
#: Modes worth measuring: the general path, and the special ones where the engine would take them.
WORTH = {
    "w1": ("auto", "explicit", "stacked", "one-by-one"),
    "w2": ("auto",),
    "w3": ("auto", "stacked", "one-by-one"),
    "ragged": ("auto", "stacked", "one-by-one"),
    "ragged-mlp": ("auto", "stacked", "one-by-one"),
}


def federation(name: str, mode: str) -> tuple[Training, InProcess]:
    """The workload as Cupola's training program and engine."""
    work = workloads.WORKLOADS[name]

    def make(index: int) -> SiteData:
        x, y = models.site(name, index)
        nothing = Dataset(x[:0], y[:0])
        return SiteData(Dataset(x, y), nothing, nothing)

    data = FederatedData.lazy(
        work.sites, make, kind="classification", classes=work.classes, input_shape=work.input_shape
    )
    problem = Problem(
        lambda: models.build(name),
        find_loss("cross_entropy"),
        "classification",
        work.classes,
        work.input_shape,
        "cpu",
    )
    everybody = work.per_round == work.sites
    training = Training(
        problem,
        work.sites,
        10**6,
        local=Local(batch_size=work.batch, lr=work.rate),
        participation=Participation()
        if everybody
        else Participation(kind="fraction", count=work.per_round),
        evaluation=Evaluation(every=10**6),
    )
    return training, InProcess(TrainingHost(problem, data), mode=mode)


def main() -> None:
    parser = contract.arguments(__doc__ or "", MODES)
    chosen = parser.parse_args()
    if chosen.mode == "list":
        contract.print_modes(WORTH[chosen.workload])
        return
    torch.set_num_threads(2)
    training, engine = federation(chosen.workload, chosen.mode)
    warmup = workloads.WORKLOADS[chosen.workload].warmup
    state = training.start()
    with engine:
        state = rounds(training, engine, state, warmup)
        start = time.perf_counter()
        state = rounds(training, engine, state, chosen.rounds)
        seconds = time.perf_counter() - start
    contract.report(
        "cupola",
        chosen.workload,
        chosen.mode,
        chosen.rounds,
        seconds,
        training.model(state),
        ["torch", "numpy"],
    )


def rounds(training: Training, engine: InProcess, state: State, count: int) -> State:
    """Some rounds of the program."""
    for _ in range(count):
        ask = training.ask(state)
        assert ask is not None
        state = training.answer(state, engine.sum(ask.question, ask.sites))
        engine.confirm(state.step)
    return state


if __name__ == "__main__":
    main()
