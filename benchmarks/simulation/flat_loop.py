"""Neutral baseline: a plain PyTorch loop over the sites of a round.

One model is reused; its parameters are views of one flat vector, so that a site starts with one
copy and ends with one addition. With two processes the sites are dealt out by size and the sums
meet in shared memory.
"""

from __future__ import annotations

import contract

contract.set_threads(1)

import time  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402
from typing import Any  # noqa: E402

import models  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
import workloads  # noqa: E402
from torch.nn import functional as F  # noqa: E402

MODES = ("2-processes", "1-process")


class FlatModel:
    """A model on one flat vector."""

    def __init__(self, name: str) -> None:
        self.workload = workloads.WORKLOADS[name]
        self.model = models.build(name)
        self.leaves = list(self.model.parameters())
        self.flat = torch.cat([p.detach().reshape(-1) for p in self.leaves])
        start = 0
        for p in self.leaves:
            p.data = self.flat[start : start + p.numel()].view_as(p)
            start += p.numel()

    def train_site(self, index: int) -> int:
        """One epoch on a site's data; returns its number of samples."""
        w = self.workload
        x, y = models.site(w.name, index)
        for xb, yb in zip(x.split(w.batch), y.split(w.batch)):
            loss = F.cross_entropy(self.model(xb), yb)
            gradients = torch.autograd.grad(loss, self.leaves)
            with torch.no_grad():
                torch._foreach_add_(self.leaves, gradients, alpha=-w.rate)
        return len(y)


def deal(name: str, round: int, processes: int) -> list[list[int]]:
    """The round's sites for each process, the largest first to the least loaded."""
    chosen, n = workloads.cohort(name, round), workloads.sizes(name)
    hands: list[list[int]] = [[] for _ in range(processes)]
    load = [0] * processes
    for index in chosen[np.argsort(-n[chosen], kind="stable")]:
        lightest = load.index(min(load))
        hands[lightest].append(int(index))
        load[lightest] += int(n[index])
    return hands


@dataclass
class Meeting:
    """Where the processes put their sums: two places each, used in turn, so one wait is enough."""

    sums: torch.Tensor  # (2, processes, parameters), in shared memory
    wait: Any = field(default=lambda: None)


def train(
    name: str, rank: int, processes: int, rounds: int, meeting: Meeting, losses_at: frozenset[int]
) -> tuple[float, dict[str, np.ndarray], dict[int, float]]:
    """Train warm-up + rounds; returns seconds of the timed rounds, parameters, losses asked for."""
    torch.set_num_threads(1)
    w, flat, losses = workloads.WORKLOADS[name], FlatModel(name), {}
    for index in range(w.sites):
        models.site(name, index)
    current = flat.flat.clone()
    started = 0.0
    for round in range(w.warmup + rounds):
        if round == w.warmup:
            started = time.perf_counter()
        total = int(workloads.sizes(name)[workloads.cohort(name, round)].sum())
        mine = meeting.sums[round % 2, rank].zero_()
        for index in deal(name, round, processes)[rank]:
            flat.flat.copy_(current)
            n = flat.train_site(index)
            mine.add_(flat.flat, alpha=n / total)
        meeting.wait()
        torch.sum(meeting.sums[round % 2], 0, out=current)
        if rank == 0 and round + 1 in losses_at:
            flat.flat.copy_(current)
            losses[round + 1] = workloads.check_loss(name, models.parameters(flat.model))
    seconds = time.perf_counter() - started
    flat.flat.copy_(current)
    return seconds, models.parameters(flat.model), losses


def main() -> None:
    parser = contract.arguments("Plain PyTorch loop", MODES)
    parser.add_argument("--losses-at", default="", help="also report the loss after these rounds")
    options = parser.parse_args()
    if options.mode == "list":
        contract.print_modes(MODES)
        return
    name, processes = options.workload, int(options.mode[0])
    losses_at = frozenset(int(n) for n in options.losses_at.split(",") if n)
    numbers = sum(int(np.prod(s)) for s in workloads.WORKLOADS[name].shapes.values())
    meeting = Meeting(torch.zeros(2, processes, numbers).share_memory_())
    others = []
    if processes > 1:
        context = mp.get_context("spawn")
        meeting.wait = context.Barrier(processes).wait
        for rank in range(1, processes):
            args = (name, rank, processes, options.rounds, meeting, frozenset())
            others.append(context.Process(target=train, args=args, daemon=True))
            others[-1].start()
    seconds, parameters, losses = train(name, 0, processes, options.rounds, meeting, losses_at)
    peak = contract.tree_peak_rss_mb()
    for other in others:
        other.join()
    contract.report(
        "flat-loop", name, options.mode, options.rounds, seconds, parameters,
        ["numpy", "torch"], peak, **({"losses": losses} if losses else {}),
    )  # fmt: skip


if __name__ == "__main__":
    main()
