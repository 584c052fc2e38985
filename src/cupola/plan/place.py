"""Where a plan's sites are: simulated on this machine, or real, elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from cupola.federation import Federation, Ledger
from cupola.learn import TrainingHost
from cupola.plan import compose
from cupola.plan.plan import Plan


class Place(Protocol):
    """Where a plan's sites are. real: they have data and books of their own, elsewhere."""

    @property
    def real(self) -> bool: ...

    def host(self, plan: Plan) -> TrainingHost: ...

    def federation(
        self, plan: Plan, host: TrainingHost, ledger: Ledger, folder: Path
    ) -> Federation: ...


class Simulated:
    """All sites on this machine, with the plan's data."""

    real = False

    def host(self, plan: Plan) -> TrainingHost:
        return compose.host(**plan.to_dict())

    def federation(
        self, plan: Plan, host: TrainingHost, ledger: Ledger, folder: Path
    ) -> Federation:
        return compose.federation(plan, host, ledger, folder)
