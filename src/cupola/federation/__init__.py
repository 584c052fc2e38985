"""Sites, tasks, the two questions `sum` and `gather`, the ledger. `cupola.engines` carry them."""

from cupola.federation.answering import Answering, OpenSite, read_answer
from cupola.federation.federation import Answers, Failure, Federation, Total
from cupola.federation.ledger import Entry, Ledger
from cupola.federation.message import Arrays, Contribution, Declined, Question, Spec
from cupola.federation.program import ALONE, Ask, Program, Reply, State, drive
from cupola.federation.replay import Replay
from cupola.federation.site import (
    Accounts,
    Charge,
    Host,
    Partial,
    SiteContext,
    StateStore,
    Task,
    task,
)

__all__ = [
    "ALONE",
    "Accounts",
    "Answering",
    "Answers",
    "Arrays",
    "Ask",
    "Charge",
    "Contribution",
    "Declined",
    "Entry",
    "Failure",
    "Federation",
    "Host",
    "Ledger",
    "OpenSite",
    "Partial",
    "Program",
    "Question",
    "Replay",
    "Reply",
    "SiteContext",
    "Spec",
    "State",
    "StateStore",
    "Task",
    "Total",
    "drive",
    "read_answer",
    "task",
]
