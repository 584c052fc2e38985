"""The results of an association study as an index on disk: pages and searches over a million
variants touch only the rows they show."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from cupola.analysis.forms import TablePage
from cupola.association.compare import Table
from cupola.association.files import chromosome
from cupola.errors import CupolaError

PAGE = 50
MOST = 10_000  # of a search; what finds more is too vague
HINT = "The beginning of a name, or a place such as 7:27100000-27300000"
_PLACE = re.compile(r"(?:chr)?(\w{1,2}):([\d,]{1,11})(?:-([\d,]{1,11}))?", re.IGNORECASE)


def build(path: Path, table: Table) -> None:
    """Write the index; ranks are by p, the smallest first, those without p last."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    score = np.where(np.isnan(table.log10_p), np.inf, table.log10_p)
    order = np.argsort(score, kind="stable")

    def rows() -> Iterator[tuple[int, str, int, int, str]]:
        for rank, i in enumerate(order.tolist(), 1):
            yield (rank, table.name[i], int(table.chromosome[i]), int(table.position[i]),
                   "\t".join(table.fields[i]))  # fmt: skip

    with closing(sqlite3.connect(part)) as db:
        db.execute("PRAGMA synchronous=OFF")
        db.execute("CREATE TABLE head (names TEXT, variants INTEGER)")
        db.execute(
            "CREATE TABLE hit (rank INTEGER PRIMARY KEY, name TEXT COLLATE NOCASE, "
            "chromosome INTEGER, position INTEGER, line TEXT)"
        )
        db.execute("INSERT INTO head VALUES (?, ?)", ("\t".join(table.head), len(order)))
        db.executemany("INSERT INTO hit VALUES (?, ?, ?, ?, ?)", rows())
        db.execute("CREATE INDEX hit_by_name ON hit (name)")
        db.execute("CREATE INDEX hit_by_place ON hit (chromosome, position)")
        db.commit()
    part.rename(path)


def read(path: Path, search: str = "", page: int = 1) -> TablePage:
    """A page of all variants by p, or of those that a search finds: the beginning of a name, or a
    place such as 7:27100000-27300000."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        names, total = db.execute("SELECT names, variants FROM head").fetchone()
        search = search.strip()
        if search:
            where, values = _condition(search)
            inner = f"SELECT rank, line FROM hit WHERE {where} LIMIT {MOST}"
            total = db.execute(f"SELECT count(*) FROM ({inner})", values).fetchone()[0]
        pages = max(1, -(-total // PAGE))
        page = min(max(1, page), pages)
        start = (page - 1) * PAGE
        if search:
            found = db.execute(
                f"SELECT * FROM ({inner}) ORDER BY rank LIMIT {PAGE} OFFSET {start}", values
            )
        else:
            found = db.execute(
                "SELECT rank, line FROM hit WHERE rank > ? ORDER BY rank LIMIT ?", (start, PAGE)
            )
        rows = [(rank, line.split("\t")) for rank, line in found]
    return TablePage(names.split("\t"), rows, total, page, pages, bool(search) and total >= MOST)


def _condition(search: str) -> tuple[str, list[str | int]]:
    if place := _PLACE.fullmatch(search):
        try:
            low = int(place[2].replace(",", ""))
            high = int((place[3] or place[2]).replace(",", ""))
            return "chromosome = ? AND position BETWEEN ? AND ?", [chromosome(place[1]), low, high]
        except (CupolaError, ValueError):
            pass
    # The names that begin so, in the order of the index: up to the same with a very late letter.
    return "name >= ? AND name < ?", [search, search + "\U0010ffff"]
