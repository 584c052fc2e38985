"""How each mechanism is audited: a line for each. Nowhere else do audits tell them apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from cupola.audit import canaries, minimisers, stepwise, totals
from cupola.audit.canaries import Experiment
from cupola.audit.judging import Test
from cupola.audit.replayed_run import Subject
from cupola.training.mechanisms.base import Mechanism
from cupola.training.mechanisms.central import Central
from cupola.training.mechanisms.distributed import Distributed
from cupola.training.mechanisms.dp_ftrl import DpFtrl
from cupola.training.mechanisms.dp_sgd import DpSgd
from cupola.training.mechanisms.objective_perturbation import ObjectivePerturbation
from cupola.training.mechanisms.output_perturbation import OutputPerturbation


class Audited(NamedTuple):
    """tests: of the mechanism's parts, by run and seed. canaries(run, site, seed): all that fit."""

    tests: tuple[Callable[[Subject, int], Iterator[Test]], ...]
    canaries: Callable[[Subject, int, int], list[Experiment]]


AUDITED: dict[type[Mechanism], Audited] = {
    DpSgd: Audited((stepwise.tests,), canaries.of_examples),
    Central: Audited((totals.fresh_noise, totals.clipped_sums), canaries.of_sites),
    DpFtrl: Audited((totals.correlated_noise, totals.clipped_sums), canaries.of_sites),
    Distributed: Audited((totals.shares, totals.divided_sums), canaries.of_updates),
    OutputPerturbation: Audited((minimisers.output_tests,), canaries.of_solutions),
    ObjectivePerturbation: Audited((minimisers.objective_tests,), canaries.of_solutions),
}


def audited(subject: Subject) -> Audited:
    return AUDITED[type(subject.mechanism)]
