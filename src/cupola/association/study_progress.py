"""How far a study is: which step of how many, and how many variants of it are done."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cupola.association.study_program import Association
    from cupola.federation.program import State

#: Phases of a study in words.
WORDS = {
    "people": "counting people",
    "standardise": "standardising covariates",
    "propose": "agreeing on variants",
    "agree": "agreeing on variants",
    "groups": "finding who has which variants",
    "fingerprints": "looking for people in two cohorts",
    "counts": "counting alleles",
    "whole-genome": "predicting from the whole genome",
    "score": "score test of all variants",
    "saddle": "saddle-point approximation",
    "components": "finding principal components",
    "test": "testing variants",
    "mixed": "fitting the mixed model",
    "mixed test": "testing variants",
    "quality report": "looking at the quality of people",
    "heterogeneity": "adding up cohorts' own effects",
    "clump": "asking which hits are linked",
    "done": "writing the tables",
}
AGREEING = "agree"  # a part of proposing


def progress(program: Association, state: State) -> tuple[str, int, int]:
    """What is under way, how much of it is done, and the whole; 0: not known."""
    phase = state.values["phase"]
    if phase == "standardise":
        return phase, state.values["at"], 3
    if _step(phase) == "propose":
        done = len(state.values.get("proposed", [])) - (phase == AGREEING)
        return phase, done, 1 if program.public else program.sites
    if phase == "counts":
        chunks = program.chunks(state)
        done = sum(len(chunk.index) for chunk in chunks[: state.values["at"]])
        return phase, done, sum(len(chunk.index) for chunk in chunks)
    if phase in program.study.parts:
        return phase, *program.part(state).progress()
    return phase, 0, 0 if phase == "done" else 1


def step(program: Association, state: State) -> tuple[int, int]:
    """Which step this is, of how many; writing the tables belongs to the last."""
    steps = program.order[:-1]
    phase = _step(state.values["phase"])
    return (steps.index(phase) + 1 if phase in steps else len(steps)), len(steps)


def _step(phase: str) -> str:
    return "propose" if phase == AGREEING else phase
