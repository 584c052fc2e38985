"""Sweeps: many settings of one plan, judged on validation data, resumable.

Every trial is a run folder. Successive halving (Jamieson and Talwalkar 2016) gives all trials a few
rounds, keeps the best 1/eta, and goes on with them from their checkpoints.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tomli_w

from cupola.analysis.checkpoint import write_sealed
from cupola.analysis.header import PlanHeader
from cupola.analysis.kinds import analysis_of
from cupola.analysis.plan_file import Source, load
from cupola.analysis.protocol import Watch
from cupola.base.files import write_atomically
from cupola.base.formatting import LOWER_IS_BETTER
from cupola.errors import FederationError, PlanError
from cupola.sweep.search_space import Over, grid, parse_over, sample
from cupola.sweep.trials import (
    NOT_CHARGED,
    claim,
    draw_report,
    folders_of,
    judged,
    seeds_of,
    write_list,
)
from cupola.training.plan import Plan, changed

Strategy = Literal["grid", "random", "halving"]
_ETA = 3


@dataclass
class Trial:
    """One setting: its run folders (one per seed) and how it did on validation data."""

    label: str
    settings: dict[str, Any]
    folders: list[Path]
    score: float | None = None
    rounds: int = 0
    reason: str | None = None

    def summary(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "settings": self.settings,
            "score": self.score,
            "rounds": self.rounds,
            "reason": self.reason,
            "folders": [folder.name for folder in self.folders],
        }


@dataclass(frozen=True)
class Sweep:
    """What is tried, and how. budget: rounds in all, over every trial and seed."""

    plan: PlanHeader
    over: tuple[Over, ...]
    strategy: Strategy = "grid"
    trials: int | None = None
    budget: int | None = None
    text: tuple[str, ...] = ()
    plans: list[tuple[dict[str, Any], PlanHeader]] = field(default_factory=list)

    @property
    def seeds(self) -> tuple[int, ...]:
        return seeds_of(self.plan)

    def definition(self) -> dict[str, Any]:
        """What sweep.toml holds; another definition needs another folder."""
        said = {"over": list(self.text), "strategy": self.strategy}
        extra = {"trials": self.trials, "budget": self.budget}
        return {**said, **{k: v for k, v in extra.items() if v}, "plan": self.plan.given()}

    def rungs(self) -> list[tuple[int, int]]:
        """(trials, rounds each has had by then), one for grid and random."""
        n, rounds = len(self.plans), rounds_of(self.plan)
        if self.strategy != "halving":
            return [(n, rounds)]
        while rounds > 1 and self.budget and self._cost(_ladder(n, rounds)) > self.budget:
            rounds -= 1
        return _ladder(n, rounds)

    def cost(self) -> int:
        """Rounds in all."""
        return self._cost(self.rungs())

    def _cost(self, rungs: list[tuple[int, int]]) -> int:
        before = [0, *(rounds for _, rounds in rungs[:-1])]
        return len(self.seeds) * sum(n * (r - b) for (n, r), b in zip(rungs, before))


def _ladder(trials: int, rounds: int) -> list[tuple[int, int]]:
    steps = max(1, math.floor(math.log(trials, _ETA) + 1e-9) + 1) if trials > 1 else 1
    rungs = [
        (max(1, trials // _ETA**k), math.ceil(rounds / _ETA ** (steps - 1 - k)))
        for k in range(steps)
    ]
    return [r for i, r in enumerate(rungs) if i + 1 == len(rungs) or r[1] < rungs[i + 1][1]]


def define(
    source: Source,
    over: Sequence[str],
    strategy: Strategy = "grid",
    trials: int | None = None,
    budget: int | None = None,
    settings: Sequence[str] = (),
) -> Sweep:
    """A checked sweep: every trial's plan is valid, there are validation data, the budget fits."""
    plan: PlanHeader = load(source, settings)
    if plan.grid:
        raise PlanError(f"plan '{plan.name}' has a [grid]; a sweep varies what --over says")
    if not over:
        raise PlanError("a sweep needs --over key=a,b,c, for example --over local.lr=0.01,0.1")
    axes = tuple(parse_over(text) for text in over)
    if len({axis.key for axis in axes}) < len(axes):
        raise PlanError("--over names a key twice; list its values in one --over")
    sampled = strategy == "random" or any(axis.is_range for axis in axes) or trials is not None
    if strategy == "grid" and trials is not None:
        raise PlanError("--trials is for --strategy random or halving; a grid tries everything")
    if strategy != "grid" and sampled:
        affordable = (budget or 0) // (rounds_of(plan) * len(plan.seeds or (1,)))
        number = trials or (affordable if strategy == "random" and budget else 16)
        chosen = sample(axes, max(1, number), seeds_of(plan)[0])
    else:
        chosen = grid(axes)
    plans = [(one, _with(plan, one)) for one in chosen]
    made = Sweep(plan, axes, strategy, trials, budget, tuple(over), plans)
    if strategy == "halving" and not hasattr(plan, "rounds"):
        raise PlanError(f"--strategy halving: a plan of kind '{plan.kind}' has no rounds")
    analysis_of(plans[0][1]).require_score()
    if budget is not None and made.cost() > budget:
        raise PlanError(
            f"--budget {budget}: the sweep needs {made.cost():,} rounds; raise the budget, lower "
            "--trials or the plan's rounds, or use --strategy halving"
        )
    return made


def _with(plan: PlanHeader, chosen: dict[str, Any], **more: Any) -> PlanHeader:
    try:
        return load(changed(plan.given(), {**chosen, **more}))
    except PlanError as error:
        said = ", ".join(f"{k}={v}" for k, v in chosen.items())
        raise PlanError(f"--over {said}: {str(error).removeprefix('plan: ')}") from None


