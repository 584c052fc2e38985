"""An analysis: a program with a plan, and all that differs from one kind of analysis to another.

Everything else is written once, for any analysis: run, check, resume, preview, consent, masked
sums, ledger, budget, real sites, web, report. To add a kind, subclass `Analysis`, give it a `Plan`,
and write `host`, `program` and `finish`; the other methods have defaults. Name the class in a plan
(`kind = "module:Class"`), or register it as an entry point of the group 'cupola.analyses'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from cupola.analysis.disclosure import learned
from cupola.analysis.header import PlanHeader
from cupola.analysis.result import Result
from cupola.analysis.run_progress import Progress
from cupola.analysis.web_hooks import WebHooks
from cupola.errors import DataError, PlanError
from cupola.federation.federation import Federation
from cupola.federation.ledger import Ledger
from cupola.federation.message import Question
from cupola.federation.program import Program, State
from cupola.federation.site import Host, find_task, is_known

if TYPE_CHECKING:
    from cupola.analysis.preview import Preview
    from cupola.analysis.run_folder import Run
    from cupola.pages.folder import RunFolder
    from cupola.secure.roster import Roster

P = TypeVar("P", bound=PlanHeader)


Watch = Callable[[Progress], None]


class SiteRules(Protocol):
    """What a real site has decided for itself (see `cupola.site.settings`), as far as an analysis
    may ask."""

    @property
    def name(self) -> str: ...

    @property
    def budget(self) -> Any: ...

    @property
    def limits(self) -> Any: ...

    @property
    def salt(self) -> str | None: ...


@dataclass(frozen=True)
class OwnSite:
    """A real site as an analysis sees it: its number among how many, and its own settings of the
    data set that takes part. looking: it has not joined, and only wants to know what it would be
    asked, as if every site had its data.

    folder: what names of files in these settings are relative to. place: where the site keeps what
    belongs to this study. book: where it keeps what the data set has spent in all studies; an
    analysis may keep a book of its own beside it. log: for what must not cross the border.
    """

    number: int
    sites: int
    data: Mapping[str, Any]
    folder: Path
    place: Path
    rules: SiteRules
    dataset: str = ""
    study: str = ""
    book: Path = Path()
    looking: bool = False
    log: Callable[[str], None] = field(default=lambda _: None)


class Sites(Protocol):
    """Where the sites of a plan are: simulated on this machine, or real, elsewhere."""

    @property
    def real(self) -> bool: ...

    def host(self, analysis: Analysis[Any]) -> Host: ...

    def federation(
        self, analysis: Analysis[Any], host: Host, ledger: Ledger, folder: Path
    ) -> Federation: ...

    def explained(self, host: Host, error: Exception) -> Exception:
        """What went wrong, in the words that are known here."""

    def keep_logs(self, host: Host, folder: Path) -> None:
        """Write down what sites complained of, where that is known here."""


class Analysis(WebHooks, Generic[P]):
    """A kind of analysis, opened for one plan.

    replayable: the program draws nothing and has no secrets, so that a site can run a copy of it on
    authenticated totals and answer only what its own copy asks next. files: what `finish` leaves in
    a run folder, beside what every run has. fixed: those of them that are written before the first
    question and stay as they are. noun, data_noun: what people of this field call a site, and its
    data.

    >>> from pooled_regression import PooledRegression  # in examples/: a whole one in 80 lines
    >>> analysis = PooledRegression(PooledRegression.Plan(hospitals=3))
    >>> len(analysis.host()), analysis.tasks
    (3, ('moments',))
    >>> [(row["task"], row["kind"]) for row in analysis.check()["bytes"]["rows"]]
    [('moments', 'sum')]
    """

    kind: ClassVar[str]
    Plan: ClassVar[type[PlanHeader]] = PlanHeader
    Result: ClassVar[type[Result]] = Result
    replayable: ClassVar[bool] = False
    files: ClassVar[tuple[str, ...]] = ()
    fixed: ClassVar[tuple[str, ...]] = ()
    progress_part: ClassVar[str] = "step"
    title: ClassVar[str] = "run report"
    noun: ClassVar[str] = "site"
    data_noun: ClassVar[str] = "data set"

    def __init__(self, plan: P) -> None:
        self.plan = plan

    @classmethod
    def files_of(cls, name: str) -> tuple[str, ...]:  # noqa: ARG003
        """`files` of a plan of this name, where they carry it."""
        return cls.files

    @classmethod
    def of_report(cls, plan: Mapping[str, Any]) -> Self:  # noqa: ARG003
        """For a report of a run whose plan is known as text only: files may be damaged, or of an
        earlier version, and still have a report."""
        return cls.__new__(cls)

    # Data and program

    def host(self) -> Host:
        """All simulated sites, with the plan's data."""
        raise PlanError(f"kind = '{self.kind}' cannot be simulated: it says of no data")

    def known_host(self, names: Sequence[str], public: Callable[[str], Path]) -> Host:  # noqa: ARG002
        """What a coordinator of real sites knows of their data. public: a file that the plan names,
        in the coordinator's folder for them."""
        return NoData(len(names))

    def require_real(self) -> None:
        """PlanError for what only a simulation can do."""

    def for_real_sites(self) -> P:
        """The plan as it may leave whoever wrote it: without names of files."""
        return self.plan

    def program(self, host: Host) -> Program:
        """What is asked, step by step."""
        raise NotImplementedError

    # What sites are asked

    @property
    def tasks(self) -> tuple[str, ...]:
        """What sites are asked to run; 'gwas *' stands for all that begin so."""
        return ()

    @property
    def unmasked(self) -> tuple[str, ...]:
        """Tasks that sites answer each for itself, where other sums are masked."""
        return ()

    @property
    def minimum(self) -> int:
        """Fewest sites of a masked total; 0: all of them."""
        return self.plan.sum.minimum

    @property
    def changes(self) -> bool:
        """Whether masked totals are told for sites that change from total to total."""
        return self.plan.sum.masked and bool(self.plan.sum.changes)

    # At a real site: what it agrees to, and what it holds a coordinator to

    @property
    def sites(self) -> int | None:
        """How many sites the plan is for; None if that is the data's affair."""
        found = getattr(self.plan, "sites", None)
        return found if isinstance(found, int) else None

    @property
    def site_names(self) -> tuple[str, ...] | None:
        """What sites must be called in the roster, in its order; None: as they like."""
        return None

    def agreement(self) -> dict[str, Any]:
        """What all parties must agree on: the plan but for what each settles for itself."""
        facts = self.plan.to_dict(lasting=True)
        return {key: value for key, value in facts.items() if key not in self.plan.own_affair}

    @classmethod
    def without_sites(cls, given: dict[str, Any]) -> dict[str, Any]:
        """A plan's text, parsed, without who and how many take part: that is settled last."""
        return {key: value for key, value in given.items() if key != "sites"}

    def disagreements(self, roster: Roster) -> list[str]:
        """Why this plan and a roster do not go together, a line each."""
        found, names = [], tuple(party.name for party in roster.sites)
        if self.sites not in (None, len(names)):
            found.append(f"the plan is for {self.sites} sites, the roster names {len(names)}")
        choice = self.plan.sum
        if choice.masked and (roster.compensator is None) != (choice.protocol == "pairwise"):
            found.append("the plan's sum.protocol and the roster do not agree about a compensator")
        if roster.changes and not self.changes:
            found.append(
                "the roster lets sites change from total to total, so that differences of totals "
                "can tell of single sites; the plan does not need that: make the roster without "
                "--changes"
            )
        if self.changes and not roster.changes:
            found.append(
                f"the plan lets sites change from total to total, the roster does not "
                f"({self.differences}): if all sites agree to that, make the roster with --changes"
            )
        if choice.masked and self.minimum == 0 and roster.minimum < len(names):
            found.append(
                f"every total is of all {self.noun}s: make the roster with --minimum {len(names)}"
            )
        return found

    @property
    def differences(self) -> str | None:
        """What differences of totals tell a coordinator, where sites change."""
        if not self.changes:
            return None
        return (
            "over steps, differences of totals can tell about single sites, since sites change "
            "(sum.changes = true)"
        )

    def asks(self, task: str) -> bool:
        """Whether sites are asked to run this."""
        return any(fnmatchcase(task, pattern) for pattern in self.tasks)

    def may_ask(self, step: int) -> bool:
        """Whether the plan can come to so many steps. A site answers a step once, so that this is
        how often it answers at most."""
        return step >= 0

    def allows(self, question: Question) -> str | None:  # noqa: ARG002
        """Why a question does not follow from the plan; None if it does. Asked before data are
        touched, of what is not replayed."""
        return None

    @property
    def private(self) -> bool:
        """Whether a mechanism protects answers: whether some task says what it costs."""
        return any(is_known(task) and find_task(task).charge is not None for task in self.tasks)

    def weaker_limits(self, rules: SiteRules) -> list[str]:  # noqa: ARG002
        """Where the plan would tell more of single people than the site's limits allow. Asked
        before consent, and again before every answer."""
        return []

    def objections(self, rules: SiteRules) -> list[str]:
        """Why a site with such settings cannot take part, whatever its data are."""
        if rules.budget is not None and not self.private:
            return ["this site has a budget, and nothing protects this study's answers"]
        return []

    @property
    def data_name(self) -> str | None:
        """What the plan calls its data; None where sites may call them as they like."""
        return None

    def fits(self, data: Mapping[str, Any]) -> bool:  # noqa: ARG002
        """Whether a data set of a site's settings is of this kind."""
        return True

    def describe(self, path: Path, target: str | None) -> dict[str, Any]:  # noqa: ARG002
        """The settings of a data set that is this file. target: a column that is to be predicted,
        where one is."""
        if not path.is_file():
            raise DataError(f"{path} is no file")
        return {"path": str(path)}

    def data_problems(self, site: OwnSite) -> list[str]:  # noqa: ARG002
        """Why the site's data set cannot be used, a line each, without reading all of it."""
        return []

    def own_host(self, site: OwnSite) -> Host:  # noqa: ARG002
        """The data of one real site, at its number; nothing elsewhere."""
        raise PlanError(f"kind = '{self.kind}' is for simulations: no real site knows its data")

    def preview(self, site: OwnSite, roster: Roster) -> Preview:
        """Everything that the site would be asked. By default the program is played through as if
        every site had this one's data; nothing leaves the site."""
        from cupola.analysis.preview import played

        return played(self, site, roster)

    # Objects in Python

    @classmethod
    def with_objects(
        cls, given: Mapping[str, Any], objects: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Any]:
        """A plan's values with names in the place of objects (see `cupola.base.held_objects`), and
        what must be held on to until the plan is made."""
        del given
        raise PlanError(f"{next(iter(objects))}=: a plan of kind '{cls.kind}' takes no objects")

    # A run

    def prepare(self, folder: Path, real: bool) -> None:
        """Before sites are asked for the first time: refuse, or write what is `fixed`."""

    def record(self, before: State, after: State) -> dict[str, Any] | None:  # noqa: ARG002
        """A line of the history, if this step has come to one."""
        return None

    def progress(self, state: State) -> tuple[str, int, int]:
        """What the run is about, how much of it is done, and of how much; 0: not known."""
        return self.progress_part, state.step, 0

    #: Parts in words; one that is missing is shown by its name.
    progress_words: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def progress_step(self, state: State) -> tuple[int, int]:  # noqa: ARG002
        """Which part of the run this is, of how many."""
        return 1, 1

    def finish(self, state: State, folder: Path, watch: Watch) -> None:
        """Leave results in the folder. watch: to be called now and then, where it takes long."""

    def ended(self, state: State) -> str | None:  # noqa: ARG002
        """Why a run ended before its plan did, if it did."""
        return None

    def summary(self, state: State, folder: Path, real: bool) -> dict[str, Any]:  # noqa: ARG002
        """What result.json says beside status, bytes and seconds; also of a run that failed."""
        return {}

    def model(self, run: Run) -> Any:
        """The trained model of a run, where there is one."""
        raise PlanError(f"{run.folder}: a run of kind '{self.kind}' has no model")

    # Sweeps

    @property
    def metric(self) -> str | None:
        """What runs of a sweep are ranked by; None: a sweep tries all, and chooses none."""
        return None

    def require_score(self) -> None:
        """PlanError if a run could not be scored on data that may choose."""

    def score(self, run: RunFolder) -> float | None:  # noqa: ARG002
        """The metric of a finished run, on data that may choose."""
        return None

    # What people see

    def parties(self) -> list[tuple[str, str]]:
        """Who learns what, in a sentence each."""
        return learned(self.plan.sum, replayed=self.replayable)

    def check(self) -> dict[str, Any]:
        """What the plan will ask, send and reveal, as plain values, before anything runs."""
        from cupola.analysis.check import check

        return check(self)

    def check_lines(self, facts: Mapping[str, Any]) -> list[str]:
        """The same for a terminal (`rich` markup)."""
        from cupola.analysis.check import check_lines

        return check_lines(facts)

    def show(self, run: Run, quiet: bool) -> list[Any]:
        """What is printed of a run at its end: lines, or what `rich` prints."""
        from cupola.base.formatting import duration, size
        from cupola.pages.any_run import own_results

        result = run.result
        sent = size(result.bytes_down + result.bytes_up)
        lines = [f"{key}: {said}" for key, said in own_results(result.to_dict())]
        lines.append(f"{result.status}: {sent} sent, {duration(result.seconds)}")
        return lines if quiet else [*lines, f"[dim]report:[/] {run.folder / 'report.html'}"]

    def chips(self, run: RunFolder) -> list[tuple[str, str]]:
        """Words under a report's title, each with a class ('good', 'warn', 'bad' or none)."""
        return [(run.plan.get("kind", self.kind), "")]

    def sections(self, run: RunFolder) -> list[str]:
        """The report, part by part, as HTML (see `cupola.pages.page`)."""
        from cupola.pages.any_run import sections

        return sections(run)

    def sections_of_runs(self, runs: Sequence[RunFolder], where: Path) -> list[str] | None:  # noqa: ARG002
        """The same for a plan that stands for many runs, with links relative to the folder `where`;
        None: a comparison of their metrics."""
        return None


@dataclass
class Hosted:
    """Sites whose data a function makes, when they are asked for."""

    sites: int
    make: Callable[[int], Any]

    def __len__(self) -> int:
        return self.sites

    def data(self, site: int) -> Any:
        return self.make(site)

    def workspace(self) -> Any:
        return None


@dataclass
class NoData:
    """As many sites as there are, of whose data nothing is known here."""

    sites: int

    def __len__(self) -> int:
        return self.sites

    def data(self, site: int) -> Any:
        raise LookupError(f"site {site} is elsewhere")

    def workspace(self) -> Any:
        return None
