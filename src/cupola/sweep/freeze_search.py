"""What to freeze: FedPT's four principles (001, section 3.1) as a search over a model's blocks.

    1. Start from freezing the largest parameter block of a network.
    2. Add more blocks if it did not degrade the accuracy.
    3. Switch to a smaller block if it did.
    4. Repeat these steps.

A block is a module of the model. One that degrades is given back, and its own modules, which are
smaller, take its place in the queue; what is accepted stays frozen. The last layer and
normalisation layers are always trained, and so is what is too small to matter. A trial is judged on
validation data against full training; test data choose nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
from torch import nn

from cupola.analysis.plan_file import load
from cupola.analysis.session import Watch
from cupola.base.files import write_atomically
from cupola.base.formatting import LOWER_IS_BETTER
from cupola.errors import FederationError, PlanError
from cupola.sweep.trials import (
    NOT_CHARGED,
    claim,
    draw_report,
    folders_of,
    judged,
    seeds_of,
    write_list,
)
from cupola.training import build
from cupola.training.choices import Subset
from cupola.training.frozen import frozen_names, share
from cupola.training.plan import Plan
from cupola.training.selection import require_validation

TRIALS = 8  # that the default budget allows
LEAST = 0.01  # share of the parameters below which a block is not worth a trial


@dataclass(frozen=True)
class Block:
    """A module, and how many of its parameters freezing it would save."""

    name: str
    size: int


@dataclass(frozen=True)
class Search:
    """What is searched. tolerance: how much worse than full training is still as good, in the
    metric's own units. budget: rounds in all, over trials and seeds."""

    plan: Plan
    tolerance: float
    budget: int
    keep: tuple[str, ...] = ()

    @property
    def seeds(self) -> tuple[int, ...]:
        return seeds_of(self.plan)

    @property
    def trials(self) -> int:
        """That the budget allows, full training included."""
        return self.budget // (self.plan.rounds * len(self.seeds))

    def definition(self) -> dict[str, Any]:
        said = {"tolerance": self.tolerance, "budget": self.budget, "keep": list(self.keep)}
        return {**said, "plan": self.plan.given()}


@dataclass
class Trial:
    """A set of frozen blocks: its mean score over seeds, its bytes, and what became of it."""

    freeze: list[str]
    folders: list[Path]
    trainable: float = 1.0
    score: float | None = None
    bytes: float | None = None
    accepted: bool = False
    reason: str | None = None

    @property
    def label(self) -> str:
        return "frozen: " + ", ".join(self.freeze) if self.freeze else "nothing frozen"

    @property
    def settings(self) -> dict[str, Any]:
        return {"trainable.freeze": self.freeze}

    def summary(self) -> dict[str, Any]:
        return {
            "freeze": self.freeze,
            "trainable": self.trainable,
            "score": self.score,
            "bytes": self.bytes,
            "accepted": self.accepted,
            "reason": self.reason,
            "folders": [folder.name for folder in self.folders],
        }


