"""What a party is asked to join: a plan or an association study, the same files as in simulation.

It is read with suspicion: nothing in it can load code that the site did not allow, and what the
other parties may change for themselves (engine, devices, files) is no part of its hash.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from cupola.analysis.plan_file import load, read_toml
from cupola.errors import PlanError
from cupola.gwas.plan import StudyPlan
from cupola.gwas.questions import tasks_of
from cupola.gwas.tasks import OPENLY
from cupola.learn import named
from cupola.learn.changing_sites import may_change, told
from cupola.learn.plan import Plan
from cupola.secure.roster import Roster

_DEVICE = re.compile(r"cuda:\d+$")
_OWN_AFFAIR = ("engine", "device", "twin", "checkpoint_seconds")  # of whoever runs it
_STUDY_OWN = ("folder", "workers", "checkpoint_seconds", "timeout", "salt", "cohorts")
_STEPS = 5  # of a round: training, and four ways of judging, at most
_CHANGES = (
    "the roster lets sites change from total to total, so that differences of totals can tell of "
    "single sites; the plan does not need that: make the roster without --changes"
)
_SAME = (
    "the plan lets sites change from total to total, the roster does not ({why}): if all sites "
    "agree to that, make the roster with --changes"
)
PROTOCOLS = ("masked", "pairwise *")
FOLLOWING = ("replay *",)


@dataclass(frozen=True)
class Proposal:
    """A plan or a study. text: as it was given."""

    plan: Plan | StudyPlan
    text: str

    @property
    def digest(self) -> str:
        """64 letters that stand for all of it that parties must agree on."""
        if isinstance(self.plan, Plan):
            facts: dict[str, Any] = {"kind": "plan", **self.plan.to_dict()}
            own: tuple[str, ...] = _OWN_AFFAIR
        else:
            facts = {"kind": "study", **self.plan.model_dump(mode="json")}
            facts["names"] = [cohort.name for cohort in self.plan.cohorts]
            own = _STUDY_OWN
        kept = {key: value for key, value in facts.items() if key not in own}
        whole = json.dumps(kept, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(whole.encode()).hexdigest()

    @property
    def sites(self) -> int | None:
        """How many sites it is made for; None if that is the data's affair."""
        if isinstance(self.plan, StudyPlan):
            return len(self.plan.cohorts)
        count = getattr(self.plan.data.partition, "sites", None)
        return count if isinstance(count, int) else None

    @property
    def private(self) -> bool:
        """Whether a mechanism protects the answers to training."""
        return isinstance(self.plan, Plan) and self.plan.privacy.on

    @property
    def noise_is_known(self) -> bool:
        """Whether noise comes from the coordinator and so from the plan's seed, which all know."""
        return isinstance(self.plan, Plan) and self.plan.privacy.by_coordinator

    @property
    def noise_is_told(self) -> bool:
        """Whether the noise is in the questions only: found from an epsilon, not in the plan."""
        return isinstance(self.plan, Plan) and self.plan.privacy.epsilon is not None

    @property
    def followed(self) -> bool:
        """Whether sites run the program themselves and answer only what it asks: where it draws
        nothing and has no secrets."""
        return isinstance(self.plan, StudyPlan)

    @property
    def protocol(self) -> tuple[str, ...]:
        """The tasks of the plan's way to hide sums."""
        choice = self.plan.sum
        if not choice.masked:
            return ()
        return ("masked",) if choice.protocol == "compensator" else ("pairwise *",)

    def may_ask(self, step: int) -> bool:
        """Whether the plan can come to so many steps. A site answers a step once, so that this is
        how often it answers at most."""
        plan = self.plan
        if isinstance(plan, StudyPlan):
            return step >= 0  # cohorts count what they are asked, variant by variant
        most = plan.rounds * _STEPS
        if plan.personalise is not None:
            jobs = len(plan.personalise.methods) * (self.sites or 1000)
            most += _STEPS * (jobs + 1) * (plan.personalise.rounds + 2)
        return 0 <= step < most + _STEPS

    @property
    def data(self) -> str | None:
        """What the plan calls its data."""
        if isinstance(self.plan, StudyPlan):
            return None
        called = self.plan.data.options.get("called")
        return called if isinstance(called, str) else self.plan.data.name

    @property
    def tasks(self) -> tuple[str, ...]:
        """What sites are asked to run."""
        if isinstance(self.plan, StudyPlan):
            return ("gwas *",)
        own = named.site_task(self.plan.task)
        more = () if self.plan.personalise is None else ("sparsity", "adapt")
        return (own, "evaluate", *more)

    def asks(self, task: str) -> bool:
        """Whether sites are asked to run this."""
        if isinstance(self.plan, StudyPlan):
            return task in tasks_of(self.plan, self.plan.variants is not None)
        return task in self.tasks

    @property
    def openly(self) -> tuple[str, ...]:
        """What sites are asked for without masks."""
        if not self.plan.sum.masked:
            return self.tasks
        if isinstance(self.plan, StudyPlan):
            return tuple(task for task in OPENLY if self.asks(task))
        from cupola.learn.analysis import TrainingAnalysis

        return TrainingAnalysis(self.plan).openly

    def disagreements(self, roster: Roster) -> list[str]:
        """Why a plan and a roster do not go together, a line each."""
        found, names = [], [party.name for party in roster.sites]
        if self.sites not in (None, len(names)):
            found.append(f"the plan is for {self.sites} sites, the roster names {len(names)}")
        choice = self.plan.sum
        if choice.masked and (roster.compensator is None) != (choice.protocol == "pairwise"):
            found.append("the plan's sum.protocol and the roster do not agree about a compensator")
        if isinstance(self.plan, Plan) and may_change(self.plan) != roster.changes:
            found.append(_CHANGES if roster.changes else _SAME.format(why=told(self.plan)))
        if isinstance(self.plan, StudyPlan):
            if roster.changes:
                found.append(_CHANGES)
            cohorts = [cohort.name for cohort in self.plan.cohorts]
            if len(cohorts) == len(names) and cohorts != names:
                found.append(
                    f"the study's cohorts are {', '.join(cohorts)}; the roster's sites, in its "
                    f"order, {', '.join(names)}: give them the same names"
                )
            if choice.masked and roster.minimum < len(names):
                found.append(
                    "every total of an association study is of all cohorts: make the roster with "
                    f"--minimum {len(names)}"
                )
        return found


