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
        if message == b"slow":
            time.sleep(0.3)
        if message == b"print":
            print("a computation talks")
        if message == b"large":
            return b"A" * (1 << 20)
        return greeting.encode() + message

    return SimpleNamespace(answer=answer)
