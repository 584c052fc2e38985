"""Pairwise masks, a site's side: five tasks, one after another, for one attempt at one question.

What a site refuses, whoever asks: a roster other than its own; keys that their sites did not sign;
a cohort below the minimum; a second cohort, answer or set of survivors in an attempt; to help
unmask before a quorum of the cohort has signed the same survivors; to tell a share of a site's key
and of its own mask; another set of survivors for a question it has helped to answer, or, unless
sites may change, for another total of the same arrays; a site that the others go on without.

Keys, seeds and shares of an attempt live in memory: a site whose process dies has dropped out.
What it has signed survivors for is remembered for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from cupola.federation.message import Contribution, Declined, Question
from cupola.federation.site import Charge, SiteContext, task
from cupola.secure.checksum import checksum, to_bytes
from cupola.secure.encoding import scales_hash
from cupola.secure.envelope import Statement
from cupola.secure.graph import draw
from cupola.secure.mask_stream import new_seed
from cupola.secure.member import Member, member_of
from cupola.secure.pairwise_keys import (
    KEYS,
    SIGNATURE,
    Cohort,
    groups,
    is_signed,
    mask_own,
    sealed_size,
    sign,
    sign_keys,
    survivors_digest,
)
from cupola.secure.pairwise_masks import Table
from cupola.secure.pairwise_memory import (
    agree_to_cohort,
    agree_to_survivors,
    agree_to_total,
    refuse_gone,
    told_before,
)
from cupola.secure.pairwise_messages import as_array, dealt_in
from cupola.secure.reading import (
    ILL,
    array_in,
    bytes_in,
    hash_in,
    options_of,
    rows_in,
    sites_in,
    whole_in,
)
from cupola.secure.shamir import SHARE, split
from cupola.secure.wrapped_question import ANSWER, CHECK, inner_question, layout_of, question_hash

MOST_SEEDS = 1 << 12
_UNDER_WAY = "pairwise"  # where a member keeps its attempt, in memory


@dataclass
class Session:
    """One attempt, as far as it has come. None: not yet, or no longer needed."""

    statement: Statement
    count: int  # seeds of the own mask
    mask: X25519PrivateKey | None
    seal: X25519PrivateKey
    keys: bytes
    cohort: Cohort | None = None
    picks: list[int] = field(default_factory=list)
    seeds: list[bytes] = field(default_factory=list)
    own_share: bytes = b""
    sealed: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.uint8))
    dealt: tuple[int, ...] = ()
    stage: bytes = b""
    arrays: tuple[str, ...] = ()  # that the question asks for
    survivors: tuple[int, ...] = ()
    signed: bytes = b""  # what this site put its name to about survivors
    granted: tuple[bool, ...] = ()


@task("pairwise keys")
def keys(site: SiteContext, question: Question) -> Contribution:
    """Two one-time public keys, signed for this attempt; and for which survivors the question was
    answered before, if it was."""
    member = member_of(site)
    options = options_of(question)
    asked, layout = hash_in(options, "question"), hash_in(options, "layout")
    attempt, count = whole_in(options, "attempt"), whole_in(options, "seeds", MOST_SEEDS)
    if not count:
        raise Declined(ILL)
    member.agree(options.get("roster"), question.step, asked, layout)
    roster, name = member.roster, member.identity.name
    statement = roster.statement(name, question.step, attempt, asked, layout)
    session: Session | None = vars(member).get(_UNDER_WAY)
    if session is None or (session.statement, session.count) != (statement, count):
        mask, seal = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        public = [key.public_key().public_bytes_raw() for key in (mask, seal)]
        signed = sign_keys(statement, public[0], public[1], member.identity)
        session = Session(statement, count, mask, seal, signed)
        vars(member)[_UNDER_WAY] = session  # the last one: older attempts are over
    before = np.zeros(len(roster.sites), bool)
    before[told_before(member, asked, layout)] = True
    return Contribution({"keys": as_array(session.keys), "told": before})


@task("pairwise shares")
def shares(site: SiteContext, question: Question) -> Contribution:
    """Draw holders, and deal them sealed shares of the mask key and of the own mask's seeds."""
    member, session = _session(site, question)
    sites = sites_in(question, "sites", len(member.roster.sites))
    rows = rows_in(question, "keys", len(sites), KEYS)
    cohort = Cohort(member.roster, session.statement, sites, rows)
    if session.cohort is not None and session.cohort.digest != cohort.digest:
        raise Declined("shares were dealt to another cohort")
    if session.cohort is None:
        if len(sites) < member.roster.minimum:
            raise Declined(f"too few sites ({len(sites)} of at least {member.roster.minimum})")
        if member.index not in cohort.place or rows[cohort.place[member.index]] != session.keys:
            raise Declined("this site's keys are not among the cohort's")
        others = [other for other in sites if other != member.index]
        cohort.check(others)
        refuse_gone(member, sites)
        agree_to_cohort(member, session.statement.question, sites)
        _deal(member, session, cohort, others)
    return Contribution({"picks": np.array(session.picks, np.int32), "sealed": session.sealed})