def sweep(
    definition: Sweep,
    folder: str | Path,
    progress: Watch | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Carry a sweep out, or go on with it. Returns (and writes) its summary, sweep.json."""
    folder = Path(folder)
    claim(folder, "sweep", definition.definition())
    trials = [
        Trial(_label(chosen, definition.over), chosen, folders_of(folder, i, definition.seeds))
        for i, (chosen, _) in enumerate(definition.plans, 1)
    ]
    write_list(folder, ((t.label, t.settings, t.folders) for t in trials), definition.seeds)
    scores, alive = _Scores(folder), list(range(len(trials)))
    for step, (keep, rounds) in enumerate(definition.rungs()):
        if step:
            scored = [(i, trials[i]) for i in alive if trials[i].score is not None]
            alive = _ranked(scored, definition.plan)[:keep]
        for i in alive:
            if not scores.recall(trials[i], rounds):
                tell(f"{trials[i].label}: to round {rounds} (trial {i + 1} of {len(trials)})")
                _try(trials[i], definition.plans[i][1], definition.seeds, rounds, progress)
                scores.keep(trials[i])
    summary = _summary(definition, trials, alive)
    write_atomically(folder / "sweep.json", json.dumps(summary, indent=2))
    if summary["best"]:
        best = _with(definition.plan, summary["best"]["settings"])
        write_atomically(folder / "best.toml", tomli_w.dumps(best.given()))
    draw(folder)
    return summary


def _try(
    trial: Trial, plan: PlanHeader, seeds: Sequence[int], rounds: int, progress: Watch | None
) -> None:
    """Run a trial up to `rounds` for every seed; divergence is a result, other errors stop."""
    scores: list[float] = []
    trial.score = trial.reason = None
    for seed, path in zip(seeds, trial.folders):
        length = {"rounds": rounds} if hasattr(plan, "rounds") else {}
        one = plan.change({"seed": seed, **length})
        try:
            scores.append(judged(one, path, progress, anew=not lengthen(path, one))[1])
        except FederationError as error:
            trial.reason = str(error)
            return
    trial.rounds = rounds
    trial.score = sum(scores) / len(scores)


def rounds_of(plan: PlanHeader) -> int:
    """How long a run is; one, of an analysis that has no rounds."""
    return getattr(plan, "rounds", 1)


def lengthen(folder: Path, plan: PlanHeader) -> bool:
    """Let a shorter run of the same plan go on to `plan.rounds`; False if it must begin anew.

    It must where the learning rate depends on the number of rounds (a cosine, say).
    """
    if not (folder / "plan.toml").exists() or not isinstance(plan, Plan):
        return True
    there = load(folder / "plan.toml", of=Plan)
    if there.rounds >= plan.rounds or there.change({"rounds": plan.rounds}) != plan:
        return True  # nothing to lengthen: the run itself says what is wrong, if anything
    schedules = (plan.local.schedule, plan.server.schedule)
    if any(schedule is not None and schedule.by_length for schedule in schedules):
        return False
    (folder / "result.json").unlink(missing_ok=True)
    write_sealed(folder / "plan.toml", plan.to_toml())
    return True


class _Scores:
    """Scores of finished trials by rounds, kept so that a resume ranks as the first time."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "scores.json"
        self.known: dict[str, float] = (
            json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}
        )

    def recall(self, trial: Trial, rounds: int) -> bool:
        score = self.known.get(f"{trial.folders[0].name}@{rounds}")
        if score is not None:
            trial.score, trial.rounds = score, rounds
        return score is not None

    def keep(self, trial: Trial) -> None:
        if trial.score is not None:
            self.known[f"{trial.folders[0].name}@{trial.rounds}"] = trial.score
            write_atomically(self.path, json.dumps(self.known, indent=2))


def _ranked(trials: list[tuple[int, Trial]], plan: PlanHeader) -> list[int]:
    """Places of the trials, best first; without a score last."""
    sign = 1 if analysis_of(plan).metric in LOWER_IS_BETTER else -1
    order = [(sign * t.score if t.score is not None else math.inf, i) for i, t in trials]
    return [i for _, i in sorted(order)]


def _summary(definition: Sweep, trials: list[Trial], alive: list[int]) -> dict[str, Any]:
    order = _ranked([(i, trials[i]) for i in alive], definition.plan)
    order += [i for i in _ranked(list(enumerate(trials)), definition.plan) if i not in alive]
    best = trials[order[0]]
    rungs = definition.rungs()
    return {
        "name": definition.plan.name,
        "strategy": definition.strategy,
        "metric": analysis_of(definition.plan).metric or "result",
        "judged_on": "validation data",
        "over": [{"key": a.key, "values": list(a.values), "log": a.log} for a in definition.over],
        "rungs": [{"trials": n, "rounds": r} for n, r in rungs],
        "rounds": definition.cost(),
        "seeds": list(definition.seeds),
        "best": best.summary() if best.score is not None else None,
        "trials": [trials[i].summary() for i in order],
        "privacy": NOT_CHARGED,
    }


def _label(chosen: dict[str, Any], over: Sequence[Over]) -> str:
    leaves = [axis.key.rsplit(".", 1)[-1] for axis in over]
    names = {
        axis.key: leaf if leaves.count(leaf) == 1 else axis.key for axis, leaf in zip(over, leaves)
    }
    return ", ".join(f"{names[k]} = {v}" for k, v in chosen.items())


def draw(folder: str | Path) -> Path:
    """The report of a sweep."""
    from cupola.sweep.sweep_sections import sweep_section

    folder = Path(folder)
    summary = json.loads((folder / "sweep.json").read_text("utf-8"))
    return draw_report(folder, summary, f"Sweep of {summary['name']}", sweep_section(summary))
