"""Masked sums without a third party: pairwise masks with drop-out recovery, coordinator's side.

After Bonawitz et al. (2017), in the variant against a coordinator that lies, with the sparse graph
of Bell et al. (2020) for many sites. Each pair of neighbours agrees on a mask that one adds and the
other takes off, and each site adds a mask of its own. Both can be restored from shares that other
sites hold: the own masks of those whose answers came, the pairwise masks of those who dropped out,
and never both of one site. The phases are questions to the sites (`pairwise_member`):

1. keys: one-time keys, signed under the pinned roster;
2. shares: of the mask key and of the own mask's seeds, sealed for the holders;
3. masked: the answer under all masks;
4. survivors: a signature under the set of sites whose answers came;
5. unmask: shares, once a quorum has signed the same set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from cupola.errors import FederationError
from cupola.federation.federation import Federation, Total
from cupola.federation.message import Contribution, Question
from cupola.secure import pairwise_member as _tasks  # noqa: F401 - registers what sites run
from cupola.secure.checksum import checksum, from_bytes
from cupola.secure.mask_stream import P
from cupola.secure.pairwise_keys import (
    Cohort,
    group_of,
    is_signed,
    keys_are_signed,
    mask_own,
    survivors_digest,
    usable,
)
from cupola.secure.pairwise_masks import Table
from cupola.secure.pairwise_messages import Attempt
from cupola.secure.secure_aggregation import (
    STAYS_OUT,
    TOO_FEW,
    Aggregation,
    Missing,
    SecureSums,
    TooFew,
    new_attempt,
)
from cupola.secure.shamir import SHARE, combine
from cupola.secure.wrapped_question import ANSWER, CHECK, outer_question, total_from


class Pairwise(SecureSums):
    """Masked sums over an engine, among the sites of the roster alone."""

    def aggregation(self, question: Question, least: int = 0) -> Aggregation:
        return PairwiseSum(self.engine, Attempt(self.roster, question, *new_attempt(least)))


class PairwiseSum(Aggregation):
    """One attempt, phase by phase."""

    beside = (
        "pairwise masks",
        "to the coordinator: who took part, and the masks that do not cancel; "
        "to the sites: who took part",
    )

    def __init__(self, engine: Federation, attempt: Attempt) -> None:
        super().__init__(engine, attempt.roster, attempt.inner)
        self.attempt = attempt
        self.before: Sequence[int] = ()  # survivors of earlier totals, whom sites expect again
        self.sealed: dict[int, dict[int, bytes]] = {}  # holder -> dealer -> share
        self.present: list[np.ndarray] = []
        self.answers: dict[int, bytes] = {}  # survivor -> signature
        self.signers: dict[int, bytes] = {}
        self.shares: dict[int, dict[int, bytes]] = {}  # dealer -> holder's point -> share

    @property
    def charged(self) -> Question:
        return outer_question("pairwise masked", self.inner, {}, {})

    @property
    def phases(self) -> list[Callable[[], None]]:
        return [self.meet, self.deal, self.collect, self.agree, self.unmask]

    def meet(self) -> None:
        """Keys: who takes part."""
        attempt, keys = self.attempt, dict[int, bytes]()
        told: Counter[tuple[int, ...]] = Counter()
        for site, arrays in self.ask(attempt.keys(), self.sites):
            key = arrays["keys"].tobytes()
            if not keys_are_signed(self.roster, attempt.statement, site, key) or not usable(key):
                self.failed[site] = "keys that are not signed, or not usable"
                continue
            keys[site] = key
            if arrays["told"].any():
                told[tuple(np.flatnonzero(arrays["told"]).tolist())] += 1
        if told:
            self._same_again(keys, told.most_common(1)[0][0])
        self._enough(keys, self.roster.minimum)
        self.cohort = Cohort(self.roster, attempt.statement, tuple(keys), tuple(keys.values()))
        self.least = max(self.cohort.graph.quorum, self.roster.minimum)

    def deal(self) -> None:
        """Shares: who dealt some to whom."""
        sites, picks = self.cohort.sites, dict[int, list[int]]()
        for site, arrays in self.ask(self.attempt.shares(self.cohort), sites):
            drawn = arrays["picks"].tolist()
            if drawn != sorted(set(drawn) & (set(sites) - {site})):
                self.failed[site] = "ill-shaped array 'picks'"
                continue
            picks[site] = drawn
            for holder, share in zip(drawn, arrays["sealed"], strict=True):
                self.sealed.setdefault(holder, {})[site] = share.tobytes()
        self.dealt = tuple(picks)
        self.edges = self.cohort.edges(picks)
        self._enough(self.dealt, self.least)

    def collect(self) -> None:
        """Masked answers, added up as they come."""
        self.asked = self.attempt.masked(self.cohort, self.dealt, self.edges)
        self.stage = self.cohort.stage(self.dealt, self.edges, self.attempt.check)
        self.table = Table(self.attempt.layout)
        for site, arrays in self.ask(self.asked, self.dealt):
            signature, present = arrays["signature"].tobytes(), arrays["present"]
            if not self.cohort.is_answer(site, self.stage, present, signature):
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

    def agree(self) -> None:
        """Fix the survivors: a quorum signs them."""
        these, present = list(self.answers), np.stack(self.present)
        self._all_there(these)
        question = self.attempt.survivors(these, present, list(self.answers.values()))
        fact = survivors_digest(self.stage, these, present)
        for site, arrays in self.ask(question, these, silent=True):
            signature = arrays["signature"].tobytes()
            if is_signed(self.roster.sites[site], signature, "pairwise survivors", fact):
                self.signers[site] = signature
        if len(self.signers) < self.cohort.graph.quorum:
            raise self._stuck(f"{len(self.signers)} of {self.cohort.graph.quorum} signatures")

    def unmask(self) -> None:
        """Ask one holder after another for shares, until all secrets can be restored."""
        threshold = self.cohort.graph.threshold
        self.shares = {site: {} for site in self.dealt}
        quorum = dict(list(self.signers.items())[: self.cohort.graph.quorum])
        for site in self.signers:
            mine = dict(sorted(self.sealed.get(site, {}).items()))
            question = self.attempt.unmask(quorum, list(mine), list(mine.values()))
            for _, arrays in self.ask(question, [site], silent=True):
                rows = zip([site, *mine], arrays["shares"], arrays["valid"], strict=True)
                for dealer, share, valid in rows:
                    if valid:
                        self.shares[dealer][site + 1] = share.tobytes()
            if all(len(shares) >= threshold for shares in self.shares.values()):
                return
        found = self.shares.items()
        missing = [self.cohort.name(site) for site, held in found if len(held) < threshold]
        if missing:
            raise self._stuck(f"the masks of {', '.join(missing[:5])} cannot be restored")

    def total(self) -> Total:
        """Take the masks off, and check."""
        seeds, keys = self._restored()
        table, inner, statement = self.table, self.inner, self.attempt.statement
        told = set.intersection(*(set(of) for of in seeds.values()))
        for of in seeds.values():
            mask_own(table, statement, inner, {g: of[g] for g in told}, -1)
        for site, key in keys.items():
            others = self.cohort.neighbours(site, self.dealt, self.edges)
            alive = [other for other in others if other in self.answers]
            table.mask(statement, self.cohort.pair_masks(key, site, alive))
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

    def unusable(self, answer: Contribution, question: Question) -> str | None:
        widths = {ANSWER + entry.name: entry.dtype.name for entry in self.attempt.layout}
        widths |= {"picks": "int32", "told": "bool", "present": "bool", "valid": "bool"}
        for name, array in answer.arrays.items():
            if array.dtype.name != widths.get(name, "uint8"):
                return f"ill-shaped array '{name}'"
        return super().unusable(answer, question)

    def _restored(self) -> tuple[dict[int, dict[int, bytes]], dict[int, X25519PrivateKey]]:
        """The seeds of survivors' own masks, by group, and the keys of those who dropped out."""
        threshold = self.cohort.graph.threshold
        seeds: dict[int, dict[int, bytes]] = {}
        keys: dict[int, X25519PrivateKey] = {}
        for site, held in self.shares.items():
            points, shares = list(held)[:threshold], list(held.values())[:threshold]
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

    def _same_again(self, keys: dict[int, bytes], before: Sequence[int]) -> None:
        """Answered before, maybe before a crash: it can be told for the same sites only."""
        self.before = before
        self._all_there(keys)
        for site in set(keys) - set(before):
            self.failed[site] = STAYS_OUT
            del keys[site]

    def _all_there(self, there: Collection[int]) -> None:
        names = {self.roster.sites[site].name for site in self.before if site not in there}
        if names - self.roster.leaves:
            raise Missing(self.inner, sorted(names - self.roster.leaves))

    def _enough(self, there: Collection[int], needed: int) -> None:
        if len(there) < needed:
            raise TooFew(f"{TOO_FEW} ({len(there)} of at least {needed})")

    def _stuck(self, reason: str) -> FederationError:
        return FederationError(
            f"masked sum '{self.inner.task}' in step {self.inner.step}: {reason}. "
            "Sites have agreed on the survivors, so it can be asked again, of the same sites"
        )
