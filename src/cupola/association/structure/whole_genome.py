"""Whole-genome regression by sums: each person's trait as all chromosomes but one predict it.

Mbatchou et al. 2021 (REGENIE), with these differences. Products of genotypes are summed once, not
for each fold: they know nothing of the trait. One penalty at level 0 keeps level 1 small, whose
cross-validation is optimistic (predictions of one fold have seen the trait of the others), so that
it chooses a penalty and nothing else. Level 1 is linear for binary traits, too; the test gives the
prediction a coefficient of its own, so that its scale does not matter.

Steps: markers that no cohort withholds; products of blocks, some blocks at a time, and the
coefficients that follow; products of the blocks' predictions; errors by penalty; moments of the
predictions without each chromosome. The predictions stay at the cohorts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cupola.association.design import AUTOSOME
from cupola.association.files import Variants
from cupola.association.limits import WITHHELD
from cupola.association.questions import Asker, Chunk
from cupola.association.structure import genome_tasks, ridge
from cupola.association.structure.markers import LAST, Markers
from cupola.association.structure.predictions import CLIP
from cupola.errors import DataError
from cupola.federation.federation import Total
from cupola.federation.message import Arrays, Question, Spec
from cupola.federation.program import State

if TYPE_CHECKING:
    from cupola.association.study_choices import Study, WholeGenome
    from cupola.association.study_program import Association

MOST_NUMBERS = 1 << 20  # of products of markers in one question
_ARRAYS = "genome/"  # of the state


@dataclass(frozen=True)
class Blocks:
    """Markers, cut into blocks within chromosomes. sizes, chromosome: of each block. stretches:
    which blocks go in one question."""

    sizes: np.ndarray
    chromosome: np.ndarray
    stretches: list[slice]

    @classmethod
    def of(cls, chromosome: np.ndarray, most: int) -> Blocks:
        """chromosome: of each marker, in order. Even blocks of at most so many markers."""
        sizes: list[int] = []
        numbers: list[int] = []
        for number in np.unique(chromosome).tolist():
            markers = int((chromosome == number).sum())
            count = -(-markers // most)
            sizes += [markers * (i + 1) // count - markers * i // count for i in range(count)]
            numbers += [number] * count
        stretches, start, held = [], 0, 0
        for i, size in enumerate(sizes):
            held += size * (size + 1) // 2
            if held > MOST_NUMBERS and i > start:
                stretches.append(slice(start, i))
                start, held = i, size * (size + 1) // 2
        stretches.append(slice(start, len(sizes)))
        return cls(np.array(sizes, np.int64), np.array(numbers, np.int64), stretches)

    def __len__(self) -> int:
        return len(self.sizes)

    def markers(self, stretch: slice) -> slice:
        """Of a stretch, among all markers."""
        ends = np.concatenate([[0], np.cumsum(self.sizes)])
        return slice(int(ends[stretch.start]), int(ends[stretch.stop]))


def _choices(study: Study) -> WholeGenome:
    assert study.whole_genome is not None
    return study.whole_genome


class GenomeAsker:
    """Questions of step one, with their bounds. Columns of covariates and the trait have squares
    that add up to the people n; a centred genotype is at most 2."""

    def __init__(self, asker: Asker, columns: int) -> None:
        self.asker, self.columns = asker, columns
        self.whole = _choices(asker.study)

    def _question(
        self, task: str, arrays: Arrays, expects: dict[str, Spec], reveals: str, **more: Any
    ) -> Question:
        people = (self.asker.facts or {}).get("tested", 0)
        facts = {"folds": self.whole.folds, "block": self.whole.size(people), "maf": self.whole.maf}
        options = self.asker.of_people(AUTOSOME, **facts, **more)
        return Question(task, arrays, options, expects, reveals=f"{reveals}, over all people")

    def start(self, chunk: Chunk) -> Question:
        products = (self.columns + 1) * (self.columns + 2) // 2
        expects = {
            "products": Spec((products,), "float", self.asker.n),
            WITHHELD: Spec((len(chunk.index),), "int", 1),
        }
        reveals = (
            "products of covariates and trait; per marker, in how many cohorts its rarer allele is "
            "too rare"
        )
        return self._question(
            genome_tasks.START, chunk.arrays(), expects, reveals, start=chunk.start, stop=chunk.stop
        )

    def blocks(
        self,
        index: np.ndarray,
        stretch: int,
        sizes: np.ndarray,
        mean: np.ndarray,
        gamma: np.ndarray,
    ) -> Question:
        """index: rows of the list, along the genome, which a list of several cohorts is not."""
        k, folds, n = len(index), self.whole.folds, self.asker.n
        listed = np.sort(index)
        chunk = Chunk(int(listed[0]), int(listed[-1]) + 1, AUTOSOME, listed)
        order = np.searchsorted(listed, index)
        expects = {
            "linked": Spec(
                (int((sizes * (sizes + 1) // 2).sum()),), "float", 4 * n, self.whole.bits
            ),
            "cross": Spec((k, self.columns), "float", 2 * n),
            "trait": Spec((k, folds), "float", 2 * n),
            "fixed": Spec((self.columns, folds), "float", n),
        }
        arrays = {**chunk.arrays(), "size": sizes.astype(np.int32), "mean": mean, "gamma": gamma}
        arrays["order"] = order.astype(np.int32)
        reveals = (
            "products of the markers of each block (their linkage), of markers and covariates, and "
            "of both with the trait by fold"
        )
        place = {"stretch": stretch, "start": chunk.start, "stop": chunk.stop}
        return self._question(genome_tasks.BLOCKS, arrays, expects, reveals, **place)

    def predicted(self, stretch: int, beta: np.ndarray, fixed: np.ndarray) -> Question:
        expects = {"sums": Spec((len(fixed), 2), "float", CLIP**2 * self.asker.n)}
        reveals = "mean and variance of the predictions of each block"
        arrays = {"beta": beta, "fixed": fixed}
        return self._question(genome_tasks.PREDICTED, arrays, expects, reveals, stretch=stretch)

    def stacked(self, middle: np.ndarray, inverse_width: np.ndarray) -> Question:
        c, folds = len(middle), self.whole.folds
        expects = {
            "products": Spec((folds, c * (c + 1) // 2), "float", self.asker.n),
            "trait": Spec((folds, c), "float", self.asker.n),
        }
        reveals = "by fold, products of the predictions of blocks, and of these and the trait"
        arrays = {"middle": middle, "inverse_width": inverse_width}
        return self._question(genome_tasks.STACKED, arrays, expects, reveals)

    def errors(self, weights: np.ndarray) -> Question:
        bound = 2 * (1 + CLIP**2) * self.asker.n
        expects = {"errors": Spec((weights.shape[2],), "float", bound)}
        reveals = "squared errors of predictions by penalty"
        return self._question(genome_tasks.ERRORS, {"weights": weights}, expects, reveals)

    def left_out(self, weights: np.ndarray, chromosome: np.ndarray) -> Question:
        c = 1 + len(np.unique(chromosome))
        expects = {"sums": Spec((c, 2), "float", CLIP**2 * self.asker.n)}
        reveals = "mean and variance of the predictions without each chromosome"
        arrays = {"weights": weights, "chromosome": chromosome.astype(np.int32)}
        return self._question(genome_tasks.LEFT_OUT, arrays, expects, reveals)


class WholeGenomeRegression:
    """Step one at one state.

    State values: 'genome' (see `_go`), in the end 'prediction' (chromosomes that have markers, and
    the mean and width of the predictions without each, after that of all) and 'genome_facts'. State
    arrays: 'genome/index', 'genome/mean', 'genome/chromosome' (of markers), 'genome/inverse' and
    'genome/gamma' (of covariates), 'genome/beta' and 'genome/fixed' (of a stretch's blocks),
    'genome/sums' (of blocks), 'genome/weights'; gone at the end.
    """

    def __init__(self, program: Association, state: State) -> None:
        self.program, self.state = program, state
        self.whole = _choices(program.study)
        self.columns = 1 + len(program.study.columns)
        self.at: dict[str, Any] = state.values.get("genome") or {"stage": "start", "stretch": 0}
        self.people = state.values["people"]["tested"]
        self.asker = GenomeAsker(program.asker(state), self.columns)

    def _array(self, name: str) -> np.ndarray:
        return self.state.arrays[_ARRAYS + name]

    def _go(self, stage: str, arrays: Arrays, **facts: Any) -> State:
        """On to a stage: 'start', 'blocks', 'predicted', 'stacked', 'errors', 'left out'."""
        named = {_ARRAYS + name: array for name, array in arrays.items()}
        return self.state.next(named, genome={**self.at, "stage": stage, **facts})

    def _candidates(self) -> Markers:
        return Markers.of(self.program, self.state, self.whole.maf)

    def _chunk(self, index: np.ndarray) -> Chunk:
        if not len(index):
            raise DataError(
                "whole-genome regression: no marker on an autosome is common enough "
                f"(whole_genome.maf = {self.whole.maf:g})"
            )
        return Chunk(int(index[0]), int(index[-1]) + 1, AUTOSOME, index)

    def _blocks(self) -> Blocks:
        return Blocks.of(self._array("chromosome"), self.whole.size(self.people))

    # Asking

    def ask(self) -> Question:
        stage, asker = self.at["stage"], self.asker
        if stage == "start":
            return asker.start(self._chunk(self._candidates().index))
        if stage == "blocks":
            return self._ask_blocks()
        if stage == "predicted":
            return asker.predicted(self.at["stretch"], self._array("beta"), self._array("fixed"))
        if stage == "stacked":
            middle, width = ridge.moments(self._array("sums"), self.people)
            with np.errstate(divide="ignore"):
                return asker.stacked(middle, np.where(width > 0, 1 / width, 0.0))
        if stage == "errors":
            return asker.errors(self._array("weights"))
        chosen = np.ascontiguousarray(self._array("weights")[:, :, self.at["best"]])
        return asker.left_out(chosen, self._blocks().chromosome)

    def _ask_blocks(self) -> Question:
        blocks, at = self._blocks(), self.at["stretch"]
        part = blocks.stretches[at]
        markers = blocks.markers(part)
        index, mean = self._array("index")[markers], self._array("mean")[markers]
        return self.asker.blocks(index, at, blocks.sizes[part], mean, self._array("gamma"))

    # Answers

    def answer(self, total: Total | None) -> State:
        assert total is not None
        stages = {
            "start": self._start, "blocks": self._coefficients, "predicted": self._predicted,
            "stacked": self._stacked, "errors": self._errors, "left out": self._left_out,
        }  # fmt: skip
        return stages[self.at["stage"]](total.arrays)

    def _start(self, sums: Arrays) -> State:
        markers = self._candidates()
        few = np.rint(sums[WITHHELD]) > 0
        kept = markers[np.flatnonzero(~few)]
        if len(np.unique(kept.chromosome)) < 2:
            raise DataError(
                f"whole-genome regression needs markers on two chromosomes: of {len(few):,}, "
                f"{int(few.sum()):,} have fewer than whole_genome.carriers = {self.whole.carriers} "
                "copies of the rarer allele in some cohort"
            )
        position = self.program.variants(self.state).position[kept.index]
        kept = kept[np.lexsort((kept.index, position, kept.chromosome))]  # along the genome
        inverse, gamma = ridge.covariates_inverse(sums["products"], self.columns)
        if not np.isfinite(inverse).all():
            raise DataError("whole-genome regression: covariates are collinear; leave one out")
        arrays = {"index": kept.index, "mean": kept.mean, "inverse": inverse, "gamma": gamma,
                  "chromosome": kept.chromosome.astype(np.int64)}  # fmt: skip
        blocks = Blocks.of(arrays["chromosome"], self.whole.size(self.people))
        if len(blocks) * self.whole.people_per_prediction > self.people:
            raise DataError(
                f"whole-genome regression: {len(blocks)} blocks for {self.people:,} people; one "
                f"for {self.whole.people_per_prediction:g} is the most "
                "(whole_genome.people_per_prediction). Take larger blocks or fewer markers"
            )
        arrays["sums"] = np.zeros((len(blocks), 2))
        left = ridge.left_of_trait(sums["products"], gamma)
        return self._go("blocks", arrays, withheld=int(few.sum()), left=left)

    def _coefficients(self, sums: Arrays) -> State:
        blocks, part = self._blocks(), self._blocks().stretches[self.at["stretch"]]
        lam = ridge.penalty(len(self._array("index")), self.whole.heritability)
        beta, fixed, place, row = [], [], 0, 0
        for size in blocks.sizes[part].tolist():
            length, rows = size * (size + 1) // 2, slice(row, row + size)
            found = ridge.block_coefficients(
                sums["linked"][place : place + length], sums["cross"][rows], sums["trait"][rows],
                sums["fixed"], self._array("inverse"), self.people, lam,
            )  # fmt: skip
            beta.append(found[0])
            fixed.append(found[1])
            place, row = place + length, row + size
        return self._go("predicted", {"beta": np.vstack(beta), "fixed": np.stack(fixed)})

    def _predicted(self, sums: Arrays) -> State:
        blocks, at = self._blocks(), self.at["stretch"]
        moments = self._array("sums").copy()
        moments[blocks.stretches[at]] = sums["sums"]
        more = at + 1 < len(blocks.stretches)
        return self._go("blocks" if more else "stacked", {"sums": moments}, stretch=at + 1)

    def _stacked(self, sums: Arrays) -> State:
        lams = [ridge.penalty(len(self._blocks()), share) for share in self.whole.stacked]
        weights = ridge.stacked_weights(sums["products"], sums["trait"], lams)
        return self._go("errors", {"weights": weights})

    def _errors(self, sums: Arrays) -> State:
        return self._go("left out", {}, best=int(np.argmin(sums["errors"])),
                        errors=sums["errors"].tolist())  # fmt: skip

    def _left_out(self, sums: Arrays) -> State:
        blocks = self._blocks()
        mean, width = ridge.moments(sums["sums"], self.people)
        prediction = {
            "chromosomes": [0, *np.unique(blocks.chromosome).tolist()],
            "mean": mean.tolist(),
            "width": np.where(width > 0, width, 1.0).tolist(),
        }
        facts = {
            "markers": len(self._array("index")),
            "withheld": self.at["withheld"],
            "blocks": len(blocks),
            "heritability": self.whole.stacked[self.at["best"]],
            "explained": [1 - error / self.at["left"] for error in self.at["errors"]],
        }
        arrays = {n: a for n, a in self.state.arrays.items() if not n.startswith(_ARRAYS)}
        state = State(self.state.step, arrays, self.state.values)
        return state.next(
            phase=self.program.after("whole-genome"), at=0, genome=None,
            prediction=prediction, genome_facts=facts,
        )  # fmt: skip

    # Rehearsing

    def skip(self) -> State:
        """As if no cohort withheld a marker."""
        question = self.ask()
        sums = {name: np.zeros(spec.shape) for name, spec in question.expects.items()}
        if "products" in sums and self.at["stage"] == "start":
            upper = np.triu_indices(self.columns + 1)
            sums["products"][upper[0] == upper[1]] = self.people
        if self.at["stage"] == "blocks":
            beta = np.zeros((len(sums["cross"]), self.whole.folds))
            part = self._blocks().stretches[self.at["stretch"]]
            fixed = np.zeros((part.stop - part.start, self.columns, self.whole.folds))
            return self._go("predicted", {"beta": beta, "fixed": fixed})
        return self.answer(Total(sums))

    def progress(self) -> tuple[int, int]:
        stage, rounds = self.at["stage"], 0
        if stage == "start":
            return 0, 1
        stretches = len(self._blocks().stretches)
        if stage in ("blocks", "predicted"):
            rounds = 1 + 2 * self.at["stretch"] + (stage == "predicted")
        else:
            last = ("stacked", "errors", "left out")
            rounds = 1 + 2 * stretches + last.index(stage)
        return rounds, 4 + 2 * stretches

    @classmethod
    def tasks(cls, study: Study) -> tuple[str, ...]:
        del study
        return genome_tasks.TASKS

    @classmethod
    def outline(
        cls, program: Association, asker: Asker, variants: Variants
    ) -> Iterator[tuple[str, Question, int | None]]:
        columns, whole = 1 + len(program.study.columns), _choices(program.study)
        own = GenomeAsker(asker, columns)
        told = np.flatnonzero((variants.chromosome >= 1) & (variants.chromosome <= LAST))
        if not len(told):
            return
        people = (asker.facts or {}).get("tested", 0)
        blocks = Blocks.of(np.sort(variants.chromosome[told]), whole.size(people))
        yield "sum", own.start(Chunk(int(told[0]), int(told[-1]) + 1, AUTOSOME, told)), 1
        part = blocks.stretches[0]
        first = told[blocks.markers(part)]
        mean, gamma, often = np.ones(len(first)), np.zeros(columns), len(blocks.stretches)
        yield "sum", own.blocks(first, 0, blocks.sizes[part], mean, gamma), often
        fixed = np.zeros((part.stop - part.start, columns, whole.folds))
        yield "sum", own.predicted(0, np.zeros((len(first), whole.folds)), fixed), often
        yield "sum", own.stacked(np.zeros(len(blocks)), np.zeros(len(blocks))), 1
        weights = np.zeros((whole.folds, len(blocks), len(whole.stacked)))
        yield "sum", own.errors(weights), 1
        yield "sum", own.left_out(weights[:, :, 0], blocks.chromosome), 1
