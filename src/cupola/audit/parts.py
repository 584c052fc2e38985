"""Tests of the parts of a run's mechanism: each on the code that the run itself calls."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from cupola.audit import judging
from cupola.audit.registry import audited
from cupola.audit.replayed_run import Step, Subject
from cupola.base.cores import one_core_each
from cupola.base.randomness import derive

FALSE_ALARM = 5e-4  # of all parts together: half of the verdict's
MOST = 24  # tests of any mechanism, for a bar


def parts_audit(subject: Subject, *, seed: int, step: Step | None = None) -> dict[str, Any]:
    """Every part tested, with its power, and whether any of them contradicts the promise."""
    began = time.monotonic()
    made = []
    # With no noise epsilon is infinite: there is no promise.
    parts = () if subject.privacy.noise_multiplier == 0 else audited(subject).tests
    tests = (test for part in parts for test in part(subject, derive(seed, "audit parts")))
    with one_core_each(), np.errstate(all="ignore"):  # crafted numbers overflow: that is the point
        for test in tests:
            made.append(test)
            if step is not None:
                step("parts", len(made), max(MOST, len(made)))
    if step is not None:
        step("parts", len(made), len(made))
    found, rate = judging.judged(made, FALSE_ALARM)
    broken = [f for f in found if f["verdict"] == "refuted"]
    broken.sort(key=_telling)
    return {
        "tests": found,
        "false_alarm": rate,
        "least_power": min((f["power"] for f in found), default=0.0),
        "refuted": [f["part"] for f in broken],
        "said": [said(f) for f in broken],
        "seconds": round(time.monotonic() - began, 3),
        "verdict": "refuted" if broken else "consistent",
    }


def _telling(found: dict[str, Any]) -> float:
    """What says most comes first: clear p-values, then limits; the comparison of forms last."""
    return 1.0 if found["part"] == "sites together" else found.get("p", 1e-30)


def said(found: dict[str, Any]) -> str:
    """One test's finding in a line."""
    if "p" in found:
        return f"{found['part']}: {found['found']} ({judging.said_p(found['p'])})"
    return f"{found['part']}: {found['found']} (limit {found['limit']:.4g})"
