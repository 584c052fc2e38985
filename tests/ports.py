"""Ports for servers that a test starts, kills and starts again."""

from __future__ import annotations

import contextlib
import random
import socket


def free_ports(count: int) -> list[int]:
    """Ports that the system gives nobody who does not ask for them by number.

    Those it gives itself (from 32768 on) would go to any connection while a killed server is away;
    even to the client that knocks, which then talks to itself. Ray's workers are below 20000.
    """
    held: list[socket.socket] = []
    with contextlib.ExitStack() as stack:
        while len(held) < count:
            one = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                one.bind(("localhost", random.SystemRandom().randrange(20_000, 32_768)))
                held.append(one)
        return [one.getsockname()[1] for one in held]
