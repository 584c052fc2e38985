"""Association studies as an analysis: from cohorts to tables of variants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import Field

from cupola.analysis.disclosure import learned
from cupola.analysis.forms import Form, TablePage
from cupola.analysis.protocol import Analysis, NoData, OwnSite, SiteRules, Watch
from cupola.analysis.result import Facts, Result
from cupola.association import own_cohort, results, study_progress
from cupola.association.agreed_plan import agreed
from cupola.association.compare import Table
from cupola.association.file_sets import file_set, file_sets
from cupola.association.files import Variants
from cupola.association.own_cohort import OwnCohort
from cupola.association.plan import GENOTYPES, StudyPlan, for_real_cohorts
from cupola.association.reference_frequencies import public_list
from cupola.association.result_files import NOTES, stem, summary, tables_of, write_tables
from cupola.association.simulated_cohorts import SimulatedCohorts, simulated_cohorts
from cupola.association.structure.component_results import component_facts, write_components
from cupola.association.study_parts import parts_of, tasks_of
from cupola.association.study_program import Association
from cupola.association.tables import as_table
from cupola.association.tasks import UNMASKED
from cupola.federation.program import State

if TYPE_CHECKING:
    from cupola.analysis.preview import Preview
    from cupola.analysis.run_folder import Run
    from cupola.federation.site import Host
    from cupola.pages.folder import RunFolder
    from cupola.secure.roster import Roster


class AssociationResult(Result):
    """What a study leaves behind. files: its tables, PLINK's first."""

    test: str | None = None
    cohorts: tuple[str, ...] = ()
    cpu_seconds: float = 0.0
    files: tuple[str, ...] = ()
    people: Facts | None = None
    variants: int = 0
    tested: int = 0
    inflation: float | None = None
    mixed: Facts | None = None
    components: Facts | None = None
    whole_genome: Facts | None = None
    hits: Mapping[str, int] = Field(default_factory=dict)
    left_out: Mapping[str, int] = Field(default_factory=dict)
    without_result: Mapping[str, int] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    shared_people: tuple[tuple[str, str, int], ...] = ()


_SITES_CHOOSE = "leave it out: sites choose their own files when they join"


@dataclass
class ListedCohorts(NoData):
    """Real cohorts, and the public list that the coordinator brings along."""

    listed: Variants | None = None


