"""A job's process takes no log configuration: a door that a party's policy cannot shut by itself.

A dictionary for Python's logging.config can name any callable, that is, run code. FLARE 2.9's
`configure_job_log` takes levels and modes only (tests/flare/test_jobs.py holds it to that), and
users have no right to send even these (see `policy`). This is one more lock, against a malicious
coordinator and later changes of FLARE. It holds as soon as Cupola's class is made in the process.
"""

from __future__ import annotations

from typing import Any


def lock_logging() -> None:
    """Refuse any new configuration of logging in this process, whoever asks."""
    from nvflare.fuel.utils import log_utils

    log_utils.apply_log_config = _refuse


def _refuse(*_: Any, **__: Any) -> None:
    raise ValueError("logging is this party's own affair")
