"""Replay: a site follows a program by itself, and answers only what its own copy asks next.

A coordinator that may ask anything can ask for single people. One whose program is deterministic
needs no such freedom: every question follows from the plan and the totals so far. So a site runs a
copy of the program on totals that the coordinator cannot forge (see `cupola.secure.witness`), and
compares questions bit for bit. What the coordinator brings along by itself (a public list) is taken
once. A program that draws, or keeps secrets from the sites, cannot be followed: training.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from cupola.base.chain import damaged, mark, read_json, sealed_json
from cupola.base.files import write_atomically
from cupola.errors import CupolaError
from cupola.federation.message import Declined, Question, digest
from cupola.federation.program import Ask, Program, Reply, State

OFF_PATH = "the question does not follow from the plan and the totals so far"
OVER = "the study is over"
_COPY = "restore the folder from a copy, or withdraw and join under a new name"


class Replay:
    """A site's copy of a program. save: called with every new state before anything depends on it.

    witnessed: how questions come; a real site answers those only whose totals it will be told.
    """

    def __init__(
        self,
        program: Program,
        state: State | None = None,
        *,
        save: Callable[[State], None] | None = None,
        witnessed: bool = False,
    ) -> None:
        self.program, self._save, self._witnessed = program, save, witnessed
        self.state = program.start() if state is None else state
        self._ask: Ask | None = None
        self._ended = False

    @property
    def step(self) -> int:
        """Of the question that is due."""
        self.due()
        return self.state.step

    def due(self) -> Ask | None:
        """What is asked next, of sites or of the coordinator; None at the end."""
        while self._ask is None and not self._ended:
            ask = self.program.ask(self.state)
            if ask is None:
                self._ended = True
            elif ask.kind == "alone" and not ask.question.task:
                self._advance(None)
            else:
                self._ask = ask
        return self._ask

    def check(self, question: Question, site: int | None = None) -> None:
        """Declined unless this is the question that is due, and due to this site."""
        ask = self.pass_over(question.step)
        if ask is None:
            raise Declined(OVER)
        if question.step > self.state.step:
            raise Declined(f"the total of step {self.state.step} was not told to this site")
        own = replace(ask.question, witnessed=self._witnessed)
        if ask.kind == "alone" or digest(own) != digest(question):
            raise Declined(OFF_PATH)
        if site is not None and site not in ask.sites:
            raise Declined(OFF_PATH)

    def hear(self, step: int, reply: Reply) -> None:
        """The authentic answer to the question that is due; one that was heard before is none."""
        if self.pass_over(step) is None or step < self.state.step:
            return
        if step > self.state.step:
            raise Declined(f"the total of step {self.state.step} was not told to this site")
        self._advance(reply)

    def pass_over(self, step: int) -> Ask | None:
        """What is due, once a question before the step is passed over that decides nothing: its
        answers, which others were told, change no other question. Totals are told in any case: a
        program knows what to do without single answers, and not without a total."""
        ask = self.due()
        passes = ask is not None and ask.kind == "gather" and not ask.question.decides
        if passes and step > self.state.step:
            self._advance({})
            ask = self.due()
        return ask

    def _advance(self, reply: Reply) -> None:
        self._ask = None
        try:
            state = self.program.answer(self.state, reply)
        except CupolaError:  # the coordinator's copy stops here as well, and says why
            self._ended = True
            return
        if self._save is not None:
            self._save(state)
        self.state = state  # not before it is saved: what was heard is not told again


class Once:
    """A program whose last step is computed once, for a coordinator and for simulated sites that
    follow it in the same process."""

    def __init__(self, program: Program) -> None:
        self._program, self._start = program, program.start()
        self._asked: tuple[State, Ask | None] | None = None
        self._answered: tuple[State, Reply, State] | None = None

    def start(self) -> State:
        return self._start

    def ask(self, state: State) -> Ask | None:
        if self._asked is None or self._asked[0] is not state:
            self._asked = (state, self._program.ask(state))
        return self._asked[1]

    def answer(self, state: State, reply: Reply) -> State:
        last = self._answered
        if last is None or last[0] is not state or last[1] is not reply:
            self._answered = last = (state, reply, self._program.answer(state, reply))
        return last[2]


class SavedState:
    """A program's state in a folder: an array is written when it is new, an index at every step.

    The index names every file with its hash: what was damaged, or exchanged, is not gone on with.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._held: dict[str, tuple[np.ndarray, str, str]] = {}  # name -> array, file, hash
        self.step = 0

    @property
    def _index(self) -> Path:
        return self._folder / "state.json"

    def load(self) -> State | None:
        if not self._index.exists():
            return None
        facts = read_json(self._index, _COPY)
        try:
            facts = facts.get("facts", facts)  # as earlier versions wrote it
            for name, file, told in facts["arrays"]:
                path = self._folder / Path(file).name
                data = path.read_bytes() if path.exists() else b""
                if mark(data) != told:
                    raise damaged(path, "it is not the array that was saved", _COPY)
                self._held[name] = (np.load(io.BytesIO(data), allow_pickle=False), file, told)
            arrays = {name: array for name, (array, _, _) in self._held.items()}
            self.step = facts["step"]
            return State(facts["step"], arrays, facts["values"])
        except (AttributeError, KeyError, TypeError, ValueError):
            raise damaged(self._index, "it is no index of arrays", _COPY) from None

    def require(self, step: int) -> None:
        """DataError unless the state is at least as far as it was seen to be."""
        if self.step < step:
            raise damaged(self._index, f"it is of step {self.step}, and was of {step}", _COPY)

    def save(self, state: State) -> None:
        held = {}
        for number, (name, array) in enumerate(state.arrays.items()):
            before = self._held.get(name)
            if before is not None and before[0] is array:
                held[name] = before
                continue
            data = _packed(array)
            file = f"{state.step}-{number}.npy"
            write_atomically(self._folder / file, data)
            held[name] = (array, file, mark(data))
        facts = {
            "step": state.step,
            "values": state.values,
            "arrays": [[name, file, told] for name, (_, file, told) in held.items()],
        }
        text = json.dumps(facts, separators=(",", ":"))
        write_atomically(self._index, sealed_json(self._index.name, text))
        self.step = state.step
        kept = {file for _, file, _ in held.values()}
        for _, file, _ in self._held.values():
            if file not in kept:
                with suppress(FileNotFoundError):
                    (self._folder / file).unlink()
        self._held = held


def _packed(array: np.ndarray) -> bytes:
    found = io.BytesIO()
    np.save(found, array, allow_pickle=False)
    return found.getvalue()
