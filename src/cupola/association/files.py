"""The text files of a cohort, as PLINK reads them: .bim, .fam, and tables of traits and covariates.

What is wrong with a file is said twice: a code that may cross the cohort's border, and a line for
the cohort's own eyes, with file, line number and value.
"""

from __future__ import annotations

import difflib
import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cupola.association.texts import Texts
from cupola.errors import DataError

MISSING = {"-9", "na", "nan"}  # in lower case
X, Y, XY, MT = 23, 24, 25, 26
_NAMED = {"X": X, "Y": Y, "XY": XY, "PAR1": XY, "PAR2": XY, "MT": MT, "M": MT}
_GZIP = b"\x1f\x8b"


class CohortError(DataError):
    """Data of a cohort that cannot be used. code: all that may cross its border."""

    def __init__(self, code: str, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
        self.code = code


@dataclass(frozen=True)
class Variants:
    """A .bim file. chromosome: PLINK's number, 0 unknown. a1, a2: alleles in capitals, '0' unknown.
    Genotype 0 of the .bed file is two copies of a1. Texts may be given as any strings. frequency:
    of a1 in a reference, if a public list brings it."""

    chromosome: np.ndarray
    position: np.ndarray
    name: Texts
    a1: Texts
    a2: Texts
    frequency: np.ndarray | None = None

    def __post_init__(self) -> None:
        for column in ("name", "a1", "a2"):
            object.__setattr__(self, column, Texts.of(getattr(self, column)))

    def __len__(self) -> int:
        return len(self.position)

    def __getitem__(self, index: np.ndarray | slice) -> Variants:
        texts = (self.name[index], self.a1[index], self.a2[index])
        rate = None if self.frequency is None else self.frequency[index]
        return Variants(self.chromosome[index], self.position[index], *texts, rate)

    @staticmethod
    def joined(parts: Sequence[Variants]) -> Variants:
        """One list after another."""
        rates = [part.frequency for part in parts if part.frequency is not None]
        return Variants(
            np.concatenate([part.chromosome for part in parts]),
            np.concatenate([part.position for part in parts]),
            Texts.joined([part.name for part in parts]),
            Texts.joined([part.a1 for part in parts]),
            Texts.joined([part.a2 for part in parts]),
            np.concatenate(rates) if rates and len(rates) == len(parts) else None,
        )

    @property
    def nbytes(self) -> int:
        """Of memory."""
        texts = sum(column.nbytes for column in (self.name, self.a1, self.a2))
        return int(self.chromosome.nbytes + self.position.nbytes + texts)


@dataclass(frozen=True)
class People:
    """A .fam file. person: 'FID IID'. sex: 1 male, 2 female, 0 unknown. trait: as written. first:
    the line of the first person. child: who has a father or a mother, in the data or not; None if
    the file does not say."""

    person: list[str]
    sex: np.ndarray
    trait: list[str]
    first: int = 1
    child: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.person)


@dataclass(frozen=True)
class Table:
    """Named columns of a .pheno or .cov file, as written. lines: where each person stands."""

    path: Path
    names: list[str]
    values: dict[str, list[str]]
    lines: dict[str, int]


def read_variants(path: Path) -> Variants:
    """A .bim file: chromosome, name, centimorgans (may be absent), position, two alleles; or what
    stands in its place: a .pvar, BGEN or VCF file."""
    other = other_variants(path)
    return other if other is not None else _clean_variants(path) or slow_variants(path)


def other_variants(path: Path) -> Variants | None:
    """Variants of a file that is no .bim."""
    ends = path.name.lower().removesuffix(".gz")
    if ends.endswith((".pvar", ".pvar.zst")):
        from cupola.association.variant_files import read_pvar

        return read_pvar(path)
    if ends.endswith(".bgen"):
        from cupola.association.bgen import read_bgen_variants

        return read_bgen_variants(path)
    if ends.endswith(".vcf"):
        from cupola.association.vcf import read_vcf_variants

        return read_vcf_variants(path)
    return None


