"""Programs are step machines: state in, question out, answer in, state out.

A checkpoint is the state, saved; a resume is `drive` from it. The same program runs on every
engine, and a test can play the federation's part by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, Union

import numpy as np

from cupola.federation.message import Contribution, Question

if TYPE_CHECKING:
    from cupola.federation.federation import Federation, Total

Reply = Union["Total", dict[int, Contribution], None]


@dataclass(frozen=True)
class State:
    """Everything a program knows between two steps: arrays, and values that JSON can hold."""

    step: int = 0
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    def next(self, arrays: dict[str, np.ndarray] | None = None, **values: Any) -> State:
        """The state after this step, with some arrays and values replaced."""
        # A sum of numpy arrays without dimensions (a model's scalar) is no array any more.
        new = {name: np.asarray(array) for name, array in (arrays or {}).items()}
        return replace(
            self,
            step=self.step + 1,
            arrays={**self.arrays, **new},
            values={**self.values, **values},
        )


@dataclass(frozen=True)
class Ask:
    """A question and whom to ask. 'alone': a step of the program's own, which asks nobody.

    If a step of the program's own has a question, its arrays are what the coordinator brings along
    (a public list, say).
    """

    kind: Literal["sum", "gather", "alone"]
    question: Question
    sites: Sequence[int]


ALONE = Ask("alone", Question(""), ())


class Program(Protocol):
    def start(self) -> State:
        """The state before the first step."""

    def ask(self, state: State) -> Ask | None:
        """The next question, or None at the end. Pure: the same state gives the same question."""

    def answer(self, state: State, reply: Reply) -> State:
        """The state after the answer; None answers a step that asked nobody."""


def drive(
    program: Program,
    federation: Federation,
    state: State | None = None,
    after: Callable[[State], None] | None = None,
) -> State:
    """Run a program to its end; `after` sees the state after every step.

    >>> import numpy as np
    >>> from cupola.analysis import Hosted
    >>> from cupola.engines import InProcess
    >>> from cupola.federation import Ask, Contribution, Question, Spec, State, drive, task
    >>> @task("rows")
    ... def rows(site, question):
    ...     return Contribution({"rows": np.array(len(site.data))})
    >>> class CountRows:
    ...     def start(self):
    ...         return State()
    ...     def ask(self, state):
    ...         if state.step:
    ...             return None
    ...         expects = {"rows": Spec((), "int")}
    ...         return Ask("sum", Question("rows", expects=expects, reveals="all rows"), range(3))
    ...     def answer(self, state, total):
    ...         return state.next(rows=int(total.arrays["rows"]))
    >>> with InProcess(Hosted(3, lambda site: ["a row"] * (site + 1))) as federation:
    ...     drive(CountRows(), federation).values
    {'rows': 6}
    """
    state = program.start() if state is None else state
    for reached in driven(program, federation, state):
        state = reached
        if after is None:
            federation.confirm(state.step - 1)  # the question of state.step may come twice
        else:
            after(state)
    return state


def driven(program: Program, federation: Federation, state: State) -> Iterator[State]:
    """The state after every step, until the program ends."""
    while (ask := program.ask(state)) is not None:
        reply: Reply = None
        if ask.kind == "sum":
            reply = federation.sum(ask.question, ask.sites)
        elif ask.kind == "gather":
            reply = federation.gather(ask.question, ask.sites)
        elif ask.question.task:
            federation.bring(ask.question)
        state = program.answer(state, reply)
        yield state
