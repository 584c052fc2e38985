"""Refused certificates in the audit log: gRPC tells of them on the error stream alone."""

from __future__ import annotations

import atexit
import contextlib
import os
from threading import Thread

from nvflare.fuel.sec.audit import AuditService

ACTION = "cupola.certificate_refused"
_SIGN = b"CERTIFICATE_VERIFY_FAILED"
_LONGEST = 4096  # bytes of a line that are looked at


def audit_refused_certificates() -> None:
    """Read along, from now on, what this process says on its error stream."""
    reading, writing = os.pipe()
    stream = os.dup(2)
    os.dup2(writing, 2)
    os.close(writing)
    reader = Thread(target=_read_along, args=(reading, stream), daemon=True)
    reader.start()

    def undo() -> None:
        os.dup2(stream, 2)
        reader.join(0.2)  # what was said last; others may hold the pipe open

    atexit.register(undo)


def _read_along(reading: int, stream: int) -> None:
    line = b""
    while said := os.read(reading, 1 << 16):
        with contextlib.suppress(OSError):  # nobody listens, or the disk is full: go on reading
            os.write(stream, said)
        *lines, line = (line + said).split(b"\n")
        for one in lines:
            if _SIGN in one:
                AuditService.add_event(user="", action=ACTION, msg=_reason(one))
        line = line[:_LONGEST]


def _reason(line: bytes) -> str:
    return line[line.find(_SIGN) :][:200].decode(errors="replace").strip()