class AssociationAnalysis(Analysis[StudyPlan]):
    """A federated genome-wide association study (after sPLINK)."""

    kind = "association"
    Plan = StudyPlan
    Result = AssociationResult
    replayable = True
    title = "association study"
    noun = data_noun = "cohort"
    progress_words = study_progress.WORDS
    _table: Table | None = None  # of results, once they are made
    files = tables_of("study")  # as before tables had the study's name
    unchosen = MappingProxyType({"bfile": "not-chosen"})
    table_link = "Search all variants"
    not_from_browsers = MappingProxyType(
        {
            "cohorts": _SITES_CHOOSE,
            "folder": _SITES_CHOOSE,
            "variants": "leave it out: it names a file of this server",
            "salt": "leave it out: what cohorts share must not be told to the coordinator",
            "workers": "leave it out: the server decides",
        }
    )

    def __init__(self, plan: StudyPlan) -> None:
        super().__init__(plan)
        self._facts: dict[str, Any] = {}

    # Its tables

    @classmethod
    def files_of(cls, name: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*tables_of(name), *cls.files)))

    @classmethod
    def file_note(cls, file: str) -> str:
        return next((note for end, note in NOTES.items() if file.endswith(end)), "")

    # Data and program

    def host(self) -> SimulatedCohorts:
        parts_of(self.plan)  # which registers what cohorts are asked, in whatever process
        return simulated_cohorts(self.plan)

    def known_host(self, names: Sequence[str], public: Callable[[str], Path]) -> ListedCohorts:
        given, strand = self.plan.variants, self.plan.quality.unknown_strand
        return ListedCohorts(len(names), public_list(public(given), strand) if given else None)

    def for_real_sites(self) -> StudyPlan:
        return for_real_cohorts(self.plan)

    def program(self, host: Host) -> Association:
        """A site that follows the study gets the list from the coordinator."""
        plan = self.plan
        self.association = Association(
            plan.study(),
            len(host),
            getattr(host, "listed", None),
            public=plan.variants is not None,
            pinned=plan.variants_hash,
            seed=plan.seed,
            apart=plan.apart,
            names=self.site_names,
        )
        return self.association

    # What sites are asked

    @property
    def tasks(self) -> tuple[str, ...]:
        return ("gwas *",)

    @property
    def unmasked(self) -> tuple[str, ...]:
        asked = tasks_of(self.plan, self.plan.variants is not None)
        return tuple(task for task in UNMASKED if task in asked)

    @property
    def minimum(self) -> int:
        """Every total is of all cohorts: a late one can be waited for."""
        return 0

    def asks(self, task: str) -> bool:
        return task in tasks_of(self.plan, self.plan.variants is not None)

    # At a real site

    @property
    def site_names(self) -> tuple[str, ...]:
        return tuple(cohort.name for cohort in self.plan.cohorts)

    @property
    def sites(self) -> int:
        return len(self.plan.cohorts)

    def agreement(self) -> dict[str, Any]:
        """Of cohorts the names count, in their order; files are each cohort's own affair. Hashed as
        in the first edition: studies under way stay joined."""
        own = {*self.plan.own_affair, "seeds", "grid"}
        facts = agreed(self.plan, own) | self.plan.old_table_keys
        return {**facts, "kind": "study", "names": list(self.site_names)}

    @classmethod
    def without_sites(cls, given: dict[str, Any]) -> dict[str, Any]:
        """What is said of a cohort beside its name is no detail."""
        cohorts = given.get("cohorts")
        if not isinstance(cohorts, list) or not all(isinstance(one, dict) for one in cohorts):
            return given
        said = [{k: v for k, v in one.items() if k != "name"} for one in cohorts]
        return {**given, "cohorts": [one for i, one in enumerate(said) if one not in said[:i]]}

    def disagreements(self, roster: Roster) -> list[str]:
        found, names = super().disagreements(roster), tuple(site.name for site in roster.sites)
        if len(names) == self.sites and names != self.site_names:
            found.append(
                f"the study's cohorts are {', '.join(self.site_names)}; the roster's sites, in its "
                f"order, {', '.join(names)}: give them the same names"
            )
        return found

    def weaker_limits(self, rules: SiteRules) -> list[str]:
        return own_cohort.weaker_limits(self.plan, rules)

    def fits(self, data: Mapping[str, Any]) -> bool:
        return bool({*GENOTYPES, "bed"} & data.keys())

    def describe(self, path: Path, target: str | None) -> dict[str, Any]:
        del target
        return file_set(path)

    def data_problems(self, site: OwnSite) -> list[str]:
        return own_cohort.data_problems(self.plan, site)

    def own_host(self, site: OwnSite) -> OwnCohort:
        parts_of(self.plan)
        return own_cohort.own_host(self.plan, site)

    def preview(self, site: OwnSite, roster: Roster) -> Preview:
        return replace(own_cohort.preview(self.plan, site, roster), parties=self.parties())

    # A run

    def progress(self, state: State) -> tuple[str, int, int]:
        return self.association.progress(state)

    def progress_step(self, state: State) -> tuple[int, int]:
        return study_progress.step(self.association, state)

    def finish(self, state: State, folder: Path, watch: Watch) -> None:
        """Tables first, each whole or not at all, then result.json, which says that they are."""
        del watch
        plan, program = self.plan, self.association
        found = results(program, state)
        self._table = as_table(found, plan.test, plan.confidence, plan.newton.firth)
        written = write_tables(plan, folder, program, state, found)
        written += write_components(program, state, folder, stem(plan.name))
        names = [cohort.name for cohort in plan.cohorts]
        shared = [[names[a], names[b], n] for a, b, n in state.values.get("shared_people", [])]
        proposed = [] if plan.variants else [list(p) for p in zip(names, state.values["proposed"])]
        self._facts = {
            **summary(plan, program, state, found),
            "proposed": proposed,
            "files": written,
            "shared_people": shared,
            **({"components": component_facts(state)} if plan.components is not None else {}),
        }

    def summary(self, state: State, folder: Path, real: bool) -> dict[str, Any]:
        del state, folder, real
        cohorts = [cohort.name for cohort in self.plan.cohorts]
        return {"test": self.plan.test, "cohorts": cohorts, **self._facts}

    # What people see

    def chips(self, run: RunFolder) -> list[tuple[str, str]]:
        return [(str(run.result.get("test") or run.plan.get("test")), "")]

    def sections(self, run: RunFolder) -> list[str]:
        from cupola.association.report_sections import sections

        return sections(run, self._table)

    def sections_of_runs(self, runs: Sequence[RunFolder], where: Path) -> list[str] | None:
        from cupola.association.many_studies import sections

        return sections(runs, where)

    def parties(self) -> list[tuple[str, str]]:
        return learned(
            self.plan.sum,
            totals="totals over all sites; one site's list of common variants",
            results="the results, and which variants the study is about",
            replayed=True,
        )

    def check(self) -> dict[str, Any]:
        from cupola.association.forecast import check

        return check(self.plan)

    def check_lines(self, facts: Mapping[str, Any]) -> list[str]:
        from cupola.association.told_in_words import check_lines

        return check_lines(facts)

    def show(self, run: Run, quiet: bool) -> list[Any]:
        del quiet
        from cupola.association.told_in_words import result_lines

        lines = result_lines(run.result, self.plan.name, self.plan.sum.kind)
        files = (*run.result.files, "report.html")
        return [*lines, *(str(run.folder / file) for file in files)]

    # In the web

    @classmethod
    def forms(cls) -> Mapping[str, Form]:
        from cupola.association.web_form import forms

        return forms()

    @classmethod
    def takes_sites(cls, given: Mapping[str, Any], real: bool = False) -> bool:
        del given, real
        return True

    @classmethod
    def with_sites(
        cls, given: Mapping[str, Any], sites: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any]:
        return {**given, "cohorts": [{"name": name, **files} for name, files in sites.items()]}

    @classmethod
    def data_sets(cls, folder: Path | None) -> dict[str, dict[str, Any]]:
        return file_sets(folder)

    def foresee(self, folder: Path) -> dict[str, Any]:
        from cupola.association.study_estimate import foresee

        return foresee(self, folder)

    @classmethod
    def foreseen_sections(cls, facts: Mapping[str, Any]) -> list[str]:
        from cupola.association.study_estimate import sections

        return sections(facts)

    def in_short(self, run: RunFolder) -> dict[str, Any]:
        from cupola.association.report_sections import in_short

        return in_short(run)

    def index_table(self, run: RunFolder, path: Path) -> None:
        from cupola.association.hit_index import build
        from cupola.association.report_sections import results_in

        self._table = results_in(run)  # which the report's sections need, too
        build(path, self._table)

    @classmethod
    def search_table(cls, path: Path, search: str, page: int) -> TablePage:
        from cupola.association.hit_index import HINT, read

        # What a phone shows without moving sideways: the variant, how sure, how strong.
        found = read(path, search, page).column_at("SNP", 0).column_at("P", 1)
        found = found.column_at("BETA", 2).column_at("OR", 2)
        return replace(found, title="Variants by p-value", hint=HINT, row="variant")
