"""What answers in a party's child process: the study's questions, and its results at the end."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO

from cupola.analysis.header import PlanHeader
from cupola.base.files import take
from cupola.engines.flare.jobs import ASK, HELLO, MARKS
from cupola.engines.flare.jobs import RESULTS as HAND_OUT
from cupola.errors import CupolaError
from cupola.federation.answering import ANSWER, BROKEN, DECLINED, Answering
from cupola.site.coordinator import handed_out, unpack

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class PartyAnswering:
    """Questions go to the study's own `Answering`; results into the party's folder."""

    def __init__(
        self,
        answering: Answering,
        folder: Path,
        joined: Callable[[], PlanHeader | None],
        lock: IO[bytes] | None = None,
    ) -> None:
        self._answering, self._folder, self._joined, self._lock = answering, folder, joined, lock

    def answer(self, message: bytes) -> bytes:
        mark, body = message[:1], message[1:]
        if mark == MARKS[HELLO]:
            return ANSWER  # all is loaded: from here on, time is computing time
        if mark == MARKS[ASK]:
            return self._answering.answer(body)
        if mark != MARKS[HAND_OUT]:
            return BROKEN + b"message is not well formed"
        plan = self._joined()
        if plan is None:
            return DECLINED + b"this study was not joined here"
        try:
            unpack(body, self._folder, handed_out(plan))
        except (CupolaError, OSError, ValueError) as error:
            print(f"results: {error!r}")
            return BROKEN + b"the results could not be written"
        _report(self._folder, plan)
        return ANSWER


def _report(folder: Path, plan: PlanHeader) -> None:
    """The page is made here, by the analysis that was agreed to: a page that was sent could hold
    anything, and a plan that was sent could name any code."""
    from cupola import report
    from cupola.analysis.kinds import analysis_of

    try:
        report.write(folder, analysis_of(plan))
    except Exception as error:  # the coordinator's files, which may not be what they should be
        print(f"report: {error!r}")


def open_party(folder: str, kind: str, study: str) -> PartyAnswering:
    """Called by name in the child. Raises nothing that a coordinator would see."""
    from cupola.site.consent import study_folder
    from cupola.site.open import open_compensator, open_site

    own = Path(folder)
    place = study_folder(own, study)
    lock = _wait_for(place / "job.lock") if place.is_dir() else None
    opened = open_compensator(own, study) if kind == "compensator" else open_site(own, study)
    return PartyAnswering(opened, results_folder(own, study), lambda: joined_plan(own, study), lock)


def joined_plan(own: Path, study: str) -> PlanHeader | None:
    """The plan of a study that a site has consented to."""
    from cupola.site.consent import look
    from cupola.site.settings import SiteSettings

    try:
        joined = look(own, study, SiteSettings)
        return joined.proposal.plan if study in joined.settings.studies else None
    except CupolaError:
        return None


def results_folder(own: Path, study: str) -> Path:
    """Where a party finds what a study hands out."""
    from cupola.site.consent import study_folder

    plain = study if _PLAIN.fullmatch(study) else study_folder(own, study).name
    return own / "results" / plain


def _wait_for(path: Path) -> IO[bytes]:
    """Hold a lock for as long as this process lives. The child of a job that was killed may still
    have it for a moment; one whose own job is gone does not wait on."""
    job = os.getppid()
    file = path.open("ab")
    while True:
        if take(file, wait=0.2, pause=0.2):
            return file
        if os.getppid() != job:
            raise SystemExit
