"""A federated association study as a step machine over sum and gather (after sPLINK, 004 ch. 4).

Steps: people, standardising, the list of variants, agreement on it, allele counts, quality, parts.
A chunk's results are an array of their own in the state. Kinds of chromosomes are `design`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from cupola.association import (
    agreed_variants,
    fingerprints,
    quality,
    study_progress,
    variant_list_codec,
)
from cupola.association.agreement import KEPT, R_CELL
from cupola.association.design import SEX_X, kinds
from cupola.association.enough_people import require_people
from cupola.association.files import Variants
from cupola.association.limits import told_of
from cupola.association.part import Part
from cupola.association.questions import Asker, Chunk, Models, gathered, stretches
from cupola.association.study_choices import CASES, CONTROLS, OTHERS, Study
from cupola.association.study_parts import PARTS, part_of
from cupola.errors import DataError, PlanError
from cupola.federation.federation import Total
from cupola.federation.message import Contribution, Question
from cupola.federation.program import ALONE, Ask, Reply, State

STRETCH = 64  # chunks in a question about the list or about counts
OWN = ("renamed", "variants", "unlisted", "unknown_allele")  # what cohorts count of their own lists


@dataclass
class Association:
    """The program. listed: a public list of variants; without it every cohort in turn proposes what
    is not on the list yet, and all compare that with their own before the next one does.
    Packed, it is taken as it is: who repeats a study needs the very bytes, and compression may
    differ between machines. public: there is such a list; a site that follows the program is told
    it by the coordinator. pinned: its `variant_list_codec.fingerprint`, if the study names it.
    seed: of what all parties draw alike, by `base.randomness`. apart: the fewest cohorts of which
    differences of totals may tell, the minimum of masked sums. names: of the cohorts, for messages.

    State values: 'phase', 'people' (totals by name), 'binary', 'shift' and 'width' (of covariates,
    then trait), 'at' (where in the phase), 'null' (kind -> model without a genotype), 'warnings',
    'proposed' (how many variants each cohort so far has put on the list), 'own' (totals of the
    cohorts' own lists, by `OWN`), 'found' (totals of the agreement). State arrays: 'list', 'reason'
    (see `agreement`), 'found/i', 'alleles/i' and 'genotypes/i' (counts of a chunk), 'test/i'
    (results of a chunk), 'work/'.
    """

    study: Study
    sites: int
    listed: Variants | np.ndarray | None = None
    public: bool = False
    pinned: str | None = None
    seed: int = 1
    apart: int = 1
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.public = self.public or self.listed is not None
        if self.study.trend and self.study.regression:
            raise PlanError("trend = true goes with test = 'chi-square'")
        if self.study.covariate_rows and self.study.test == "mixed":
            raise PlanError("covariate_rows goes with test = 'linear' or 'logistic'")
        agreed_variants.require_plain_test(self.study)
        if not self.study.regression and (self.study.covariates or self.study.sex):
            raise PlanError(
                "chi-square takes no covariates; use test = 'linear' or 'logistic', or drop them"
            )
        if self.study.scored and self.study.test != "logistic":
            raise PlanError(f"[score] goes with test = 'logistic', not '{self.study.test}'")
        self._list: tuple[np.ndarray, Variants] | None = None
        self._chunked: tuple[tuple[int, int, bool], np.ndarray, list[Chunk]] | None = None
        self._phases: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
            "people": (self._ask_people, self._people),
            "standardise": (self._ask_moments, self._moments),
            "propose": (self._ask_list, self._proposed),
            "agree": (self._ask_agree, self._agreed),
            "groups": (self._ask_groups, self._groups),
            "fingerprints": (self._ask_fingerprints, self._fingerprints),
            "counts": (self._ask_counts, self._counts),
            **dict.fromkeys(PARTS, (self._ask_part, self._answer_part)),
        }

    # The machine

    @property
    def order(self) -> tuple[str, ...]:
        """The phases of this study; the agreement is a part of proposing."""
        return ("people", *self.study.before_variants, "propose", *self.study.after_variants,
                "counts", *self.study.parts, "done")  # fmt: skip

    def after(self, phase: str) -> str:
        """The phase that follows."""
        return self.order[self.order.index(phase) + 1]

    def start(self) -> State:
        return State(values={"phase": "people", "at": 0, "warnings": []})

    def ask(self, state: State) -> Ask | None:
        phase = state.values["phase"]
        if phase == "done":
            return None
        kind, question, sites = self._phases[phase][0](state)
        if kind == "alone" and question is None:
            return ALONE
        return Ask(kind, replace(question, step=state.step, round=state.step), sites)

    def answer(self, state: State, reply: Reply) -> State:
        return self._phases[state.values["phase"]][1](state, reply)

    def skip(self, state: State) -> State:
        """The state after a question that takes genotypes to answer, for a rehearsal: as if every
        variant passed the filters, somebody lacked a call at each, and none converged."""
        if state.values["phase"] in PARTS:
            return self.part(state).skip()
        if state.values["phase"] == "standardise":
            return self._moments(state, Total({"sums": np.ones(len(state.values["shift"]))}))
        question = self._ask_counts(state)[1]
        chunk, people = self.chunks(state)[state.values["at"]], state.values["people"]["loaded"]
        both = self.expected_alleles(state, chunk.index) - 1
        state = replace(state, values={**state.values, "rehearsed": True})
        return self._counts(state, Total(quality.imagined(question.expects, both, people)))

    def _everybody(self, question: Question) -> tuple[str, Question, list[int]]:
        return "sum", question, list(range(self.sites))

    def asker(self, state: State) -> Asker:
        values = state.values
        facts = {name: values.get(name) for name in ("binary", "shift", "width")}
        people = values.get("people", {})
        facts["tested"] = people.get("tested", 0)
        if "fewest" in values:
            facts["fewest"] = values["fewest"]
        return Asker(self.study, self.sites, people.get("loaded", 0), facts)

    # People

    def _ask_people(self, state: State) -> Any:
        return self._everybody(self.asker(state).people_question())

    def _people(self, state: State, total: Total) -> State:
        study = self.study
        told = [int(n) for n in np.rint(total.arrays["people"])]
        groups, males, (tested, cases, not_binary, quantitative) = told[:3], told[3:6], told[6:]
        mixed = study.binary is None and 0 < not_binary < self.sites
        binary = not_binary == 0 if study.binary is None else study.binary
        if study.test is not None and not study.quantitative and not binary:
            raise DataError(
                f"test = '{study.test}' needs a binary trait (1 control, 2 case), but the trait "
                f"has other values in {not_binary} of {self.sites} cohorts"
            )
        if study.quantitative and binary:
            raise DataError(
                f"test = '{study.test}' needs a quantitative trait, but it has only 1, 2 and "
                "missing; use 'logistic', or say trait.kind = 'quantitative' if it is meant as a "
                "number"
            )
        if mixed:  # cohorts read 0 as missing and as a number: count again, as all will read it
            groups, males = [0, 0, sum(groups)], [0, 0, sum(males)]
        people: dict[str, Any] = {
            "loaded": sum(groups), "males": sum(males), "groups": groups, "group_males": males,
            "tested": tested if binary else quantitative, "cases": cases if binary else 0,
        }  # fmt: skip
        require_people(study, people["tested"])
        width = len(study.columns) + 1
        facts: dict[str, Any] = {"binary": binary, "shift": [0.0] * width, "width": [1.0] * width}
        return state.next(phase=self.after("people"), at=0, people=people, **facts)

    def _ask_moments(self, state: State) -> Any:
        values = state.values
        of = ("mean", "distance", "square")[values["at"]]
        facts = (values["binary"], values["shift"], values["width"])
        return self._everybody(self.asker(state).moments(of, *facts))

    def _moments(self, state: State, total: Total) -> State:
        values, at = state.values, state.values["at"]
        mean = total.arrays["sums"] / values["people"]["tested"]
        shift, width = np.array(values["shift"]), np.array(values["width"])
        if at == 0:
            shift = mean
        else:
            with np.errstate(divide="ignore"):
                width = width * (mean if at == 1 else np.sqrt(mean))
        if at == 1 and (width <= 1e-9 * (1 + np.abs(shift))).any():
            names = [*self.study.columns, "the trait"]
            flat = names[int(np.argmin(width))]
            raise DataError(f"{flat} is the same for everybody tested; leave it out")
        if values["binary"]:
            shift[-1], width[-1] = 0.0, 1.0
        done = at == 2
        return state.next(
            phase=self.after("standardise") if done else "standardise",
            at=0 if done else at + 1,
            shift=shift.tolist(),
            width=width.tolist(),
        )

    # Variants

    def _ask_list(self, state: State) -> Any:
        if self.public:
            own = {} if self._packed is None else {"list": self._packed}
            return "alone", Question("list", own), []
        proposer = len(state.values.get("proposed", []))
        return "gather", self.asker(state).propose(state.values.get("list_bytes")), [proposer]

    def _proposed(self, state: State, reply: Reply) -> State:
        if self._packed is not None:
            packed = self._packed
            if isinstance(self.listed, Variants):
                self._list = (packed, self.listed)
        else:
            (answer,) = cast(dict[int, Contribution], reply).values()
            if "size" in answer.arrays and not self.public:
                size = int(answer.arrays["size"][0])
                if not 0 <= size < 1 << 32:
                    raise DataError("the proposing cohort's list has no usable size")
                return state.next(list_bytes=size) if size else self._listed(state)
            packed = answer.arrays.get("list", np.zeros(0, np.uint8))
            if packed.ndim != 1 or packed.dtype.kind not in "iu":
                raise DataError("the list of variants is not well formed")
            packed = packed.astype(np.uint8)
        return self._listed(state, packed)

    def _listed(self, state: State, more: np.ndarray | None = None) -> State:
        """The list with what a cohort has added to it, which is compared next."""
        so_far = state.arrays.get("list", np.zeros(0, np.uint8))
        count = 0 if more is None else sum(n for n, _ in variant_list_codec.blocks(more))
        proposed = [*state.values.get("proposed", []), count]
        state = state.next(list_bytes=None, proposed=proposed)
        if more is None or not count:
            return self._next_list(state)
        state.arrays["list"] = np.concatenate([so_far, more])
        variants = self.variants(state)  # well formed, or an error
        if self.public and self.pinned not in (None, variant_list_codec.fingerprint(variants)):
            raise DataError("the public list is not the one that the study names (variants_hash)")
        return self._at(state, "agree")

    def _next_list(self, state: State) -> State:
        """The same step, at the next cohort's turn to propose, or at the end of the list."""
        if not self.public and len(state.values["proposed"]) < self.sites:
            return self._at(state, "propose")
        if "list" not in state.arrays:
            raise DataError("the list of variants is empty")
        return agreed_variants.concluded(self, state)

    @staticmethod
    def _at(state: State, phase: str) -> State:
        return replace(state, values={**state.values, "phase": phase})

    @cached_property
    def _packed(self) -> np.ndarray | None:
        """The public list as bytes."""
        if isinstance(self.listed, Variants):
            return variant_list_codec.pack(self.listed, STRETCH * self.study.chunk)
        return self.listed

    def variants(self, state: State) -> Variants:
        """The list that the study is about."""
        packed = state.arrays["list"]
        if self._list is None or self._list[0] is not packed:
            self._list = (packed, variant_list_codec.unpack(packed))
        return self._list[1]

    def _ask_agree(self, state: State) -> Any:
        stretches, at = variant_list_codec.blocks(state.arrays["list"]), state.values["at"]
        start = sum(count for count, _ in stretches[:at])
        count, packed = stretches[at]
        return self._everybody(self.asker(state).agree(start, packed, count))

    def _agreed(self, state: State, total: Total) -> State:
        at = state.values["at"]
        own = dict(zip(OWN, np.rint(total.arrays["own"]).astype(int).tolist()))
        own["renamed"] += state.values.get("own", {}).get("renamed", 0)  # of a stretch of the list
        found = {f"found/{at}": np.rint(total.arrays["found"]).astype(np.int64)}
        more = [name for name in ("lacking", "strand") if name in total.arrays]
        found |= {f"{name}/{at}": total.arrays[name] for name in more}
        state = state.next(found, at=at + 1, own=own)
        if at + 1 < len(variant_list_codec.blocks(state.arrays["list"])):
            return state
        return self._next_list(state)

    def _ask_groups(self, state: State) -> Any:
        return self._everybody(self.asker(state).groups(state.values["groups"]))

    def _groups(self, state: State, total: Total) -> State:
        state = state.next()
        return agreed_variants.with_people(self, state, total.arrays["people"])

    def _ask_fingerprints(self, state: State) -> Any:
        return "gather", self.asker(state).fingerprints(), list(range(self.sites))

    def _fingerprints(self, state: State, reply: Reply) -> State:
        answers = cast(dict[int, Contribution], reply)
        names = self.names or [str(i + 1) for i in range(self.sites)]
        pairs = fingerprints.shared(answers)
        if self.study.shared == "stop":
            fingerprints.require_nobody(pairs, names)
        warnings = [*state.values["warnings"], *fingerprints.not_compared(answers, names)]
        after = self.after("fingerprints")
        return state.next(phase=after, at=0, shared_people=pairs, warnings=warnings)

    # Counts and quality

    def chunks(self, state: State) -> list[Chunk]:
        """The variants still in the study, in pieces of one model; after a score test those that go
        on. Counts are small: they come in longer pieces."""
        some = "chosen" in state.arrays
        which = state.arrays["chosen" if some else "reason"]
        size = self.study.chunk * (STRETCH if state.values["phase"] == "counts" else 1)
        prediction = state.values.get("prediction")
        key = (id(which), size, prediction is None)
        if self._chunked is None or self._chunked[0] != key:
            models = Models(self.variants(state), prediction)
            cut = gathered if some else stretches
            pieces = cut(which if some else which == KEPT, models, size)
            self._chunked = (key, which, pieces)
        return self._chunked[-1]

    def groups(self, state: State) -> list[int]:
        """Groups that have people: cases, controls, others."""
        if not state.values["binary"]:
            return [OTHERS]
        others = state.values["people"]["groups"][OTHERS] > 0
        return [CASES, CONTROLS, *([OTHERS] if others else [])]

    def _ask_counts(self, state: State) -> Any:
        chunk = self.chunks(state)[state.values["at"]]
        genotypes = self.study.trend or self.study.quality.hardy_weinberg > 0
        facts = (state.values["binary"], self.groups(state), genotypes)
        return self._everybody(self.asker(state).counts(chunk, *facts))

    def _counts(self, state: State, total: Total) -> State:
        at = state.values["at"]
        told, withheld = told_of(total.arrays)
        small = {f"{name}/{at}": array for name, array in quality.counted(told).items()}
        if self.study.limits.least_cell:
            small[f"withheld/{at}"] = withheld
        if at + 1 < len(self.chunks(state)):
            return state.next(small, at=at + 1)
        return self._filter(state.next(small))

    def _filter(self, state: State) -> State:
        """Whole-study tables of counts in place of those of chunks, and the filters on them."""
        chunks, m = self.chunks(state), len(self.variants(state))
        arrays = dict(state.arrays)
        for name in ("alleles", "genotypes", "squares", "withheld"):
            if f"{name}/0" in arrays:
                parts = [arrays.pop(f"{name}/{i}") for i in range(len(chunks))]
                whole = np.zeros((m, *parts[0].shape[1:]), parts[0].dtype)
                for chunk, part in zip(chunks, parts):
                    whole[chunk.index] = part
                arrays[name] = whole
        for name in [n for n in arrays if n.startswith("found/")]:
            del arrays[name]
        withheld = arrays.pop("withheld", None)
        if withheld is not None:
            arrays["reason"] = np.where(withheld, R_CELL, arrays["reason"]).astype(np.uint8)
        state = State(state.step, arrays, state.values)
        reason = quality.filtered(self, state)
        arrays["reason"] = reason
        state = State(state.step, arrays, {**state.values, "at": 0, "phase": self.after("counts")})
        if not (reason == KEPT).any():
            state.values["warnings"] = [*state.values["warnings"], "no variant passed the filters"]
            state.values["phase"] = "done"
        return state

    def expected_alleles(self, state: State, index: np.ndarray | slice) -> np.ndarray:
        """Alleles of all loaded people of the cohorts that have a variant, were no call missing: of
        the variants of an index, since all are many."""
        n, males = agreed_variants.loaded_people(state, index)
        kind = kinds(self.variants(state).chromosome[index])
        return np.choose(kind, [2 * n, 2 * n - males, males, n]).astype(np.int64)

    # Parts after the counts

    def part(self, state: State) -> Part:
        return part_of(state.values["phase"])(self, state)

    def _ask_part(self, state: State) -> Any:
        question = self.part(state).ask()
        return ("alone", None, []) if question is None else self._everybody(question)

    def _answer_part(self, state: State, total: Total | None) -> State:
        return self.part(state).answer(total)

    def columns(self, kind: int) -> list[str]:
        """Covariates on a kind of chromosome; the intercept and the genotype come on top."""
        predicted = ["PREDICTION"] if self.study.whole_genome else []
        extra = ["SEX"] if kind == SEX_X and self.study.sex_on_x else []
        return [*self.study.columns, *predicted, *extra]

    def progress(self, state: State) -> tuple[str, int, int]:
        """What is under way, how much of it is done, and the whole."""
        return study_progress.progress(self, state)
