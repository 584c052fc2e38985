"""The questions of a study, with the bounds that masked sums need and what answers reveal.

Columns are standardised over the pooled people, so that the squares of a column add up to the
number of people N. By Cauchy and Schwarz no sum of products of two columns, over whatever people,
is larger than N: bounds that hold for any data and tell nobody anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cupola.association import agreement, variant_list_codec
from cupola.association.design import AUTOSOME, kinds
from cupola.association.files import Variants
from cupola.association.limits import WITHHELD, rounded
from cupola.association.site import FINGERPRINTS, HASH, LARGEST, MOST_TILT
from cupola.association.study_choices import Study
from cupola.association.tasks import GROUPS, PROPOSE
from cupola.federation.message import Arrays, Question, Spec

MOST_PEOPLE = 10**8  # in one cohort
_KINDS = 4  # of chromosomes
COARSE = 1 << 17  # people up to which sums without the genotype do with 32 bits


@dataclass(frozen=True)
class Chunk:
    """Variants of one question: rows `index` of the list, all in [start, stop), of one kind.

    prediction: of whole-genome regression, the column that the test takes along: the chromosome
    that it leaves out (0: none), and its mean and width over all people."""

    start: int
    stop: int
    kind: int
    index: np.ndarray
    prediction: tuple[int, float, float] | None = None

    @property
    def model(self) -> str:
        """Chunks of one model share what does not depend on a variant."""
        return f"{self.kind}" if self.prediction is None else f"{self.kind}/{self.prediction[0]}"

    @property
    def of_model(self) -> dict[str, Any]:
        """Options of a question about the model alone."""
        more = {} if self.prediction is None else {"prediction": list(self.prediction)}
        return {"kind": self.kind, **more}

    def arrays(self, chosen: np.ndarray | None = None) -> Arrays:
        """Which variants are meant (all of them, or those of a mask), a bit each."""
        bits = np.zeros(self.stop - self.start, bool)
        bits[(self.index if chosen is None else self.index[chosen]) - self.start] = True
        return {"variants": np.packbits(bits)}


class Models:
    """Of which model without a genotype each variant of a list is (see `Chunk.model`). prediction:
    of whole-genome regression, as the state has it."""

    def __init__(self, variants: Variants, prediction: Mapping[str, Any] | None) -> None:
        kind = kinds(variants.chromosome)
        self.prediction, left_out = prediction, np.zeros(len(kind), np.int64)
        if prediction is not None:  # without markers a chromosome is tested with that of all
            told = np.isin(variants.chromosome, prediction["chromosomes"]) & (kind == AUTOSOME)
            left_out = np.where(told, variants.chromosome, 0)
        self.code = _KINDS * left_out + kind

    def chunk(self, start: int, stop: int, code: int, index: np.ndarray) -> Chunk:
        left_out, kind = divmod(code, _KINDS)
        column = None
        if self.prediction is not None:
            place = self.prediction["chromosomes"].index(left_out)
            column = (left_out, self.prediction["mean"][place], self.prediction["width"][place])
        return Chunk(start, stop, kind, index, column)


def first_chunk(variants: int, size: int) -> Chunk:
    """The first chunk of so many variants."""
    stop = min(variants, size)
    return Chunk(0, stop, 0, np.arange(stop))


def stretches(kept: np.ndarray, models: Models, size: int) -> list[Chunk]:
    """Those kept (variants,) of every `size` that follow one another on the list."""
    pieces, code = [], models.code
    for start in range(0, len(kept), size):
        stop = min(start + size, len(kept))
        for m in np.unique(code[start:stop][kept[start:stop]]).tolist():
            index = start + np.flatnonzero(kept[start:stop] & (code[start:stop] == m))
            pieces.append(models.chunk(start, stop, m, index))
    return pieces


def gathered(chosen: np.ndarray, models: Models, size: int) -> list[Chunk]:
    """Those chosen (variants,), `size` at a time, wherever they stand."""
    pieces = []
    for m in np.unique(models.code[chosen]).tolist():
        alike = np.flatnonzero(chosen & (models.code == m))
        for part in (alike[i : i + size] for i in range(0, len(alike), size)):
            pieces.append(models.chunk(int(part[0]), int(part[-1]) + 1, m, part))
    return pieces


@dataclass(frozen=True)
class Asker:
    """Makes questions. people: all that are loaded. facts: 'binary', 'shift', 'width', 'tested'."""

    study: Study
    sites: int
    people: int = 0
    facts: Mapping[str, Any] | None = None

    @property
    def n(self) -> float:
        """The bound on sums of products; a little slack, since standardising is not exact."""
        return 1.01 * self.people + 10

    @property
    def coarse(self) -> int:
        return 32 if self.people <= COARSE else 64

    @property
    def _counted(self) -> str:
        return "number and sums of dosages" if self.study.dosages else "genotype counts"

    def _test(self, chunk: Chunk | int, **options: Any) -> dict[str, Any]:
        assert self.facts is not None
        place = {"kind": chunk} if isinstance(chunk, int) else {**place_of(chunk), **chunk.of_model}
        return {**self.facts, "sex_on_x": self.study.sex_on_x, **place, **options}

    def of_people(self, kind: int, **options: Any) -> dict[str, Any]:
        """Options of a question about those tested on a kind of chromosome."""
        return self._test(kind, **options)

    def people_question(self) -> Question:
        study = self.study
        return Question(
            "gwas people",
            options={
                "binary": study.binary,
                "regression": study.regression,
                "one_sided": study.one_sided or study.quantitative or study.test is None,
            },
            expects={"people": Spec((10,), "int", MOST_PEOPLE)},
            reveals="numbers of people: cases, controls, without trait, males among them, tested; "
            "cohorts whose trait is not binary",
        )

    def moments(self, of: str, binary: bool, shift: list[float], width: list[float]) -> Question:
        largest = self.study.largest
        bounds = {"mean": self.people * largest, "distance": 2 * self.people * largest}
        bound = bounds.get(of, 1.1 * self.people**2 + 10)
        return Question(
            "gwas moments",
            options={"of": of, "binary": binary, "shift": shift, "width": width,
                     "largest": largest},
            expects={"sums": Spec((len(shift),), "float", bound)},
            reveals=f"the {_MOMENTS[of]} of every covariate and the trait over all tested people",
        )  # fmt: skip

    def propose(self, size: int | None) -> Question:
        spec = Spec((1,), "int") if size is None else Spec((size,), "int")
        return Question(
            PROPOSE,
            options={"rare": self.study.rare},
            expects={"size" if size is None else "list": spec},
            reveals=f"the cohort's variants with at least {self.study.rare} copies of the rarer "
            "allele that no cohort before it named: names, positions, alleles; no frequency",
        )

    def agree(self, start: int, packed: np.ndarray, count: int) -> Question:
        most = agreement.most_of_digits(self.sites)
        expects = {
            "found": Spec((count,), "int", most),
            "own": Spec((4,), "int", variant_list_codec.MOST),
        }
        if (self.study.least_cohorts or self.sites) < self.sites:
            marks = (count, agreement.words(self.sites))
            expects["lacking"] = Spec(marks, "int", 1 << agreement.WORD - 1)
        by_frequency = self.study.quality.unknown_strand == "frequency"
        if by_frequency:
            expects["strand"] = Spec((count, 2), "int", 1)
        return Question(
            "gwas agree",
            arrays={"list": packed},
            options={"start": start, "sites": self.sites},
            expects=expects,
            reveals="per variant, in how many cohorts it is absent, elsewhere, has other alleles, "
            "is repeated, flipped, swapped; how many have other names, and how many of the "
            "cohorts' own variants are not on the list"
            + ("; which cohorts lack which variant" if "lacking" in expects else "")
            + (
                "; of A/T and C/G variants, in how many cohorts the frequency speaks for the other "
                "strand, or cannot tell"
                if by_frequency
                else ""
            ),
        )

    def groups(self, groups: list[int]) -> Question:
        assert self.facts is not None
        return Question(
            GROUPS,
            options={"groups": groups, "binary": self.facts["binary"],
                     "regression": self.study.regression},
            expects={"people": Spec((max(groups) + 1, 3), "int", MOST_PEOPLE)},
            reveals="numbers of people, of males and of those tested, of every group of cohorts "
            "that have the same variants",
        )  # fmt: skip

    def fingerprints(self) -> Question:
        return Question(
            FINGERPRINTS,
            expects={"hashes": Spec((self.people, HASH), "int"), "salt": Spec((1,), "int", 255)},
            reveals="hashes of people's ids under a salt that the coordinator does not know: how "
            "many people two cohorts share, and whether all have one salt",
            decides=False,
        )

    def counts(self, chunk: Chunk, binary: bool, groups: list[int], genotypes: bool) -> Question:
        k, dosages = len(chunk.index), self.study.dosages
        expects = {"alleles": Spec((k, len(groups), 2), "int", 2 * self.people)}
        if dosages:
            expects = {
                "copies": Spec((k, len(groups)), "float", 2 * self.people),
                "people": Spec((k, len(groups)), "int", self.people),
                "squares": Spec((k,), "float", 4 * self.people),
            }
        if genotypes:
            shown = sum(group < 2 or not binary for group in groups)
            expects["genotypes"] = Spec((k, shown, 3), "int", self.people)
        if self.study.limits.least_cell:
            expects[WITHHELD] = Spec((k,), "int", 1)
        return Question(
            "gwas counts",
            chunk.arrays(),
            {"binary": binary, "groups": groups, "genotypes": genotypes, **place_of(chunk)},
            expects,
            reveals="per variant, "
            + ("sums of dosages and people who have one " if dosages else "alleles ")
            + ("and genotypes " if genotypes else "")
            + ("in cases, controls and others" if binary else "in all people")
            + ("; squares of dosages, over all" if dosages else "")
            + (_WITHHELD.format("counts are small") if self.study.limits.least_cell else ""),
        )  # fmt: skip

    def shared(self, chunk: Chunk | int, columns: int, beta: np.ndarray | None) -> Question:
        model = {"kind": chunk} if isinstance(chunk, int) else chunk.of_model
        if beta is None:
            whole = (columns + 1) * (columns + 2) // 2
            return Question(
                "gwas shared",
                options=self.of_people(**model),
                expects={"products": Spec((whole,), "float", self.n)},
                reveals="products of covariates and trait, summed over all tested people",
            )
        return Question(
            "gwas shared",
            {"beta": beta},
            self.of_people(**model),
            {
                "gradient": Spec((columns,), "float", self.n),
                "information": Spec((columns * (columns + 1) // 2,), "float", self.n),
            },
            reveals="gradient and information of the model without a genotype, over all people",
        )

    def linear(self, chunk: Chunk, columns: int, missing: bool) -> Question:
        k = len(chunk.index)
        expects = {
            "cross": Spec((k, columns), "float", 2 * self.n),
            "counts": Spec((k, 3), "int", 2 * self.people),
        }
        if self.study.dosages:  # also their sum, and that of their squares
            expects = {
                "cross": Spec((k, columns + 2), "float", 4 * self.n),
                "counts": Spec((k, 1), "int", self.people),
            }
        if missing:
            off = (columns + 1) * (columns + 2) // 2 - 1
            expects["off"] = Spec((k, off), "float", self.n, self.coarse)
            expects |= {WITHHELD: Spec((k,), "int", 1)} if self.study.limits.least_cell else {}
        return Question(
            "gwas linear",
            chunk.arrays(),
            self._test(chunk, missing=missing),
            expects,
            reveals=f"per variant, {self._counted} of those tested, genotype times covariates and "
            "trait, and products of those without a call, over all people"
            + (_WITHHELD.format("few have no call") if WITHHELD in expects else ""),
            protection=rounded(self.study),
        )

    def score(self, chunk: Chunk, beta: np.ndarray, missing: bool) -> Question:
        k, columns, dosages = len(chunk.index), len(beta), self.study.dosages
        expects = {
            "cross": Spec((k, columns + 2 + dosages), "float", 4 * self.n),
            "counts": Spec((k, 1 if dosages else 2), "int", 2 * self.people),
            WITHHELD: Spec((k,), "int", 1),
        }
        if missing:
            expects["off"] = Spec((k, columns + 1), "float", self.n, self.coarse)
        return Question(
            "gwas score",
            {**chunk.arrays(), "beta": beta},
            self._test(chunk, missing=missing),
            expects,
            reveals=f"per variant, {self._counted} of those tested, genotype times weighted "
            "covariates and residuals, and weighted covariates and residuals of those without a "
            "call, over all people" + _WITHHELD.format("few people count"),
            protection=rounded(self.study),
        )

    def saddle(
        self, chunk: Chunk, chosen: np.ndarray, tilt: np.ndarray, at: np.ndarray, null: np.ndarray
    ) -> Question:
        """tilt: (k, columns + 1), the genotype's regression on the covariates, and what stands for
        a missing call. at: (k, 2), where the sums are taken."""
        k = len(at)
        # |g - x c| adds up to at most 2 N + 8 N over people, by `MOST_TILT`; its squares, by the
        # triangle inequality, to (2 + 8)^2 N.
        reach = 2 + MOST_TILT
        return Question(
            "gwas saddle",
            {**chunk.arrays(chosen), "tilt": tilt, "at": at, "beta": null},
            self._test(chunk),
            {
                "value": Spec((k, 2), "float", LARGEST * reach * self.n),
                "slope": Spec((k, 2), "float", reach * self.n),
                "curve": Spec((k, 2), "float", reach**2 * self.n / 4),
                WITHHELD: Spec((k,), "int", 1),
            },
            reveals="per variant, the cumulant generating function of its score, with slope and "
            "curvature, at two points, over all people" + _WITHHELD.format("few people count"),
            protection=rounded(self.study),
        )

    def first(self, chunk: Chunk, beta: np.ndarray, missing: bool) -> Question:
        k, columns = len(chunk.index), len(beta)
        expects = {
            "cross": Spec((k, columns + 2), "float", 4 * self.n),
            "counts": Spec((k, 1 if self.study.dosages else 2), "int", 2 * self.people),
            WITHHELD: Spec((k,), "int", 1),
        }
        if missing:
            off = columns * (columns + 1) // 2 + columns
            expects["off"] = Spec((k, off), "float", self.n, self.coarse)
        return Question(
            "gwas first",
            {**chunk.arrays(), "beta": beta},
            self._test(chunk, missing=missing),
            expects,
            reveals=f"per variant, {self._counted} of those tested, genotype times weighted "
            "covariates and residuals, and the same of those without a call, over all people"
            + _WITHHELD.format("few people count"),
            protection=rounded(self.study),
        )

    def newton(self, chunk: Chunk, chosen: np.ndarray, beta: np.ndarray) -> Question:
        k, p = beta.shape
        return Question(
            "gwas newton",
            {**chunk.arrays(chosen), "beta": beta},
            self._test(chunk),
            {
                "gradient": Spec((k, p), "float", 2 * self.n),
                "fixed": Spec((k, p * (p - 1) // 2), "float", self.n, self.coarse),
                "genotype": Spec((k, p), "float", 2 * self.n),
                WITHHELD: Spec((k,), "int", 1),
            },
            reveals="per variant, gradient and information of the log-likelihood over all people"
            + _WITHHELD.format("few people count"),
            protection=rounded(self.study),
        )

    def firth(
        self, chunk: Chunk, chosen: np.ndarray, beta: np.ndarray, inverse: np.ndarray
    ) -> Question:
        k, p = beta.shape
        arrays = {"beta": beta, "inverse": inverse.reshape(k, p * p)}
        return Question(
            "gwas firth",
            {**chunk.arrays(chosen), **arrays},
            self._test(chunk),
            {"penalty": Spec((k, p), "float", 2 * self.n)},
            reveals="per variant, the penalty's part of the gradient over all people",
            protection=rounded(self.study),
        )


_WITHHELD = "; in how many cohorts {}: then nothing else of that variant"
_MOMENTS = {"mean": "mean", "distance": "mean distance from the mean", "square": "variance"}


def place_of(chunk: Chunk) -> dict[str, Any]:
    return {"start": chunk.start, "stop": chunk.stop, "kind": chunk.kind}
