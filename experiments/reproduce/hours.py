"""How long the runs behind a table will take, before they begin.

Every distinct kind of run is tried: a round with the same model and batches, but at few sites and
on few samples; its time is scaled to the samples of a whole round. Likewise an evaluation. Where
a run of the same kind is finished in the folder, its own pace counts instead.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cupola.analysis.run_folder import Run
from cupola.analysis.simulated import federation
from cupola.base.files import write_atomically
from cupola.data import FederatedData, SiteData
from cupola.errors import CupolaError
from cupola.federation import Federation
from cupola.training import Evaluation, Local, build
from cupola.training.analysis import TrainingAnalysis
from cupola.training.plan import Plan
from cupola.training.plan import changed as with_settings
from reproduce.run import Job, distinct

SAMPLES = 512  # of a trial round, in all
QUICK = 5.0  # seconds; what takes less is timed again, without what only the first time pays
FILE = "hours.json"
#: Settings that do not change the time of a round.
_ALIKE = {
    "": ("name", "seed", "seeds", "rounds", "checkpoint_seconds"),
    "data": ("partition_seed", "seed"),
    "local": ("lr", "momentum", "weight_decay", "schedule", "proximal"),
    "server": ("lr", "schedule"),
    "privacy": (
        "epsilon",
        "noise",
        "answer_epsilon",
        "delta",
        "clip",
        "accountant",
        "published",
        "budget",
    ),
}


@dataclass(frozen=True)
class Pace:
    """Seconds of a training round and of an evaluation."""

    round: float
    evaluation: float = 0.0

    def seconds(self, plan: Plan, rounds: int) -> float:
        """Of so many more rounds of this plan, its twin's included."""
        each = self.round + self.evaluation / plan.evaluation.every
        seconds = rounds * each * (2 if plan.twin else 1)
        if plan.personalise is not None:  # every method does a round's local work at every site
            seconds += plan.personalise.rounds * len(plan.personalise.methods) * each
        return seconds


@dataclass(frozen=True)
class Forecast:
    """runs: all; done: finished ones; seconds: that the others need, but those of `unknown` kind
    (a trial of which failed)."""

    runs: int
    done: int
    seconds: float
    unknown: int = 0

    def __str__(self) -> str:
        text = f"{self.runs} runs, {self.done} done; "
        text += f"about {_hours(self.seconds)} for the other {self.runs - self.done}"
        if self.unknown:
            text += f", without {self.unknown} that could not be tried"
        return text if self.runs > self.done else f"{self.runs} runs, all done"

    def facts(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "done": self.done,
            "hours": round(self.seconds / 3600, 6),
            "unknown": self.unknown,
        }


def forecast(
    work: Sequence[Job], folder: str | Path, tell: Callable[[str], None] = lambda _: None
) -> Forecast:
    """The time that unfinished jobs need on this machine; trials are remembered in `folder`."""
    folder = Path(folder)
    paces = _remembered(folder / FILE)
    runs = [(job, Run(job.folder, job.plan)) for job in distinct(work)]
    finished = {kind_of(job.plan): _own(run) for job, run in runs if run.status == "finished"}
    seconds, unknown, failed = 0.0, 0, set[str]()
    for job, run in runs:
        if run.status == "finished":
            continue
        kind = kind_of(job.plan)
        pace = finished.get(kind) or paces.get(kind)
        if pace is None and kind not in failed:
            tell(f"trying {job.label}")
            try:
                pace = paces[kind] = trial(job.plan)
                _remember(folder / FILE, paces)
            except CupolaError as error:  # not remembered: what was missing may be there next time
                failed.add(kind)
                tell(f"cannot be tried: {error}")
        if pace is None:
            unknown += 1
        else:
            seconds += pace.seconds(job.plan, max(0, job.plan.rounds - len(run.history)))
    done = sum(run.status == "finished" for _, run in runs)
    return Forecast(len(runs), done, seconds, unknown)


