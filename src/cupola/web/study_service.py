"""What happens to a study: made, changed, foreseen, started, stopped, repeated, settled."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import threading
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from cupola.errors import CupolaError
from cupola.web import invitations, organiser
from cupola.web.accounts import Refused
from cupola.web.kinds import Wrong, registered
from cupola.web.launcher import REASON, Job, Launcher
from cupola.web.launcher import STOPPED as STOP_ASKED
from cupola.web.models import (
    COMPENSATOR,
    DRAFT,
    FAILED,
    FINISHED,
    INVITING,
    JOINED,
    LEFT,
    QUEUED,
    RUNNING,
    SITE,
    STOPPED,
    Account,
    Invitation,
    Run,
    Study,
)
from cupola.web.plans import check, parse, plan_of, to_text
from cupola.web.settings import Settings

FORESEEN = 3  # counts the forms of what is foreseen
_LOOKING = threading.Lock()  # whether all have joined


@dataclass(frozen=True)
class StudyService:
    """What is needed to act on studies."""

    db: Session
    settings: Settings
    launcher: Launcher

    def create(self, owner: Account, kind: str, given: dict[str, Any]) -> Study:
        plan = check(kind, given, modules=self.settings.modules)
        study = Study(
            id=secrets.token_hex(8), owner_id=owner.id, name=plan.name, kind=kind,
            plan=to_text(given), status=DRAFT,
        )  # fmt: skip
        self.db.add(study)
        self.db.flush()
        return study

    def change(self, study: Study, given: dict[str, Any]) -> None:
        if study.status != DRAFT:
            raise Refused("a study can be changed until sites are invited; repeat it to change it")
        plan = check(study.kind, given, modules=study.modules)
        study.name, study.plan, study.foreseen = plan.name, to_text(given), None

    def repeat(self, study: Study, owner: Account) -> Study:
        """A new draft with the same plan."""
        return self.create(owner, study.kind, parse(study.plan))

    def foresee(self, study: Study) -> dict[str, Any] | None:
        """What `cupola check` says about a plan; None while it is being found out."""
        given = self._asked(study)
        mark = sha256(json.dumps([FORESEEN, given], sort_keys=True).encode()).hexdigest()[:16]
        if study.foreseen is not None and study.foreseen.get("mark") == mark:
            return study.foreseen
        folder = self.settings.study_folder(study.id) / f"check-{mark}"
        if self.launcher.alive(folder):
            return None
        found = _json(folder / "foreseen.json")
        if found is None and (folder / "job.json").exists():
            found = {"error": "the check ended without an answer; the server's log says more"}
        if found is None and not self.launcher.room():
            return None
        if found is None:
            job = Job("check", given, data=self.data, memory=self.settings.memory)
            self.launcher.start(job, folder)
            return None
        if "error" in found:
            found = {**found, "error": without_paths(str(found["error"]))}
        study.foreseen = {**found, "mark": mark}
        self.db.commit()
        return study.foreseen

    def asks(self, study: Study) -> list[dict[str, Any]] | None:
        """Every kind of answer that a site is asked for, as the study's rehearsal has it; None
        while that is being worked out. A plan cannot change any more when sites are asked, so that
        a rehearsal with fewer of them serves until the next is known."""
        found = self.foresee(study) or study.foreseen or {}
        if "answers" not in found and "error" in found:
            raise Refused(f"it cannot be said what the study asks: {found['error']}")
        return found.get("answers")

    def accept(
        self, invitation: Invitation, data: str | None, public: dict[str, str] | None = None
    ) -> None:
        """A site takes part; the study starts when all have answered so. Nobody consents to what
        was not shown."""
        study = invitation.study
        if not study.real and self.asks(study) is None:
            raise Refused("what the study asks is being worked out; look again in a moment")
        invitations.accept(self.settings, invitation, data, public)
        self.db.flush()
        self.start_if_complete(study)

    def leave(self, invitation: Invitation) -> None:
        """A site takes part no longer. A running study stops."""
        invitations.leave(invitation)
        if invitation.study.status in (QUEUED, RUNNING):
            self.stop(invitation.study)

    def _asked(self, study: Study) -> dict[str, Any]:
        """The plan to foresee, with the data sets that are known here."""
        names, analysis = [i.site for i in study.invitations if i.role == SITE], study.analysis
        try:
            plan = plan_of(study, names)
        except Wrong:  # fewer are invited than it needs, so far
            plan = plan_of(study)
        if analysis.unchosen is None:
            return plan.to_dict()
        known = {} if study.real else analysis.data_sets(self.settings.data)
        chosen = {i.site: known.get(i.data or "", {}) for i in invitations.joined(study)}
        some = names or [f"site {i + 1}" for i in range(3)]
        whole = analysis.with_sites(parse(study.plan), {n: chosen.get(n, {}) for n in some})
        return {"kind": registered(study.kind), **whole}

    def start(self, study: Study) -> Run:
        """A new run, which begins as soon as there is room for it."""
        if study.status in (QUEUED, RUNNING):
            raise Refused("the study is running")
        if study.status == STOPPED:
            raise Refused("the study was stopped; resume it, or repeat it as a new one")
        if study.status not in (DRAFT, INVITING):
            raise Refused("the study has ended; repeat it as a new one")
        there, away = invitations.joined(study), invitations.awaited(study)
        if study.analysis.unchosen is not None and not there:
            raise Refused("this study needs sites with data: invite some first")
        if study.invitations:
            fewest = study.minimum or len(there) + sum(i.role == SITE for i in away)
            if away and len(there) < fewest:
                raise Refused(f"{len(there)} sites have joined; {fewest} are needed")
            if not there:
                raise Refused("no site has joined")
        if not study.real and organiser.has_own_data(study):
            raise Refused("the data are elsewhere: invite real sites, which hold them")
        if study.real:
            organiser.settle(study, [i.site for i in there])
        else:
            self._plan(study)  # refused now rather than in the run
        run = Run(
            number=1 + max((r.number for r in study.runs), default=0),
            status=QUEUED,
            sites=[i.site for i in there],
        )
        study.runs.append(run)
        study.status = QUEUED
        for invitation in away:  # it begins without them, so that their tokens end
            invitation.token, invitation.key, invitation.status = None, None, LEFT
        self.db.flush()
        return run

    def start_if_complete(self, study: Study) -> Run | None:
        """A study starts by itself when every invited site has joined. One after another: of two
        whose answers come together, the second to look sees both."""
        with _LOOKING:
            self.db.commit()
            self.db.expire_all()
            joined = [i.status == JOINED for i in study.invitations]
            if study.status != INVITING or not joined or not all(joined):
                return None
            try:
                return self.start(study)
            except Refused:
                if not study.real:
                    raise
                study.roster = None  # the coordinator is told why when starting it by hand
                return None
            except Wrong:  # too few for its sums, say: who joins has done nothing wrong
                return None
            finally:
                self.db.commit()

    def _plan(self, study: Study) -> dict[str, Any]:
        """What the run carries out: the plan with those who joined."""
        there, analysis = invitations.joined(study), study.analysis
        plan_of(study, [i.site for i in there])  # refused if it does not go with them
        known = analysis.data_sets(self.settings.data)
        gone = [i for i in there if i.data not in known and analysis.unchosen is not None]
        if gone:
            raise Refused(f"site '{gone[0].site}': its data set is no longer there")
        sites = {i.site: known.get(i.data or "", {}) for i in there}
        whole = analysis.with_sites(parse(study.plan), sites)
        return {"kind": registered(study.kind), **whole}

    @property
    def data(self) -> str:
        """The folder that names of files are relative to."""
        return "" if self.settings.data is None else str(self.settings.data.resolve())

    def stop(self, study: Study) -> None:
        run = latest(study)
        if run is None or run.status not in (QUEUED, RUNNING):
            raise Refused("the study is not running")
        if run.status == QUEUED and self._move(run, QUEUED, STOPPED):
            study.status = STOPPED
            return
        self.launcher.stop(self.folder(run))

    def resume(self, study: Study) -> Run:
        """Go on where the last run stopped; with the same sites, or not at all."""
        run = latest(study)
        if run is None or run.status not in (STOPPED, FAILED):
            raise Refused("only a study that was stopped or failed can be resumed")
        if gone := _gone(study, run):
            raise Refused(
                f"site '{gone[0]}' has left: going on without it would tell its own numbers by the "
                "difference of two totals; repeat the study as a new one"
            )
        run.status = study.status = QUEUED
        run.reason = run.ended = None
        return run

    def can_resume(self, study: Study) -> bool:
        run = latest(study)
        return run is not None and run.status in (STOPPED, FAILED) and not _gone(study, run)

    def delete(self, study: Study) -> None:
        """The study with all that it left here; the audit page keeps its lines. Keys and tokens of
        its sites end, and what sites were told or hold themselves stays with them."""
        if study.status in (QUEUED, RUNNING):
            raise Refused("the study is running; stop it first")
        for one in (*study.invitations, *study.runs):
            self.db.delete(one)
        self.db.delete(study)
        self.db.flush()
        shutil.rmtree(self.settings.study_folder(study.id), ignore_errors=True)
        federation = organiser.organiser_of(self.settings)
        if study.real and federation is not None:
            run = federation.coordinator / "runs" / organiser.name_of(study)
            shutil.rmtree(run, ignore_errors=True)

    def folder(self, run: Run) -> Path:
        return self.settings.run_folder(run.study_id, run.number)

    def sweep(self) -> None:
        """Settle runs that ended, and begin those that wait; called now and then."""
        running = list(self.db.scalars(select(Run).where(Run.status == RUNNING)))
        for run in running:
            self.settle(run)
        here = [run for run in running if run.status == RUNNING and not run.study.real]
        room = self.settings.at_once - len(here)
        waiting = select(Run).where(Run.status == QUEUED).order_by(Run.created)
        for run in list(self.db.scalars(waiting)):
            if run.study.real:  # computed elsewhere: it needs no room here
                if not organiser.unready(run.study):
                    self._begin(run)
            elif room > 0:
                self._begin(run)
                room -= 1
        self.db.commit()

    def _move(self, run: Run, old: str, new: str) -> bool:
        """Change a status unless somebody else did so before."""
        rule = update(Run).where(Run.id == run.id, Run.status == old).values(status=new)
        moved = self.db.execute(rule.execution_options(synchronize_session="fetch"))
        return moved.rowcount == 1  # type: ignore[attr-defined]

    def _begin(self, run: Run) -> None:
        folder = self.folder(run)
        if not self._move(run, QUEUED, RUNNING):
            return
        self.db.commit()
        try:
            kind, again = registered(run.study.kind), (folder / "run").exists()
            if run.study.real:
                job = Job(kind, {}, again, real=self._real(run))
            else:
                job = Job(
                    kind, self._plan(run.study), again, data=self.data,
                    memory=self.settings.memory, hours=self.settings.hours,
                )  # fmt: skip
            self.launcher.start(job, folder)
            run.status = run.study.status = RUNNING
        except (CupolaError, OSError) as error:
            run.status = run.study.status = FAILED
            run.reason, run.ended = without_paths(str(error)), time.time()

    def _real(self, run: Run) -> dict[str, str]:
        federation = organiser.organiser_of(self.settings)
        if federation is None or run.study.roster is None:
            raise Refused("this server has no federation: start it with --federation")
        plan = organiser.plan_text(run.study, run.sites)
        user = str(federation.lead.resolve())
        return {"roster": run.study.roster, "plan": plan, "user": user}

    def settle(self, run: Run) -> None:
        """Take over what a run that is no longer alive has left."""
        folder = self.folder(run)
        if run.status != RUNNING or self.launcher.alive(folder):
            return
        result = _json(folder / "run" / "result.json") or {}
        status, reason = result.get("status"), result.get("reason")
        if status == FINISHED and not (folder / "results.html").exists():
            status, reason = FAILED, "it finished, but its pages were not made"
        if status not in (FINISHED, STOPPED, FAILED):
            asked = (folder / STOP_ASKED).exists()
            status = STOPPED if asked else FAILED
            reason = "stopped before it began" if asked else "its process ended unexpectedly"
        if status != FINISHED and (folder / REASON).exists():
            reason = (folder / REASON).read_text("utf-8")
        run.status = run.study.status = status
        run.reason, run.ended = None if reason is None else without_paths(reason), time.time()
        run.summary = _json(folder / "summary.json") if status == FINISHED else None


_PATH = re.compile(r"(?<![\w.:/])(?:[A-Za-z]:)?(?:/[^\s:;,'\"()/]+)+/?")


def without_paths(text: str) -> str:
    """What went wrong, with files by their last names: where the server keeps them is its own."""
    return _PATH.sub(lambda found: found[0].rstrip("/").rsplit("/", 1)[-1], text)


def _gone(study: Study, run: Run) -> list[str]:
    """Sites of a run that have left, and the compensator of a real one if it has."""
    there = {i.site for i in study.invitations if i.status == JOINED}
    needed = [i.site for i in study.invitations if study.real and i.role == COMPENSATOR]
    return [name for name in (*run.sites, *needed) if name not in there]


def latest(study: Study) -> Run | None:
    return study.runs[-1] if study.runs else None


def _json(path: Path) -> dict[str, Any] | None:
    try:
        # PostgreSQL knows no numbers that are not finite, such as the loss of what diverged.
        found = json.loads(path.read_text("utf-8"), parse_constant=lambda _: None)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
