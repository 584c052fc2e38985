"""Doors of FLARE 2.9 that a party's policy cannot shut by itself.

`configure_job_log` hands a dictionary to Python's logging.config in the processes of a running job
at every site, without asking the site; such a dictionary can name any callable. Rights keep users
from sending it (see `policy`). So that a coordinator cannot either, a job's process stops
taking any as soon as Cupola's class is made in it.
"""

from __future__ import annotations

from typing import Any


def close_doors() -> None:
    """Refuse to configure logging anew in this process, whoever asks."""
    from nvflare.fuel.utils import log_utils

    log_utils.apply_log_config = _refuse


def _refuse(*_: Any, **__: Any) -> None:
    raise ValueError("logging is this party's own affair")
