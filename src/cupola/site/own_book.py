"""The book of what a site's data set has spent: one for all studies, whatever they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cupola.federation.message import Question
from cupola.federation.site import Charge
from cupola.privacy.budget import Book, Limit
from cupola.site.settings import SiteSettings

OWNER = 0  # under whom a data set's spending is booked


@dataclass
class OwnBook:
    """A data set has one account, whatever number its site has in a study's roster. The plan's own
    budget does not count here."""

    book: Book

    @classmethod
    def open(cls, path: Path, data: str, study: str, settings: SiteSettings) -> OwnBook:
        budget = settings.budget
        limit = None
        if budget is not None:
            limit = Limit(budget.epsilon, budget.delta, budget.neighbours, budget.trust_coordinator)
        return cls(Book(path, study=data, run=study, limit=limit, durable=True))

    def charge(self, question: Question, charges: Mapping[int, Charge | None]) -> dict[int, str]:
        refused = {}
        for site, charge in charges.items():
            told = self.book.charge(question, {OWNER: charge})
            if told:
                refused[site] = told[OWNER]
        return refused

    def close(self) -> None:
        self.book.close()
