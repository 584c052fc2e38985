"""A way into a study for a page: the steps that a person takes, and what runs beside them.

It does what `cupola site join` does, by the same functions; `cupola.web.site_page` shows it.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cupola.errors import CupolaError
from cupola.secure.roster import Roster
from cupola.site.dataset_settings import files_here
from cupola.site.join import Choice, Joining, begin, progress_text
from cupola.site.settings import SITE, SiteSettings, read_settings

ENTER, ASKED, SHOWN, WAITING, COMPARE, RUNNING, OVER = (
    "enter", "asked", "shown", "waiting", "compare", "running", "over",
)  # fmt: skip
_CHOICES = ("data", "file", "path", "target", "epsilon", "unmasked")


class _Closed(BaseException):
    """The page's server ends."""


@dataclass
class JoinSession:
    """One study on its way, in one of the stages. said: what went wrong last, or how it ended.
    typed: what the form of the data held last."""

    folder: Path
    stage: str = ENTER
    joining: Joining | None = None
    choice: Choice = field(default_factory=Choice)
    shown: dict[str, Any] | None = None
    questions: list[dict[str, Any]] = field(default_factory=list)
    roster: Roster | None = None
    plan: str = ""
    said: str = ""
    typed: dict[str, str] = field(default_factory=lambda: dict.fromkeys(_CHOICES, ""))
    progress: dict[str, Any] = field(default_factory=dict)
    confirmed: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)
    beside: threading.Thread | None = None

    @property
    def known(self) -> SiteSettings | None:
        """The site's settings, if it has some."""
        made = (self.folder / SITE).exists()
        return read_settings(self.folder, SiteSettings) if made else None

    @property
    def results(self) -> list[str]:
        """Files of a finished study, in the site's own folder."""
        if self.joining is None or (self.stage, self.progress.get("status")) != (OVER, "finished"):
            return []
        return sorted(path.name for path in self.joining.results.glob("*") if path.is_file())

    def act(self, step: str, form: dict[str, str]) -> None:
        """Take a step. Steps are taken in their order; one that is out of it changes nothing."""
        if (step, self.stage) == ("token", ENTER):
            self.enter(form.get("url", ""), form.get("token", ""))
        elif step == "data" and self.stage in (ASKED, SHOWN):
            self.typed = {key: form.get(key, "") for key in _CHOICES}
            self.look(self._choice(form))
        elif (step, self.stage) == ("answer", SHOWN):
            self.answer(form.get("answer") == "accept")
        elif step == "answer" and self.stage == ASKED and form.get("answer") == "decline":
            self.answer(False)
        elif step == "leave" and self.stage in (WAITING, RUNNING):
            self.leave()
        elif (step, self.stage) == ("roster", COMPARE):
            self.compared(form.get("answer") == "same")
        else:
            raise CupolaError("this was answered already, or comes later")
        self.said = self.said if self.stage == OVER else ""

    def _choice(self, form: dict[str, str]) -> Choice:
        """What the form of the data says."""
        joining = self.joining
        assert joining is not None
        cores = form.get("cores", "1")
        if not cores.isdigit() or not 1 <= int(cores) <= (os.cpu_count() or 1):
            raise CupolaError(f"cores are a number up to {os.cpu_count()}")
        name, path = form.get("data", ""), form.get("path", "") or form.get("file", "")
        if joining.terms is None:
            return Choice(name or None, cores=int(cores))
        new = None
        if path:
            analysis = joining.proposal.analysis
            name = form.get("name", "") or analysis.data_name or analysis.data_noun
            where = (self.folder / path).expanduser().absolute()
            new = analysis.describe(where, form.get("target") or None)
        if self.known is not None:  # what the site allows is said in its settings
            return Choice(name or None, new, cores=int(cores))
        unmasked = joining.proposal.unmasked_tasks if form.get("unmasked") else ()
        return Choice(name or None, new, unmasked, _budget(form.get("epsilon", "")), int(cores))

    @property
    def offered(self) -> dict[str, Any]:
        """What there is to choose from, while a person chooses."""
        found: dict[str, Any] = {"known": None, "sets": [], "files": [], "unmasked": ()}
        joining = self.joining
        if joining is None or self.stage not in (ASKED, SHOWN):
            return found
        found["known"] = known = self.known
        if joining.terms is None:
            return found | {"sets": [str(name) for name in joining.asked.get("data_sets") or []]}
        return found | {
            "sets": list(known.data) if known else [],
            "files": files_here(self.folder),
            "unmasked": joining.proposal.unmasked_tasks,
        }

    def enter(self, url: str, token: str) -> None:
        self.joining = begin(self.folder, url, token, "site")
        self.said, self.stage = "", ASKED
        if self.joining.answered:
            self._go_on()

    def look(self, choice: Choice) -> None:
        assert self.joining is not None
        self.choice = choice
        self.shown = None
        if self.joining.terms is not None:
            self.shown = self.joining.look(choice).as_dict()
        else:
            self.questions = self.joining.questions()
        self.stage = SHOWN

    def answer(self, yes: bool) -> None:
        assert self.joining is not None
        if not yes:
            self.joining.decline()
            self.stage, self.said = (
                OVER,
                "You declined; nothing was told, and the token is used up.",
            )
            return
        self.joining.accept(self.choice)
        self._go_on()

    def compared(self, equal: bool) -> None:
        assert self.joining is not None
        if equal:
            self.stage = RUNNING
            self.confirmed.set()
        else:
            self.leave()

    def leave(self) -> None:
        """Also while it runs: its process ends, and no question is answered any more."""
        assert self.joining is not None
        told = " What was told before cannot be taken back." if self.stage == RUNNING else ""
        self.closing.set()
        self.joining.leave()
        self.stage, self.said = OVER, "You left the study." + told

    def _go_on(self) -> None:
        self.stage = WAITING
        self.beside = threading.Thread(target=self._rest, daemon=True)
        self.beside.start()

    def _rest(self) -> None:
        try:
            self._take_part()
        except _Closed:
            return
        except CupolaError as error:
            if not self.closing.is_set():
                self.stage, self.said = OVER, str(error)
        except Exception as error:
            self.stage, self.said = OVER, f"unexpected {type(error).__name__}"
            raise

    def _take_part(self) -> None:
        joining = self.joining
        assert joining is not None
        if joining.terms is not None:
            while (found := joining.agreed()) is None:
                if self.closing.wait(1.0):
                    return
            self.roster, self.plan = found
            self.stage = COMPARE
            while not self.confirmed.wait(0.5):
                if self.closing.is_set():
                    return
            joining.pin(self.roster, self.plan)
        self.stage = RUNNING
        last = joining.take_part(self._tell, self.choice.cores, wait=float("inf"))
        if last["status"] == "finished":
            self.said = f"The study has finished. Its results are in {joining.results}"
        else:
            self.said = f"The study ended as {last['status']}: {last.get('reason') or ''}"
        self.stage = OVER

    def _tell(self, now: dict[str, Any]) -> None:
        self.progress = now
        if self.closing.is_set():
            raise _Closed

    def state(self) -> dict[str, Any]:
        now = self.progress
        text = {WAITING: "waiting for the others to answer"}.get(self.stage, "")
        if self.stage == RUNNING:
            text = progress_text({"status": "starting", "resumable": True, **now})
        share = {key: now.get(key) or 0 for key in ("done", "of")}
        return {"stage": self.stage, "text": text, **share}

    def close(self) -> None:
        self.closing.set()
        if self.beside is not None:
            self.beside.join(30)


def _budget(text: str) -> float | None:
    if not text:
        return None
    try:
        epsilon = float(text)
    except ValueError:
        raise CupolaError("a budget is a number, such as 3") from None
    if not 0 < epsilon < float("inf"):
        raise CupolaError("a budget is a number above 0")
    return epsilon
