"""History for other tools: CSV and TensorBoard."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cupola.analysis.overrides import flat
from cupola.errors import CupolaError
from cupola.pages.folder import RunFolder


def _values(record: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """A record as 'test/accuracy' -> value; lists are left out."""
    return (found for found in flat(record, between="/") if not isinstance(found[1], list))


def to_csv(runs: list[RunFolder], path: Path) -> None:
    """One line per round; several runs are told apart by the column 'run'."""
    rows = [
        ({"run": run.path.name} if len(runs) > 1 else {}) | dict(_values(record))
        for run in runs
        for record in run.history
    ]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(rows)
    try:
        path.write_text(text.getvalue(), "utf-8", newline="")
    except OSError as error:
        raise CupolaError(f"cannot write {path}: {error.strerror}") from None


def to_tensorboard(runs: list[RunFolder], folder: Path) -> None:
    """Every number of every round as a scalar; one log per run."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise CupolaError(
            "TensorBoard is not installed; get it with `pip install 'cupola[tensorboard]'`"
        ) from None
    for run in runs:
        place = folder / run.path.name if len(runs) > 1 else folder
        with SummaryWriter(str(place)) as writer:
            for record in run.history:
                for key, value in _values(record):
                    if isinstance(value, int | float) and key != "round":
                        writer.add_scalar(key, value, record["round"])
