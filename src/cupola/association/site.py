"""A cohort as a site of a federation: opened when first asked, with a log that stays there."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cupola.association.agreement import Index
from cupola.association.cohort import Cohort, Files, Wanted, open_cohort
from cupola.association.design import Design, design, fewest_people
from cupola.association.dosage_sums import allele_sums
from cupola.association.files import CohortError, Variants, as_lines
from cupola.association.genotypes import blocks
from cupola.association.kernels import genotype_counts
from cupola.association.limits import Released
from cupola.association.study_choices import Limits, Study, WholeGenome
from cupola.base.chain import checked, read_checked
from cupola.base.files import write_atomically
from cupola.federation.message import Arrays, Declined, Question
from cupola.federation.site import SiteContext
from cupola.secure.durable_dict import Memory

if TYPE_CHECKING:
    from cupola.association.structure.step_ones import StepOnes

_CHUNK = 4096
FIRTH_ITERATIONS = 50
NULL_ITERATIONS = 50
FINGERPRINTS = "gwas fingerprints"
HASH = 8  # bytes of one
UNLISTED, RELATIVES, FEW_ALIKE = "unlisted.tsv", "relatives.tsv", "few_alike.tsv"
LARGEST = 30.0  # standardised coefficient: steeper curves would pick single people
MOST_TILT = 8.0  # a genotype's coefficients on the covariates, their sizes added up


def most_iterations(study: Study) -> int:
    """How often a study may ask for one variant's likelihood."""
    return study.newton.iterations + (FIRTH_ITERATIONS if study.newton.firth else 0)


def released_numbers(study: Study) -> int:
    """Numbers per variant that a regression counts as told: columns, and one, at each iteration.
    Information matrices, and what people without a call take off, are not among them."""
    if not study.regression:
        return 0
    columns = len(study.columns) + 2 + study.sex_on_x + (study.whole_genome is not None)
    if study.test == "mixed":  # of a marker
        return columns + 1 + study.mixed.vectors
    first = (columns + 1) * study.scored + _linked_numbers(study) + 3 * study.heterogeneity
    if study.score.then == "saddle-point":
        return first + 6 * study.newton.iterations
    return first + (columns + 1) * (1 if study.test == "linear" else most_iterations(study))


def _linked_numbers(study: Study) -> int:
    """Numbers per marker that step one of whole-genome regression tells: half a block's products,
    those with covariates, and with the trait in each fold."""
    whole = study.whole_genome
    if whole is None:
        return 0
    return (whole.block or 400) // 2 + 1 + len(study.columns) + whole.folds


