"""Sites, tasks, the two questions `sum` and `gather`, the ledger, and engines that carry them."""

from cupola.federation.answering import Answering, Opened, read_answer
from cupola.federation.federation import Failure, Federation, Total
from cupola.federation.inprocess import InProcess
from cupola.federation.ledger import Entry, Ledger
from cupola.federation.message import Arrays, Contribution, Declined, Question, Spec
from cupola.federation.program import ALONE, Ask, Program, Reply, State, drive
from cupola.federation.raycluster import RayCluster
from cupola.federation.replay import Replay
from cupola.federation.separate import Processes, SeparateProcesses
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
    "Arrays",
    "Ask",
    "Charge",
    "Contribution",
    "Declined",
    "Entry",
    "Failure",
    "Federation",
    "Host",
    "InProcess",
    "Ledger",
    "Opened",
    "Partial",
    "Processes",
    "Program",
    "Question",
    "RayCluster",
    "Replay",
    "Reply",
    "SeparateProcesses",
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
