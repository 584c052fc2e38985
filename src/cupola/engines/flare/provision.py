"""Start-up kits by FLARE's distributed provisioning: every party makes its own private key, sends
a signing request, and gets a certificate back. No private key leaves the machine that made it.

    organiser   init     authority (root certificate) and an invitation for every party
    party       request  key and signing request, from its invitation
    organiser   approve  certificate, for an invited name and kind only
    party       install  start-up kit, with Cupola's policy: one class, no code, no log streams
"""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from cupola.engines.flare import policy
from cupola.engines.flare.federation_settings import (
    FederationSettings,
    Invitation,
    Kind,
    load_federation,
    load_invitation,
    to_toml,
)
from cupola.errors import FederationError, PlanError

KIT, KEY, INVITATION = "kit", "key", "invitation.toml"
FILES, UNPACKED = 50, 1 << 20  # of an archive that another party sends; bytes
_FLARE_KIND = {"coordinator": "server", "site": "client", "compensator": "client", "user": "admin"}


def init(settings: FederationSettings, folder: Path) -> list[Path]:
    """Make the authority of a new federation and its invitations. Gives the invitations' paths."""
    if (folder / "ca").exists():
        raise PlanError(f"{folder} holds a federation already; its authority is never replaced")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "federation.toml").write_text(to_toml(settings))
    profile = {
        "name": settings.name,
        "scheme": "grpc",
        "connection_security": "mtls",
        "server": {
            "host": settings.host,
            "fed_learn_port": settings.port,
            "admin_port": settings.port,
        },
    }
    _write_yaml(folder / "profile.yaml", profile)
    from nvflare.tool.cert.cert_commands import handle_cert_init

    _call(
        handle_cert_init,
        profile=str(folder / "profile.yaml"),
        output_dir=str(folder / "ca"),
        org=None,  # with one, FLARE 2.9 makes certificates that do not lead back to their root
        valid_days=3650,
        deploy_version="00",
        force=False,
    )
    (folder / "ca").chmod(0o700)
    written = []
    for name, kind in settings.parties.items():
        invitation = Invitation(
            federation=settings.name,
            name=name,
            kind=kind,
            coordinator=settings.coordinator,
            role=settings.users.get(name) if kind == "user" else None,
            authority=fingerprint(folder / "ca" / "rootCA.pem"),
        )
        path = folder / "invitations" / f"{name}.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(to_toml(invitation))
        written.append(path)
    return written


def request(invitation: Path, folder: Path) -> Path:
    """Make a party's key in its own folder. Gives the signing request, for the organiser."""
    invited = load_invitation(invitation)
    if (folder / KEY).exists():
        raise PlanError(f"{folder} holds a key already; keys are never overwritten")
    from nvflare.tool.cert.cert_commands import handle_cert_request

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        wanted = Path(scratch) / "participant.yaml"
        _write_yaml(wanted, {"name": invited.federation, "participants": [_participant(invited)]})
        _call(
            handle_cert_request,
            participant=str(wanted),
            output_dir=str(folder / KEY),
            force=False,
        )
    (folder / KEY).chmod(0o700)
    (folder / INVITATION).write_text(to_toml(invited))
    made = folder / KEY / f"{invited.name}.request.zip"
    return Path(shutil.move(made, folder / made.name))


def approve(signing_request: Path, folder: Path) -> Path:
    """Sign a request, if its name, kind and role are those invited. Gives what goes back."""
    from nvflare.tool.cert.cert_commands import handle_cert_approve

    settings = load_federation(folder / "federation.toml")
    try:
        _check_invited(signing_request, settings)
    except FederationError as error:
        _audit(folder, f"refused: {error}")
        raise
    name = signing_request.name.removesuffix(".request.zip")
    signed = folder / "signed" / f"{name}.signed.zip"
    signed.parent.mkdir(exist_ok=True)
    _call(
        handle_cert_approve,
        request_zip=str(signing_request),
        ca_dir=str(folder / "ca"),
        profile=str(folder / "profile.yaml"),
        signed_zip=str(signed),
        valid_days=1095,
        force=True,
    )
    _audit(folder, f"signed: {name}, request {sha256(signing_request.read_bytes()).hexdigest()}")
    return signed


