"""One attempt at a sum under pairwise masks, as the coordinator drives it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from cupola.errors import FederationError
from cupola.federation import Arrays, Contribution, Failure, Federation, Question, Total
from cupola.federation.ledger import Entry, common
from cupola.federation.message import contribution_size, question_size, refusal
from cupola.secure.checksum import checksum, from_bytes
from cupola.secure.hidden import total_from
from cupola.secure.masked import STAYS_OUT, TOO_FEW
from cupola.secure.member import ANSWER, CHECK
from cupola.secure.pairwise_keys import (
    Cohort,
    group_of,
    is_signed,
    keys_are_signed,
    mask_own,
    neighbours,
    pack_edges,
    pair_masks,
    stage_digest,
    survivors_digest,
    usable,
)
from cupola.secure.pairwise_masks import Table
from cupola.secure.pairwise_questions import Attempt
from cupola.secure.shamir import SHARE, combine
from cupola.secure.streams import P
from cupola.secure.unmasking import Missing


class TooFew(Exception):
    """Not enough sites to go on; nobody has told anything yet."""

    def __init__(self, there: int, needed: int) -> None:
        super().__init__(f"{TOO_FEW} ({there} of at least {needed})")


@dataclass
class Run:
    """One attempt, phase by phase."""

    engine: Federation
    attempt: Attempt
    failed: dict[int, str]
    broken: list[int] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)  # of masked answers
    down: Counter[int] = field(default_factory=Counter)  # bytes of the other phases
    up: Counter[int] = field(default_factory=Counter)
    sealed: dict[int, dict[int, bytes]] = field(default_factory=dict)  # holder -> dealer -> share
    present: list[np.ndarray] = field(default_factory=list)
    answers: dict[int, bytes] = field(default_factory=dict)  # survivor -> signature
    signers: dict[int, bytes] = field(default_factory=dict)
    before: Sequence[int] = ()  # survivors of earlier totals, whom sites expect again
    asked: Question | None = None  # for masked answers, once it was

    # Phases 1 and 2

    def meet(self, sites: Sequence[int]) -> None:
        """Keys and shares: who takes part, and who dealt shares to whom."""
        attempt = self.attempt
        keys: dict[int, bytes] = {}
        told: Counter[tuple[int, ...]] = Counter()
        for site, arrays in self._ask(attempt.keys(), sites):
            key = arrays["keys"].tobytes()
            if not keys_are_signed(attempt.roster, attempt.statement, site, key) or not usable(key):
                self.failed[site] = "keys that are not signed, or not usable"
                continue
            keys[site] = key
            if arrays["told"].any():
                told[tuple(np.flatnonzero(arrays["told"]).tolist())] += 1
        if told:
            self._same_again(keys, told.most_common(1)[0][0])
        self._enough(keys, attempt.roster.minimum)
        self.cohort = Cohort(attempt.roster, attempt.statement, tuple(keys), tuple(keys.values()))
        picks: dict[int, list[int]] = {}
        for site, arrays in self._ask(attempt.shares(self.cohort), list(keys)):
            drawn = arrays["picks"].tolist()
            if drawn != sorted(set(drawn) & (keys.keys() - {site})):
                self.failed[site] = "ill-shaped array 'picks'"
                continue
            picks[site] = drawn
            for holder, share in zip(drawn, arrays["sealed"], strict=True):
                self.sealed.setdefault(holder, {})[site] = share.tobytes()
        self.dealt = tuple(picks)
        self.edges = pack_edges(self.cohort, picks)
        self._enough(self.dealt, self.least)

    def _same_again(self, keys: dict[int, bytes], before: Sequence[int]) -> None:
        """Answered before, maybe before a crash: it can be told for the same sites only."""
        self.before = before
        self._all_there(keys)
        for site in set(keys) - set(before):
            self.failed[site] = STAYS_OUT
            del keys[site]

    def _all_there(self, there: Collection[int]) -> None:
        roster = self.attempt.roster
        names = {roster.sites[site].name for site in self.before if site not in there}
        if names - roster.leaves:
            raise Missing(self.attempt.inner, sorted(names - roster.leaves))

    @property
    def least(self) -> int:
        return max(self.cohort.graph.quorum, self.attempt.roster.minimum)

    def _enough(self, there: Sequence[int] | dict[int, bytes], needed: int) -> None:
        if len(there) < needed:
            raise TooFew(len(there), needed)

    # Phase 3

    def answer(self) -> None:
        """Masked answers, added up as they come."""
        self.asked = question = self.attempt.masked(self.cohort, self.dealt, self.edges)
        self.stage = stage_digest(self.cohort, self.dealt, self.edges, self.attempt.check)
        self.table = Table(self.attempt.layout)
        for site, arrays in self._ask(question, self.dealt, aside=False):
            party = self.attempt.roster.sites[site]
            statement = replace(self.attempt.statement, site=party.name).encode()
            signature, present = arrays["signature"].tobytes(), arrays["present"]
            facts = (statement, self.stage, present.tobytes())
            if not is_signed(party, signature, "pairwise masked", *facts):
                self.failed[site] = "an answer that is not signed"
                continue
            try:
                checks = {e: from_bytes(arrays[CHECK + e.name]) for e in self.attempt.layout}
            except FederationError as error:
                self.failed[site] = str(error)
                continue
            for entry, check in checks.items():
                self.table.arrays[entry] += arrays[ANSWER + entry.name]  # modulo 2^bits
                self.table.checks[entry] += check
            self.answers[site] = signature
            self.present.append(present)
        self._enough(self.answers, self.least)

    # Phases 4 and 5

    def agree(self) -> None:
        """Fix the survivors: a quorum signs them."""
        these, present = list(self.answers), np.stack(self.present)
        self._all_there(these)
        question = self.attempt.survivors(these, present, list(self.answers.values()))
        fact = survivors_digest(self.stage, these, present)
        for site, arrays in self._ask(question, these, silent=True):
            signature, party = arrays["signature"].tobytes(), self.attempt.roster.sites[site]
            if is_signed(party, signature, "pairwise survivors", fact):
                self.signers[site] = signature
        if len(self.signers) < self.cohort.graph.quorum:
            raise self._stuck(f"{len(self.signers)} of {self.cohort.graph.quorum} signatures")

    def unmask(self) -> Total:
        """Ask for shares until all secrets are restored, take the masks off, and check."""
        seeds, keys = self._restore()
        table, inner, statement = self.table, self.attempt.inner, self.attempt.statement
        told = set.intersection(*(set(of) for of in seeds.values()))
        for of in seeds.values():
            mask_own(table, statement, inner, {g: of[g] for g in told}, -1)
        for site, key in keys.items():
            others = neighbours(self.cohort, site, self.dealt, self.edges)
            alive = [other for other in others if other in self.answers]
            table.mask(statement, pair_masks(self.cohort, key, site, alive))
        sums = {}
        for entry, integers in table.arrays.items():
            if inner.partial and group_of(entry, inner) not in told:
                continue  # too few sites sent it
            if checksum(self.attempt.check, entry.name, integers) != table.checks[entry] % P:
                raise FederationError(
                    f"masked sum of '{entry.name}' in step {inner.step}: the checksum is wrong, "
                    "so a site's numbers or shares were changed; nothing was used"
                )
            sums[entry] = integers
        return total_from(inner, sums, list(self.answers), self.failed)

    def _restore(self) -> tuple[dict[int, dict[int, bytes]], dict[int, X25519PrivateKey]]:
        """The seeds of survivors' own masks, by group, and the keys of those who dropped out."""
        threshold = self.cohort.graph.threshold
        held: dict[int, dict[int, bytes]] = {site: {} for site in self.dealt}
        quorum = dict(list(self.signers.items())[: self.cohort.graph.quorum])
        for site in self.signers:
            mine = dict(sorted(self.sealed.get(site, {}).items()))
            question = self.attempt.unmask(quorum, list(mine), list(mine.values()))
            for _, arrays in self._ask(question, [site], silent=True):
                rows = zip([site, *mine], arrays["shares"], arrays["valid"], strict=True)
                for dealer, share, valid in rows:
                    if valid:
                        held[dealer][site + 1] = share.tobytes()
            if all(len(shares) >= threshold for shares in held.values()):
                break
        missing = [self.cohort.name(s) for s, found in held.items() if len(found) < threshold]
        if missing:
            raise self._stuck(f"the masks of {', '.join(missing[:5])} cannot be restored")
        seeds: dict[int, dict[int, bytes]] = {}
        keys: dict[int, X25519PrivateKey] = {}
        for site, found in held.items():
            points, shares = list(found)[:threshold], list(found.values())[:threshold]
            if site in self.answers:
                seeds[site] = self._seeds(points, shares)
            else:
                keys[site] = self._key(site, points, shares)
        return seeds, keys

    def _seeds(self, points: list[int], shares: list[bytes]) -> dict[int, bytes]:
        found = {}
        for group in range(self.attempt.count):
            parts = [share[group * SHARE : (group + 1) * SHARE] for share in shares]
            if all(any(part) for part in parts):  # zeros: not told
                found[group] = combine(points, parts)
        return found

    def _key(self, site: int, points: list[int], shares: list[bytes]) -> X25519PrivateKey:
        key = X25519PrivateKey.from_private_bytes(combine(points, [s[:SHARE] for s in shares]))
        if key.public_key().public_bytes_raw() != self.cohort.mask_key(site):
            raise self._stuck(f"the shares of '{self.cohort.name(site)}' do not fit its key")
        return key

    def _stuck(self, reason: str) -> FederationError:
        return FederationError(
            f"masked sum '{self.attempt.inner.task}' in step {self.attempt.inner.step}: {reason}. "
            "Sites have agreed on the survivors, so it can be asked again, of the same sites"
        )

    # Asking, and counting bytes

    def _ask(
        self, question: Question, sites: Sequence[int], *, silent: bool = False, aside: bool = True
    ) -> Iterator[tuple[int, Arrays]]:
        """Usable answers. silent: a failure costs a site nothing, it has done its part already.
        aside: bytes go to this protocol's own entry in the ledger."""
        size = question_size(question)
        for site, answer in self.engine.ask(question, sites):
            code = answer.code if isinstance(answer, Failure) else self._broken(answer, question)
            if aside:
                self.down[site] += size
            if code is not None or isinstance(answer, Failure):
                if not silent:
                    self.failed[site] = str(code)
                    sound = isinstance(answer, Failure) and not answer.broken
                    self.broken += [] if sound else [site]
                continue
            if aside:
                self.up[site] += contribution_size(answer.arrays)
            else:
                self.sizes[site] = contribution_size(answer.arrays)
            yield site, answer.arrays

    def _broken(self, answer: Contribution, question: Question) -> str | None:
        widths = {ANSWER + entry.name: entry.dtype.name for entry in self.attempt.layout}
        widths |= {"picks": "int32", "told": "bool", "present": "bool", "valid": "bool"}
        for name, array in answer.arrays.items():
            if array.dtype.name != widths.get(name, "uint8"):
                return f"ill-shaped array '{name}'"
        return refusal(answer, question)

    def entries(self) -> list[Entry]:
        """For the ledger: what keys, shares and signatures took; an entry for sites that were sent
        as much."""
        inner, entries = self.attempt.inner, []
        for size in sorted(set(self.down.values())):
            sites = sorted(site for site, sent in self.down.items() if sent == size)
            entries.append(
                Entry(
                    step=inner.step,
                    round=inner.round,
                    task="pairwise masks",
                    kind="unmask",
                    sites=sites,
                    failed={},
                    bytes_down=size,
                    bytes_up=common([self.up[site] for site in sites]),
                    reveals="to the coordinator: who took part, and the masks that do not cancel; "
                    "to the sites: who took part",
                    protection="masks are random numbers",
                )
            )
        return entries
