"""Sweeps: many settings of one plan, judged on validation data, resumable.

Every trial is a run folder. Grid tries every combination; `samplers` draws those of the other
strategies. Successive halving (Jamieson and Talwalkar 2016) gives all trials a few rounds, keeps
the best 1/eta, and goes on with them from their checkpoints.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from cupola.pages.folder import RunFolder
from cupola.sweep import samplers
from cupola.sweep.pareto import COSTS, Trial, front, values
from cupola.sweep.search_space import Over, grid, parse_over
from cupola.sweep.trials import (
    NOT_CHARGED,
    claim,
    draw_report,
    folders_of,
    judged,
    listed,
    seeds_of,
    write_list,
)
from cupola.training.plan import Plan, changed

Strategy = Literal["grid", "random", "tpe", "halving"]
_ETA = 3
_TRIALS = 16  # by default


@dataclass(frozen=True)
class Sweep:
    """What is tried, and how. trials: as many; of grid and of what is drawn at once `chosen` has
    their settings. objectives: the metric, or the metric and `COSTS`. budget: rounds in all, over
    every trial and seed."""

    plan: PlanHeader
    over: tuple[Over, ...]
    strategy: Strategy = "grid"
    trials: int | None = None
    budget: int | None = None
    text: tuple[str, ...] = ()
    objectives: tuple[str, ...] = ()
    count: int = 0
    chosen: tuple[dict[str, Any], ...] = ()

    @property
    def seeds(self) -> tuple[int, ...]:
        return seeds_of(self.plan)

    def definition(self) -> dict[str, Any]:
        """What sweep.toml holds; another definition needs another folder."""
        said = {"over": list(self.text), "strategy": self.strategy}
        several = list(self.objectives) if len(self.objectives) > 1 else None
        extra = {"trials": self.trials, "budget": self.budget, "objectives": several}
        return {**said, **{k: v for k, v in extra.items() if v}, "plan": self.plan.given()}

    def draw(self, tried: Sequence[Trial]) -> dict[str, Any] | None:
        """The setting of the next trial."""
        lower = [name in (*COSTS, *LOWER_IS_BETTER) for name in self.objectives]
        reached = values(tried, self.objectives)
        before = [(trial.settings, found) for trial, found in zip(tried, reached)]
        startup = min(10, max(1, self.count // 3))
        seed = self.seeds[0]
        return samplers.draw(self.over, self.strategy, seed, before, lower, startup)

    def rungs(self) -> list[tuple[int, int]]:
        """(trials, rounds each has had by then), one for grid and random."""
        n, rounds = self.count, self.longest
        if self.strategy != "halving":
            return [(n, rounds)]
        while rounds > 1 and self.budget and self._cost(_ladder(n, rounds)) > self.budget:
            rounds -= 1
        return _ladder(n, rounds)

    @property
    def longest(self) -> int:
        """Rounds of a trial; the most, if they are varied."""
        own = next((axis for axis in self.over if axis.key == "rounds"), None)
        return rounds_of(self.plan) if own is None else int(max(own.values or (own.high,)))

    def cost(self) -> int:
        """Rounds in all; at most, of trials that are not drawn yet."""
        if self.strategy == "halving":
            return self._cost(self.rungs())
        known = [one.get("rounds", self.longest) for one in self.chosen]
        return len(self.seeds) * (sum(known) + (self.count - len(known)) * self.longest)

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
    objectives: Sequence[str] = (),
) -> Sweep:
    """A checked sweep: its plans are valid, there are validation data, the budget fits. Of what TPE
    is going to draw, every value and both ends of a range are checked, each with the first values
    of the other keys."""
    plan: PlanHeader = load(source, settings)
    if plan.grid:
        raise PlanError(f"plan '{plan.name}' has a [grid]; a sweep varies what --over says")
    if not over:
        raise PlanError("a sweep needs --over key=a,b,c, for example --over local.lr=0.01,0.1")
    axes = tuple(parse_over(text) for text in over)
    if len({axis.key for axis in axes}) < len(axes):
        raise PlanError("--over names a key twice; list its values in one --over")
    if strategy == "grid" and trials is not None:
        raise PlanError("--trials is for --strategy random, tpe and halving; a grid tries all")
    drawing = strategy in ("random", "tpe") or any(axis.is_range for axis in axes)
    sampled = drawing or trials is not None
    if strategy == "halving" and not hasattr(plan, "rounds"):
        raise PlanError(f"--strategy halving: a plan of kind '{plan.kind}' has no rounds")
    if strategy == "halving" and any(axis.key == "rounds" for axis in axes):
        raise PlanError(
            "--over rounds: halving decides how long a trial runs; use another strategy"
        )
    aims = _objectives(plan, objectives, strategy)
    made = Sweep(plan, axes, strategy, trials, budget, tuple(over), aims)
    if strategy == "grid" or not sampled:
        chosen = grid(axes)
    else:
        affordable = (budget or 0) // (made.longest * len(made.seeds))
        made = replace(made, count=trials or (strategy != "halving" and affordable) or _TRIALS)
        chosen = _ends(axes) if strategy == "tpe" else _drawn(made)
    plans = [_with(plan, one) for one in chosen]
    if strategy == "tpe":
        samplers.optuna()
    else:
        made = replace(made, count=len(chosen), chosen=tuple(chosen))
    for one in plans:
        analysis_of(one).require_score()
        if "epsilon" in aims and not analysis_of(one).private:
            raise PlanError("--objective epsilon: nothing protects the sites' answers; set privacy")
    if budget is not None and made.cost() > budget:
        raise PlanError(
            f"--budget {budget}: the sweep needs {made.cost():,} rounds; raise the budget, lower "
            "--trials or the plan's rounds, or use --strategy halving"
        )
    return made


def _objectives(plan: PlanHeader, given: Sequence[str], strategy: str) -> tuple[str, ...]:
    """The metric first; by default it alone."""
    metric = analysis_of(plan).metric or "result"
    for name in given:
        if name not in (metric, *COSTS):
            raise PlanError(f"--objective {name}: choose from {', '.join((metric, *COSTS))}")
    if len(set(given)) < len(given):
        raise PlanError("--objective names one twice")
    if given and metric not in given:
        raise PlanError(
            f"--objective {given[0]}: name {metric}, too; without it, sending nothing wins"
        )
    if len(given) > 1 and strategy == "halving":
        raise PlanError("--strategy halving ranks by one objective; use grid, random or tpe")
    return (metric, *(name for name in COSTS if name in given))


def _drawn(made: Sweep) -> list[dict[str, Any]]:
    """Settings that do not depend on results."""
    trials: list[Trial] = []
    while len(trials) < made.count and (chosen := made.draw(trials)) is not None:
        trials.append(Trial("", chosen, []))
    return [trial.settings for trial in trials]


def _ends(axes: Sequence[Over]) -> list[dict[str, Any]]:
    """Every value once, of ranges both ends."""
    known = {
        axis.key: axis.values or (axis.typed(axis.low), axis.typed(axis.high)) for axis in axes
    }
    first = {key: values[0] for key, values in known.items()}
    return [{**first, key: value} for key, values in known.items() for value in values]


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
    folder, scores = Path(folder), _Scores(Path(folder))
    goes_on = definition.strategy in ("random", "tpe")
    claim(folder, "sweep", definition.definition(), grows="trials" if goes_on else "")
    before = listed(folder, len(definition.seeds))  # an older version may have drawn otherwise
    trials: list[Trial] = []

    def add(chosen: dict[str, Any]) -> None:
        own = folders_of(folder, len(trials) + 1, definition.seeds)
        trials.append(Trial(_label(chosen, definition.over), chosen, own))

    def attempt(number: int, rounds: int) -> None:
        trial = trials[number]
        rounds = trial.settings.get("rounds", rounds)
        if not scores.recall(trial, rounds):
            tell(f"{trial.label}: to round {rounds} (trial {number + 1} of {definition.count})")
            _try(trial, definition, rounds, progress)
            scores.keep(trial)

    def write() -> None:
        entries = ((t.label, t.settings, t.folders) for t in trials)
        write_list(folder, entries, definition.seeds)

    for chosen in [*before, *definition.chosen[len(before) :]][: definition.count]:
        add(chosen)
    write()
    alive = list(range(len(trials)))
    for step, (keep, rounds) in enumerate(definition.rungs()):
        if step:
            scored = [(i, trials[i]) for i in alive if trials[i].score is not None]
            alive = _ranked(scored, definition.plan)[:keep]
        for i in alive:
            attempt(i, rounds)
    while len(trials) < definition.count and (found := definition.draw(trials)) is not None:
        add(found)
        write()  # before it runs: a resume goes on with it
        alive.append(len(trials) - 1)
        attempt(alive[-1], rounds_of(definition.plan))
    summary = _summary(definition, trials, alive)
    write_atomically(folder / "sweep.json", json.dumps(summary, indent=2))
    if summary["best"]:
        best = _with(definition.plan, summary["best"]["settings"])
        write_atomically(folder / "best.toml", tomli_w.dumps(best.given()))
    draw(folder)
    return summary


def _try(trial: Trial, definition: Sweep, rounds: int, progress: Watch | None) -> None:
    """Run a trial up to `rounds` for every seed; divergence is a result, and so is a combination
    that no plan allows; other errors stop."""
    runs: list[tuple[RunFolder, float]] = []
    trial.score = trial.reason = None
    try:
        plan = _with(definition.plan, trial.settings)
    except PlanError as error:
        trial.reason = str(error)
        return
    for seed, path in zip(definition.seeds, trial.folders):
        length = {"rounds": rounds} if hasattr(plan, "rounds") else {}
        one = plan.change({"seed": seed, **length})
        try:
            runs.append(judged(one, path, progress, anew=not lengthen(path, one)))
        except FederationError as error:
            trial.reason = str(error)
            return
    trial.rounds = rounds
    trial.score = sum(score for _, score in runs) / len(runs)
    trial.bytes = sum(found.bytes_sent for found, _ in runs) / len(runs)
    spent: list[Any] = [(one.result.get("privacy") or {}).get("epsilon") for one, _ in runs]
    trial.epsilon = None if None in spent else max(spent)
    if values([trial], definition.objectives) == [None]:
        trial.score, trial.reason = None, "its epsilon is not known"


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
        found = json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}
        self.known: dict[str, dict[str, float | None]] = {
            key: one if isinstance(one, dict) else {"score": one} for key, one in found.items()
        }  # earlier versions kept the score alone

    def recall(self, trial: Trial, rounds: int) -> bool:
        known = self.known.get(f"{trial.folders[0].name}@{rounds}")
        for name, value in (known or {}).items():
            setattr(trial, name, value)
        if known:
            trial.rounds = rounds
        return known is not None

    def keep(self, trial: Trial) -> None:
        if trial.score is not None:
            facts = {name: getattr(trial, name) for name in ("score", *COSTS)}
            self.known[f"{trial.folders[0].name}@{trial.rounds}"] = facts
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
        "metric": definition.objectives[0],
        "objectives": list(definition.objectives),
        "judged_on": "validation data",
        "over": [{"key": a.key, "values": list(a.values), "log": a.log} for a in definition.over],
        "rungs": [{"trials": n, "rounds": r} for n, r in rungs],
        "rounds": definition.cost(),
        "seeds": list(definition.seeds),
        "best": best.summary() if best.score is not None else None,
        "front": [trial.label for trial in front(trials, definition.objectives)],
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