def _deal(member: Member, session: Session, cohort: Cohort, others: list[int]) -> None:
    assert session.mask is not None
    picks = draw(others, cohort.graph.picks)
    seeds = [new_seed() for _ in range(session.count)]
    secret = b"".join([session.mask.private_bytes_raw(), *seeds])
    points = [member.index + 1, *(other + 1 for other in picks)]
    own, *dealt = split(secret, points, cohort.graph.threshold)
    try:
        sealed = [
            cohort.seal(session.seal, member.index, other, share)
            for other, share in zip(picks, dealt, strict=True)
        ]
    except ValueError:  # a key that leads to no secret
        raise Declined("keys of the cohort are not usable") from None
    session.cohort, session.picks, session.seeds, session.own_share = cohort, picks, seeds, own
    session.sealed = as_array(b"".join(sealed)).reshape(len(picks), sealed_size(session.count))


@task("pairwise masked")
def masked(site: SiteContext, question: Question) -> Contribution:
    """The inner question's answer under the own mask and those shared with neighbours, signed with
    the arrays it holds. Once: a second answer under the same masks would tell a difference."""
    member, session = _session(site, question)
    cohort, options = session.cohort, options_of(question)
    if cohort is None or session.mask is None:
        raise Declined("not the time for an answer: no shares were dealt, or it was given")
    try:
        inner = inner_question(question)
        layout = layout_of(inner, len(member.roster.sites))
        asked = (question_hash(inner), scales_hash(layout), groups(inner))
    except (TypeError, ValueError, KeyError, AttributeError, ArithmeticError):
        raise Declined(ILL) from None
    if asked != (session.statement.question, session.statement.layout, session.count):
        raise Declined("another question than the one this site signed keys for")
    dealt, edges = dealt_in(options, cohort), bytes_in(options, "edges")
    if member.index not in dealt or len(dealt) < cohort.graph.quorum:
        raise Declined(f"too few sites dealt shares ({len(dealt)} of {cohort.graph.quorum})")
    if cohort.drawn_by(member.index, edges) != session.picks:
        raise Declined("not the sites this site drew")
    key = hash_in(options, "check")
    others = cohort.neighbours(member.index, dealt, edges)
    try:
        pairs = cohort.pair_masks(session.mask, member.index, others)
    except ValueError:
        raise Declined("keys of the cohort are not usable") from None
    own = dict(enumerate(session.seeds))
    session.mask, session.seeds = None, []  # from here on there is no second time
    values = member.values(site, inner, layout, "pairwise masked")
    table = Table(layout)
    for entry, integers in values.items():
        table.arrays[entry][:] = integers
        table.checks[entry] = checksum(key, entry.name, integers)
    mask_own(table, session.statement, inner, own, 1)
    table.mask(session.statement, pairs)
    sent = {entry.name for entry in values}
    present = np.array([n in sent for n in sorted(inner.expects)] if inner.partial else [], bool)
    session.arrays = tuple(sorted(inner.expects))
    session.dealt, session.stage = dealt, cohort.stage(dealt, edges, key)
    facts = (session.statement.encode(), session.stage, present.tobytes())
    signature = sign(member.identity, "pairwise masked", *facts)
    arrays = {"present": present, "signature": as_array(signature)}
    arrays |= {ANSWER + entry.name: integers for entry, integers in table.arrays.items()}
    arrays |= {CHECK + entry.name: to_bytes(check) for entry, check in table.checks.items()}
    return Contribution(arrays)


masked.about = inner_question


