"""The federation: the sites as the coordinator can reach them, and its two questions.

`sum` adds the sites' contributions and shows only the total; `gather` shows each site's own answer.
Engines say how a question reaches a site; checking, adding up and book-keeping are written here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from cupola.errors import FederationError
from cupola.federation.ledger import Entry, Ledger, common
from cupola.federation.message import (
    Arrays,
    Contribution,
    Declined,
    Question,
    contribution_size,
    misfit,
    opened,
    question_size,
    refusal,
)
from cupola.federation.site import Partial, add_arrays

if TYPE_CHECKING:
    from cupola.federation.replay import Replay


@dataclass(frozen=True)
class Failure:
    """A site without a usable answer; `broken`: it sent NaN or ill-shaped arrays, or an error."""

    code: str
    broken: bool = False


def _add(total: np.ndarray, array: np.ndarray, weight: float) -> None:
    """total += weight * array, in place and without a copy."""
    if weight == 1:
        total += array
        return
    import torch  # here: a federation that trains nothing starts without it

    other = torch.from_numpy(np.require(array, requirements=["C", "W"]))
    torch.from_numpy(total).add_(other, alpha=weight)


@dataclass
class Total:
    """sum over sites of weight * array, in float64, with the weight that each array got.

    exact: of a hidden sum, the integers it was made of.
    """

    arrays: Arrays = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    weight: float = 0.0
    sites: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    exact: Arrays = field(default_factory=dict)

    def mean(self, name: str) -> np.ndarray:
        """The weighted mean of one array over the sites that sent it."""
        return self.arrays[name] / self.weights[name]

    def add(self, site: int, contribution: Contribution) -> None:
        for name, array in contribution.arrays.items():
            if name not in self.arrays:
                self.arrays[name] = np.zeros(array.shape, np.float64)
                self.weights[name] = 0.0
            _add(self.arrays[name], array, contribution.weight)
            self.weights[name] += contribution.weight
        self.weight += contribution.weight
        self.sites.append(site)

    def add_partial(self, partial: Partial) -> None:
        add_arrays(self.arrays, partial.arrays)
        for name in partial.arrays:
            self.weights[name] = self.weights.get(name, 0.0) + partial.weight
        self.weight += partial.weight
        self.sites.extend(partial.answered)
        self.failed.update(partial.failed)


#: Each site's answer, or why there is none.
Answers = Iterator[tuple[int, Contribution | Failure]]


class Federation(ABC):
    """sum and gather over numbered sites.

    An engine implements `ask`. It may implement `ask_together` (many sites in one computation),
    `admit` (where it keeps the sites' accounts), `confirmed_for`, `export` and `restore` (where
    sites live and die with it) and `close`. What wraps an engine, such as secure aggregation, calls
    these, and `deviations`, `heard`, `record` and `require_quorum`.

    quorum: the share of asked sites that must answer; below it the question fails and can be
    asked again. Without answers that are broken, an empty total is allowed at quorum 0.
    """

    def __init__(self, sites: int, *, quorum: float = 0.0, ledger: Ledger | None = None) -> None:
        if sites < 1:
            raise FederationError("a federation needs at least one site")
        self.sites = sites
        self.quorum = quorum
        self.ledger = ledger if ledger is not None else Ledger()
        self.confirmed = -1
        self.replay: Replay | None = None

    def __len__(self) -> int:
        return self.sites

    # What engines implement

    @abstractmethod
    def ask(self, question: Question, sites: Sequence[int]) -> Answers:
        """Each site's answer, in the order of `sites`."""

    def ask_together(self, question: Question, sites: Sequence[int]) -> list[Partial] | None:  # noqa: ARG002
        """The sum in one computation, for engines and tasks that can; None otherwise."""
        return None

    def admit(self, question: Question, sites: Sequence[int]) -> dict[int, str]:  # noqa: ARG002
        """Sites that refuse to answer because of what it would cost them, where the engine keeps
        their accounts; elsewhere each site refuses for itself."""
        return {}

    def confirmed_for(self, question: Question) -> int:  # noqa: ARG002
        """The last step that will never be asked again, as sites are told with this question."""
        return self.confirmed

    def export(self, step: int) -> dict[str, np.ndarray]:  # noqa: ARG002
        """Site state for the coordinator's checkpoint, where sites live and die with it."""
        return {}

    def restore(self, step: int, arrays: dict[str, np.ndarray]) -> None:  # noqa: B027
        """Bring back what `export` gave."""

    def close(self) -> None:  # noqa: B027
        """Release processes and threads."""

    # The two questions

    def sum(self, question: Question, sites: Sequence[int]) -> Total:
        """Add the contributions of these sites."""
        question, refused = self._prepared(question, sites)
        able = sorted(site for site in sites if site not in refused)
        total, broken = Total(failed=dict(refused)), list[int]()
        sizes: list[int] = []
        together = self.ask_together(question, able) if able else None
        # A broken answer hides in the sum: it is found by asking one by one.
        if together is not None and not any(is_broken(partial, question) for partial in together):
            for partial in together:
                total.add_partial(partial)
                sizes += [contribution_size(partial.sample)] * len(partial.answered)
                broken += partial.broken
        else:
            for site, answer in usable(question, self.ask(question, able), total.failed, broken):
                total.add(site, opened(answer, question))
                sizes.append(contribution_size(answer.arrays))
        self.record(question, "sum", total.sites, total.failed, sizes)
        self.require_quorum(question, len(total.sites), len(sites), total.failed, broken)
        self.heard(question, total if total.sites else None)
        return total

    def gather(self, question: Question, sites: Sequence[int]) -> dict[int, Contribution]:
        """Each site's own answer; sites that fail are left out (and named in the ledger)."""
        question, failed = self._prepared(question, sites)
        able = sorted(site for site in sites if site not in failed)
        broken: list[int] = []
        answers = dict(usable(question, self.ask(question, able), failed, broken))
        sizes = [contribution_size(answer.arrays) for answer in answers.values()]
        self.record(question, "gather", list(answers), failed, sizes)
        self.require_quorum(question, len(answers), len(sites), failed, broken)
        answers = {site: opened(answer, question) for site, answer in answers.items()}
        self.heard(question, answers or None)
        return answers

    def _prepared(
        self, question: Question, sites: Sequence[int]
    ) -> tuple[Question, dict[int, str]]:
        """The question as it is sent, and the sites that refuse it before it is."""
        question = replace(question, confirmed=self.confirmed_for(question))
        return question, self.deviations(question, sites) or self.admit(question, sites)

    def record(
        self,
        question: Question,
        kind: str,
        answered: list[int],
        failed: dict[int, str],
        sizes: list[int],
        *,
        down: int | None = None,
        protection: str | None = None,
    ) -> None:
        """Write a question into the ledger. sizes: bytes of the answers. down, protection: where
        they are not the question's own, because another one was asked around it."""
        self.ledger.add(
            Entry(
                step=question.step,
                round=question.round,
                task=question.task,
                kind=kind,
                sites=answered,
                failed=failed,
                bytes_down=question_size(question) if down is None else down,
                bytes_up=common(sizes),
                reveals=question.reveals,
                protection=question.protection if protection is None else protection,
            )
        )

    def require_quorum(
        self,
        question: Question,
        answered: int,
        asked: int,
        failed: dict[int, str],
        broken: list[int],
    ) -> None:
        """FederationError if too few sites answered. broken: those whose answers are no use."""
        if answered >= self.quorum * asked and (answered or not broken):
            return
        reasons = "; ".join(f"site {s}: {c}" for s, c in list(failed.items())[:5])
        more = f" and {len(failed) - 5} more" if len(failed) > 5 else ""
        nan = any(code.startswith("NaN") for code in failed.values())
        way_out = "; training may have diverged: try a lower local.lr" if nan else ""
        raise FederationError(
            f"'{question.task}' in round {question.round}: {answered} of {asked} sites answered, "
            f"quorum is {self.quorum:.0%} ({reasons}{more}){way_out}"
        )

    # Sites that follow the program

    def follow(self, replay: Replay) -> None:
        """Let simulated sites follow the program: one copy serves them all, and hears what this
        federation adds up. Real sites have copies of their own."""
        self.replay = replay

    def deviations(self, question: Question, sites: Sequence[int]) -> dict[int, str]:
        """Sites that refuse because the question is not the one that is due."""
        try:
            if self.replay is not None:
                self.replay.check(question)
        except Declined as refused:
            return dict.fromkeys(sites, refused.code)
        return {}

    def heard(self, question: Question, reply: Total | dict[int, Contribution] | None) -> None:
        """Let sites that follow the program take the step; None: there was no reply."""
        if self.replay is not None and reply is not None:
            self.replay.hear(question.step, reply)

    def bring(self, question: Question) -> None:
        """Tell sites that follow the program what the coordinator brings along; simulated ones
        have it already."""
        if self.replay is not None:
            self.replay.hear(question.step, None)

    def confirm(self, step: int) -> None:
        """Steps up to this one are durable at the coordinator: sites may drop older state."""
        self.confirmed = step

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def usable(
    question: Question, answers: Answers, failed: dict[int, str], broken: list[int]
) -> Iterator[tuple[int, Contribution]]:
    """The answers that can be used. The other sites are noted: in `failed` with the reason, in
    `broken` if they sent what is no use."""
    for site, answer in answers:
        if isinstance(answer, Contribution):
            code = refusal(answer, question)
            if code is None:
                yield site, answer
                continue
            answer = Failure(code, broken=True)
        failed[site] = answer.code
        broken += [site] if answer.broken else []


def is_broken(partial: Partial, question: Question) -> bool:
    """Whether a sum holds an answer that cannot be used."""
    if partial.answered and misfit(partial.sample, question) is not None:
        return True
    if not math.isfinite(partial.weight) or partial.weight < 0:
        return True
    return not all(np.isfinite(array).all() for array in partial.arrays.values())
