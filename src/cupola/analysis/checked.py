"""`cupola.check`: what a plan will do, send, reveal and cost, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from cupola.analysis.header import PlanHeader
from cupola.analysis.kinds import analysis_of
from cupola.analysis.plan_file import Objects, Source, load


class Checked(dict[str, Any]):
    """What `check` found, as plain values; `str` of it is what the command prints. lines: the
    same with `rich` markup."""

    def __init__(self, facts: dict[str, Any], lines: list[str]) -> None:
        super().__init__(facts)
        self.lines = lines

    def __str__(self) -> str:
        from rich.text import Text

        return "\n".join(Text.from_markup(line).plain for line in self.lines)


def check(plan: Source, *, settings: Iterable[str] = (), **objects: Unpack[Objects]) -> Checked:
    """Say what a plan will do, send, reveal and cost. Of one for many runs: the first.

    >>> import cupola
    >>> data = {"name": "digits", "partition": {"kind": "iid", "sites": 4}}
    >>> found = cupola.check({"name": "tiny", "rounds": 2, "data": data, "model": "linear"})
    >>> found["bytes"]["up"], str(found).splitlines()[0]
    (21576, 'plan       tiny: fedavg, 2 rounds')
    """
    whole: PlanHeader = load(plan, settings, **objects)
    runs = whole.expand()
    analysis = analysis_of(runs[0][1])
    facts = {"runs": len(runs), **analysis.check()}
    return Checked(facts, analysis.check_lines(facts))
