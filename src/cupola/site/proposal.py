"""What a party is asked to join: a plan of any kind, the same file as in simulation.

It is read with suspicion: nothing in it can load code that the party did not allow, and what the
other parties may change for themselves (engine, devices, files) is no part of its hash.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from cupola.analysis.header import PlanHeader
from cupola.analysis.kinds import analysis_of, foreign_module, kind_of
from cupola.analysis.plan_file import load, read_toml
from cupola.analysis.protocol import Analysis
from cupola.base.importing import imported
from cupola.errors import PlanError
from cupola.secure.roster import Roster

_DEVICE = re.compile(r"cuda:\d+$")
PROTOCOLS = ("masked", "pairwise *")
FOLLOWING = ("replay *",)


@dataclass(frozen=True)
class Proposal:
    """A plan, and the analysis that says what it asks for. text: as it was given."""

    plan: Any
    text: str

    @cached_property
    def analysis(self) -> Analysis[Any]:
        return analysis_of(self.plan)

    @property
    def digest(self) -> str:
        """64 letters that stand for all of it that parties must agree on."""
        whole = json.dumps(self.analysis.agreement(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(whole.encode()).hexdigest()

    @property
    def protocol(self) -> tuple[str, ...]:
        """The tasks of the plan's way to hide sums."""
        choice = self.plan.sum
        if not choice.masked:
            return ()
        return ("masked",) if choice.protocol == "compensator" else ("pairwise *",)

    @property
    def unmasked_tasks(self) -> tuple[str, ...]:
        """What sites are asked for without masks."""
        return self.analysis.unmasked if self.plan.sum.masked else self.analysis.tasks

    def disagreements(self, roster: Roster) -> list[str]:
        """Why a plan and a roster do not go together, a line each."""
        return self.analysis.disagreements(roster)


def matches(task: str, allowed: Iterable[str]) -> bool:
    """Whether a task is among these names; 'gwas *' stands for all that begin so."""
    return any(fnmatchcase(task, pattern) for pattern in allowed)


def read_proposal(source: Path | str, modules: Iterable[str] = ()) -> Proposal:
    """A plan from its file. modules: those that it may name code of."""
    text = Path(source).read_text(encoding="utf-8") if isinstance(source, Path) else source
    _, given = read_toml(text + "\n")
    _refuse_hidden(given)
    _refuse_downloads(given)
    given.pop("track", None)  # its author's own affair: nobody else writes to a tracker
    _refuse_code(given, set(modules))
    plan: PlanHeader = load(given, elsewhere=True)
    if plan.many:
        raise PlanError("a plan for real sites stands for one run (no seeds, no grid, one trait)")
    return Proposal(plan, text)


def _refuse_hidden(given: dict[str, Any]) -> None:
    """Refuse texts that a terminal would obey: what people read before they consent must be what
    is there."""
    for key, value in _strings(given):
        if not f"{key}{value}".replace("\t", " ").isprintable():
            raise PlanError(f"the plan has characters that cannot be seen, in {key!a} = {value!a}")


def _refuse_downloads(given: dict[str, Any]) -> None:
    """Refuse a plan that would have a site's machine fetch what its author names."""
    for section in ("model", "data"):
        options = given.get(section)
        if isinstance(options, dict) and options.get("download"):
            raise PlanError(
                f"{section}.download: a plan fetches nothing at other people's sites; leave it "
                "out, and let each of them get the files"
            )


def _refuse_code(given: dict[str, Any], allowed: set[str]) -> None:
    """Refuse a plan that names code of other modules, before anything of it is imported."""
    named = []
    for key, value in _strings(given):
        # More than what is well formed: looking 'module:a.b' up in vain would import the module.
        device = key == "device" and _DEVICE.match(value)
        if ":" not in value or key == "data.class_names" or device:
            continue
        _require_allowed(value.split(":")[0], value, allowed)
        named.append(value)
    if not isinstance(given.get("kind", ""), str):
        raise PlanError("kind is the name of an analysis")
    kind = kind_of(given)
    module = foreign_module(kind)  # also of an installed kind, which has a plain name
    if module is not None:
        _require_allowed(module, kind, allowed)
    for value in named:
        _require_own(value, allowed)


def _require_allowed(module: str, named: str, allowed: set[str]) -> None:
    if module not in allowed:
        raise PlanError(
            f"the plan names code, '{named}': if it is installed and you trust it, add "
            f"'{module}' to modules in your settings"
        )


def _require_own(named: str, allowed: set[str]) -> None:
    """Refuse what an allowed module has only imported: 'module:os.system' is nobody's model."""
    with suppress(ImportError):  # then there is nothing that could be called
        importlib.import_module(named.partition(":")[0])
        found = imported(named)
        code = inspect.isclass(found) or inspect.isroutine(found)
        if not code and "." not in named.partition(":")[2]:
            return  # an instance that the module has made
        home = str(getattr(found, "__module__", None))
        if not any(home == module or home.startswith(f"{module}.") for module in allowed):
            raise PlanError(
                f"the plan names code, '{named}', which is of the module '{home}' and only "
                "imported there; a plan may name what an allowed module defines itself"
            )


def _strings(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in a plan, with the dotted key it stands under; and every key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, part in value.items():
            inner = f"{key}.{name}" if key else str(name)
            yield inner, ""
            yield from _strings(part, inner)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _strings(part, key)
