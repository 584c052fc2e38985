"""What a site does with a question, whatever carried it there: bytes in, bytes out.

The order is the same at every site: refuse what it did not agree to; give the stored answer to a
question asked again; charge, durably, before data are touched; compute; store the answer before it
leaves. What leaves is a mark and a body: an answer, or a code that says why there is none.
"""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cupola.base.frames import RECEIPT_SIZE
from cupola.errors import CupolaError, DataError, FederationError, PlanError
from cupola.federation.federation import Failure
from cupola.federation.message import (
    Contribution,
    Declined,
    Question,
    decode_contribution,
    decode_question,
    encode_contribution,
)
from cupola.federation.receipts import Receipt, Receipts, split_receipt
from cupola.federation.site import Accounts, SiteContext, Task, admit, find_task

if TYPE_CHECKING:
    from cupola.federation.replay import Replay
    from cupola.federation.stored import StoredAnswers

ANSWER, DECLINED, BROKEN = b"A", b"F", b"B"  # the first byte of what leaves
_LONGEST = 200  # letters of a code
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass
class OpenSite:
    """A site that is ready: its context, its accounts, what must be closed at the end, and its copy
    of the program, where it follows one."""

    context: SiteContext
    accounts: Accounts | None = None
    closes: tuple[Any, ...] = ()
    replay: Replay | None = None


class Answering:
    """One site's answers.

    make: opens the site at its first question; what goes wrong then is told as a code, and tried
    again at the next. answers: where answers are stored; without it (in trials) a question asked
    again is computed again. gate: raises Declined for what the site does not agree to; asked
    before everything else, every time; True: the site must be opened anew. own_log: where what must
    not cross the border is written; with it, of errors about data and settings only that they
    happened crosses. record: told of every question (None: not well formed), what leaves, and
    whether it left before; if it fails, nothing leaves. Its receipt, if it gives one, goes along.
    """

    def __init__(
        self,
        make: Callable[[], OpenSite],
        *,
        answers: StoredAnswers | None = None,
        gate: Callable[[Question], bool] | None = None,
        own_log: Callable[[str], None] | None = None,
        record: Callable[[Question | None, bytes, bool], Receipt | None] | None = None,
    ) -> None:
        self._make, self._answers, self._gate, self._own_log = make, answers, gate, own_log
        self._record = record
        self._opened: OpenSite | None = None
        self._lock = threading.Lock()

    def answer(self, question: bytes) -> bytes:
        """A mark and an encoded contribution, or a mark and a code. Never raises Exception."""
        with self._lock:
            asked: Question | None = None
            self._again = False
            try:
                asked = decode_question(question)
                return self._recorded(asked, ANSWER + self._answer(asked))
            except Exception as error:
                failed = self._failed(error)
            with suppress(Exception):
                return self._recorded(asked, failed)
            return failed

    def _recorded(self, question: Question | None, answer: bytes) -> bytes:
        receipt = None if self._record is None else self._record(question, answer, self._again)
        return answer if receipt is None else receipt.packed() + answer

    def _failed(self, error: Exception) -> bytes:
        """What crosses the border of an error."""
        if isinstance(error, Declined):
            return DECLINED + _code(error.code)
        if isinstance(error, DataError | PlanError):
            self._note(str(error))
            hidden = "data or files are not usable: see the site's own log"
            return BROKEN + _code(hidden if self._own_log else str(error))
        if isinstance(error, CupolaError):
            self._note(str(error))
            return BROKEN + _code(str(error))
        kind = type(error).__name__
        if isinstance(error, OSError):
            self._close()  # what is on disk is unknown: reading it again will tell
            kind = "its disk is full" if error.errno in _FULL else kind
        # Values and paths stay here; the kind of error is all that crosses the border.
        self._note(repr(error))
        return BROKEN + _code(f"error at the site ({kind})")

    def close(self) -> None:
        """Let go of files, so that another process may answer for this site."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        opened, self._opened = self._opened, None
        for part in () if opened is None else (opened.accounts, *opened.closes):
            close = getattr(part, "close", None)
            if close is not None:
                close()

    def _answer(self, question: Question) -> bytes:
        if self._gate is not None and self._gate(question):
            self._close()
        if self._opened is None:
            self._opened = self._make()  # which imports the site's tasks, and locks others out
            if self._answers is not None:
                self._answers.look_again()
        task = find_task(question.task)
        site, accounts, replay = self._opened.context, self._opened.accounts, self._opened.replay
        task.refuse_unmasked(site)
        site = replace(site, answers=self._answers)
        self._again = self._is_known(task, question)
        if not self._again:
            if replay is not None and not task.protocol:
                due = question if task.about is None else task.about(question)
                replay.check(due, site.index)
            refused = admit(accounts, task, [site], question)
            if refused:
                raise Declined(refused[site.index])
        if task.about is None and not task.protocol:
            return site.once(question, lambda: _witnessed(site, question, task(site, question)))
        return encode_contribution(task(site, question))

    def _is_known(self, task: Task, question: Question) -> bool:
        """Whether the question was answered before, so that it costs nothing."""
        if self._answers is None or task.protocol:
            return False
        if task.about is None:
            return self._answers.find(question) is not None
        return self._answers.find(task.about(question), task.name) is not None

    def _note(self, text: str) -> None:
        if self._own_log is None:
            print(f"site: {text}", file=sys.stderr)
        else:
            self._own_log(text)


def _witnessed(site: SiteContext, question: Question, answer: Contribution) -> Contribution:
    if not question.witnessed:
        return answer
    if site.party is None:
        raise Declined("this site has no keys for masked sums")
    return site.party.witnessed(question, answer)


def read_answer(
    answer: bytes | str,
    receipts: Receipts | None = None,
    party: str = "",
    largest: int | None = None,
) -> Contribution | Failure:
    """What an answer's bytes say, at the coordinator, who trusts none of them. A text is the code
    of why there are none. receipts: those of the parties so far; one whose folder went back is not
    heard. largest: bytes that the answer may have without its receipt."""
    if isinstance(answer, str):
        return Failure(answer)
    if largest is not None and len(answer) > largest + RECEIPT_SIZE:
        return Failure("answer is too large", broken=True)
    receipt, answer = split_receipt(answer)
    mark, body = answer[:1], answer[1:]
    if receipts is not None and (receipt is not None or mark == ANSWER):  # else it says why
        strayed = receipts.refusal(party, receipt)
        if strayed is not None:
            return Failure(strayed, broken=True)
    if mark != ANSWER:
        text = body[: 4 * _LONGEST].decode(errors="replace")
        code = "".join(c if c.isprintable() else "?" for c in text)[:_LONGEST]
        if mark == DECLINED:
            return Failure(code)
        return Failure(code if mark == BROKEN else "message is not well formed", broken=True)
    try:
        return decode_contribution(body)
    except FederationError as error:
        return Failure(str(error), broken=True)


def _code(text: str) -> bytes:
    return text[:_LONGEST].encode(errors="replace")
