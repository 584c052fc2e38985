"""Privacy mechanisms, one file each: the only place that knows them by name.

A mechanism is one object (see `base.Mechanism`): what it refuses, what a site and the coordinator
do, what an answer is charged, what is promised against whom, and how it is described. A new one is
a file here, a line below, and its name and own keys in `cupola.training.choices.Privacy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cupola.federation.message import Question
from cupola.training.choices import Privacy
from cupola.training.mechanisms.base import Mechanism as Mechanism
from cupola.training.mechanisms.central import Central
from cupola.training.mechanisms.distributed import Distributed
from cupola.training.mechanisms.dp_ftrl import DpFtrl
from cupola.training.mechanisms.dp_sgd import DpSgd
from cupola.training.mechanisms.none import NoMechanism
from cupola.training.mechanisms.objective_perturbation import ObjectivePerturbation
from cupola.training.mechanisms.output_perturbation import OutputPerturbation
from cupola.training.turn import Turn as Turn

MECHANISMS: dict[str, type[Mechanism]] = {
    kind.name: kind
    for kind in (
        NoMechanism,
        DpSgd,
        Central,
        DpFtrl,
        Distributed,
        OutputPerturbation,
        ObjectivePerturbation,
    )
}


def mechanism_of(privacy: Privacy) -> Mechanism:
    """The mechanism of a plan's choice, with its settings."""
    return MECHANISMS[privacy.mechanism](privacy)


def mechanism_for(question: Question) -> Mechanism:
    """The mechanism that a question asks for, its settings checked as a plan's are."""
    given = question.options.get("privacy")
    return mechanism_of(Privacy.model_validate(given)) if given else _NONE


def mechanism_named(told: Mapping[str, Any]) -> type[Mechanism]:
    """The mechanism that a run's plan or result names; the one that claims nothing where it names
    none."""
    return MECHANISMS.get(told.get("mechanism", ""), NoMechanism)


#: Keys of [privacy] that not every mechanism takes: the first one that does, and the default.
OWNERS = {
    key: (next(kind.name for kind in MECHANISMS.values() if key in kind.keys), field.default)
    for key, field in Privacy.model_fields.items()
    if any(key in kind.keys for kind in MECHANISMS.values())
}
_NONE = NoMechanism(Privacy())
