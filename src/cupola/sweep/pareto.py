"""Trials of a sweep by several objectives, and the Pareto front among them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cupola.base.formatting import LOWER_IS_BETTER

COSTS = ("bytes", "epsilon")  # what can be an objective beside the metric; less is better


@dataclass
class Trial:
    """One setting: its run folders (one per seed) and how it did on validation data.

    bytes: sent, on average over seeds. epsilon: the most that was spent; None: not known."""

    label: str
    settings: dict[str, Any]
    folders: list[Path]
    score: float | None = None
    rounds: int = 0
    reason: str | None = None
    bytes: float | None = None
    epsilon: float | None = None

    def summary(self) -> dict[str, Any]:
        return {**vars(self), "folders": [folder.name for folder in self.folders]}


def values(trials: Sequence[Trial], objectives: Sequence[str]) -> list[tuple[float, ...] | None]:
    """What trials reached in each objective; None of those that were not measured.

    Costs that differ by less than a hundredth count as one: questions are longer or shorter by the
    digits of a learning rate, and that is no reason to prefer it.
    """
    columns: list[list[Any]] = [[trial.score for trial in trials]]
    for name in objectives[1:]:
        column = [getattr(trial, name) for trial in trials]
        level = -math.inf
        levels: dict[float, float] = {}
        for cost in sorted(c for c in column if c is not None):
            level = levels[cost] = cost if cost > 1.01 * level else level
        columns.append([levels.get(cost) for cost in column])
    return [None if None in row else row for row in zip(*columns)]


def front(trials: Sequence[Trial], objectives: Sequence[str]) -> list[Trial]:
    """The Pareto front: no other trial is as good in every objective, and better in one."""
    sign = -1 if objectives[0] in LOWER_IS_BETTER else 1
    points = [
        (trial, (sign * row[0], *(-cost for cost in row[1:])))
        for trial, row in zip(trials, values(trials, objectives))
        if row is not None
    ]
    return [
        trial
        for trial, mine in points
        if not any(o != mine and all(a >= b for a, b in zip(o, mine)) for _, o in points)
    ]
