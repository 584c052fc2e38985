"""Runs that differ only in their seed belong together: mean, spread and cost to a target."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from cupola.analysis.overrides import flat
from cupola.base.formatting import LOWER_IS_BETTER, finite, mean_spread
from cupola.pages.folder import AXES, RunFolder, sent

# What does not change the result, or is the seed itself.
_NEUTRAL = {
    "seed",
    "seeds",
    "name",
    "grid",
    "device",
    "engine",
    "track",
    "checkpoint_seconds",
    "twin",
}


@dataclass(frozen=True)
class Group:
    """Runs of one setting over seeds."""

    label: str
    runs: list[RunFolder]

    @property
    def central(self) -> bool:
        """Whether all data lie at one site: its bytes are no cost of learning together."""
        sites = (r.result.get("sites") or r.partition.get("sites") for r in self.runs)
        return all(n == 1 for n in sites)

    def reached(self, metric: str) -> tuple[list[float], list[float]]:
        """Bytes sent, and the best mean level reached by then."""
        x, y, _ = self.band(metric, "bytes")
        return x, list(accumulate(y, min if metric in LOWER_IS_BETTER else max))

    def finals(self, metric: str) -> list[float]:
        return [v for run in self.runs if (v := run.final(metric)) is not None]

    def band(
        self, metric: str, axis: str, split: str | None = None
    ) -> tuple[list[float], list[float], list[float] | None]:
        """x, mean and standard deviation at the rounds that every run has reached."""
        tables = [
            {r.get("round"): (AXES[axis](r), v) for r, v in run.curve(metric, split)}
            for run in self.runs
        ]
        tables = [t for t in tables if t]
        if not tables:
            return [], [], None
        rounds = [r for r in tables[0] if all(r in t for t in tables)]
        points = np.array([[t[r] for t in tables] for r in rounds]).reshape(len(rounds), -1, 2)
        spread = points[:, :, 1].std(1, ddof=1).tolist() if len(tables) > 1 else None
        return points[:, :, 0].mean(1).tolist(), points[:, :, 1].mean(1).tolist(), spread

    def epsilon(self) -> float | None:
        """The largest that any run spent; None where nothing is private."""
        spent = [run.result["privacy"]["epsilon"] for run in self.runs if run.result.get("privacy")]
        return max((math.inf if e is None else float(e) for e in spent), default=None)

    def neighbours(self) -> str | None:
        """For which neighbouring data sets its epsilon holds: of the run that spent most."""
        spent = [run.result["privacy"] for run in self.runs if run.result.get("privacy")]
        if not spent:
            return None
        most = max(spent, key=lambda s: math.inf if s["epsilon"] is None else s["epsilon"])
        return most.get("neighbours")

    def row(self, metric: str, target: float | None) -> dict[str, Any]:
        """One line of the table; means over the runs, None where a run did not reach the target."""
        mean, spread = mean_spread(self.finals(metric))
        best = [v for run in self.runs if (v := run.best(metric)) is not None]
        hits = [run.reached(target, metric) if target is not None else None for run in self.runs]
        met = [hit for hit in hits if hit is not None]
        everyone = bool(met) and len(met) == len(self.runs)

        def average(values: list[Any]) -> float | None:
            return mean_spread([float(v) for v in values if finite(v)])[0]

        return {
            "label": self.label,
            "runs": len(self.runs),
            "finished": sum(run.status == "finished" for run in self.runs),
            "seeds": [run.seed for run in self.runs],
            "metric": metric,
            metric: mean,
            "spread": spread,
            "best": average(best),
            "rounds": average([run.rounds for run in self.runs]),
            "bytes": None if self.central else average([run.bytes_sent for run in self.runs]),
            "epsilon": self.epsilon(),
            "neighbours": self.neighbours(),
            "seconds": average([run.seconds for run in self.runs]),
            "target": target,
            "reached": len(met),
            "rounds_to_target": average([h.get("round") for h in met]) if everyone else None,
            "bytes_to_target": (
                average([sent(h) for h in met]) if everyone and not self.central else None
            ),
            "seconds_to_target": average([h.get("seconds") for h in met]) if everyone else None,
            "folders": [str(run.path) for run in self.runs],
        }


def group(runs: Sequence[RunFolder]) -> list[Group]:
    """Group runs by everything but the seed; the same seed twice makes two groups."""
    found: dict[tuple[str, int], list[RunFolder]] = {}
    for run in runs:
        key = _key(run)
        turn = sum(run.seed == r.seed for (k, _), held in found.items() if k == key for r in held)
        found.setdefault((key, turn), []).append(run)
    members = list(found.values())
    return [Group(label, held) for label, held in zip(_labels(members), members)]


def common_metric(runs: Sequence[RunFolder]) -> str:
    """The metric most runs are judged by."""
    names = [run.metric for run in runs if run.split]
    return max(names, key=names.count) if names else "accuracy"


def easy_target(groups: Sequence[Group], metric: str) -> float | None:
    """A round figure that every run reaches, so that costs can be compared."""
    best = [v for g in groups for run in g.runs if (v := run.best(metric)) is not None]
    if not best:
        return None
    if metric in LOWER_IS_BETTER:
        worst = max(best)
        step = 10 ** math.floor(math.log10(worst)) / 20 if worst > 0 else 1.0
        return round(math.ceil(worst / step) * step, 12)
    worst = min(best)
    step = 0.05 if worst > 0.1 else 0.01
    return round(math.floor(worst / step + 1e-9) * step, 12)


def _key(run: RunFolder) -> str:
    if run.group:
        return json.dumps([str(run.path.parent), run.group])
    if not run.plan:
        return json.dumps([run.recipe, run.name, str(run.path.parent)])
    rest = {k: v for k, v in run.plan.items() if k not in _NEUTRAL}
    return json.dumps(rest, sort_keys=True, default=str)


def _labels(members: list[list[RunFolder]]) -> list[str]:
    """The shortest names that tell the groups apart: recipe, then what differs, then folders."""
    first = [held[0] for held in members]
    for name in (
        [run.group for run in first],
        [run.recipe for run in first],
        [run.name for run in first],
    ):
        if all(name) and len(set(name)) == len(name):
            return name
    plans = [{k: v for k, v in run.plan.items() if k not in _NEUTRAL} for run in first]
    settings = [dict(flat(plan)) for plan in plans]
    one_recipe = len({run.recipe for run in first}) == 1
    labels = []
    for run, mine in zip(first, settings):
        peers = [f for r, f in zip(first, settings) if r.recipe == run.recipe]
        keys = [k for k in mine if any(mine[k] != p.get(k) for p in peers) and k != "recipe"]
        leaves = [k.rsplit(".", 1)[-1] for k in keys]
        names = [leaf if leaves.count(leaf) == 1 else k for k, leaf in zip(keys, leaves)]
        said = ", ".join(f"{n} = {_short(mine[k])}" for n, k in zip(names[:4], keys))
        labels.append(said if one_recipe and said else " · ".join(filter(None, (run.recipe, said))))
    if len(set(labels)) == len(labels):
        return labels
    return [f"{label} ({held[0].path.name})".strip() for label, held in zip(labels, members)]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
