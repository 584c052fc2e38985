"""Simulated sites: all on this machine, with the plan's data, reached by the plan's engine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cupola.analysis.folder_lock import run_id
from cupola.analysis.kinds import analysis_of
from cupola.analysis.plan_file import load
from cupola.analysis.protocol import Analysis
from cupola.engines.in_process import InProcess
from cupola.engines.processes import SeparateProcesses
from cupola.engines.ray_cluster import RayCluster
from cupola.errors import DataError, FederationError
from cupola.federation.federation import Federation
from cupola.federation.ledger import Ledger
from cupola.federation.site import Host

if TYPE_CHECKING:
    from cupola.secure.simulation import Parties


class Simulated:
    """All sites on this machine. A host may have `complaints()`, the last lines of its sites' own
    logs, and `keep_logs(folder)`."""

    real = False

    def host(self, analysis: Analysis[Any]) -> Host:
        return analysis.host()

    def federation(
        self, analysis: Analysis[Any], host: Host, ledger: Ledger, folder: Path
    ) -> Federation:
        return federation(analysis, host, ledger, folder)

    def explained(self, host: Host, error: Exception) -> Exception:
        """The coordinator sees codes; here the sites' own logs are at hand, too."""
        told: list[str] = getattr(host, "complaints", list)()
        if isinstance(error, FederationError) and told:
            return DataError("\n".join(told))
        return error

    def keep_logs(self, host: Host, folder: Path) -> None:
        keep = getattr(host, "keep_logs", None)
        if keep is not None:
            keep(folder)


def host(**plan: Any) -> Host:
    """The simulated sites of a plan given as plain values: what a process of its own makes."""
    return analysis_of(load(plan)).host()


def federation(
    analysis: Analysis[Any],
    of: Host,
    ledger: Ledger | None = None,
    folder: Path | None = None,
) -> Federation:
    """The engine that a plan asks for, its sums plain or masked. folder: of the run; sites keep
    their books (and separate sites their state, under 'sites') there."""
    plan = analysis.plan
    if not plan.sum.masked:
        return _engine(plan, of, ledger, folder)
    from cupola.engines.secure_sums import masked_sums

    parties = simulated_keys(analysis, len(of), run_id(folder, "masked"))
    engine = _engine(plan, of, ledger, folder, parties)
    own_processes = plan.engine.kind == "processes"
    return masked_sums(engine, parties, folder, own_processes=own_processes)


def simulated_keys(analysis: Analysis[Any], sites: int, run: str = "0" * 16) -> Parties:
    """Keys of simulated parties. run: names it; a rehearsal's keys are as long."""
    from cupola.secure.simulation import simulated_parties

    plan = analysis.plan
    return simulated_parties(
        f"{plan.name} {run}",
        seed=plan.seed,
        sites=sites,
        minimum=analysis.minimum or sites,
        protocol=plan.sum.protocol,
        unmasked=list(analysis.unmasked),
        changes=analysis.changes,
    )


def _engine(
    plan: Any,
    of: Host,
    ledger: Ledger | None,
    folder: Path | None,
    parties: Parties | None = None,
) -> Federation:
    engine = plan.engine
    if engine.kind == "processes":
        return SeparateProcesses(
            "cupola.analysis.simulated:host",
            plan.to_dict(),
            len(of),
            seed=plan.seed,
            quorum=engine.quorum,
            timeout=engine.timeout,
            folder=None if folder is None else folder / "sites",
            ledger=ledger,
            party=None if parties is None else parties.recipe,
        )
    facts: dict[str, Any] = {
        "seed": plan.seed,
        "mode": engine.mode,
        "workers": engine.workers,
        "quorum": engine.quorum,
        "ledger": ledger,
        "folder": folder,
        "parties": None if parties is None else parties.member,
    }
    if engine.kind == "in-process":
        return InProcess(of, **facts)
    return RayCluster(
        of,
        address=engine.address,
        timeout=engine.timeout,
        gpus=getattr(plan, "device", "cpu") != "cpu",
        party=None if parties is None else parties.recipe,
        **facts,
    )
