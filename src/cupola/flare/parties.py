"""What answers in a party's child process: the study's questions, and its results at the end."""

from __future__ import annotations

from pathlib import Path

from cupola.errors import CupolaError
from cupola.federation.answering import ANSWER, BROKEN, Answering
from cupola.flare.coordinate import RESULTS, unpack
from cupola.flare.jobs import ASK, HELLO, MARKS
from cupola.flare.jobs import RESULTS as HAND_OUT


class PartyAnswering:
    """Questions go to the study's own `Answering`; results into the party's folder."""

    def __init__(self, answering: Answering, folder: Path) -> None:
        self._answering, self._folder = answering, folder

    def answer(self, message: bytes) -> bytes:
        mark, body = message[:1], message[1:]
        if mark == MARKS[HELLO]:
            return ANSWER  # all is loaded: from here on, time is computing time
        if mark == MARKS[ASK]:
            return self._answering.answer(body)
        if mark != MARKS[HAND_OUT]:
            return BROKEN + b"message is not well formed"
        try:
            unpack(body, self._folder, allowed=RESULTS)
            _report(self._folder)
        except (CupolaError, OSError, ValueError) as error:
            print(f"results: {error!r}")
            return BROKEN + b"the results could not be written"
        return ANSWER


def open_party(folder: str, kind: str, study: str) -> PartyAnswering:
    """Called by name in the child. Raises nothing that a coordinator would see."""
    from cupola.sites import open_compensator, open_site

    own = Path(folder)
    opened = open_compensator(own, study) if kind == "compensator" else open_site(own, study)
    return PartyAnswering(opened, own / "results" / Path(study).name)


def _report(folder: Path) -> None:
    """The site writes its own report: pages made elsewhere are not opened here."""
    from cupola import report

    report.write(folder)
