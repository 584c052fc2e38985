"""Following a program at real sites: how totals come to them, and what they refuse to believe.

The coordinator hands on the first site's secret, sealed; asks witnessed questions; and tells every
site the total of each step, with its witness (see `witness`). A site checks it, takes the step by
itself (`cupola.federation.replay`), and from then on answers the next question alone.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cupola.errors import FederationError
from cupola.federation.federation import Failure, Total
from cupola.federation.message import (
    WITNESS,
    Arrays,
    Contribution,
    Declined,
    Question,
    Spec,
    contribution_size,
    question_size,
)
from cupola.federation.program import Ask
from cupola.federation.site import Charge, SiteContext, task
from cupola.secure.canonical import digest
from cupola.secure.encoding import scales_hash
from cupola.secure.envelope import ENVELOPE, EnvelopeError, Statement, seal, unseal
from cupola.secure.mask_stream import new_seed
from cupola.secure.member import SECRET, Member, member_of
from cupola.secure.secure_aggregation import SecureSums, Wrapped, answers_of
from cupola.secure.witness import from_limbs, proof, tag
from cupola.secure.wrapped_question import layout_of, total_from

KEYS, TAKE, HEAR = "replay keys", "replay take", "replay hear"
FALSE = "what the coordinator told is not the total of what the sites answered"


def _statement(member: Member, site: int) -> Statement:
    """What the envelope with the secret for one site is for."""
    roster, purpose = member.roster, digest("cupola witness secret 1", site)
    return roster.statement(roster.sites[0].name, 0, 0, purpose, purpose)


@task(KEYS)
def keys(site: SiteContext, question: Question) -> Contribution:  # noqa: ARG001
    """The first site's secret, sealed for each of the others."""
    member = member_of(site)
    if member.index != 0:
        raise Declined("the first site of the roster draws the sites' secret")
    secret = bytes.fromhex(member.memory.setdefault(SECRET, new_seed().hex()))
    sealed = [
        seal(_statement(member, i), secret, member.identity, party)
        for i, party in enumerate(member.roster.sites)
    ]
    return Contribution({"sealed": np.frombuffer(b"".join(sealed), np.uint8).reshape(-1, ENVELOPE)})


@task(TAKE)
def take(site: SiteContext, question: Question) -> Contribution:
    """Take the secret that the first site sealed; once."""
    member = member_of(site)
    try:
        envelope = question.arrays["sealed"][member.index].tobytes()
        first = member.roster.sites[0]
        secret = unseal(_statement(member, member.index), envelope, first, member.identity)
    except (EnvelopeError, KeyError, IndexError):
        raise Declined("this is not the secret of the first site") from None
    if member.memory.setdefault(SECRET, secret.hex()) != secret.hex():
        raise Declined("this site has another secret of this study")
    return Contribution({})


# What a site is told


@task(HEAR)
def hear(site: SiteContext, question: Question) -> Contribution:
    """The coordinator's word about the last step, if the witnesses bear it out."""
    member = member_of(site)
    replay = member.replay
    if replay is None:
        raise Declined("this site does not follow this study")
    ask = replay.pass_over(question.step)
    if ask is None or question.step < replay.step:
        return Contribution({})  # heard before, or of no use
    if question.step > replay.step:
        replay.hear(question.step, None)  # which declines
    told: dict[str, Callable[[], Any]] = {
        "sum": lambda: _told_total(member, ask, question),
        "gather": lambda: _told_answers(member, ask, question),
        "alone": lambda: {0: Contribution(dict(question.arrays))},
    }
    replay.hear(question.step, told[ask.kind]())
    return Contribution({})


def _told_sites(ask: Ask, question: Question) -> list[int]:
    """All that were asked. The total of some of them is authentic, too, and that of nobody is zero
    with a witness of zero: who may choose among totals chooses the study's path."""
    sites = question.options.get("sites")
    if not isinstance(sites, list) or not all(type(s) is int for s in sites):
        raise Declined("question is not well formed")
    if sites != sorted(ask.sites):
        raise Declined(FALSE)
    return sites


def _told_total(member: Member, ask: Ask, question: Question) -> Total:
    inner, sites = replace(ask.question, witnessed=True), _told_sites(ask, question)
    layout = layout_of(inner, len(member.roster.sites))
    sums = {e: question.arrays[e.name] for e in layout if e.name in question.arrays}
    fits = all(v.dtype == e.dtype and v.shape == (e.size,) for e, v in sums.items())
    limbs = question.arrays.get(WITNESS)
    # One that is left out counts as zeros in the witness: a total of zeros could be hidden.
    whole = inner.partial or len(sums) == len(layout)
    if len(sums) != len(question.arrays) or not (fits and whole) or limbs is None:
        raise Declined("question is not well formed")
    if tag(member.witness_key(inner, scales_hash(layout)), sums, sites) != from_limbs(limbs):
        raise Declined(FALSE)
    return total_from(inner, sums, sites, {})


