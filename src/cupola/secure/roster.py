"""The roster: who takes part in a study, with which keys, and on which terms.

People agree on it outside the system. Every site and the compensator pin it and compare its digest
in every question; it is never learned from the coordinator.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from cupola.errors import FederationError
from cupola.federation.message import without_repetition
from cupola.secure.canonical import Value, digest, is_name, is_whole, pack
from cupola.secure.envelope import Statement
from cupola.secure.identity import Identity, Party, spoken

FORMAT = 1
MINIMUM = 3
CONSENTS = ("two", "leaves")
Consents = Mapping[str, Mapping[str, bytes]]


@dataclass(frozen=True)
class Roster:
    """The parties of a study, in the order in which engines number the sites.

    compensator: None in protocols without one. minimum: fewer sites' answers are never added up:
    3, or 2 if every site signed the consent 'two', since each of two can subtract its own answer.
    changes: whether sites may change from total to total; else differences of totals tell of the
    minimum of sites, too (see `differences`). Whoever pins the roster agrees to it.
    consents: what -> site's name -> signature (see `consent`). 'leaves': totals with and without
    this site may be told, although their difference is its answer.
    """

    study: str
    sites: tuple[Party, ...]
    compensator: Party | None = None
    minimum: int = MINIMUM
    consents: Consents = field(default_factory=dict)
    changes: bool = False

    def __post_init__(self) -> None:
        if not is_name(self.study):
            raise FederationError("a study's name is 1 to 200 printable characters")
        parties = (*self.sites, *([self.compensator] if self.compensator else []))
        if not parties or not all(isinstance(party, Party) for party in parties):
            raise FederationError("a roster lists parties")
        _distinct("name", [party.name for party in parties])
        _distinct("key", [key for party in parties for key in (party.sign, party.seal)])
        if not is_whole(self.minimum) or self.minimum < 2 or self.minimum > len(self.sites):
            raise FederationError(
                f"the roster's minimum must be from {MINIMUM} to its number of sites, "
                f"{len(self.sites)}; 2 needs every site's consent"
            )
        if not isinstance(self.changes, bool):
            raise FederationError("whether a roster's sites may change is true or false")
        self._check_consents()
        if self.minimum < MINIMUM and not self.agreed("two") >= {s.name for s in self.sites}:
            raise FederationError("a minimum of 2 needs the consent 'two' of every site")
        frozen = {what: MappingProxyType(dict(by)) for what, by in self.consents.items()}
        object.__setattr__(self, "consents", MappingProxyType(frozen))

    def _check_consents(self) -> None:
        parties = {site.name: site for site in self.sites}
        for what, by in self.consents.items():
            if what not in CONSENTS:
                raise FederationError(f"the consents are {', '.join(CONSENTS)}")
            for name, signature in by.items():
                if name not in parties or not is_agreed(parties[name], self.body, what, signature):
                    raise FederationError(f"the consent '{what}' is not signed by the site named")

    def agreed(self, what: str) -> frozenset[str]:
        """Names of the sites whose signature allows this."""
        return frozenset(self.consents.get(what, {}))

    def numbers(self, names: Container[str]) -> list[int]:
        """Of the sites with these names: names can be long."""
        return [number for number, site in enumerate(self.sites) if site.name in names]

    @property
    def leaves(self) -> frozenset[str]:
        """Sites that differences of totals may tell of."""
        return self.agreed("leaves")

    @cached_property
    def body(self) -> bytes:
        """32 bytes that stand for the roster before consents."""
        parties = (self.sites, self.compensator)
        return body_digest(self.study, *parties, self.minimum, self.changes)

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that stand for all of the roster, consents included."""
        consents = [[w, sorted(by.items())] for w, by in sorted(self.consents.items()) if by]
        return digest("cupola roster 1", self.body, consents)

    def statement(
        self,
        site: str,
        step: int,
        attempt: int,
        question: bytes,
        layout: bytes,
        terms: bytes = b"",
    ) -> Statement:
        """What one answer of a site in this study is for."""
        return Statement(self.study, self.digest, step, attempt, question, layout, site, terms)

    @property
    def fingerprint(self) -> str:
        """Of all of it, for people to compare by voice."""
        return spoken(self.digest)

    def to_json(self) -> str:
        more = {"changes": True} if self.changes else {}
        return json.dumps(
            {
                "cupola": "roster",
                "format": FORMAT,
                "study": self.study,
                "minimum": self.minimum,
                **more,
                "sites": [party_to_json(site) for site in self.sites],
                "compensator": party_to_json(self.compensator) if self.compensator else None,
                "consents": {
                    what: {name: signature.hex() for name, signature in by.items()}
                    for what, by in self.consents.items()
                },
            },
            indent=1,
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Roster:
        """A roster from its text; FederationError for anything that is not exactly one."""
        try:
            facts = json.loads(text, object_pairs_hook=without_repetition)
            kind, version = facts.pop("cupola"), facts.pop("format")
            if kind != "roster" or version != FORMAT:
                raise ValueError("format")
            facts["sites"] = tuple(party_from_json(site) for site in facts["sites"])
            compensator = facts["compensator"]
            facts["compensator"] = None if compensator is None else party_from_json(compensator)
            facts["consents"] = {
                what: {name: bytes.fromhex(signature) for name, signature in by.items()}
                for what, by in facts["consents"].items()
            }
            return cls(**facts)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise FederationError("this is not a roster, or it is damaged") from None


def body_digest(
    study: str,
    sites: Iterable[Party],
    compensator: Party | None,
    minimum: int,
    changes: bool = False,
) -> bytes:
    """32 bytes that stand for a roster before consents: what consents are given for."""
    facts: list[Value] = [_facts(site) for site in sites]
    third = None if compensator is None else _facts(compensator)
    more = ["changes"] if changes else []
    return digest("cupola roster body 1", study, minimum, facts, third, *more)


def consent(identity: Identity, body: bytes, what: str) -> bytes:
    """A site's signature that it agrees to `what` in the roster of this body."""
    if what not in CONSENTS:
        raise FederationError(f"the consents are {', '.join(CONSENTS)}")
    return agreement(identity, body, what)


def agreement(identity: Identity, body: bytes, what: str) -> bytes:
    """A site's signature under `what`, good for the roster of this body alone."""
    return identity.sign.sign(_agreement(identity.name, body, what))


def is_agreed(party: Party, body: bytes, what: str, signature: Any) -> bool:
    """Whether a site signed this."""
    return party.signed(_agreement(party.name, body, what), signature)


def simulated_roster(
    seed: int,
    study: str,
    sites: int,
    *,
    compensator: bool = True,
    minimum: int = MINIMUM,
    leaves: Iterable[int] = (),
    changes: bool = False,
) -> tuple[Roster, list[Identity], Identity | None]:
    """A roster, its sites' identities and its compensator's, from a plan's seed. Simulated sites
    agree to a minimum of 2; those in `leaves` agree to be left out."""
    members = [Identity.simulated(seed, f"site {i}") for i in range(sites)]
    third = Identity.simulated(seed, "compensator") if compensator else None
    parties = tuple(member.public for member in members)
    public = third.public if third else None
    body = body_digest(study, parties, public, minimum, changes)
    consents = {"leaves": {members[i].name: consent(members[i], body, "leaves") for i in leaves}}
    if minimum < MINIMUM:
        consents["two"] = {member.name: consent(member, body, "two") for member in members}
    return Roster(study, parties, public, minimum, consents, changes), members, third


def _agreement(name: str, body: bytes, what: str) -> bytes:
    return pack("cupola consent 1", what, body, name)


def _facts(party: Party) -> Value:
    return [party.name, party.sign, party.seal]


def _distinct(what: str, values: list[Any]) -> None:
    if len(set(values)) < len(values):
        raise FederationError(f"two parties of the roster have the same {what}")


def party_to_json(party: Party) -> dict[str, str]:
    return {"name": party.name, "sign": party.sign.hex(), "seal": party.seal.hex()}


def party_from_json(facts: Any) -> Party:
    name, sign, seal = facts.pop("name"), facts.pop("sign"), facts.pop("seal")
    if facts:
        raise ValueError("unknown facts")
    party = Party(name, bytes.fromhex(sign), bytes.fromhex(seal))
    party.check()
    return party