def _clean_variants(path: Path) -> Variants | None:
    """Read by pyarrow; None without it, or if there is anything to be said about the file."""
    try:
        text = path.read_bytes()
        text = gzip.decompress(text) if text[:2] == _GZIP else text
        table = _parsed(text.replace(b"\r\n", b"\n") if b"\r" in text else text)
    except (OSError, EOFError, zlib.error, ImportError):
        return None
    if table is None:
        return None
    place = table["chromosome"].chunk(0)
    numbers = chromosomes(place.dictionary.to_pylist())
    return Variants(
        numbers[_arrow_numbers(place.indices, np.int32)],
        _arrow_numbers(table["position"].chunk(0), np.int64),
        _arrow_texts(table["name"].chunk(0)),
        _arrow_texts(table["a1"].chunk(0), capitals=True),
        _arrow_texts(table["a2"].chunk(0), capitals=True),
    )


def _parsed(text: bytes) -> Any:
    """A clean .bim file as a pyarrow table; None if Python's `split` might see other columns."""
    import pyarrow
    from pyarrow import compute, csv

    first = text[: text.find(b"\n") if b"\n" in text else None]
    names = ["chromosome", "name", "centimorgans", "position", "a1", "a2"]
    names = [n for n in names if n != "centimorgans" or len(first.split()) == 6]
    few = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    try:
        table = csv.read_csv(
            pyarrow.py_buffer(text),
            csv.ReadOptions(column_names=names, use_threads=False),
            csv.ParseOptions(delimiter="\t" if b"\t" in first else " ", quote_char=False),
            csv.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.string())
                               | {"chromosome": few}),
        ).combine_chunks()  # fmt: skip
        at = names.index("position")
        # Not read as numbers at once: pyarrow would take hexadecimal ones, too.
        fine = compute.all(compute.ascii_is_decimal(table[at])).as_py()
        table = table.set_column(at, "position", table[at].cast(pyarrow.int64()))
    except pyarrow.ArrowInvalid:
        return None
    spaces = np.count_nonzero(np.frombuffer(text, np.uint8) <= ord(" "))
    spaces += not text.endswith(b"\n")
    # By lengths: to compare with "" would import pandas, half a second.
    texts = [table["chromosome"].chunk(0).dictionary]
    texts += [table[n].chunk(0) for n in names if n not in ("chromosome", "position")]
    empty = any(compute.min(compute.binary_length(column)).as_py() == 0 for column in texts)
    fine = fine and text.isascii() and spaces == len(names) * len(table) and not empty
    return table if fine else None


def _arrow_numbers(column: Any, kind: type[np.integer]) -> np.ndarray:
    """A column of whole numbers; `to_numpy` would import pandas."""
    return np.frombuffer(column.buffers()[1], kind)[column.offset :][: len(column)]


def _arrow_texts(column: Any, capitals: bool = False) -> Texts:
    """Copies of its buffers, which have room for more."""
    _, places, data = column.buffers()
    ends = np.frombuffer(places, np.int32)[column.offset :][: len(column) + 1]
    text = bytes(data)[ends[0] : ends[-1]]
    letters = np.frombuffer(text.upper() if capitals else text, np.uint8)
    return Texts(letters, ends - ends[0])


def slow_variants(path: Path) -> Variants:
    """The obvious form, which says what is wrong with a file."""
    table = _columns(path)
    try:
        position = np.array([int(text) for text in table[-3]], np.int64)
    except (ValueError, OverflowError):
        _complain_of_position(path)
        raise
    a1, a2 = (Texts.of([text.upper() for text in column]) for column in table[-2:])
    return Variants(chromosomes(table[0]), position, Texts.of(table[1]), a1, a2)


def as_lines(v: Variants) -> bytes:
    """Variants as a table with tabs between columns, for people."""
    rows = zip(v.chromosome.tolist(), v.name.tolist(), v.position.tolist(), v.a1.tolist(),
               v.a2.tolist())  # fmt: skip
    lines = ["\t".join(map(str, row)) for row in rows]
    return "\n".join(["CHR\tSNP\tBP\tA1\tA2", *lines, ""]).encode()


