"""Published tables, each one file: experiments/NAME/table.toml beside the plans it names.

caption = "Weighted gradient accumulation improves accuracy"
source = "Nasirigerdeh et al. 2023, Table 5"
plan = "cifar.toml"
seeds = [1, 2, 3]
measure = "accuracy"

[[row]]
name = "FedCMB"
settings = ["recipe=fedcmb"]
published = { "accuracy" = [66.36, 0.35] }
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cupola.analysis.plan_file import load
from cupola.base.formatting import SHARES
from cupola.base.suggest import suggest
from cupola.errors import PlanError
from cupola.training.plan import Plan
from reproduce.measure import OF_SITES, TO_TARGET

Number = float | Annotated[list[float], Field(min_length=1, max_length=2)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Column(_Part):
    """A column: settings on top of the table's. measure: instead of the table's and the row's."""

    name: str
    plan: str | None = None
    settings: tuple[str, ...] = ()
    measure: str | None = None


class Row(Column):
    """A row: settings on top of the column's; published values by column, [mean, spread] or mean.

    also: published values of further measures, by measure and column. skip: columns that have no
    cell in this row. measure: what it measures, instead of the table's. against: the rows it is
    compared with, instead of the table's reference.
    """

    published: dict[str, Number] = {}
    also: dict[str, dict[str, Number]] = {}
    skip: tuple[str, ...] = ()
    against: tuple[str, ...] | None = None


class Special(_Part):
    """Settings and measure of one cell, on top of everything."""

    row: str
    column: str
    plan: str | None = None
    measure: str | None = None
    settings: tuple[str, ...] = ()


class Cell(_Part):
    """One number of the table."""

    row: str
    column: str
    plan: str
    settings: tuple[str, ...]
    published: float | None = None
    spread: float | None = None
    measure: str | None = None


class Table(_Part):
    """A published table and the plans behind it.

    measure: a metric at the end of a run (accuracy, loss, ...); rounds, bytes, seconds; rounds_to,
    bytes_to, seconds_to (with target); weights_mse (against the twin); see `measure`. also: further
    measures of the same runs. scale: measured values are multiplied by it (100 for shares, so that
    per cent stand beside per cent; bytes are megabytes). reference: the row the others are compared
    with (default: the first). reference_column: likewise, if wanted. '{seed}' in a setting stands
    for the seed.
    """

    name: str
    folder: Path
    caption: str
    source: str
    plan: str
    settings: tuple[str, ...] = ()
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (1,)
    measure: str = "accuracy"
    also: tuple[str, ...] = ()
    target: float | None = None
    scale: float | None = None
    reference: str | None = None
    reference_column: str | None = None
    note: str = ""
    row: Annotated[tuple[Row, ...], Field(min_length=1)]
    column: tuple[Column, ...] = ()
    cell: tuple[Special, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Table:
        rows, columns = [r.name for r in self.row], self.columns
        for what, names in (("row", rows), ("column", columns)):
            if len(set(names)) < len(names):
                raise ValueError(f"two {what}s have the same name")
        _known("reference", self.reference, rows)
        _known("reference_column", self.reference_column, columns)
        for row in self.row:
            for name in (*row.published, *row.skip, *(c for v in row.also.values() for c in v)):
                _known(f"row '{row.name}'", name, columns)
            for name in row.also:
                _known(f"row '{row.name}': also", name, list(self.also))
            for name in row.against or ():
                _known(f"row '{row.name}': against", name, rows)
        for special in self.cell:
            _known("cell.row", special.row, rows)
            _known("cell.column", special.column, columns)
        for measure in self.measures:
            if measure in TO_TARGET and self.target is None:
                raise ValueError(f"measure = '{measure}' needs target")
        return self

    @property
    def columns(self) -> list[str]:
        return [c.name for c in self.column] or [self.measure]

    @property
    def measures(self) -> list[str]:
        """All that is measured, the headline first."""
        return [self.measure, *self.also]

    def factor(self, measure: str) -> float:
        """What measured values are multiplied by."""
        if self.scale is not None and measure == self.measure:
            return self.scale
        if measure == "bytes":
            return 1e-6
        share = measure in SHARES or measure in OF_SITES or measure.startswith("personal_")
        return 100.0 if share or measure.startswith("matched") else 1.0

    def published(self, cell: Cell, measure: str) -> tuple[float | None, float | None]:
        """Mean and spread that the paper prints, where it does."""
        if measure == self.measure:
            return cell.published, cell.spread
        row = next(r for r in self.row if r.name == cell.row)
        return _both(row.also.get(measure, {}).get(cell.column))

    def cells(self) -> list[Cell]:
        """All cells, row by row."""
        columns = self.column or (Column(name=self.measure),)
        special = {(c.row, c.column): c for c in self.cell}
        found = []
        for row in self.row:
            for column in columns:
                if column.name in row.skip:
                    continue
                own = special.get((row.name, column.name))
                plan = (own and own.plan) or row.plan or column.plan or self.plan
                settings = (*self.settings, *column.settings, *row.settings)
                mean, spread = _both(row.published.get(column.name))
                found.append(
                    Cell(
                        row=row.name,
                        column=column.name,
                        plan=plan,
                        settings=(*settings, *(own.settings if own else ())),
                        published=mean,
                        spread=spread,
                        measure=(own and own.measure) or column.measure or row.measure,
                    )
                )
        return found

    def plan_of(self, cell: Cell, seed: int) -> Plan:
        """The plan of one cell and seed."""
        path = self.folder / cell.plan
        if not path.is_file():
            raise PlanError(f"{self.folder / 'table.toml'}: plan '{cell.plan}' is not there")
        settings = [setting.replace("{seed}", str(seed)) for setting in cell.settings]
        plan = load(path, [*settings, f"seed={seed}"], of=Plan)
        if plan.grid:
            raise PlanError(f"{path}: a plan behind a table has no [grid]; use rows and columns")
        return plan


def _both(value: Number | None) -> tuple[float | None, float | None]:
    """Mean and spread of a published value."""
    given = value if isinstance(value, list) else [value]
    return given[0], given[1] if len(given) > 1 else None


def _known(where: str, name: str | None, names: list[str]) -> None:
    if name is not None and name not in names:
        raise ValueError(f"{where}: '{name}' is unknown; there are: {', '.join(names)}")


def experiments(plans: Path | str | None = None) -> Path:
    """The folder with the published tables: given, or the one that holds this tool."""
    if plans is None:
        return Path(__file__).resolve().parents[1]
    if not Path(plans).is_dir():
        raise PlanError(f"--plans {plans} is no folder")
    return Path(plans)


def tables(plans: Path | str | None = None) -> dict[str, Table]:
    """All tables by name."""
    found = (read(path) for path in sorted(experiments(plans).glob("*/table.toml")))
    return {table.name: table for table in found}


def find_table(name: str, plans: Path | str | None = None) -> Table:
    """A table by name; an unknown one is refused with a suggestion."""
    folder = experiments(plans)
    names = sorted(path.parent.name for path in folder.glob("*/table.toml"))
    if name not in names:
        raise PlanError(f"table '{name}' is unknown; {suggest(name, names or ['none'])}")
    return read(folder / name / "table.toml")


def read(path: Path) -> Table:
    """A table from its file; every problem in one line."""
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
        return Table.model_validate({**values, "name": path.parent.name, "folder": path.parent})
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"{path}: not TOML: {error}") from None
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            key = ".".join(str(part) for part in problem["loc"])
            said = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{path}: {key + ': ' if key else ''}{said}")
        raise PlanError("\n".join(lines)) from None