def define(
    source: str | Path | dict[str, Any] | Plan,
    tolerance: float = 0.01,
    budget: int | None = None,
    keep: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> Search:
    """A checked search: there are validation data, blocks to freeze, and rounds for two trials."""
    plan = load(source, settings, of=Plan)
    if plan.grid:
        raise PlanError(f"plan '{plan.name}' has a [grid]; search one plan at a time")
    if plan.trainable.only:
        raise PlanError("a search adds to trainable.freeze; write 'only' as what is frozen instead")
    require_validation(plan)
    whole = plan.rounds * len(plan.seeds or (1,))
    made = Search(plan, tolerance, whole * TRIALS if budget is None else budget, tuple(keep))
    if made.trials < 2:
        raise PlanError(
            f"--budget {budget}: full training and one trial need {2 * whole:,} rounds; raise it "
            "or lower the plan's rounds"
        )
    model = _model(plan)
    if not _first(model, [], made.keep):
        raise PlanError(f"model '{plan.model.name}' has no block to freeze beside its last layer")
    return made


def _model(plan: Plan) -> nn.Module:
    one = plan.change({"seed": plan.seeds[0]}) if plan.seeds else plan
    return build.problem(one).build()


def blocks(module: nn.Module, place: str, keep: Sequence[str] = ()) -> list[Block]:
    """The modules right below `place` ('': the whole model) that could be frozen, in order."""
    *_, last = [name for name, p in module.named_parameters() if p.requires_grad]
    kept_names = {last.rpartition(".")[0]}
    if keep:
        named = set(frozen_names(Subset(freeze=tuple(keep), norms=True), module, "--keep"))
        kept_names |= {name.rpartition(".")[0] for name in named}
    found = []
    total = share(module).parameters
    inner = module.get_submodule(place) if place else module
    for child, _ in inner.named_children():
        name = f"{place}.{child}" if place else child
        try:
            names = frozen_names(Subset(freeze=(name,)), module)
        except PlanError:
            continue  # without parameters, or normalisation only
        if any(n.rpartition(".")[0] in kept_names for n in names):
            found += blocks(module, name, keep)  # what is beside the layer that is kept
            continue
        size = sum(module.get_parameter(n).numel() for n in names)
        if size >= LEAST * total:
            found.append(Block(name, size))
    return found


def _first(module: nn.Module, done: Sequence[str], keep: Sequence[str]) -> list[Block]:
    return [b for b in blocks(module, "", keep) if b.name not in done]


@dataclass
class _Queue:
    """Blocks that were not tried, largest first; of equals the later one, which sees features that
    are further from the data."""

    waiting: list[Block] = field(default_factory=list)

    def add(self, more: Sequence[Block]) -> None:
        self.waiting += more

    def pop(self) -> Block | None:
        if not self.waiting:
            return None
        size = max(block.size for block in self.waiting)
        at = max(i for i, block in enumerate(self.waiting) if block.size == size)
        return self.waiting.pop(at)


def search(
    definition: Search,
    folder: str | Path,
    progress: Watch | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Carry a search out, or go on with it: finished trials are read, not run again. Returns (and
    writes) its summary, search.json; best.toml is the plan that sends least and is as good."""
    folder = Path(folder)
    claim(folder, "search", definition.definition(), grows="budget")
    plan, module = definition.plan, _model(definition.plan)
    before = list(plan.trainable.freeze)
    trials: list[Trial] = []

    def attempt(freeze: list[str], said: str) -> Trial:
        number = len(trials) + 1
        made = Trial(freeze, folders_of(folder, number, definition.seeds))
        trials.append(made)
        write_list(folder, ((t.label, t.settings, t.folders) for t in trials), definition.seeds)
        tell(f"trial {number} of at most {definition.trials}: {said}")
        _try(made, plan, definition.seeds, progress)
        return made

    full = attempt(before, "full training" if not before else "the plan as it is")
    full.accepted = full.score is not None
    queue, stopped = _Queue(_first(module, before, definition.keep)), ""
    if full.score is None:
        stopped = f"full training was not measured: {full.reason}"
    frozen = before
    while not stopped and (block := queue.pop()) is not None:
        if len(trials) >= definition.trials:
            stopped = "the budget is spent"
            break
        made = attempt([*frozen, block.name], f"freeze '{block.name}' ({block.size:,} parameters)")
        if _holds(made, full, definition):
            made.accepted, frozen = True, made.freeze
            tell("  as good: it stays frozen")
        else:
            smaller = blocks(module, block.name, definition.keep)
            queue.add(smaller)
            tell("  worse: given back" + (", its parts are tried" if smaller else ""))
    summary = _summary(definition, trials, stopped or "every block was tried")
    write_atomically(folder / "search.json", json.dumps(summary, indent=2))
    if summary["best"]:
        best = plan.change({"trainable.freeze": summary["best"]["freeze"]})
        write_atomically(folder / "best.toml", tomli_w.dumps(best.given()))
    draw(folder)
    return summary


def _holds(trial: Trial, full: Trial, definition: Search) -> bool:
    if trial.score is None or full.score is None:
        return False
    sign = -1 if definition.plan.evaluation.metric in LOWER_IS_BETTER else 1
    return sign * (trial.score - full.score) >= -definition.tolerance


def _try(trial: Trial, plan: Plan, seeds: Sequence[int], progress: Watch | None) -> None:
    """Run a trial for every seed; divergence is a result, other errors stop."""
    scores, sent = [], []
    for seed, path in zip(seeds, trial.folders):
        one = plan.change({"seed": seed, **trial.settings})
        counted = share(build.problem(one).build())
        trial.trainable = counted.trainable
        try:
            found, score = judged(one, path, progress)
        except FederationError as error:
            trial.reason = str(error)
            return
        scores.append(score)
        sent.append(float(found.bytes_sent or 0))
    trial.score, trial.bytes = sum(scores) / len(scores), sum(sent) / len(sent)


def _summary(definition: Search, trials: Sequence[Trial], ended: str) -> dict[str, Any]:
    good = [t for t in trials if t.accepted and t.bytes is not None]
    best = min(good, key=lambda t: t.bytes or 0.0, default=None)
    return {
        "name": definition.plan.name,
        "metric": definition.plan.evaluation.metric,
        "judged_on": "validation data",
        "tolerance": definition.tolerance,
        "rounds": len(trials) * definition.plan.rounds * len(definition.seeds),
        "budget": definition.budget,
        "seeds": list(definition.seeds),
        "ended": ended,
        "best": None if best is None else best.summary(),
        "trials": [trial.summary() for trial in trials],
        "privacy": NOT_CHARGED,
    }


def draw(folder: str | Path) -> Path:
    """The report of a search: accuracy against bytes, and every trial."""
    from cupola.sweep.sweep_sections import search_section

    folder = Path(folder)
    summary = json.loads((folder / "search.json").read_text("utf-8"))
    name = f"What to freeze in {summary['name']}"
    return draw_report(folder, summary, name, search_section(summary))
