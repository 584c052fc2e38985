"""Studies over many runs: published tables side by side with ours, and sweeps.

table = find_table("wga")
reproduce(table, "runs/wga")["differences"]
sweep(define("plan.toml", ["local.lr=0.01,0.1"]), "runs/sweep")["best"]
"""

from cupola.reproduce.run import jobs, reproduce, seeds_of
from cupola.reproduce.sweeps import Sweep, define, sweep
from cupola.reproduce.tables import Table, find_table, tables

__all__ = [
    "Sweep",
    "Table",
    "define",
    "find_table",
    "jobs",
    "reproduce",
    "seeds_of",
    "sweep",
    "tables",
]