@task("pairwise survivors")
def survivors(site: SiteContext, question: Question) -> Contribution:
    """A signature under the sites whose answers came: these and no others are to be added up."""
    member, session = _session(site, question)
    cohort = session.cohort
    if cohort is None or not session.stage:
        raise Declined("not the time to agree on survivors: this site gave no answer")
    these = sites_in(question, "survivors", len(member.roster.sites))
    present = array_in(question, "present", np.bool_, (len(these), session.count - 1)).copy()
    signatures = rows_in(question, "signatures", len(these), SIGNATURE)
    signed = survivors_digest(session.stage, these, present)
    if session.signed and session.signed != signed:
        raise Declined("this site has agreed to other survivors")
    if not session.signed:
        least = max(cohort.graph.quorum, member.roster.minimum)
        if len(these) < least:
            raise Declined(f"too few sites ({len(these)} of at least {least})")
        if member.index not in these or not set(these) <= set(session.dealt):
            raise Declined("survivors without this site, or who dealt no shares")
        for other, row, signature in zip(these, present, signatures, strict=True):
            if not cohort.is_answer(other, session.stage, row, signature):
                raise Declined(f"an answer that '{cohort.name(other)}' did not sign")
        scales = session.statement.layout
        agree_to_total(member, scales, session.arrays, these, present)
        granted = agree_to_survivors(member, session.statement.question, these, present)
        session.survivors, session.signed, session.granted = these, signed, granted
    signature = sign(member.identity, "pairwise survivors", signed)
    return Contribution({"signature": as_array(signature)})


@task("pairwise unmask")
def unmask(site: SiteContext, question: Question) -> Contribution:
    """Shares of the own masks of survivors, and of the mask keys of those who dropped out; this
    site's own share is the first row. Which of the two is told hangs on the survivors alone, so
    nobody's both."""
    member, session = _session(site, question)
    cohort = session.cohort
    if cohort is None or not session.signed:
        raise Declined("not the time to unmask: this site agreed to no survivors")
    signers = sites_in(question, "signers", len(member.roster.sites))
    signatures = rows_in(question, "signatures", len(signers), SIGNATURE)
    if len(signers) < cohort.graph.quorum or not set(signers) <= set(session.survivors):
        raise Declined(f"too few signatures ({len(signers)} of {cohort.graph.quorum})")
    for signer, signature in zip(signers, signatures, strict=True):
        party = cohort.roster.sites[signer]
        if not is_signed(party, signature, "pairwise survivors", session.signed):
            raise Declined(f"survivors that '{party.name}' did not sign")
    dealers = sites_in(question, "dealers", len(member.roster.sites))
    if member.index in dealers or not set(dealers) <= set(session.dealt):
        raise Declined("shares of sites that dealt none")
    rows = rows_in(question, "sealed", len(dealers), sealed_size(session.count))
    told = np.zeros((1 + len(dealers), session.count * SHARE), np.uint8)
    valid = np.ones(1 + len(dealers), bool)
    told[0] = _seeds_of(session.own_share, session.granted)
    for place, (dealer, sealed) in enumerate(zip(dealers, rows, strict=True), start=1):
        share = cohort.unseal(session.seal, dealer, member.index, sealed)
        if share is None:
            valid[place] = False
        elif dealer in session.survivors:
            told[place] = _seeds_of(share, session.granted)
        else:
            told[place, :SHARE] = as_array(share[:SHARE])
    return Contribution({"shares": told, "valid": valid})


def _seeds_of(share: bytes, granted: Sequence[bool]) -> np.ndarray:
    """The part of a share that restores the seeds of granted arrays."""
    rows = as_array(share[SHARE:]).reshape(len(granted), SHARE)
    return np.where(np.array(granted)[:, None], rows, 0).reshape(-1)


def _session(site: SiteContext, question: Question) -> tuple[Member, Session]:
    """The attempt that a question belongs to, which must be the one under way."""
    member = member_of(site)
    session: Session | None = vars(member).get(_UNDER_WAY)
    asked = (question.step, whole_in(options_of(question), "attempt"))
    if session is None or asked != (session.statement.step, session.statement.attempt):
        raise Declined("no such attempt is under way at this site")
    return member, session


@keys.charges
def _nothing(site: SiteContext, question: Question) -> Charge:  # noqa: ARG001
    return Charge(())


for _free in (keys, shares, survivors, unmask):  # they tell of keys, and of nobody's data
    _free.about = lambda _: Question("pairwise keys", step=-1)
    _free.protocol = True
