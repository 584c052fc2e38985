"""A party's own ledger, a hash chain: every question that reached it, and what it gave away; and
the book of what its data have spent."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cupola.base.chain import read_chain
from cupola.errors import DataError
from cupola.federation.message import Declined, Question
from cupola.federation.receipts import Journal, Receipt
from cupola.federation.site import Charge
from cupola.privacy.budget import Book, Limit
from cupola.privacy.events import common_neighbours
from cupola.site.consent import SETTLING, look, spent_file, study_folder
from cupola.site.settings import SiteSettings

LEDGER = "ledger.jsonl"
OWNER = 0  # under whom a data set's spending is booked


class OwnLedger:
    """A line for every question, on disk before its answer leaves. The clock is for people: nothing
    is decided by it."""

    def __init__(self, folder: Path, answered: Callable[[], bool] = lambda: False) -> None:
        self.journal = Journal(folder / LEDGER, answered)

    def record(self, question: Question | None, answer: bytes, stored: bool) -> Receipt:
        told = answer[:1] == b"A"
        line: dict[str, Any] = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        if question is not None:
            inner = question.options.get("inner")
            hidden = isinstance(inner, dict)
            line |= {
                "step": question.step,
                "round": question.round,
                "task": str(inner.get("task") if isinstance(inner, dict) else question.task)[:100],
                "to": _recipient(question.task, hidden),
                "reveals": question.reveals[:300],
                "protection": _protection(question, hidden)[:300],
            }
        line |= {"bytes": len(answer), "again": stored} if told else {"refused": _text(answer)}
        return self.journal.write(line)


def _recipient(task: str, hidden: bool) -> str:
    if task.startswith("replay "):
        return "nobody: this site was told"
    if hidden:
        return "coordinator, unmasked" if task == "open" else "coordinator, masked"
    masks = task.startswith("pairwise ") or task in SETTLING
    return "coordinator, keys and masks" if masks else "coordinator, unmasked"


def _protection(question: Question, hidden: bool) -> str:
    """What stands between the answer and the coordinator."""
    if not hidden or question.task == "open":
        return question.protection
    own = "" if question.protection == "none" else f"; {question.protection}"
    return f"masked sum{own}"


def summed_up(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What was told in a study: by recipient and task, how many answers, how many bytes."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for line in lines:
        if "bytes" not in line:
            continue
        to, task = str(line.get("to")), str(line.get("task"))
        row = found.setdefault((to, task), {"to": to, "task": task, "answers": 0, "bytes": 0})
        row["answers"] += 1
        row["bytes"] += line["bytes"]
    return sorted(found.values(), key=lambda row: row["to"])


def _text(answer: bytes) -> str:
    return answer[1:].decode(errors="replace")


def read_ledger(folder: Path, study: str) -> list[dict[str, Any]]:
    """Every question of a study that reached this party, but for a line that a crash cut off."""
    path = study_folder(folder, study) / LEDGER
    if not path.exists():
        raise DataError(f"no question of '{study}' has reached this party")
    way_out = "its lines cannot be trusted; restore its newest copy"
    return [
        {key: value for key, value in line.items() if key not in ("holds", "salt")}
        for line in read_chain(path, way_out)
        if "begun" not in line
    ]


def spent(folder: Path, study: str) -> dict[str, Any] | None:
    """What the data set of a study has spent so far, in all studies; None if nothing is kept."""
    joined = look(folder, study, SiteSettings)
    try:
        data = joined.consent.data
    except Declined:
        raise DataError(f"'{study}' was not joined here") from None
    path = spent_file(folder, str(data))
    if not path.exists():
        return None
    book, budget = Book.read(path), joined.settings.budget
    delta = 1e-5 if budget is None else budget.delta
    history = book.history(OWNER)
    neighbours = common_neighbours(history) if budget is None else budget.neighbours
    return {
        "data": data,
        "delta": delta,
        "neighbours": neighbours,
        "epsilon": book.spent(OWNER, delta, neighbours) if history else 0.0,
        "budget": None if budget is None else budget.epsilon,
        "unprotected": dict(book.unprotected),
        "released": _released(path),
    }


def _released(book: Path) -> float | None:
    """Numbers a person that regressions on a data set have told; None while a study holds the
    book."""
    from cupola.association.own_cohort import told_before

    try:
        return sum(told_before(book).values())
    except DataError:
        return None


def _harmless(value: Any) -> Any:
    """Text that a spreadsheet does not take for a formula: part of it is the coordinator's."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" else value


def as_csv(lines: list[dict[str, Any]]) -> str:
    columns = ["time", "step", "round", "task", "to", "bytes", "again", "refused", "reveals",
               "protection"]  # fmt: skip
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for line in lines:
        writer.writerow({key: _harmless(value) for key, value in line.items()})
    return out.getvalue()


@dataclass
class OwnBook:
    """The book of what a site's data set has spent, in all studies: it has one account, whatever
    number its site has in a roster. A plan's own budget does not count here."""

    book: Book

    @classmethod
    def open(cls, path: Path, data: str, study: str, settings: SiteSettings) -> OwnBook:
        budget = settings.budget
        limit = None
        if budget is not None:
            limit = Limit(budget.epsilon, budget.delta, budget.neighbours, budget.trust_coordinator)
        return cls(Book(path, study=data, run=study, limit=limit, durable=True))

    def charge(self, question: Question, charges: Mapping[int, Charge | None]) -> dict[int, str]:
        refused = {}
        for site, charge in charges.items():
            told = self.book.charge(question, {OWNER: charge})
            if told:
                refused[site] = told[OWNER]
        return refused

    def close(self) -> None:
        self.book.close()
