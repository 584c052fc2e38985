"""What a plan will send, computed from the sizes of its messages before anything runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from cupola.federation import Ask, Question, State
from cupola.federation.message import contribution_size, question_size
from cupola.learn import Training
from cupola.learn.participation import expected_sites
from cupola.secure.choices import Sum


@dataclass(frozen=True)
class Cost:
    """Expected bytes over all sites, and the compensator of masked sums, without drop-outs.

    sites: asked in a round (a mean under Poisson sampling). per_site: down and up, of the training
    question, of a site that trains all that is trained. per_round: training and evaluation
    questions, both spread over all rounds.
    """

    sites: float
    per_site_down: int
    per_site_up: int
    per_round: float
    total: float


def predict(program: Training) -> Cost:
    """The cost of all rounds; exact to a few digits of step numbers."""
    state = program.start()
    ask = program.ask(state)
    assert ask is not None
    asked = expected_sites(program.participation, program.sites)
    down, up, third = _sizes(program, ask, asked)
    training = asked * (down + _mean_up(program, ask, asked, up)) + third
    evaluation = 0.0
    for judged in _evaluations(program, state):
        there, back, more = _sizes(program, judged, len(judged.sites))
        evaluation += len(judged.sites) * (there + back) + more
    times = program.rounds // program.evaluation.every
    times += program.rounds % program.evaluation.every > 0
    total = program.training_rounds * training + times * evaluation
    return Cost(asked, down, up, total / program.rounds, total)


def _mean_up(program: Training, ask: Ask, asked: float, whole: int) -> float:
    """Bytes from a site on average, where some train less than others."""
    levels = program.levels
    if levels is None:
        return whole
    total = levels.rest * whole
    for frozen, many in zip(levels.frozen, levels.counts):
        names = {f"{part}/{name}" for name in frozen for part in ("model", "variate")}
        expects = {n: spec for n, spec in ask.question.expects.items() if n not in names}
        less = replace(ask, question=replace(ask.question, expects=expects))
        total += many * _sizes(program, less, asked)[1]
    return total / levels.sites


def _evaluations(program: Training, state: State) -> list[Ask]:
    asks = [kind for kind in program._judgements() if kind[0] != "public"]
    found = (program.ask(State(0, state.arrays, {**state.values, "pending": [a]})) for a in asks)
    return [ask for ask in found if ask is not None]


def _sizes(program: Training, ask: Ask, sites: float) -> tuple[int, int, int]:
    """Bytes of one question: to each site, from each site, to and from a third party."""
    asked = max(1, math.ceil(sites))
    return question_bytes(ask.question, ask.kind, program.sites, program.sum, asked)


def question_bytes(
    question: Question, kind: str, sites: int, choice: Sum, asked: int | None = None
) -> tuple[int, int, int]:
    """Bytes of a question of a kind ('sum', 'gather'): to each site, from each site, to and from a
    third party. sites: in all; asked: of these, by default all."""
    if kind == "gather" or not choice.masked:
        return question_size(question), _answer(question), 0
    from cupola.secure import expected_bytes

    return expected_bytes(question, asked or sites, sites, choice.protocol)


def _answer(question: Question) -> int:
    """Size of an answer of the expected layout; floats come as they went out, counts as 64 bits."""
    types = {"float": np.dtype(np.float64), "int": np.dtype(np.int64), "bool": np.dtype(bool)}
    arrays = {}
    for name, spec in question.expects.items():
        sent = question.arrays.get(name)
        dtype = types[spec.kind] if sent is None else sent.dtype
        arrays[name] = np.broadcast_to(np.zeros((), dtype), spec.shape)
    return contribution_size(arrays)
