"""What one site may add at most, number by number: masked sums need it stated beforehand.

A bound is on weight times value. It decides how many bits of a fraction are left, so it should be
generous and no more; a site whose answer is beyond it says so and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cupola.federation.message import Question, Spec
from cupola.training.choices import Local, Sum

STATISTICS = 2.0**14  # of buffers, over the bound on a change
STEPS = 2.0**20  # effective local steps (FedNova)
UNITS = 2.0**20  # pixels or tokens of a sample
LOSS = 2.0**10  # of one sample
SQUARE = 2.0**20  # of one target


def bounded_training(
    question: Question, choice: Sum, local: Local, change: float, bits: int
) -> Question:
    """A training question with the bounds of its answer. change, bits: of each parameter."""
    heaviest = float(choice.samples) if local.weighting == "samples" else 1.0
    largest = {"buffer": choice.change * STATISTICS, "steps": STEPS, "below": 0.5, "loss": LOSS}

    def bound(name: str, spec: Spec) -> Spec:
        part = name.split("/")[0]
        own = largest.get(part, change)
        return replace(spec, bound=own * heaviest, bits=bits if part == "model" else 64)

    expects = {name: bound(name, spec) for name, spec in question.expects.items()}
    return replace(question, expects=expects, heaviest=heaviest)


def bounded_counts(expects: Mapping[str, Spec], choice: Sum, kind: str) -> dict[str, Spec]:
    """The sums that metrics are made of, with their bounds."""
    own = {name: choice.samples * LOSS for name in expects if name.startswith("metric/")}
    counted = choice.samples * (1.0 if kind in ("classification", "regression") else UNITS)
    largest = {
        "samples": float(choice.samples),
        "loss": choice.samples * LOSS,
        "squared_error": choice.samples * SQUARE,
        "targets": choice.samples * SQUARE,
        **own,
    }
    return {n: replace(spec, bound=largest.get(n, counted)) for n, spec in expects.items()}
