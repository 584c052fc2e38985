"""Other people on components that a study has found: their scores by its loadings.

A score is the sum over markers of (copies of A1 - 2 f) / sqrt(2 f (1 - f)) times the loading, f the
frequency in the study. Markers are found by place and alleles, as cohorts of a study agree on
variants. Without a call, or without the marker, a person counts as the study's mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cupola.association.agreement import (
    ABSENT,
    FLIPPED,
    FLIPPED_SWAPPED,
    INCOMPATIBLE,
    MOVED,
    REPEATED,
    SWAPPED,
    Index,
    compare,
    strand_unknown,
)
from cupola.association.cohort import Files
from cupola.association.files import (
    Variants,
    chromosome,
    numbered_lines,
    read_people,
    read_variants,
)
from cupola.association.genotypes import blocks, open_genotypes
from cupola.association.structure.component_results import PLACE
from cupola.errors import DataError

_MISSED = {
    ABSENT: "absent",
    MOVED: "at another position (another genome build?)",
    INCOMPATIBLE: "other alleles",
    REPEATED: "more than once (multi-allelic?)",
}
_UNKNOWN = "strand cannot be told (A/T or C/G, and others are on the other strand)"


@dataclass(frozen=True)
class Loadings:
    """A table of loadings: (markers, components) weights. frequency: of a1, in the study."""

    variants: Variants
    frequency: np.ndarray
    weights: np.ndarray

    def __len__(self) -> int:
        return len(self.frequency)


@dataclass(frozen=True)
class Projected:
    """scores: (people, components). found: how many markers; missed: the others, by reason.
    swapped, flipped: of those found, with alleles in the other order, on the other strand.
    missing: the share of calls that people lack of those found."""

    person: list[str]
    scores: np.ndarray
    markers: int
    found: int
    missed: dict[str, int]
    swapped: int
    flipped: int
    missing: float


def read_loadings(path: Path) -> Loadings:
    """A study's table NAME.loadings.tsv."""
    lines = numbered_lines(path, "loadings")
    _, head = next(lines, (0, []))
    names = head[len(PLACE) :]
    if tuple(head[: len(PLACE)]) != PLACE or names != [f"PC{i + 1}" for i in range(len(names))]:
        raise DataError(
            f"{path}: begins with the columns {' '.join(head[:8])}; a study's loadings with "
            f"{' '.join(PLACE)} PC1"
        )
    rows, values = [], []
    for number, cells in lines:
        try:
            if len(cells) != len(head):
                raise ValueError(f"{len(cells)} columns, not {len(head)}")
            rows.append((chromosome(cells[0]), cells[1], int(cells[2]), cells[3], cells[4]))
            values.append([float(cell) for cell in cells[5:]])
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}") from None
    table = np.array(values).reshape(len(rows), len(names) + 1)
    wrong = ~np.isfinite(table).all(axis=1) | (table[:, 0] <= 0) | (table[:, 0] >= 1)
    if not names or not rows or wrong.any():
        name = rows[int(wrong.argmax())][1] if wrong.any() else "nothing"
        raise DataError(
            f"{path}: {name} is no marker with loadings: A1_FREQ is between 0 and 1, loadings are "
            "numbers"
        )
    where, label, position, a1, a2 = (list(column) for column in zip(*rows))
    places = (np.array(where, np.uint8), np.array(position, np.int64))
    return Loadings(Variants(*places, label, a1, a2), table[:, 0], table[:, 1:])  # type: ignore[arg-type]


def project(loadings: Loadings, files: Files) -> Projected:
    """Everybody of these files; hard calls or dosages."""
    person, own = read_people(files.fam).person, read_variants(files.bim)
    genotypes = open_genotypes(files.bed, person, len(own))
    match = compare(loadings.variants, own, Index(own))
    row, status = match.row, match.status
    told = row >= 0
    flipped = told & np.isin(status, (FLIPPED, FLIPPED_SWAPPED))
    unknown = told & strand_unknown(loadings.variants) & bool(flipped.any())
    told = told & ~unknown
    if not told.any():
        raise DataError(f"{files.bim}: has none of {len(loadings):,} markers with loadings")
    swapped = told & np.isin(status, (SWAPPED, FLIPPED_SWAPPED))
    missed = {word: int((status == code).sum()) for code, word in _MISSED.items()}
    missed[_UNKNOWN] = int(unknown.sum())
    mean = 2 * loadings.frequency[told]
    weights = loadings.weights[told] / np.sqrt(mean * (1 - mean / 2))[:, None]
    scores, without = np.zeros((len(person), weights.shape[1])), 0
    for part, copies in blocks(genotypes, row[told]):
        other = swapped[told][part][:, None]
        moved = np.where(other, 2 - copies, copies) - mean[part][:, None]
        lacking = np.isnan(moved)
        without += int(lacking.sum())
        scores += np.where(lacking, 0.0, moved).T @ weights[part]
    found = int(told.sum())
    counts = (int(swapped.sum()), int((flipped & told).sum()))
    share = without / max(1, found * len(person))
    missed = {word: n for word, n in missed.items() if n}
    return Projected(person, scores, len(loadings), found, missed, *counts, share)


def score_table(person: Iterable[str], scores: np.ndarray) -> bytes:
    """One line a person, as PLINK takes covariates."""
    names: Sequence[str] = [f"PC{i + 1}" for i in range(scores.shape[1])]
    lines = ["\t".join(["FID", "IID", *names])]
    for one, row in zip(person, scores.tolist()):
        lines.append("\t".join([*one.split(), *map(repr, row)]))
    return ("\n".join(lines) + "\n").encode()
