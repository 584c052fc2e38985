"""Transcripts of small studies: every message, what parties remember, what the ledger says.

    python tests/secure/transcripts.py    # write transcripts.json anew

Beside the vectors (one sum that succeeds) these are whole studies: sites that drop out in each
phase and come back, steps asked again, clocks set back, broken answers, bounds exceeded, totals
that are told to the sites. All secrets are fixed (`vectors.make`): everything is repeatable.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from vectors import make

from cupola.errors import FederationError
from cupola.federation import Question, Spec, task
from cupola.federation.ledger import Ledger
from cupola.federation.message import decode_question, encode_contribution
from cupola.federation.program import Ask
from cupola.secure import graph, pairwise_keys
from cupola.secure.open_sums import Open
from cupola.secure.replayed_totals import Witnessed

FILE = Path(__file__).parent / "transcripts.json"


@task("vector draws", random=lambda _: True)
def draws(site, question):
    return make.Contribution({"x": site.data[0]["x"] * (1 + question.round)})


class Follower:
    """A site's copy of the program, in the place of `Replay`: it hears whatever comes next."""

    def __init__(self):
        self.step, self.asks, self.heard = 0, [], []

    def due(self):
        return self.asks[self.step] if self.step < len(self.asks) else None

    def pass_over(self, step):  # noqa: ARG002
        """Every question of these studies decides something: none is passed over."""
        return self.due()

    def hear(self, step, reply):
        assert step == self.step
        self.heard.append(_plain(reply))
        self.step += 1


def _plain(reply):
    """A total, or answers, as values that JSON holds exactly."""
    if isinstance(reply, dict):
        return {site: encode_contribution(answer).hex() for site, answer in reply.items()}
    facts = (reply.weight, reply.weights, reply.sites, reply.failed)
    arrays = (reply.arrays, reply.exact)
    return [*facts, *({k: [str(a.dtype), a.tolist()] for k, a in of.items()} for of in arrays)]


class Study:
    """Parties of one study over bytes. gone: site -> tasks it is late for. meddle: (task, site,
    answer) -> answer, on the way. now: the clock, which ticks."""

    def __init__(self, folder, sites, protocol, answers, *, leaves=(), changes=False, unmasked=()):
        third = protocol == "compensator"
        self.roster = make.roster_of(sites, 3, third, leaves, changes)
        self.random, self.messages, self.lines, self.steps = make.Randomness(), [], [], []
        self.gone, self.meddle, self.now = {}, None, make.ATTEMPT
        self.replays = [Follower() for _ in range(sites)] if unmasked else [None] * sites
        self.folder, self.closes, parties = folder, [], []
        for number, answer in enumerate(answers):
            memory = make.members.Memory(folder / f"{number}.jsonl")
            self.closes.append(memory)
            own = {"replay": self.replays[number], "unmasked": frozenset(unmasked)}
            site = make.site_of_cupola(self.roster, number, answer, memory, **own)
            parties.append(self._turn(number, make.Draws(f"site {number}"), site))
        compensator = None
        if third:
            made = make.compensator_of_cupola(self.roster, folder / "compensator.jsonl")
            self.closes.append(made.__self__)
            compensator = self._turn(-1, make.Draws("third"), made)
        facts = (self.roster, parties, compensator, self.messages)
        self.federation = make.coordinator_of_cupola(*facts)
        self.federation.ledger = Ledger(self.lines.append)

    def _turn(self, number, drawn, party):
        def answer(data):
            self.random.now = drawn
            asked = decode_question(data).task
            if asked in self.gone.get(number, ()):
                return b"Flate"
            told = party(data)
            return self.meddle(asked, number, told) if self.meddle else told

        return answer

    def _tick(self):
        self.now += 1
        return self.now

    def sum(self, question, sites=None, *, gather=False):
        """One step, as a line: its messages, entries of the ledger, and how it ended."""
        sites = range(len(self.roster.sites)) if sites is None else sites
        messages, lines = len(self.messages), len(self.lines)
        for replay in filter(None, self.replays):
            replay.asks.append(Ask("gather" if gather else "sum", question, list(sites)))
        with self.random.fixed(self._tick):
            try:
                ask = self.federation.gather if gather else self.federation.sum
                found = _plain(ask(question, sites))
            except FederationError as error:
                found = f"{type(error).__name__}: {error}"
        sent = self.messages[messages:]
        self.steps.append({
            "messages": len(sent),
            "bytes": _hash([[a, b, data.hex()] for a, b, data in sent]),
            "ledger": _hash(self.lines[lines:]),
            "ended": found if isinstance(found, str) else _hash(found),
        })  # fmt: skip

    def found(self):
        """All steps, and what the parties remember and heard."""
        for party in self.closes:
            party.close()
        files = {path.name: path.read_text("utf-8") for path in sorted(self.folder.iterdir())}
        heard = [replay.heard for replay in self.replays if replay]
        return {"steps": self.steps, "memories": _hash(files), "heard": _hash(heard)}


