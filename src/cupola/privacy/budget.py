"""The book of what sites have spent, and the budget that says no.

A site is charged before it touches data, in a file that survives crashes and later runs. The same
question under the same step is charged once; another question under that step is refused. A
question whose cost would exceed the budget is refused, and so is, under a budget, any answer that
no mechanism protects. The file is a hash chain (see `cupola.base.chain`): lines that were edited,
moved or taken out are damage, and nothing is charged to a damaged book.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cupola.base.chain import Chain, Tail, damaged
from cupola.base.jsonl import DurableLog
from cupola.errors import DataError, PlanError
from cupola.federation.message import Question, digest
from cupola.federation.site import Charge
from cupola.privacy.accounting import epsilon, within
from cupola.privacy.events import Event, Neighbours, merge

FORMAT = 1
_COPY = "nothing was spent; restore it from a copy, or name another file"
History = tuple[Event, ...]


@dataclass(frozen=True)
class Limit:
    """What a site allows in all: epsilon at delta, for examples, against everybody.

    trust_coordinator: whether protection counts that rests on the coordinator's noise. What rests
    on other sites' shares of the noise counts; the book says on how many.
    """

    epsilon: float
    delta: float
    neighbours: Neighbours = "add-remove"
    trust_coordinator: bool = False


class Book:
    """Accounts of sites in one file (or in memory): who spent what in which run.

    study: the file belongs to it. run: names this run; steps are counted within a run. limit:
    checked before every charge. durable: charges are on disk before they count. Sites with equal
    histories share them, so that a million sites cost little more than their distinct histories.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        study: str = "",
        run: str = "",
        limit: Limit | None = None,
        durable: bool = False,
    ) -> None:
        self.path, self.study, self.run, self.limit = path, study, run, limit
        self.durable = durable or limit is not None  # a budget survives a power cut, too
        self.unprotected: dict[str, int] = {}  # task -> answers given without protection
        self._histories: list[History] = [()]
        self._numbers: dict[History, int] = {(): 0}
        self._after: dict[tuple[int, Charge], int] = {}
        self._held: dict[int, int] = {}  # site -> number of its history
        self._steps: dict[tuple[str, int], tuple[str, set[int]]] = {}
        self._known: dict[str, Charge] = {}
        self._names: dict[Charge, str] = {}
        self._allowed: dict[int, bool] = {}
        self._log: DurableLog | None = None
        self._lost = False
        self._chain = Chain()
        self.beside: Callable[[], Tail] | None = None  # how far the ledger of answers is
        self._beside: dict[str, Tail] = {}  # by run
        if path is not None:
            self._open(path)

    @classmethod
    def read(cls, path: Path) -> Book:
        """The accounts in a file, to look at: nothing can be charged to them."""
        book = cls()
        book._read(path, path.read_bytes(), any_study=True)
        return book

    @property
    def tail(self) -> Tail:
        """How many lines the file has, and the hash that stands for them."""
        return self._chain.tail

    def require(self, tail: Tail) -> None:
        """DataError unless the file goes on from what was seen of it: it is no old copy."""
        if self.path is not None:
            self._chain.require(self.path, tail, _COPY)

    @property
    def seen_beside(self) -> Tail:
        """How far this run's ledger of answers was at the last charge: one that is behind was put
        back, and would let questions that were paid for be answered anew."""
        return self._beside.get(self.run, (0, ""))

    # What was spent

    def history(self, site: int) -> History:
        """Everything this site was charged for, equal events counted together."""
        return self._histories[self._held.get(site, 0)]

    def histories(self) -> dict[History, list[int]]:
        """Sites by what they were charged for."""
        found: dict[History, list[int]] = {}
        for site, number in sorted(self._held.items()):
            found.setdefault(self._histories[number], []).append(site)
        return found

    def spent(self, site: int, delta: float, neighbours: Neighbours = "add-remove") -> float:
        """Epsilon of this site so far."""
        return epsilon(self.history(site), delta, neighbours=neighbours)

    # Charging

    def charge(self, question: Question, charges: Mapping[int, Charge | None]) -> dict[int, str]:
        """Charge these sites for their answer; those that refuse, with the reason."""
        mark = digest(question)
        key = (self.run, question.step)
        for old in [k for k in self._steps if k[0] == self.run and k[1] < question.confirmed]:
            del self._steps[old]  # asked again, it would be charged again
        before, paid = self._steps.get(key, (mark, set()))
        if before != mark:
            reason = "another question was answered under this step"
            return dict.fromkeys(charges, reason)
        refused: dict[int, str] = {}
        new: dict[Charge, list[int]] = {}
        open_answers: list[int] = []
        for site, charge in charges.items():
            if site in paid:
                continue
            refusal = self._refusal(site, charge)
            if refusal:
                refused[site] = refusal
            elif charge is None:
                open_answers.append(site)
            else:
                new.setdefault(charge, []).append(site)
        if new or open_answers:
            self._write(question, mark, new, open_answers)
            self._enter(key, mark, question.task, new, open_answers)
        return refused

    def _refusal(self, site: int, charge: Charge | None) -> str | None:
        if self.limit is None or (charge is not None and not charge.events):
            return None
        if charge is None:
            return "unprotected answers are refused under a budget"
        if charge.trusts == "coordinator" and not self.limit.trust_coordinator:
            return "protection by the coordinator's noise does not count in this budget"
        number = self._next(self._held.get(site, 0), charge)
        if number not in self._allowed:
            try:
                self._allowed[number] = _fits(self._histories[number], self.limit)
            except PlanError:
                return "charges in this book hold for other neighbouring data sets"
        if self._allowed[number]:
            return None
        return f"privacy budget of epsilon {self.limit.epsilon:g} would be exceeded"

    def _next(self, number: int, charge: Charge) -> int:
        """The history after this charge."""
        key = (number, charge)
        if key not in self._after:
            events = tuple(event for event in charge.events if isinstance(event, Event))
            history = merge((*self._histories[number], *events))
            if history not in self._numbers:
                self._numbers[history] = len(self._histories)
                self._histories.append(history)
            self._after[key] = self._numbers[history]
        return self._after[key]

    def _enter(
        self,
        key: tuple[str, int],
        mark: str,
        task: str,
        new: Mapping[Charge, list[int]],
        open_answers: list[int],
    ) -> None:
        _, paid = self._steps.setdefault(key, (mark, set()))
        for charge, sites in new.items():
            for site in sites:
                self._held[site] = self._next(self._held.get(site, 0), charge)
            paid.update(sites)
        if open_answers:
            self.unprotected[task] = self.unprotected.get(task, 0) + len(open_answers)
            paid.update(open_answers)

    # The file: a line that says whose it is, then a line per question

    def _write(
        self,
        question: Question,
        mark: str,
        new: Mapping[Charge, list[int]],
        open_answers: list[int],
    ) -> None:
        if self._lost:
            raise DataError("the book of spent privacy could not be written; open it again")
        if self._log is None:
            return
        defined = {}
        for charge in new:
            if charge not in self._names:
                name = str(len(self._names))
                self._names[charge], self._known[name] = name, charge
                defined[name] = _as_dict(charge)
        line: dict[str, Any] = {
            "run": self.run,
            "step": question.step,
            "round": question.round,
            "task": question.task,
            "question": mark,
            "charged": {self._names[charge]: sites for charge, sites in new.items()},
        }
        line |= {"charges": defined} if defined else {}
        line |= {"unprotected": open_answers} if open_answers else {}
        line |= {"ledger": self.beside()} if self.beside is not None else {}
        try:
            self._log.append(line)
        except OSError:
            self.close()
            self._lost = True
            raise

    def _open(self, path: Path) -> None:
        busy = f"{path} is in use by another run; wait for it to end"
        self._log = DurableLog(path, busy=busy, way_out=_COPY, durable=self.durable)
        self._chain = self._log.chain
        try:
            whole = path.read_bytes()
            torn = b"\n" not in whole and whole.startswith(b'{"cupola":"spent"')
            if whole and not torn:
                _require_book(path, whole[: whole.rfind(b"\n") + 1])
            if lines := self._log.read():
                self._fill(path, lines)
            else:
                self._log.append({"cupola": "spent", "format": FORMAT, "study": self.study})
        except BaseException:
            self.close()
            raise

    def _read(self, path: Path, whole: bytes, any_study: bool = False) -> None:
        _require_book(path, whole)
        self._chain = Chain()
        self._fill(path, list(self._chain.read(path, whole, _COPY)) or [{}], any_study)

    def _fill(self, path: Path, records: list[dict[str, Any]], any_study: bool = False) -> None:
        head, *lines = records
        if head.get("cupola") != "spent" or head.get("format") != FORMAT:
            raise _strange(path)
        if head["study"] != self.study and not any_study:
            raise DataError(
                f"{path} belongs to the study '{head['study']}', not to '{self.study}'; "
                "nothing was spent. Name this study's own file in privacy.budget.file"
            )
        for line in lines:
            try:
                for name, charge in line.get("charges", {}).items():
                    self._known[name] = _from_dict(charge)
                    self._names[self._known[name]] = name
                new = {self._known[name]: sites for name, sites in line["charged"].items()}
                key = (line["run"], line["step"])
                self._beside[line["run"]] = line.get("ledger", (0, ""))
                self._enter(key, line["question"], line["task"], new, line.get("unprotected", []))
            except (KeyError, TypeError, AttributeError) as error:
                raise damaged(path, f"a line lacks {error}", _COPY) from None

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._held))


def _require_book(path: Path, whole: bytes) -> None:
    if not whole.lstrip().startswith(b"{"):
        raise _strange(path)


def _strange(path: Path) -> DataError:
    return DataError(
        f"{path} is not a file of spent privacy (or is damaged); "
        "name another file, or restore this one from a copy"
    )


def _fits(history: History, limit: Limit) -> bool:
    """Whether a history stays within a limit."""
    return within(history, limit.epsilon, limit.delta, neighbours=limit.neighbours)


def _as_dict(charge: Charge) -> dict[str, Any]:
    events = [event.as_dict() for event in charge.events if isinstance(event, Event)]
    return {"events": events, "unit": charge.unit, "trusts": charge.trusts}


def _from_dict(values: Mapping[str, Any]) -> Charge:
    events = tuple(Event.from_dict(event) for event in values["events"])
    return Charge(events, values["unit"], values["trusts"])
