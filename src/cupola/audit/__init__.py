"""Audits of finished runs: tests of the mechanism's parts, attacks, a lower bound on epsilon.

>>> findings = audit("runs/private")
>>> findings["verdict"]
'consistent'
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import cupola
from cupola.analysis.checkpoint import json_line, write_sealed
from cupola.analysis.folder_lock import locked
from cupola.audit.bounds import canary_audit
from cupola.audit.membership import membership_audit
from cupola.audit.parts import parts_audit
from cupola.audit.replayed_run import Step, Subject, read
from cupola.errors import CupolaError

__all__ = [
    "NO_CLAIM",
    "Step",
    "Subject",
    "audit",
    "canary_audit",
    "membership_audit",
    "parts_audit",
    "read",
]

ROUNDS = 6
NO_CLAIM = (
    "this run has no privacy mechanism: there is no claim to test, "
    "and membership inference stands alone"
)


def audit(
    folder: str | Path,
    *,
    trials: int | None = None,
    rounds: int = ROUNDS,
    shadows: int | None = None,
    seed: int = 0,
    workers: int = 1,
    step: Step | None = None,
) -> dict[str, Any]:
    """Audit a finished run and write audit.json into its folder.

    trials: repetitions with a canary, and as many without (None: as many as fit into 60 s, up to
    5000; 0: none, only the parts are tested). rounds: at most so many are repeated.
    shadows: runs for the likelihood-ratio attack (0: none; None: if they are quick). seed: of all
    that the audit draws. workers: processes for the trials. step: told of progress.
    Nothing is charged to the sites' books.
    """
    if trials is not None and 0 < trials < 30:
        raise CupolaError(f"{trials} trials show nothing; 30 is the least, 1000 are useful")
    if rounds < 1:
        raise CupolaError("an audit repeats at least one round")
    if shadows is not None and (shadows % 2 or shadows == 2 or shadows < 0):
        raise CupolaError(f"{shadows} shadow runs: an even number, 4 or more (or 0), is needed")
    began = time.monotonic()
    subject = Subject.open(folder, rounds)
    on = subject.mechanism.on
    with locked(subject.run.folder):
        parts = canaries = None
        if on:
            parts = parts_audit(subject, seed=seed, step=step)
            canaries = canary_audit(subject, trials=trials, seed=seed, workers=workers, step=step)
        members, why = None, None
        try:
            members = membership_audit(subject, shadows=shadows, seed=seed, step=step)
        except CupolaError as error:
            if not on:
                raise
            why = str(error)
        findings = {
            "name": subject.run.plan.name,
            "cupola": cupola.__version__,
            "seed": seed,
            "verdict": _verdict(parts, canaries),
            "false_alarm": _false_alarm(parts, canaries),
            "note": None if on else NO_CLAIM,
            "parts": parts,
            "epsilon": canaries,
            "membership": members,
            "without_membership": why,
            "seconds": round(time.monotonic() - began, 3),
        }
        write_sealed(subject.run.folder / "audit.json", json_line(findings, indent=2))
    return findings


def _verdict(*found: dict[str, Any] | None) -> str | None:
    """Refuted by any; None where there is no claim."""
    verdicts = [part["verdict"] for part in found if part is not None]
    if not verdicts:
        return None
    return "refuted" if "refuted" in verdicts else "consistent"


def _false_alarm(parts: dict[str, Any] | None, canaries: dict[str, Any] | None) -> float:
    """The probability, at most, that a sound mechanism is refuted: the sum of all levels."""
    rate = parts["false_alarm"] if parts else 0.0
    if canaries is not None and canaries["canaries"]:
        rate += 1 - canaries["confidence"]
    return rate