def _hash(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]


@contextmanager
def sparse(sites, picks, threshold, quorum):
    """Few neighbours, drawn by a rule."""
    found = graph.Graph(sites, picks, threshold, quorum)

    def drawn(others, picks):
        return sorted(others[(3 * i + 1) % len(others)] for i in range(picks))

    with ExitStack() as stack:
        stack.enter_context(patch.object(pairwise_keys, "graph", lambda *_: found))
        stack.enter_context(patch.object(make.pair_members, "draw", drawn))
        yield


def numbers(sites, **kind):
    question, answers = make.whole(sites)
    small = {name: spec for name, spec in question.expects.items() if name in ("x", "n")}
    answers = [({k: arrays[k] for k in small}, weight) for arrays, weight in answers]
    return replace(question, expects=small, step=0, round=0, **kind), answers


def at(question, step, **changes):
    return replace(question, step=step, round=step, **changes)


def _changed(name, site=2, task="masked"):
    """A line that flips a bit near the end of one site's answer."""

    def meddle(asked, number, told):
        if asked != task or number != site or told[:1] != b"A":
            return told
        if name == "broken":
            return b"A" + encode_contribution(make.Contribution({"x": np.zeros(3)}))
        return told[:-200] + bytes([told[-200] ^ 1]) + told[-199:]

    return meddle


# Studies


def compensator(folder):
    question, answers = numbers(5)
    study = Study(folder, 5, "compensator", answers, leaves=(1,))
    study.sum(question)
    study.sum(question)  # again: a later attempt, the same total
    study.sum(at(question, 1), [0, 2, 3, 4])  # site 1 may leave
    study.gone = {4: ["masked"]}
    study.sum(at(question, 2))  # site 4 may not: three attempts
    study.gone = {1: ["masked"]}
    study.sum(at(question, 3))
    study.gone = {}
    study.sum(at(question, 3))  # settled without site 1
    study.now -= 1000
    study.sum(at(question, 3), [0, 2, 3, 4])  # a clock that was set back
    study.gone = {n: ["masked"] for n in (0, 2, 3)}
    study.sum(at(question, 4))  # too few
    study.gone = {}
    study.sum(at(question, 5), [1, 2])
    study.meddle = _changed("broken")
    study.sum(at(question, 6))
    study.meddle = _changed("bits")
    study.sum(at(question, 7))
    study.meddle = None
    study.sum(at(question, 0, options={"other": 1}))  # another question under a step
    loose = {**question.expects, "x": Spec((3,), "float", 0.5)}
    study.sum(at(question, 8, options={"more": 1}, expects=loose))  # beyond its bound
    return study


def compensator_stays_out(folder):
    """Who is missing from the first total stays out of later ones."""
    question, answers = numbers(6)
    study = Study(folder, 6, "compensator", answers)
    study.gone = {5: ["masked"], 4: ["masked"]}
    study.sum(question)
    study.gone = {}
    study.sum(at(question, 1))
    study.sum(at(question, 2))
    study.gone = {0: ["masked"]}
    study.sum(at(question, 3))
    return study


def compensator_changes(folder):
    question, answers = numbers(5)
    drawn = replace(question, task="vector draws", expects={"x": Spec((3,), "float", 300.0)})
    study = Study(folder, 5, "compensator", answers, changes=True)
    study.sum(drawn)
    study.sum(at(drawn, 1), range(4))
    study.sum(at(question, 2), range(4))
    study.sum(at(question, 3))  # the same question with one more
    study.sum(at(question, 4), range(3))
    return study


def compensator_partial(folder):
    question, answers = make.partial(5)
    study = Study(folder, 5, "compensator", answers)
    study.sum(question)
    study.gone = {4: ["masked"]}
    study.sum(at(question, 1))
    study.gone = {-1: ["unmask"]}
    study.sum(at(question, 2))  # the compensator falls silent after it settled
    study.gone = {}
    study.sum(at(question, 2))
    return study


