"""Opening a party: from its folder to what answers questions for it."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cupola.analysis.protocol import NoData
from cupola.errors import DataError
from cupola.federation.answering import Answering, OpenSite
from cupola.federation.message import Declined, Question
from cupola.federation.receipts import Journal
from cupola.federation.replay import Replay, SavedState
from cupola.federation.site import SiteContext, StateStore
from cupola.federation.stored import DiskStore, SingleWriterLock, StoredAnswers
from cupola.secure.compensator import Compensator
from cupola.secure.durable_dict import Memory
from cupola.secure.identity import Identity
from cupola.secure.member import Member
from cupola.site.consent import (
    SETTLING,
    Joined,
    SiteGate,
    look,
    own_folder,
    own_site,
    study_folder,
)
from cupola.site.ledger import LEDGER, OwnBook, OwnLedger
from cupola.site.log import own_log
from cupola.site.proposal import matches
from cupola.site.settings import KEYS, CompensatorSettings, SiteSettings


def open_site(folder: str | Path, study: str) -> Answering:
    """What a site answers in a study that it has joined; it answers nothing in any other.

    Its data are its own, and so is the randomness that privacy rests on. Nothing is opened before
    the first question.
    """
    base = Path(folder)
    gate = SiteGate(base, study)
    place = study_folder(base, study)
    own_folder(place)
    log = own_log(place)
    answers = StoredAnswers(place / "answers")
    ledger = OwnLedger(place, lambda: answers.newest >= 0)

    def make() -> OpenSite:
        joined = gate.joined()
        alone = SingleWriterLock(place)
        answers.look_again()
        try:
            return _opened(joined, alone, answers, ledger.journal)
        except BaseException:
            alone.close()
            raise

    return Answering(make, answers=answers, gate=gate, own_log=log, record=ledger.record)


def _opened(
    joined: Joined[SiteSettings], alone: SingleWriterLock, answers: StoredAnswers, journal: Journal
) -> OpenSite:
    identity, roster, proposal = joined.identity, joined.roster, joined.proposal
    own = own_site(joined)
    host = proposal.analysis.own_host(own)
    memory = Memory(joined.place / "answered.jsonl")
    books: OwnBook | None = None
    try:
        unmasked = _Unmasked(joined.settings.unmasked_tasks, proposal.unmasked_tasks)
        replay, saved = _followed(joined)
        member = Member(identity, roster, own.number, memory, unmasked, replay, joined.gone)
        store = DiskStore(joined.place / "state")
        context = SiteContext(
            own.number,
            host.data(own.number),
            host.workspace(),
            store,
            proposal.plan.seed,
            party=member,
            real=True,
        )
        books = OwnBook.open(own.book, own.dataset, own.study, joined.settings)
        shared = {"spent": _chained(books.book), **_own_books(context.data)}
        _require_shared(joined, shared)
        journal.hold(
            {
                "answers": (answers, lambda: answers.newest),
                "state": (store, lambda: store.newest),
                "answered": _chained(memory),
                **({} if saved is None else {"replay": (saved, lambda: saved.step)}),
                **_remembered(context.data),
                **shared,
            }
        )
        journal.require(books.book.seen_beside)
        books.book.beside = lambda: journal.tail
    except BaseException:
        if books is not None:
            books.close()
        memory.close()
        getattr(host, "close", lambda: None)()
        raise
    return OpenSite(context, books, (memory, host, alone), replay)


def _chained(chain: Any) -> tuple[Any, Callable[[], Any]]:
    return chain, lambda: chain.tail


def _remembered(data: object) -> dict[str, Any]:
    """What a site's data remember of what they were asked, where they do (a cohort does)."""
    memory = getattr(data, "memory", None)
    return {"asked": _chained(memory)} if isinstance(memory, Memory) else {}


def _own_books(data: object) -> dict[str, Any]:
    """What a cohort enters in all studies: numbers that it has told, whom step ones were made
    for."""
    found: dict[str, Any] = {}
    for name in ("released", "step_ones"):
        memory = getattr(getattr(data, name, None), "memory", None)
        found |= {name: _chained(memory)} if isinstance(memory, Memory) else {}
    return found


def _require_shared(joined: Joined[SiteSettings], shared: dict[str, Any]) -> None:
    """DataError for a book of the data set that an earlier study here knows to be longer: budgets
    and limits hold for all studies."""
    for study, consent in joined.settings.studies.items():
        path = study_folder(joined.folder, study) / LEDGER
        if study == joined.study or consent.data != joined.consent.data or not path.exists():
            continue
        seen = Journal(path).seen
        for name in shared.keys() & seen.keys():
            shared[name][0].require(seen[name])


def _followed(joined: Joined[SiteSettings]) -> tuple[Replay | None, SavedState | None]:
    """This site's copy of the program, as far as it has come, and where it is saved."""
    analysis = joined.proposal.analysis
    if not analysis.replayable:
        return None, None
    from cupola.secure import open_sums, replayed_totals  # noqa: F401 - registers what sites run

    saved = SavedState(joined.place / "replay")
    program = analysis.program(NoData(len(joined.roster.sites)))
    return Replay(program, saved.load(), save=saved.save, witnessed=True), saved


@dataclass(frozen=True)
class _Unmasked(Container[str]):
    """What the site allows unmasked and the plan asks for unmasked."""

    allowed: tuple[str, ...]
    wanted: tuple[str, ...]

    def __contains__(self, task: object) -> bool:
        own = isinstance(task, str) and matches(task, self.allowed)
        return own and matches(str(task), self.wanted)


def open_compensator(folder: str | Path, study: str) -> Answering:
    """The third party of a study that it has joined. What it told is on disk before it is told."""
    base = Path(folder)
    place = study_folder(base, study)
    own_folder(place)

    def gate(question: Question) -> bool:
        joined = look(base, study, CompensatorSettings)
        joined.refuse_if_over()
        if question.task not in SETTLING:
            raise Declined("a compensator runs no such task")
        return False

    path = place / "compensator.jsonl"
    ledger = OwnLedger(place, lambda: _settled(path))

    def make() -> OpenSite:
        joined = look(base, study, CompensatorSettings)
        alone, third = SingleWriterLock(place), None
        try:
            third = Compensator(joined.identity, joined.roster, path, joined.gone)
            ledger.journal.hold({"settled": _chained(third.memory)})
        except BaseException:
            if third is not None:
                third.close()
            alone.close()
            raise
        return OpenSite(SiteContext(0, third, None, StateStore(), None), None, (third, alone))

    return Answering(make, gate=gate, own_log=own_log(place), record=ledger.record)


def _settled(memory: Path) -> bool:
    """Whether a compensator has settled anything; the first line says of which study it is."""
    return memory.exists() and memory.read_bytes().count(b"\n") > 1


def make_keys(folder: Path, name: str) -> Identity:
    """The party's keys: those it has, or new ones of this name."""
    path = folder / KEYS
    if not path.exists():
        return Identity.create(path, name)
    held = Identity.open(path)
    if held.name != name:
        raise DataError(f"{path} holds the keys of '{held.name}', not of '{name}'")
    return held
