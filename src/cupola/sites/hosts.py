"""A real site's data for a study: its own, and nobody else's.

What a plan says of data is the model's side of them (shapes, classes, augmentation, what is held
out). Where they come from is the site's own affair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cupola import data as datasets
from cupola.data import FederatedData, SiteData, Source
from cupola.data.loaders.elsewhere import as_agreed
from cupola.data.partition import IID
from cupola.errors import DataError
from cupola.federation import Accounts, Charge, Question
from cupola.federation.site import Host
from cupola.gwas import Site
from cupola.gwas.limits import Released
from cupola.gwas.plan import StudyPlan
from cupola.gwas.site import Workspace, most_iterations, released_numbers
from cupola.learn import build
from cupola.learn.plan import Plan
from cupola.privacy.budget import Book, Limit
from cupola.secure.durable_dict import Memory
from cupola.sites.consent import Joined
from cupola.sites.log import own_log
from cupola.sites.settings import SiteSettings

OWNER = 0  # under whom a data set's spending is booked


def own_host(joined: Joined[SiteSettings], place: int) -> Host:
    """The tasks' data and workspace at this site. place: its number in the roster."""
    plan = joined.proposal.plan
    if isinstance(plan, StudyPlan):
        return cohort_host(joined, plan)
    data = own_data(joined, plan, place, len(joined.roster.sites))
    kind = build.CheckedHost
    return kind(build.problem(plan, data), data, _book(joined))


def own_data(
    joined: Joined[SiteSettings], plan: Plan, place: int | None, sites: int
) -> FederatedData:
    """The federation as this site sees it: its own data at its own place, nothing elsewhere.
    place None: its own data everywhere, to find out what a study would ask for."""
    own = _settings(joined)
    part = own.pop("part", None)
    if part is not None:  # a trial: everybody has the whole data set, and takes a part of it
        whole = build.federated_data(plan)
        return _only(whole, place, lambda: whole.site(int(part)), sites)
    loader = own.pop("loader", plan.data.name)
    source = datasets.load(str(loader), **_with_paths(own, joined.folder))
    if not isinstance(source, Source):
        raise DataError(f"data set '{joined.consent.data}': '{loader}' is not one owner's data")
    if plan.data.name == "elsewhere":
        told = {key: value for key, value in plan.data.options.items() if key != "public"}
        facts = datasets.load("elsewhere", **told)
        assert isinstance(facts, Source)
        source = as_agreed(source, facts)
    held = plan.data.partition
    alone = IID(sites=1, test=held.test, validation=held.validation)
    cut = datasets.partition(source, alone, plan.seed)
    if plan.data.augment:
        cut = datasets.transforms(list(plan.data.augment)).apply(cut)
    return _only(cut, place, lambda: cut.site(0), sites)


def _only(
    like: FederatedData, place: int | None, make: Callable[[], SiteData], sites: int
) -> FederatedData:
    def site(i: int) -> SiteData:
        if place not in (None, i):
            raise DataError("only this site's own data are here")
        return make()

    return FederatedData(
        sites,
        site,
        kind=like.kind,
        classes=like.classes,
        input_shape=like.input_shape,
        class_names=like.class_names,
        name=like.name,
        **like.token_facts,
    )


def _settings(joined: Joined[SiteSettings]) -> dict[str, Any]:
    name = joined.consent.data
    if name is None or name not in joined.settings.data:
        raise DataError(f"the site's settings name no data set '{name}'")
    return dict(joined.settings.data[name])


def _with_paths(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Names of files are taken from the site's folder."""
    return {
        key: str(folder / value) if key in ("path", "folder") else value
        for key, value in options.items()
    }


# What is spent


def _book(joined: Joined[SiteSettings]) -> Callable[[Path | None, str], Accounts]:
    """The book of a data set, which outlives studies. The plan's own budget does not count here."""
    settings, consent = joined.settings, joined.consent

    def open_book(folder: Path | None, name: str) -> Accounts:  # noqa: ARG001
        budget = settings.budget
        limit = None
        if budget is not None:
            limit = Limit(budget.epsilon, budget.delta, budget.neighbours, budget.trust_coordinator)
        path = spent_file(joined.folder, str(consent.data))
        book = Book(path, study=str(consent.data), run=joined.study, limit=limit, durable=True)
        return _OwnBook(book)

    return open_book


@dataclass
class _OwnBook:
    """A data set has one account, whatever number its site has in a study's roster."""

    book: Book

    def charge(self, question: Question, charges: Mapping[int, Charge | None]) -> dict[int, str]:
        refused = {}
        for site, charge in charges.items():
            told = self.book.charge(question, {OWNER: charge})
            if told:
                refused[site] = told[OWNER]
        return refused

    def close(self) -> None:
        self.book.close()


def spent_file(folder: Path, data: str) -> Path:
    """Where the spending of a data set is kept."""
    from cupola.sites.consent import study_folder

    return folder / "spent" / f"{study_folder(folder, data).name}.jsonl"


# Association studies


@dataclass
class CohortHost:
    """One cohort, at its place among others that are elsewhere."""

    site: Site
    sites: int
    book: Callable[[Path | None, str], Accounts]

    def __len__(self) -> int:
        return self.sites

    def data(self, site: int) -> Site:  # noqa: ARG002
        return self.site

    def workspace(self) -> Workspace:
        return Workspace()

    def accounts(self, folder: Path | None, name: str) -> Accounts:
        return self.book(folder, name)

    def close(self) -> None:
        self.site.close()


def released_file(folder: Path, data: str) -> Path:
    """Where it is kept how many numbers about its people a data set has told."""
    return spent_file(folder, data).with_suffix(".released.jsonl")


def told_before(folder: Path, data: str) -> dict[str, float]:
    """Numbers a person that regressions on a data set have told, by study."""
    path = released_file(folder, data)
    if not path.exists():
        return {}
    memory = Memory(path)
    try:
        return Released(memory, "", 0, 0.0).entries()
    finally:
        memory.close()


def _released(joined: Joined[SiteSettings], plan: StudyPlan) -> Released | None:
    if not plan.regression:
        return None
    memory = Memory(released_file(joined.folder, str(joined.consent.data)))
    most = joined.settings.limits.released
    return Released(memory, joined.study, released_numbers(plan), most)


def cohort_host(joined: Joined[SiteSettings], plan: StudyPlan) -> CohortHost:
    """This site's cohort. What it was asked is remembered beyond its process."""
    files = joined.settings.cohort(str(joined.consent.data)).files(joined.folder)
    salt = joined.settings.salt
    site = Site(
        files,
        plan.wanted,
        salt=salt.encode() if plan.fingerprints and salt else None,
        proposes=plan.variants is None,
        rare=plan.rare,
        iterations=most_iterations(plan),
        people_per_column=plan.people_per_column,
        limits=plan.limits,
        released=_released(joined, plan),
        memory=Memory(joined.place / "asked.jsonl"),
        folder=joined.place / "asked",
        own_log=own_log(joined.place),
    )
    return CohortHost(site, len(joined.roster.sites), _book(joined))