def matches(task: str, allowed: Iterable[str]) -> bool:
    """Whether a task is among these names; 'gwas *' stands for all that begin so."""
    return any(fnmatchcase(task, pattern) for pattern in allowed)


def read_proposal(source: Path | str, modules: Iterable[str] = ()) -> Proposal:
    """A plan or study from its file. modules: those that it may name code of."""
    text = Path(source).read_text(encoding="utf-8") if isinstance(source, Path) else source
    _, given = read_toml(text + "\n")
    allowed = set(modules)
    for key, value in _strings(given):
        # More than what is well formed: looking 'module:a.b' up in vain would import the module.
        if ":" not in value or key == "class_names" or (key == "device" and _DEVICE.match(value)):
            continue
        if value.split(":")[0] not in allowed:
            raise PlanError(
                f"the plan names code, '{value}': if it is installed and you trust it, add "
                f"'{value.split(':')[0]}' to modules in your settings"
            )
    plan = load_any(given)
    if isinstance(plan, Plan) and plan.many:
        raise PlanError("a plan for real sites stands for one run (no seeds, no grid)")
    return Proposal(plan, text)


def load_any(
    source: str | Path | Mapping[str, Any], settings: Iterable[str] = ()
) -> Plan | StudyPlan:
    """A plan, or a study, which has cohorts; for sites that are elsewhere."""
    if "cohorts" in read_toml(source)[1]:
        return load(source, settings, elsewhere=True)
    return load(source, settings)


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a plan, with the key it stands under."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from _strings(part, str(name))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _strings(part, key)