def kind_of(plan: Plan) -> str:
    """Plans of one kind take equally long a round, on one machine."""
    facts = plan.to_dict()
    for section, keys in _ALIKE.items():
        place = facts.get(section, {}) if section else facts
        for key in keys:
            place.pop(key, None)
    if facts.get("server", {}).get("upcycle"):
        facts["server"]["upcycle"] = True  # half of the rounds are free, whatever the factor
    machine = [torch.get_num_threads(), torch.cuda.is_available()]
    text = json.dumps([facts, machine], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def trial(plan: Plan) -> Pace:
    """Seconds of a round and an evaluation, from a round on few images."""
    plan = _plain(plan)
    host = build.host(plan)
    program = build.training(plan, host)
    share = program.training_rounds / plan.rounds  # of rounds that ask sites to train
    program = replace(program, rounds=plan.rounds + 1, evaluation=Evaluation(every=plan.rounds + 1))
    state = program.start()
    ask = program.ask(state)
    assert ask is not None
    sizes = host.sites.sizes(ask.sites)
    # Batches stay whole, up to a limit; then as many sites as fill it.
    each = min(SAMPLES, program.local.batch_size, max(1, int(sizes.max(initial=1))))
    count = len(sizes) if plan.sum.masked else min(len(sizes), max(1, SAMPLES // each))
    largest = np.argsort(-sizes, kind="stable")[:count]
    most = max(each, SAMPLES // count)
    small = replace(host, sites=_cut(host.sites, most))
    asked = [ask.sites[i] for i in sorted(largest)]

    def opened() -> AbstractContextManager[Federation]:
        return federation(TrainingAnalysis(plan), small)  # anew: a site may not answer twice

    after, took = _timed(
        lambda reach: program.answer(state, reach.sum(ask.question, asked)), opened
    )
    part = seen(program.local, np.minimum(sizes[largest], most))
    round = share * took * seen(program.local, sizes) / max(1, part)
    rows = next((d for d in host.sites.public.values() if len(d)), None)
    if rows is None:
        return Pace(round)
    few = rows.subset(slice(0, SAMPLES))
    _, took = _timed(lambda _: program.judge(after.arrays, few))
    every = sum(map(len, host.sites.public.values())) + _held_out(host.sites)
    every += int(host.sites.sizes().sum()) if plan.evaluation.train else 0
    return Pace(round, took * every / len(few))


def _timed(
    act: Callable[[Any], Any], within: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> tuple[Any, float]:
    """What comes out, and the seconds it took."""
    for _ in range(2):
        with within() as given:
            began = time.monotonic()
            made = act(given)
            took = time.monotonic() - began
        if took > QUICK:
            break
    return made, took


def seen(local: Local, sizes: np.ndarray) -> int:
    """Samples that sites of these sizes compute on in a round."""
    if local.work == "gradient":
        return int(sizes.sum())
    if local.work == "batches":
        return int(np.minimum(sizes, local.batch_size).sum()) * local.batches
    return int(sizes.sum()) * local.epochs


def _held_out(data: FederatedData) -> int:
    """Validation and test rows at all sites, from a look at a few."""
    looked = [data.site(i) for i in range(min(len(data), 10))]
    mean = sum(len(s.validation) + len(s.test) for s in looked) / max(1, len(looked))
    return round(mean * len(data))


def _cut(data: FederatedData, most: int) -> FederatedData:
    """The same sites, each with at most so many training rows and nothing held out."""

    def site(i: int) -> SiteData:
        return SiteData(data.site(i).train.subset(slice(0, most)))

    return FederatedData(
        len(data),
        site,
        kind=data.kind,
        classes=data.classes,
        input_shape=data.input_shape,
        sizes=lambda index: np.minimum(data.sizes(index), most),
        name=data.name,
        **data.token_facts,
    )


def _plain(plan: Plan) -> Plan:
    """The plan without what a trial must not do: ask for other processes, look for noise, spend."""
    settings: dict[str, Any] = {"engine.kind": "in-process", "twin": False}
    given = plan.to_dict()
    privacy = given.get("privacy", {})
    privacy.pop("budget", None)
    if privacy.get("epsilon") is not None and plan.privacy.mechanism in _NOISED:
        del privacy["epsilon"]
        settings["privacy.noise_multiplier"] = 1.0
    return Plan.model_validate(with_settings(given, settings))


_NOISED = ("dp-sgd", "central", "dp-ftrl", "distributed")


def _own(run: Run) -> Pace:
    history = run.history
    return Pace(float(history[-1]["seconds"]) / len(history))


def _remembered(file: Path) -> dict[str, Pace]:
    if not file.is_file():
        return {}
    found = json.loads(file.read_text("utf-8"))
    return {kind: Pace(*pace) for kind, pace in found.items() if pace is not None}


def _remember(file: Path, paces: dict[str, Pace]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    plain = {kind: [pace.round, pace.evaluation] for kind, pace in paces.items()}
    write_atomically(file, json.dumps(plain, indent=2))


def _hours(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