@dataclass
class Site:
    """One cohort's side, and what it has agreed to, whatever it is asked.

    salt: what cohorts share and the coordinator does not know; without it no fingerprints.
    of_study: which study a real cohort's fingerprints are for.
    proposes: whether it may be asked for its variants; rare: never for those with fewer copies.
    iterations: how often one variant's likelihood may be asked for. people_per_column: the fewest
    tested people per column of a regression, by what it is told of all cohorts. limits:
    those of the study. least_cohorts: in how many cohorts a variant must be, at least (0: in all).
    apart: of how many differences of totals may tell. released: the book of what this data set has
    told. log: what went wrong, in full; none of it crosses the border. memory, folder: where a real
    cohort keeps what it was asked, so that a new process does not answer it all again in other
    forms. own_log: where it keeps the log. unlisted: its variants that the list does not have, so
    far. tables: others for its own eyes, by the name of their file. study: what it has agreed to.
    scores: its people's components, once they are known, (loaded people, components). whole_genome:
    the least people and carriers that whole-genome regression needs; step_ones: the book of whom
    this data set has made it for. made: what was made of what it was told; anew after a restart.
    """

    files: Files
    wanted: Wanted
    salt: bytes | None = None
    proposes: bool = True
    rare: int = 5
    iterations: int = 12 + FIRTH_ITERATIONS
    people_per_column: int = 0
    limits: Limits = field(default_factory=Limits)
    least_cohorts: int = 0
    apart: int = 1
    released: Released | None = None
    whole_genome: WholeGenome = field(default_factory=WholeGenome)
    step_ones: StepOnes | None = None
    log: list[str] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    folder: Path | None = None
    own_log: Callable[[str], None] | None = None
    unlisted: Variants | None = None
    made: dict[Any, Any] = field(default_factory=dict)
    tables: dict[str, bytes] = field(default_factory=dict)
    study: Study | None = None
    of_study: str = ""
    scores: np.ndarray | None = None
    _cohort: Cohort | None = None
    _designs: dict[Any, Design] = field(default_factory=dict)
    _index: Index | None = None
    _common: tuple[int, np.ndarray] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _asked: dict[str, np.ndarray] = field(default_factory=dict)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens the cohort for itself, and remembers for itself."""
        return partial(Site, **{name: getattr(self, name) for name in _AGREED}), ()

    @property
    def cohort(self) -> Cohort:
        with self._lock:
            if self._cohort is None:
                self._cohort = open_cohort(self.files, self.wanted)
                if self._cohort.relatives is not None:
                    self.keep_table(RELATIVES, self._cohort.relatives)
                if self._cohort.few_alike is not None:
                    self.keep_table(FEW_ALIKE, self._cohort.few_alike)
            return self._cohort

    def take_scores(self, kept: Arrays) -> None:
        """Components that were kept in an earlier step: some are covariates from now on."""
        if self.scores is not None or "scores" not in kept or self.study is None:
            return
        cohort, components = self.cohort, self.study.components
        self.scores = kept["scores"]
        if self.wanted.scores and components is not None:
            chosen = [components.names.index(name) for name in self.wanted.scores]
            columns = np.full((len(cohort.person), len(chosen)), np.nan)
            columns[cohort.loaded] = self.scores[:, chosen]
            whole = np.concatenate([cohort.covariates, columns], axis=1)
            self._cohort = replace(cohort, covariates=whole)

    @property
    def index(self) -> Index:
        """Where variants stand; dropped after the agreement."""
        if self._index is None:
            self._index = Index(self.cohort.variants)
        return self._index

    def pinned(self, what: Any) -> bool:
        """Whether this kind of question was asked before."""
        return self.memory.get(f"pin {what!r}") is not None

    def pin(self, what: Any, value: Any) -> None:
        """Answer a kind of question in one form only: many forms of a sum tell its parts."""
        text = json.dumps(value)
        if self.memory.setdefault(f"pin {what!r}", text) != text:
            raise Declined("asked-otherwise-before")

    def agreeing(self, start: int, reached: int, sites: int, packed: np.ndarray) -> None:
        """Refuse another list than the first, a gap in it, or more of it once it is in use."""
        stretch = ("agree", start)
        if start != reached or (self.pinned("list") and not self.pinned(stretch)):
            raise Declined("variants-not-agreed")
        self.pin(stretch, (hashlib.blake2b(packed.tobytes()).hexdigest(), sites))

    def leave_out(self, listed: np.ndarray) -> None:
        """Note the cohort's own variants that are on no list, by name: here and nowhere else."""
        self.unlisted = self.cohort.variants[np.flatnonzero(~listed)]
        if self.folder is not None:
            self._write(UNLISTED, as_lines(self.unlisted))

    def keep_table(self, name: str, text: bytes) -> None:
        """A table for the cohort's own eyes."""
        self.tables[name] = text
        if self.folder is not None:
            self._write(name, text)

    def _write(self, name: str, text: bytes) -> None:
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / name, text)

    def secret(self) -> bytes:
        """32 bytes of the operating system, the same for as long as this cohort remembers."""
        return bytes.fromhex(self.memory.setdefault("secret", secrets.token_hex(32)))

    def count(
        self, question: Question, what: str, places: np.ndarray, of: int, most: int | None = None
    ) -> None:
        """Refuse to tell a likelihood at ever more points. places: which of `of` are asked for.
        most: how often, if not `iterations` times.

        A question that is repeated bit for bit tells nothing new, after a restart neither: who was
        stopped while computing an answer is asked for it again. Its step is the coordinator's word,
        so what it asks for counts as well.
        """
        if what not in self._asked:
            self._asked[what] = self._counts(what, of)
        asked = self._asked[what]
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(question.arrays):
            digest.update(name.encode() + b"\0" + question.arrays[name].tobytes())
        digest.update(json.dumps(dict(question.options), sort_keys=True).encode())
        key = f"counted {what} {question.step} {digest.hexdigest()}"
        if self.memory.get(key) is None:
            asked[places] += 1
            if self.folder is not None:
                self.folder.mkdir(parents=True, exist_ok=True)
                place = self._place(what)
                write_atomically(place, checked(place.name, asked.tobytes()))
            self.memory.setdefault(key, 1)  # after the count: a crash in between only refuses more
        if (asked[places] > (self.iterations if most is None else most)).any():
            raise Declined("asked-too-often")

    def _counts(self, what: str, of: int) -> np.ndarray:
        """How often each of `of` was asked for before this process."""
        if self.folder is None or not self._place(what).exists():
            return np.zeros(of, np.int32)
        counts = np.frombuffer(read_checked(self._place(what)), np.int32).copy()
        if len(counts) != of:
            raise Declined("asked-otherwise-before")
        return counts

    def _place(self, what: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{hashlib.sha256(what.encode()).hexdigest()[:32]}.counts"

    def complain(self, text: str) -> None:
        """Say what is wrong, here and nowhere else."""
        self.log.append(text)
        if self.own_log is not None:
            self.own_log(text)

    def close(self) -> None:
        self.memory.close()
        for book in (self.released, self.step_ones):
            if book is not None:
                book.close()

    def common(self, least: int) -> np.ndarray:
        """Rows of variants with known alleles and at least so many copies of the rarer one."""
        cohort = self.cohort
        if self._common is None or self._common[0] != least:
            keep = (cohort.variants.a1 != "0") & (cohort.variants.a2 != "0")
            for start in range(0, len(keep), _CHUNK):
                part = slice(start, start + _CHUNK)
                keep[part] &= self.copies(part).min(axis=0) >= least
            self._common = (least, np.flatnonzero(keep))
        return self._common[1]

    def copies(self, part: slice | np.ndarray) -> np.ndarray:
        """Copies of either allele in everybody who is loaded: (2, variants)."""
        cohort = self.cohort
        if not self.wanted.dosages:
            found = genotype_counts(cohort.bed.rows(part), cohort.loaded[None])
            two, one, none = found[:, 0].T
            return np.stack([2 * two + one, 2 * none + one])
        rows = np.arange(len(cohort.variants))[part]
        sums = [allele_sums(found, cohort.loaded[None]) for _, found in blocks(cohort.bed, rows)]
        a1 = np.concatenate([copies[:, 0] for copies, _ in sums])
        return np.stack([a1, 2 * np.concatenate([people[:, 0] for _, people in sums]) - a1])

    def design(self, question: Question) -> Design:
        """The people and columns that a question of a test is about."""
        self._index = None
        options = question.options
        shift, width = tuple(options["shift"]), tuple(options["width"])
        key = (options["kind"], options["binary"], options["sex_on_x"], shift, width)
        self.pin("design", key[1:])
        own = int(self.cohort.tested(bool(options["binary"]), True).sum())
        columns = len(shift) + 1 + bool(options["sex_on_x"]) + ("prediction" in options)
        told = int(options["tested"])
        fewest = int(options.get("fewest", told))  # of the cohorts that have some variant
        self._require_people(told, fewest, own, columns)
        if self.released is not None:
            self.released.charge(fewest)
        if key not in self._designs:
            self._designs[key] = design(
                self.cohort,
                options["kind"],
                bool(options["binary"]),
                np.array(shift, float),
                np.array(width, float),
                bool(options["sex_on_x"]),
                self.limits.outliers,
            )
        return self._designs[key]

    def _require_people(self, told: int, fewest: int, own: int, columns: int) -> None:
        """Refuse a regression over too few people. told: how many all cohorts have, which only the
        coordinator knows; own: this cohort's, the least that it can be sure of."""
        self.pin("tested", told if fewest == told else [told, fewest])
        if self.people_per_column == 0:
            return
        if not own <= told >= fewest >= fewest_people(columns, self.people_per_column):
            raise Declined("too-few-people")


#: Fields of a site that say what it has agreed to; all others are made, or kept, by one process.
_AGREED = ("files", "wanted", "salt", "proposes", "rare", "iterations", "people_per_column",
           "limits", "least_cohorts", "apart", "whole_genome", "study", "of_study")  # fmt: skip


@dataclass
class StudyHost:
    """The cohorts of a simulated study. A cohort remembers what it was asked."""

    cohorts: Sequence[Site]
    remembers = True

    def __len__(self) -> int:
        return len(self.cohorts)

    def data(self, site: int) -> Site:
        return self.cohorts[site]

    def workspace(self) -> None:
        """Nothing is shared between cohorts."""


def guarded(function: Callable[[Site, SiteContext, Question], Any]) -> Callable[..., Any]:
    """A task whose complaints about data stay at the cohort: only their code goes out."""

    @wraps(function)
    def run(site: SiteContext, question: Question) -> Any:
        own: Site = site.data
        try:
            own.take_scores(site.recall(question))
            return function(own, site, question)
        except CohortError as error:
            own.complain(str(error))
            raise Declined(error.code) from None
        except (KeyError, TypeError, ValueError, IndexError) as error:
            own.complain(f"cohort '{own.files.name}': {type(error).__name__}: {error}")
            raise Declined("question-not-understood") from None

    return run
