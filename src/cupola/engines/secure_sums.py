"""Secure aggregation over any engine: its sums masked, by the protocol of its parties."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cupola.engines.in_process import InProcess
from cupola.engines.processes import SeparateProcesses
from cupola.federation.federation import Federation
from cupola.secure.compensator import compensator_host
from cupola.secure.compensator_client import Masked
from cupola.secure.pairwise import Pairwise
from cupola.secure.secure_aggregation import SecureSums
from cupola.secure.simulation import Parties


def masked_sums(
    engine: Federation, parties: Parties, folder: Path | None = None, own_processes: bool = False
) -> SecureSums:
    """An engine whose sums are masked. folder: the compensator's memory is kept in it.
    own_processes: whether the compensator gets a process of its own.

    >>> import numpy as np
    >>> from cupola.analysis import Hosted
    >>> from cupola.federation import Contribution, Question, Spec, task
    >>> from cupola.secure import simulated_parties
    >>> @task("add up")
    ... def add_up(site, question):
    ...     return Contribution({"sum": site.data.sum(axis=0)})
    >>> parties = simulated_parties("study", seed=1, sites=3, minimum=3)
    >>> host = Hosted(3, lambda site: np.full((2, 2), site / 4))
    >>> with masked_sums(InProcess(host, parties=parties.member), parties) as federation:
    ...     expects = {"sum": Spec((2,), bound=100.0)}  # the most that a site may add
    ...     federation.sum(Question("add up", expects=expects), range(3)).arrays["sum"]
    array([1.5, 1.5])
    """
    if parties.protocol == "pairwise":
        return Pairwise(engine, parties.roster)
    memory = None if folder is None else str((folder / "compensator").resolve())
    facts: dict[str, Any] = {"roster": parties.roster.to_json(), "seed": parties.seed}
    facts["memory"] = memory
    third: Federation
    if own_processes:
        third = SeparateProcesses("cupola.secure.compensator:compensator_host", facts, 1)
    else:
        third = InProcess(compensator_host(**facts))
    return Masked(engine, third, parties.roster)
