"""Parties of a simulated study: their keys come from the plan's seed, so they protect nobody.

Real parties make their own keys where they are used (`Identity.create`) and pin a roster that
they have compared among themselves. Everything else is the same code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from cupola.errors import PlanError
from cupola.federation.message import Question
from cupola.secure import traffic
from cupola.secure.durable_dict import Memory
from cupola.secure.identity import Identity
from cupola.secure.member import Member
from cupola.secure.roster import Roster, simulated_roster
from cupola.secure.traffic import Sent, Traffic


@dataclass(frozen=True)
class Parties:
    """Who takes part in a simulated study of masked sums."""

    study: str
    seed: int
    sites: int
    minimum: int
    protocol: str
    unmasked: tuple[str, ...] = ()
    changes: bool = False
    _members: dict[int, Member] = field(default_factory=dict, compare=False, init=False)

    @property
    def roster(self) -> Roster:
        return self._made()[0]

    def _made(self) -> tuple[Roster, list[Identity]]:
        third = self.protocol == "compensator"
        return _made(self.study, self.seed, self.sites, self.minimum, third, self.changes)

    @property
    def recipe(self) -> tuple[str, Mapping[str, Any]]:
        """How a separate process makes a site's keys."""
        facts = {part.name: getattr(self, part.name) for part in fields(self) if part.init}
        facts["unmasked"] = list(self.unmasked)
        return "cupola.secure.simulation:member", facts

    def member(self, site: int) -> Member:
        """A site of this process."""
        if site not in self._members:
            self._members[site] = self.new_member(site, Memory())
        return self._members[site]

    def new_member(self, site: int, memory: Memory) -> Member:
        roster, identities = self._made()
        return Member(identities[site], roster, site, memory, frozenset(self.unmasked))


def simulated_parties(
    study: str,
    *,
    seed: int,
    sites: int,
    minimum: int = 3,
    protocol: str = "compensator",
    unmasked: Iterable[str] = (),
    changes: bool = False,
) -> Parties:
    """The parties of a study over so many sites, all of whom agree to the minimum. unmasked: tasks
    that sites answer without masks, to `gather`. changes: see `Roster`."""
    if sites < minimum:
        raise PlanError(
            f"sum.minimum = {minimum}, but there are {sites} sites: no masked sum can be told"
        )
    return Parties(study, seed, sites, minimum, protocol, tuple(unmasked), changes)


def expected_traffic(
    question: Question, parties: Parties, asked: Sequence[int], sent: Sent
) -> Traffic:
    """What a masked sum over these sites sends. sent: the arrays of each that answers."""
    return traffic.expected_traffic(question, parties.roster, asked, sent)


def member(site: int, folder: Path | None, **facts: Any) -> Member:
    """A site in a process of its own: what it has answered is kept in its folder."""
    memory = Memory(None if folder is None else folder / f"answered-{site}.jsonl")
    return Parties(**facts).new_member(site, memory)


@lru_cache(maxsize=4)
def _made(
    study: str, seed: int, sites: int, minimum: int, third: bool, changes: bool
) -> tuple[Roster, list[Identity]]:
    roster, members, _ = simulated_roster(
        seed, study, sites, compensator=third, minimum=minimum, changes=changes
    )
    return roster, members
