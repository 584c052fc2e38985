"""kill -9 of each party in turn, at each phase of a round: when a question arrives, at every
durable write, when an answer is ready to leave; and of the coordinator around every message.

Parties are processes of their own, forked from this one, which has everything loaded; what passes
between them is bytes. A party that died is started again from its folder at the next question.
"""

import contextlib
import os
import pickle
import signal
import warnings
from itertools import count

import consortium as made
import pytest
import torch
from test_kills import Beside, same, study, undisturbed  # noqa: F401

from cupola.base.frames import read_frame, write_frame
from cupola.federation import Failure, Federation, drive, read_answer
from cupola.federation.message import encode_question
from cupola.secure import Masked
from cupola.site import open_compensator, open_site

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked"),
]
PHASES = ("asked", "writes", "answers")


def die(phase, at):
    """A function that kills this process at the `at`-th call for this phase."""
    seen = dict.fromkeys(PHASES, 0)

    def come(now):
        seen[now] += 1
        if now == phase and seen[now] == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return come


def forked(work):
    """Run `work(inbox, outbox)` in a process of its own; its number, and pipes to and from it."""
    (reading, out), (inbox, writing) = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            os.close(reading), os.close(writing)
            work(os.fdopen(inbox, "rb"), os.fdopen(out, "wb"))
            code = 0
        finally:
            os._exit(code)
    os.close(out), os.close(inbox)
    return child, os.fdopen(writing, "wb"), os.fdopen(reading, "rb")


class Forked(Federation):
    """One party, which dies once, at the `at`-th moment of a phase."""

    def __init__(self, make, phase, at):
        super().__init__(1)
        self.make, self.come, self.deaths = make, die(phase, at), 0
        self.child = None

    def serve(self, inbox, outbox):
        os.fsync = lambda _: self.come("writes")
        party = self.make()
        while frame := read_frame(inbox):
            self.come("asked")
            answer = party.answer(frame)
            self.come("answers")
            write_frame(outbox, answer)

    def ask(self, question, sites):
        for site in sites:
            yield site, self.answer(encode_question(question))

    def answer(self, data):
        if self.child is None:
            self.child, self.to, self.back = forked(self.serve)
            self.come = lambda _: None  # of those that are started later
        try:
            write_frame(self.to, data)
            answer = read_frame(self.back)
        except OSError:
            answer = b""
        if not answer:
            assert self.close() == signal.SIGKILL
            self.deaths += 1
        return read_answer(answer) if answer else Failure("dead")

    def close(self):
        """How its process ended."""
        if self.child is None:
            return 0
        for pipe in (self.to, self.back):
            with contextlib.suppress(OSError):
                pipe.close()
        _, status = os.waitpid(self.child, 0)
        self.child = None
        return status


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", ["site", "compensator"])
def test_a_party_killed_at_each_phase(trial, undisturbed, tmp_path, kind, phase):  # noqa: F811
    for at in count(1):
        copy = made.copied(trial, tmp_path / f"killed-{at}")
        sites, third = copy.open()
        if kind == "site":
            own = Forked(lambda copy=copy: open_site(copy.site(0), copy.study), phase, at)
            sites = Beside(own, sites)
        else:
            own = third = Forked(
                lambda copy=copy: open_compensator(copy.compensator, copy.study), phase, at
            )
        try:
            state, reasons = study(copy, Masked(sites, third, copy.roster))
        finally:
            own.close()
            copy.close()
        assert same(state, undisturbed), at
        assert len(reasons) == own.deaths, reasons
        if not own.deaths:  # the study is over before its `at`-th moment
            break
    assert at > 2  # in both rounds


class Away(Federation):
    """Parties whom a coordinator reaches by a pipe. come: before and after every message."""

    def __init__(self, first, parties, inbox, outbox, come):
        super().__init__(parties, quorum=1.0)
        self.first, self.inbox, self.outbox, self.come = first, inbox, outbox, come

    def ask(self, question, sites):
        data = encode_question(question)
        for site in sites:
            self.come("asked")
            write_frame(self.outbox, bytes([self.first + site]) + data)
            answer = read_frame(self.inbox)
            self.come("answers")
            yield site, read_answer(answer)


def coordinate(trial, file, phase, at):
    """Drive the study from its last saved step, in a process of its own; how that ended."""

    def work(inbox, outbox):
        come = die(phase, at)
        sites, third = Away(0, 3, inbox, outbox, come), Away(3, 1, inbox, outbox, come)
        reach, program = Masked(sites, third, trial.roster), trial.training()

        def after(state):
            come("writes")
            part = file.with_suffix(".part")
            part.write_bytes(pickle.dumps((state.step, state.arrays, state.values)))
            part.replace(file)
            reach.confirm(state.step - 1)

        start = program.start()
        if file.exists():
            start = type(start)(*pickle.loads(file.read_bytes()))
        drive(program, reach, start, after)

    child, to, back = forked(work)
    while frame := read_frame(back):
        answer = trial.opened[frame[0]].answer(frame[1:])
        try:
            write_frame(to, answer)
        except OSError:  # it died while it waited
            break
    for pipe in (to, back):
        with contextlib.suppress(OSError):
            pipe.close()
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("phase", PHASES)
def test_a_coordinator_killed_at_each_phase(trial, undisturbed, tmp_path, phase):  # noqa: F811
    for at in count(1):
        copy, file = made.copied(trial, tmp_path / f"killed-{at}"), tmp_path / f"state-{at}"
        copy.open()
        killed = coordinate(copy, file, phase, at)
        assert killed in (0, signal.SIGKILL)
        if killed:
            assert coordinate(copy, file, None, 0) == 0
        copy.close()
        step, arrays, values = pickle.loads(file.read_bytes())
        assert same(type(undisturbed)(step, arrays, values), undisturbed), at
        if not killed:
            break
    assert at > 2