def _columns(path: Path) -> list[list[str]]:
    """The five or six columns of a .bim file."""
    lines, width = 0, 0
    words: list[str] = []
    for number, fields in numbered_lines(path, "bim"):
        if len(fields) not in (5, 6) or (width and len(fields) != width):
            raise CohortError(
                "bim-columns", f"{path}, line {number}", f"{len(fields)} columns, 6 expected"
            )
        width = len(fields)
        lines += 1
        words += fields
    if not lines:
        raise CohortError("bim-empty", str(path), "holds no variant")
    return [words[i::width] for i in range(width)]


def _complain_of_position(path: Path) -> None:
    for number, fields in numbered_lines(path, "bim"):
        if not is_position(fields[-3]):
            raise CohortError(
                "bim-position", f"{path}, line {number}", f"'{fields[-3]}' is no position"
            ) from None


def is_position(text: str) -> bool:
    """Whether a text is a whole number of 64 bits."""
    return text.lstrip("+-").isdigit() and len(text) <= 18


def chromosome(text: str) -> int:
    """PLINK's number of a human chromosome; 0 where it is none."""
    bare = text.upper().removeprefix("CHR")
    if bare in _NAMED:
        return _NAMED[bare]
    return int(bare) if bare.isascii() and bare.isdigit() and int(bare) <= MT else 0


def chromosomes(texts: Sequence[str]) -> np.ndarray:
    """PLINK's numbers of many chromosomes, uint8."""
    codes = {text: chromosome(text) for text in set(texts)}
    return np.array([codes[text] for text in texts], np.uint8)


def read_people(path: Path) -> People:
    """A .fam file: family, person, father, mother, sex, trait; or what stands in its place: a .psam
    or .sample file, or the header of a VCF file."""
    ends = path.name.lower().removesuffix(".gz")
    if ends.endswith((".psam", ".sample")):
        from cupola.association.people_files import read_named_people

        found = read_named_people(path)
        if found is not None:
            return found
    if ends.endswith(".vcf"):
        from cupola.association.vcf import vcf_people

        return vcf_people(path)
    seen: dict[str, int] = {}
    sex, trait, child = [], [], []
    for number, fields in numbered_lines(path, "fam"):
        if len(fields) < 6:
            raise CohortError(
                "fam-columns", f"{path}, line {number}", f"{len(fields)} columns, 6 expected"
            )
        enter(seen, path, number, fields[:2], "fam")
        sex.append({"1": 1, "2": 2}.get(fields[4], 0))
        trait.append(fields[5])
        child.append(fields[2:4] != ["0", "0"])
    if not seen:
        raise CohortError("fam-empty", str(path), "holds no people")
    return People(list(seen), np.array(sex, np.uint8), trait, child=np.array(child))


def read_table(path: Path, what: str) -> Table:
    """A table whose first line is 'FID IID name ...', or '#IID name ...', or a .sample file. what:
    'pheno' or 'cov', for the code."""
    rows = numbered_lines(path, what)
    ids, head, kinds = read_head(rows, path, what)
    names = head[ids:]
    columns: list[list[str]] = [[] for _ in names]
    seen: dict[str, int] = {}
    for number, fields in rows:
        if len(fields) != len(head):
            raise CohortError(
                f"{what}-columns",
                f"{path}, line {number}",
                f"{len(fields)} columns, {len(head)} expected",
            )
        enter(seen, path, number, fields[:ids], what)
        for column, field in zip(columns, fields[ids:]):
            column.append(field)
    for i, kind in enumerate(kinds[ids:]):
        if kind == "B":  # of a .sample file: 0 control, 1 case
            columns[i] = [{"0": "1", "1": "2"}.get(text, text) for text in columns[i]]
    return Table(path, names, dict(zip(names, columns)), seen)


def read_columns(path: Path, what: str) -> list[str]:
    """The names of a table's columns, from its first line."""
    ids, head, _ = read_head(numbered_lines(path, what), path, what)
    return head[ids:]


