"""Forms for plans, and pages of large tables: what the web shows of a kind of analysis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

#: Shown if each of these keys has one of these values; with '!' before the key, none of them.
When = Mapping[str, list[str]]


@dataclass(frozen=True)
class Entry:
    """A key of a plan that a form asks for. about, kind (choice, flag, whole, number, list, words,
    text), options (value, label) and default: in the place of what the plan's schema says."""

    key: str
    label: str
    when: When = field(default_factory=dict)
    about: str = ""
    kind: str = ""
    options: tuple[tuple[str, str], ...] = ()
    default: str | None = None
    needed: bool = False


@dataclass(frozen=True)
class Form:
    """A form for plans. about: what a study of it finds out. start: what a new one begins with.
    groups: heading, and keys below it. mark: a key by which a plan that names no kind is known.
    brings: values of other keys that come with a value of a key: {"recipe": {"dp-sgd":
    {"privacy.mechanism": "dp-sgd"}}}. refuses: why a plan is not of this form (key, reason).
    title: what it is called, if not by its name. leads: sentences below headings. folded: headings
    of groups that are shown when they are asked for."""

    about: str
    start: Mapping[str, Any]
    groups: tuple[tuple[str, tuple[Entry, ...]], ...]
    mark: str = ""
    brings: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    title: str = ""
    leads: Mapping[str, str] = field(default_factory=dict)
    folded: frozenset[str] = frozenset()

    def refuses(self, plan: Any) -> tuple[str, str] | None:  # noqa: ARG002
        return None


@dataclass(frozen=True)
class TablePage:
    """A page of a large table. rows: (rank, cells as printed). total: rows found; more: there may
    be others. title, hint, row: of the page, what can be searched for, and what a row is."""

    head: list[str]
    rows: list[tuple[int, list[str]]]
    total: int
    page: int
    pages: int
    more: bool = False
    title: str = "Results"
    hint: str = "Search"
    row: str = "row"

    def column_at(self, name: str, place: int) -> TablePage:
        """With a column moved to the front, where a phone shows it."""
        if name not in self.head[place + 1 :]:
            return self
        at = self.head.index(name)

        def moved(cells: list[str]) -> list[str]:
            return [*cells[:place], cells[at], *cells[place:at], *cells[at + 1 :]]

        rows = [(rank, moved(cells)) for rank, cells in self.rows]
        return replace(self, head=moved(self.head), rows=rows)