def compensator_witnessed(folder):
    question, answers = numbers(4)
    study = Study(folder, 4, "compensator", answers, unmasked=("vector draws",))
    study.federation = Witnessed(study.federation)
    return _witnessed(study, question)


def opened(folder):
    question, answers = make.partial(5)
    tasks = ("vector numbers", "vector draws")
    study = Study(folder, 5, "pairwise", answers, unmasked=tasks)
    sites = study.federation.engine
    sites.ledger = study.federation.ledger
    study.federation = Witnessed(Open(sites, study.roster))
    return _witnessed(study, question)


def pairwise_witnessed(folder):
    question, answers = numbers(5)
    study = Study(folder, 5, "pairwise", answers, unmasked=("vector draws",))
    study.federation = Witnessed(study.federation)
    return _witnessed(study, question)


def _witnessed(study, question):
    """A sum, an answer each, a site that is late, and a question that is not due."""
    size = question.expects["x"].shape
    study.sum(question)
    shown = {"x": Spec(size, "float")}
    study.sum(Question("vector draws", expects=shown, step=1, round=1), gather=True)
    study.gone = {2: ["replay hear"]}
    study.sum(at(question, 2))
    study.gone = {}
    study.sum(at(question, 2))
    study.gone = {2: ["masked", "open", "pairwise masked"]}
    study.sum(at(question, 3))
    return study


def pairwise(folder):
    """Drop-outs in every phase."""
    phases = [f"pairwise {name}" for name in ("keys", "shares", "masked", "survivors", "unmask")]
    question, answers = numbers(7)
    study = Study(folder, 7, "pairwise", answers, changes=True)
    for step in range(5):
        study.gone = {step: phases[step:], 6: phases[4:]}
        study.sum(at(question, step, options={"step": step}))
    study.gone = {}
    study.sum(at(question, 2, options={"step": 2}))  # again, of the same sites
    study.gone = {0: phases}
    study.sum(at(question, 1, options={"step": 1}))  # without one of them: three attempts
    for step in range(5, 10):
        study.gone = dict.fromkeys((1, 3, 4, 5), phases[step - 5 :])
        study.sum(at(question, step, options={"step": step}))
    study.gone, study.meddle = {}, _changed("broken", task="pairwise masked")
    study.sum(at(question, 10, options={"step": 10}))
    study.meddle = _changed("bits", task="pairwise masked")
    study.sum(at(question, 11, options={"step": 11}))
    study.meddle = None
    study.sum(at(question, 12), [1, 2])
    loose = {**question.expects, "x": Spec((3,), "float", 0.5)}
    study.sum(at(question, 13, options={"more": 1}, expects=loose))
    return study


def pairwise_stays_out(folder):
    question, answers = numbers(6)
    study = Study(folder, 6, "pairwise", answers, leaves=(1,))
    study.gone = {5: ["pairwise masked"]}
    study.sum(question)
    study.gone = {}
    study.sum(at(question, 1))
    study.sum(at(question, 2), [0, 2, 3, 4])
    study.gone = {0: ["pairwise masked"]}
    study.sum(at(question, 3))
    return study


def pairwise_partial(folder):
    question, answers = make.partial(5)
    study = Study(folder, 5, "pairwise", answers)
    study.gone = {4: ["pairwise masked"]}
    study.sum(question)
    study.gone = {4: ["pairwise keys"]}
    study.sum(at(question, 1))
    return study


def pairwise_sparse(folder):
    question, answers = numbers(14)
    with sparse(14, 7, 2, 8):
        study = Study(folder, 14, "pairwise", answers)
        study.gone = {1: ["pairwise shares"], 5: ["pairwise masked"], 9: ["pairwise survivors"]}
        study.sum(question)
        study.gone = {}
        study.sum(at(question, 1))
    return study


STUDIES = {
    f.__name__: f
    for f in (
        compensator, compensator_stays_out, compensator_changes, compensator_partial,
        compensator_witnessed, opened, pairwise, pairwise_stays_out, pairwise_partial,
        pairwise_sparse, pairwise_witnessed,
    )
}  # fmt: skip


def transcript(name, folder):
    return STUDIES[name](folder).found()


if __name__ == "__main__":
    whole = {}
    for name in STUDIES:
        with tempfile.TemporaryDirectory() as folder:
            whole[name] = transcript(name, Path(folder))
    FILE.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")
