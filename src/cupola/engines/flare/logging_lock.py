"""Doors of FLARE that a party's policy cannot shut by itself.

A dictionary for Python's logging.config can name any callable. FLARE 2.9's `configure_job_log`
takes levels and modes only, at sites and at the coordinator, from a job's first moment on (which
tests/flare/test_jobs.py holds it to). Rights keep users from sending even these (see `policy`).
This is one more lock, against a coordinator and later changes of FLARE: a job's process takes no
log configuration at all as soon as Cupola's class is made in it.
"""

from __future__ import annotations

from typing import Any


def lock_logging() -> None:
    """Refuse to configure logging anew in this process, whoever asks."""
    from nvflare.fuel.utils import log_utils

    log_utils.apply_log_config = _refuse


def _refuse(*_: Any, **__: Any) -> None:
    raise ValueError("logging is this party's own affair")