def _told_answers(member: Member, ask: Ask, question: Question) -> dict[int, Contribution]:
    inner = replace(ask.question, witnessed=True)
    key, found = member.witness_key(inner, b"gather"), {}
    for site in _told_sites(ask, question):
        own = {
            name.partition("/")[2]: array
            for name, array in question.arrays.items()
            if name.partition("/")[0] == str(site)
        }
        told = own.pop(WITNESS, np.zeros(0, np.uint8)).tobytes()
        found[site] = Contribution(own)
        if not hmac.compare_digest(told, proof(key, site, found[site])):
            raise Declined(FALSE)
    return found


@keys.charges
def _nothing(site: SiteContext, question: Question) -> Charge:  # noqa: ARG001
    return Charge(())


for _free in (keys, take, hear):  # they tell nothing of anybody's data
    _free.about = lambda _: Question(KEYS, step=-2)
    _free.protocol = True


# The coordinator's side


def _telling(question: Question, arrays: Arrays, sites: list[int], what: str) -> Question:
    return Question(
        HEAR,
        arrays,
        {"sites": sites},
        step=question.step,
        round=question.round,
        reveals=f"nothing: this site is told {what} of '{question.task}'",
    )


def told_size(question: Question, sites: int) -> int:
    """Bytes in which each of so many sites is told the total of a question, and confirms it."""
    layout = layout_of(replace(question, witnessed=True), sites)
    arrays = {e.name: np.broadcast_to(e.dtype.type(0), e.size) for e in layout}
    told = _telling(question, arrays, list(range(sites)), "the total")
    return question_size(told) + contribution_size({})


def told_answers_size(question: Question, answers: dict[int, Contribution]) -> int:
    """The same of a question to single sites, whose answers all are told."""
    proven = np.zeros(32, np.uint8)  # as long as `proof` is
    arrays = {f"{s}/{n}": a for s, c in answers.items() for n, a in c.arrays.items()}
    arrays |= {f"{site}/{WITNESS}": proven for site in answers}
    told = _telling(question, arrays, list(answers), "the answer")
    return question_size(told) + contribution_size({})


class Witnessed(Wrapped):
    """Hidden sums over sites that follow the program: after every step all are told its total."""

    def __init__(self, engine: SecureSums) -> None:
        super().__init__(engine, engine.roster)
        self._sites = engine.engine
        self._shared = False

    def sum(self, question: Question, sites: Sequence[int]) -> Total:
        self._share()
        total = self.engine.sum(replace(question, witnessed=True), sites)
        if not total.sites:
            return total
        self._tell(question, total.exact, total.sites, "the total")
        return total

    def gather(self, question: Question, sites: Sequence[int]) -> dict[int, Contribution]:
        self._share()
        answers = self.engine.gather(replace(question, witnessed=True), sites)
        told = {f"{s}/{n}": a for s, answer in answers.items() for n, a in answer.arrays.items()}
        if question.decides:
            self._tell(question, told, list(answers), "the answer")
        return {
            site: replace(answer, arrays={n: a for n, a in answer.arrays.items() if n != WITNESS})
            for site, answer in answers.items()
        }

    def bring(self, question: Question) -> None:
        self._share()
        self._tell(question, dict(question.arrays), [], "what the coordinator brings along")

    def _share(self) -> None:
        """Hand the first site's secret on, sealed; again after a restart, which changes nothing."""
        if self._shared:
            return
        everybody = range(len(self.roster.sites))
        asked = Question(KEYS, expects={"sealed": Spec((len(everybody), ENVELOPE), "int")})
        sealed = self._ask_all(asked, [0])[0]
        self._ask_all(Question(TAKE, {"sealed": sealed["sealed"]}), everybody)
        self._shared = True

    def _tell(self, question: Question, arrays: Arrays, sites: list[int], what: str) -> None:
        told = _telling(question, arrays, sites, what)
        everybody = range(len(self.roster.sites))
        answers = self._ask_all(told, everybody)
        reveals = f"to all sites: {what} of '{question.task}'"
        about = replace(question, reveals=reveals, protection="none")
        up = [contribution_size({})] * len(answers)
        self.enter(about, "tell", list(answers), question_size(told), up)

    def _ask_all(self, question: Question, sites: Sequence[int]) -> dict[int, Arrays]:
        """Every site's answer: one that does not hear what others heard could not go on."""
        found = {}
        for site, answer in answers_of(self._sites, question, sites):
            if isinstance(answer, Failure):
                name = self.roster.sites[site].name
                raise FederationError(
                    f"'{question.task}' in step {question.step}: {name}: {answer.code}; every site "
                    "must hear the totals, so the study waits: resume it when the site is back"
                )
            found[site] = answer.arrays
        return found
