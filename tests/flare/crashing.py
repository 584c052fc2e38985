"""Answers like a party's, with computations that go wrong."""

import os
import signal
import time
from types import SimpleNamespace


def open_crashing(greeting):
    def answer(message):
        if message == b"crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if message == b"hang":
            time.sleep(3600)
        return greeting.encode() + message

    return SimpleNamespace(answer=answer)
