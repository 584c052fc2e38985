"""A study's questions, repeated from its totals: in this process, or as a script in another."""

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from cohorts import sites

from cupola.association import Association, StudyHost
from cupola.engines import InProcess
from cupola.federation import State
from cupola.federation.message import digest


def record(study, bases, listed=None):
    """The program's questions (digests) and the replies to them, over real cohorts."""
    cohorts = sites(study, bases)
    program, asked, replies = Association(study, len(cohorts), listed), [], []
    state = program.start()
    with InProcess(StudyHost(cohorts), workers=1, quorum=1.0) as reach:
        while (ask := program.ask(state)) is not None:
            asked.append(digest(ask.question))
            answered = {"sum": reach.sum, "gather": reach.gather, "alone": lambda *_: None}
            reply = answered[ask.kind](ask.question, ask.sites)
            replies.append(reply)
            state = program.answer(state, reply)
    return asked, replies


def as_it_is(reply):
    return reply


def repeat(study, count, replies, listed=None, between=lambda state: state, changed=as_it_is):
    """The questions that a copy asks. between: what is done to the state before each;
    changed: what is done to replies."""
    program = Association(study, count, listed)
    state, asked = program.start(), []
    while (ask := program.ask(between(state))) is not None:
        asked.append(digest(ask.question))
        state = program.answer(between(state), changed(replies[len(asked) - 1]))
    return asked


def saved_and_loaded(state):
    """As a checkpoint keeps it: values as JSON, arrays one after another in memory."""
    arrays = {name: np.array(state.arrays[name], order="C") for name in sorted(state.arrays)}
    return State(state.step, arrays, json.loads(json.dumps(state.values, sort_keys=True)))


def lying_otherwise(state):
    """The same numbers in another order in memory, or spread over twice as much of it."""
    arrays = {}
    for name, array in state.arrays.items():
        wide = np.zeros((*array.shape, 2), array.dtype, order="F")
        wide[..., 0] = array
        arrays[name] = wide[..., 0]
    return replace(state, arrays=arrays)


def bare(reply):
    """Of a total only the sums, by names in another order."""
    if not hasattr(reply, "failed"):
        return reply
    backwards = {name: np.asfortranarray(reply.arrays[name]) for name in sorted(reply.arrays)[::-1]}
    return replace(reply, arrays=backwards, weights={}, weight=0.0, sites=[], failed={9: "lost"})


if __name__ == "__main__":
    for kept in pickle.loads(Path(sys.argv[1]).read_bytes()):
        print("\n".join(repeat(*kept)))
