"""Python looks for a module of this name when it starts: the clock of this process is wrong by
CUPOLA_TEST_CLOCK seconds, for all of Python (not for TLS, which has its own)."""

import os
import time

OFF = int(os.environ.get("CUPOLA_TEST_CLOCK", "0"))


def _wrong(name, unit):
    right = getattr(time, name)
    setattr(time, name, lambda: right() + OFF * unit)


def _wrong_calendar(name):
    right = getattr(time, name)
    setattr(time, name, lambda seconds=None: right(time.time() if seconds is None else seconds))


if OFF:
    _wrong("time", 1)
    _wrong("time_ns", 10**9)
    _wrong_calendar("gmtime")
    _wrong_calendar("localtime")
