"""What every method of a personalisation took and told, from the run's ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cupola.federation.ledger import Entry
from cupola.federation.program import State
from cupola.training.personalise.jobs import Job
from cupola.training.personalise.personal_program import Personalisation


def costs(
    program: Personalisation, state: State, entries: Iterable[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """By method: bytes to and from all sites while it adapted, without its last judgement; and all
    that its answers told, as the ledger has it."""
    methods, personal = program.choice.methods, state.values["personal"]
    starts = [program.first_round(personal, Job("", method)) for method in methods]
    found: dict[str, dict[str, Any]] = {
        m: {"bytes_down": 0, "bytes_up": 0, "reveals": []} for m in methods
    }
    for facts in entries:
        entry = Entry(**facts)
        method, judged = _whose(program, starts, entry)
        if method is None:
            continue
        mine = found[method]
        if not judged:
            mine["bytes_down"] += entry.bytes_down * (len(entry.sites) + len(entry.failed))
            mine["bytes_up"] += sum(entry.up())
        if entry.reveals and entry.reveals not in mine["reveals"]:
            mine["reveals"].append(entry.reveals)
    return found


def _whose(program: Personalisation, starts: list[int], entry: Entry) -> tuple[str | None, bool]:
    """The method that a question was asked for, and whether to judge it."""
    methods = program.choice.methods
    if entry.round >= starts[0]:  # every method has rounds of its own
        place = sum(entry.round >= start for start in starts) - 1
        return methods[place], False
    if entry.round != program.training.training_rounds + 1:
        return None, False
    if entry.task == "sparsity":
        return "pfa", False
    judged = (m for m in methods if f"({m})" in entry.reveals)
    return next(judged, None), True
