"""Published tables, run again: what `cupola reproduce` does in a source checkout.

table = find_table("upfl-momentum")
reproduce(table, "runs/momentum")["differences"]

Every folder beside this one is a table with the plans behind it.
"""

from reproduce.run import jobs, reproduce, seeds_of
from reproduce.tables import Table, find_table, tables

__all__ = ["Table", "find_table", "jobs", "reproduce", "seeds_of", "tables"]
