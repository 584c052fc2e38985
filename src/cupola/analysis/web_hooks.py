"""What the web asks of a kind of analysis. Everything has a default: an analysis that overrides
none of it is made from its plan's text, run, followed, and read as a report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from cupola.analysis.forms import Form, TablePage
from cupola.analysis.header import PlanHeader

if TYPE_CHECKING:
    from cupola.pages.folder import RunFolder


class WebHooks:
    """In the web: the part of `Analysis` that pages are made of."""

    Plan: ClassVar[type[PlanHeader]] = PlanHeader

    #: Keys that a plan from a browser must leave out, and why (they name files of the server, say).
    not_from_browsers: ClassVar[Mapping[str, str]] = MappingProxyType({})
    #: The most that numbers may be in a plan from a browser.
    browser_limits: ClassVar[Mapping[str, int]] = MappingProxyType({})
    #: What stands in a plan for a data set of the server that a simulated site has yet to choose;
    #: None: sites choose none.
    unchosen: ClassVar[Mapping[str, Any] | None] = None
    #: Keys whose values are plain words, never looked up as code or files.
    browser_words: ClassVar[frozenset[str]] = frozenset()
    #: What downloads are.
    file_notes: ClassVar[Mapping[str, str]] = MappingProxyType({})
    #: Whether runs are judged by a metric, so that they can stand side by side.
    comparable: ClassVar[bool] = False
    #: Leads to a table of results that can be searched.
    table_link: ClassVar[str] = ""

    @classmethod
    def file_note(cls, file: str) -> str:
        """What this download is."""
        return cls.file_notes.get(file, "")

    @classmethod
    def forms(cls) -> Mapping[str, Form]:
        """Forms by name; without one, a study is made from a plan's text."""
        return {}

    @classmethod
    def takes_sites(cls, given: Mapping[str, Any], real: bool = False) -> bool:  # noqa: ARG003
        """Whether a plan leaves open who takes part, so that sites can be invited: in a simulation
        by default where a key 'sites' says how many there are; real ones where they have data."""
        from cupola.analysis.protocol import Analysis

        own = issubclass(cls, Analysis) and cls.own_host is not Analysis.own_host
        return "sites" in cls.Plan.model_fields or (real and own)

    @classmethod
    def with_sites(
        cls, given: Mapping[str, Any], sites: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any]:
        """What a plan says when these take part, each with the data set it chose."""
        return {**given, "sites": len(sites)} if sites and cls.takes_sites(given) else dict(given)

    @classmethod
    def needs_real_sites(cls, given: Mapping[str, Any]) -> bool:  # noqa: ARG003
        """Whether the data are at real sites, so that a plan cannot be simulated."""
        return False

    @classmethod
    def data_sets(cls, folder: Path | None) -> dict[str, dict[str, Any]]:  # noqa: ARG003
        """Data sets of the server that simulated sites choose from: name, and what a plan says."""
        return {}

    def foresee(self, folder: Path) -> dict[str, Any]:  # noqa: ARG002
        """What `check` says, and under 'answers' what sites are asked, as real sites would see it
        before they consent. folder: what names of files are relative to."""
        from cupola.analysis.preview import simulated_answers
        from cupola.analysis.protocol import Analysis

        assert isinstance(self, Analysis)
        return {**self.check(), "answers": simulated_answers(self)}

    @classmethod
    def foreseen_sections(cls, facts: Mapping[str, Any]) -> list[str]:
        """The same as HTML, part by part."""
        from cupola.pages.plan_facts import sections

        return sections(facts)

    def in_short(self, run: RunFolder) -> dict[str, Any]:
        """A finished run in a few numbers; 'said': in a line."""
        return {"bytes": run.bytes_sent, "seconds": run.result.get("seconds"), "said": ""}

    def index_table(self, run: RunFolder, path: Path) -> None:
        """Write what `search_table` needs."""

    @classmethod
    def search_table(cls, path: Path, search: str, page: int) -> TablePage:
        """A page of the table, or of what a search finds in it."""
        raise NotImplementedError(path, search, page)