def read_head(
    rows: Iterator[tuple[int, list[str]]], path: Path, what: str
) -> tuple[int, list[str], list[str]]:
    """How many columns name a person, the names of all, and of a .sample file their kinds."""
    _, head = next(rows, (0, []))
    first = [h.upper().lstrip("#") for h in head[:2]]
    kinds: list[str] = []
    if first == ["ID_1", "ID_2"]:
        _, kinds = next(rows, (0, []))
    ids = 2 if first in (["FID", "IID"], ["ID_1", "ID_2"]) else int(first[:1] == ["IID"])
    if not ids or len(head) <= ids:
        raise CohortError(
            f"{what}-header",
            f"{path}, line 1",
            "must be 'FID IID' (or '#IID' alone) and the names of columns",
        )
    if len(set(head)) < len(head):
        raise CohortError(f"{what}-header", f"{path}, line 1", "names a column twice")
    return ids, head, kinds


def read_keep(path: Path) -> set[str]:
    """People as 'FID IID', from the first two columns of a file (a header does no harm); from the
    first alone if there is one only, or the header begins with #IID."""
    found, ids = set(), 2
    for number, fields in numbered_lines(path, "keep"):
        ids = 1 if number == 1 and fields[0].upper() in ("#IID", "IID") else ids
        found.add(person_of(fields[:ids]))
    return found


def person_of(ids: Sequence[str]) -> str:
    """'FID IID'; who has no FID is in family 0, as in PLINK 2."""
    return " ".join(ids) if len(ids) > 1 else f"0 {ids[0]}"


def require_column(path: Path, names: Sequence[str], name: str, what: str) -> None:
    """CohortError, with a suggestion, if a table has no such column."""
    if name in names:
        return
    alike = {known.lower(): known for known in reversed(names)}
    close = difflib.get_close_matches(name.lower(), alike, n=1)
    meant = f" (did the study mean '{alike[close[0]]}'?)" if close else ""
    raise CohortError(
        f"{what}-column-missing",
        str(path),
        f"has no column '{name}'; it has {', '.join(names)}{meant}",
    )


def numbers(table: Table, name: str, what: str, people: Sequence[str]) -> np.ndarray:
    """A column as float64 in the order of `people`; NaN where missing or absent."""
    require_column(table.path, table.names, name, what)
    found = dict(zip(table.lines, table.values[name]))
    result = np.full(len(people), np.nan)
    for i, person in enumerate(people):
        written = found.get(person)
        if written is not None and written.lower() not in MISSING:
            result[i] = _number(written, f"{table.path}, line {table.lines[person]}", name, what)
    return result


def fam_trait(people: People, path: Path) -> np.ndarray:
    """The trait of a .fam file as float64; NaN where missing."""
    result = np.full(len(people), np.nan)
    for i, written in enumerate(people.trait):
        if written.lower() not in MISSING:
            result[i] = _number(written, f"{path}, line {people.first + i}", "trait", "fam")
    return result


def _number(written: str, where: str, name: str, what: str) -> float:
    try:
        value = float(written)
    except ValueError:
        value = math.inf
    if not math.isfinite(value):
        raise CohortError(f"{what}-not-a-number", where, f"{name} = '{written}' is no number")
    return value


def enter(seen: dict[str, int], path: Path, number: int, ids: Sequence[str], what: str) -> None:
    """Note in which line a person stands; CohortError for one without a name, or named twice."""
    person = person_of(ids)
    if ids[-1] == "0":
        raise CohortError(f"{what}-no-id", f"{path}, line {number}", "names nobody (its IID is 0)")
    if person in seen:
        raise CohortError(
            f"{what}-duplicate-person",
            f"{path}, line {number}",
            f"'{person}' was in line {seen[person]} before",
        )
    seen[person] = number


def numbered_lines(path: Path, what: str) -> Iterator[tuple[int, list[str]]]:
    """Fields of the lines that are not empty, with their numbers; gzip is recognised."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
        with (
            gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8") as f
        ):
            for number, line in enumerate(f, 1):
                if fields := line.split():
                    yield number, fields
    except UnicodeDecodeError:
        raise CohortError(f"{what}-not-text", str(path), "is not UTF-8 text") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise CohortError(f"{what}-gzip", str(path), "is a broken gzip file") from None
    except OSError as error:
        reason = error.strerror or "not readable"
        raise CohortError(f"{what}-unreadable", str(path), reason.lower()) from None
