"""Analyses: what may be written in a plan, what sites compute and reveal, what is left behind.

Subclass `Analysis` to add a kind (see `examples/pooled_regression.py`), and hold it against
`cupola.testing.check_analysis`.
"""

from cupola.analysis.header import Engine, PlanHeader
from cupola.analysis.protocol import Analysis, Hosted, NoData, OwnSite, Sites
from cupola.analysis.result import Facts, Result
from cupola.analysis.run_progress import Progress

__all__ = [
    "Analysis",
    "Engine",
    "Facts",
    "Hosted",
    "NoData",
    "OwnSite",
    "PlanHeader",
    "Progress",
    "Result",
    "Sites",
]
