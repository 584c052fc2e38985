"""Audit of refusals at a coordinator. FLARE itself logs only the commands that it carries out: a
refused certificate shows on gRPC's error stream, a refused command or user nowhere."""

from __future__ import annotations

import atexit
import contextlib
import os
from threading import Thread
from typing import Any

from nvflare.fuel.hci.proto import InternalCommands, MetaKey, MetaStatusValue, ProtoKey
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.fuel.hci.server.reg import ServerCommandRegister
from nvflare.fuel.sec.audit import AuditService
from nvflare.private.defs import CellMessageHeaderKeys
from nvflare.private.fed.server.client_manager import ClientManager

CERTIFICATE = "cupola.certificate_refused"
USER = "cupola.user_refused"  # a user or site that is not whom it says, or unknown
COMMAND = "cupola.command_refused"  # for want of the right
_SIGN = b"CERTIFICATE_VERIFY_FAILED"
_LONGEST = 4096  # bytes of a line that are looked at
_SHOWN = 200  # letters of what came from outside


def audit_refusals() -> None:
    """From now on, write what this process refuses into the audit log."""
    audit_refused_parties()
    audit_refused_commands()
    audit_refused_certificates()


def audit_refused_parties() -> None:
    """Watch who asks to be let in with a certificate of this federation, and is not."""
    let_in = ClientManager.authenticate
    if getattr(let_in, "audits", False):
        return

    def authenticate(self: ClientManager, request: Any, fl_ctx: Any) -> Any:
        client = None
        try:
            client = let_in(self, request, fl_ctx)
        finally:
            if client is None:
                _event(str(request.get_header(CellMessageHeaderKeys.CLIENT_NAME)), USER, "")
        return client

    authenticate.audits = True  # type: ignore[attr-defined]
    ClientManager.authenticate = authenticate


def audit_refused_commands() -> None:
    """Watch the answer to every command."""
    carry_out = ServerCommandRegister.process_command
    if getattr(carry_out, "audits", False):
        return

    def process_command(self: ServerCommandRegister, conn: Any, command: str) -> None:
        carry_out(self, conn, command)
        _write_down(conn, command)

    process_command.audits = True  # type: ignore[attr-defined]
    ServerCommandRegister.process_command = process_command


def _write_down(conn: Any, command: str) -> None:
    kinds = {item.get(ProtoKey.TYPE) for item in conn.buffer.data}
    status = conn.buffer.meta.get(MetaKey.STATUS)
    user = str(conn.get_prop(ConnProps.USER_NAME, "") or "")
    if command.split(" ")[0] == InternalCommands.CERT_LOGIN:
        if ProtoKey.TOKEN not in kinds:
            _event(command.partition(" ")[2], USER, "")
    elif status == MetaStatusValue.NOT_AUTHORIZED:
        _event(user, COMMAND, command)
    elif not user and ProtoKey.ERROR in kinds:  # no session, or one that is over
        _event("", USER, command)


def _event(user: str, action: str, text: str) -> None:
    AuditService.add_event(user=_plain(user), action=action, msg=_plain(text))


def _plain(text: str) -> str:
    """Text from outside as a part of one line."""
    return "".join(c if c.isprintable() else "?" for c in text)[:_SHOWN].strip()


def audit_refused_certificates() -> None:
    """From now on, read along what this process writes to its error stream."""
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
        with contextlib.suppress(OSError):  # nobody listens, or the disk is full: go on reading,
            os.write(stream, said)  # or whoever writes here would wait for ever
        *lines, line = (line + said).split(b"\n")
        for one in lines:
            if _SIGN in one:
                with contextlib.suppress(OSError):
                    _event("", CERTIFICATE, one[one.find(_SIGN) :].decode(errors="replace"))
        line = line[:_LONGEST]