def _audit(folder: Path, text: str) -> None:
    """The organiser's own log of what was asked of the authority."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    shown = "".join(c if c.isprintable() else "?" for c in text)
    with (folder / "audit.log").open("a", encoding="utf-8") as log:
        log.write(f"{now} {shown}\n")


def install(signed: Path, folder: Path) -> Path:
    """Make a party's start-up kit from its key and its certificate. Gives the kit's folder."""
    from nvflare.tool.package.package_commands import handle_package

    if not is_small(signed):
        raise FederationError(f"{signed} is no certificate: it unpacks to more than one holds")
    invited = load_invitation(folder / INVITATION)
    if (folder / KIT).exists():
        raise PlanError(f"{folder / KIT} is there already")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        _call(
            handle_package,
            input=str(signed),
            workspace=scratch,
            request_dir=str(folder / KEY),
            expected_fingerprint=invited.authority,
            force=False,
        )
        (made,) = Path(scratch).glob(f"*/prod_*/{invited.name}")
        policy.write(made / "local", invited.kind, folder)
        (made / "startup").chmod(0o700)
        made.rename(folder / KIT)
    return folder / KIT


def trial(settings: FederationSettings, folder: Path) -> dict[str, Path]:
    """All of a federation on one machine, each party in a folder of its own: for trials and tests.
    Gives the parties' folders by name."""
    folders = {}
    for invitation in init(settings, folder / "organiser"):
        own = folder / invitation.stem
        install(approve(request(invitation, own), folder / "organiser"), own)
        folders[invitation.stem] = own
    return folders


def fingerprint(certificate: Path) -> str:
    """SHA-256 of a certificate, as FLARE writes it."""
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    found = x509.load_pem_x509_certificate(certificate.read_bytes()).fingerprint(SHA256())
    return "SHA256:" + ":".join(f"{byte:02X}" for byte in found)


def party(folder: Path, *kinds: Kind) -> Invitation:
    """Whose folder this is; it must hold a kit of one of these kinds."""
    if not (folder / KIT).is_dir():
        raise PlanError(
            f"{folder} holds no start-up kit; make one with `cupola federation request`, "
            "`approve` and `install`"
        )
    invited = load_invitation(folder / INVITATION)
    if invited.kind not in kinds:
        raise PlanError(
            f"{folder} is the folder of a {invited.kind}, not of a {' or '.join(kinds)}"
        )
    return invited


def _participant(invited: Invitation) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": invited.name,
        "org": invited.org,
        "type": _FLARE_KIND[invited.kind],
    }
    if invited.kind == "coordinator":
        port = int(invited.coordinator.rpartition(":")[2])
        facts |= {"fed_learn_port": port, "admin_port": port}
    if invited.kind == "user":
        facts["role"] = invited.role
    return facts


def is_small(path: Path) -> bool:
    """Whether an archive of somebody else's unpacks to no more than certificates need."""
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            inside = archive.infolist()
    except (OSError, ValueError, zipfile.BadZipFile):
        return True  # not an archive at all, which is said by whoever reads it
    return len(inside) <= FILES and sum(one.file_size for one in inside) <= UNPACKED


def requested_name(signing_request: Path) -> str:
    """Whose certificate is asked for."""
    return _request_facts(signing_request)[0]


def _request_facts(path: Path) -> tuple[str, str, str | None]:
    """Name, FLARE's kind and role of a signing request."""
    import json
    import zipfile
    import zlib

    broken = (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError, EOFError)
    try:
        if not is_small(path):
            raise ValueError("too large")
        with zipfile.ZipFile(path) as archive:
            facts = json.loads(archive.read("request.json"))
        name, kind, role = facts["name"], facts["cert_type"], facts.get("cert_role")
        if not isinstance(name, str) or not isinstance(kind, str):
            raise ValueError("names are text")
    except (*broken, zipfile.BadZipFile, zlib.error):
        raise PlanError(f"{path} is not a signing request") from None
    return name, kind, role


def _check_invited(path: Path, settings: FederationSettings) -> None:
    """FLARE signs whatever is asked for; an organiser signs what was invited."""
    name, kind, role = _request_facts(path)
    expected = settings.parties.get(name)
    if expected is None:
        raise FederationError(f"{path}: '{name}' is not in this federation; nothing was signed")
    wanted = settings.users[name] if expected == "user" else _FLARE_KIND[expected]
    if kind != wanted or (role or None) != (wanted if expected == "user" else None):
        raise FederationError(
            f"{path}: '{name}' was invited as {settings.users.get(name, expected)}, but asks for "
            f"the rights of '{kind}'; nothing was signed"
        )


def _write_yaml(path: Path, facts: dict[str, Any]) -> None:
    import json

    path.write_text(json.dumps(facts, indent=1))  # JSON is YAML


def _call(command: Callable[[Namespace], Any], **arguments: Any) -> None:
    """One of FLARE's commands; what it complains of becomes an error of ours."""
    with _quiet() as said:
        try:
            code = command(Namespace(schema=False, **arguments))
        except SystemExit as stop:
            code = stop.code
        except Exception as error:
            raise FederationError(f"provisioning: {error}") from error
    if isinstance(code, int | str) and code:
        lines = [line for line in said.getvalue().splitlines() if line.strip()]
        raise FederationError("provisioning: " + ("; ".join(lines[:3]) or f"failed ({code})"))


@contextlib.contextmanager
def _quiet() -> Iterator[io.StringIO]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        yield said
