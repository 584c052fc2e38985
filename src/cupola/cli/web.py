"""cupola web: the coordinator's web application."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cupola.cli.shell import app
from cupola.errors import CupolaError

CONNECTIONS = 2000  # more are refused at once
server = typer.Typer()
app.add_typer(server, name="web")
Kept = Annotated[
    Path, typer.Option("--folder", "-o", metavar="DIR", help="Folder for all that it keeps.")
]
Database = Annotated[
    str | None,
    typer.Option(metavar="URL", help="postgresql://...; without it SQLite in the folder."),
]


@server.callback(invoke_without_command=True)
def web(
    context: typer.Context,
    folder: Kept = Path("cupola-web"),
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at.")] = 8000,
    database: Database = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="PLINK files that sites here may choose."),
    ] = None,
    url: Annotated[
        str, typer.Option(help="How others reach it, for the commands that it shows.")
    ] = "",
    at_once: Annotated[int, typer.Option(min=1, help="Studies that run at the same time.")] = 1,
    memory: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="GB",
            help="Most that a simulated study may take; default: three quarters of the machine's.",
        ),
    ] = None,
    hours: Annotated[
        float, typer.Option(min=0, help="Most that a simulated study may run at a time; 0: any.")
    ] = 48.0,
    demo: Annotated[bool, typer.Option(help="Begin with demonstration studies.")] = True,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--module",
            metavar="MODULE",
            help="An installed module whose analyses plans may name (kind = 'MODULE:Class').",
        ),
    ] = None,
    federation: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="From `cupola federation init`: studies at real sites run over it."
        ),
    ] = None,
) -> None:
    """Serve pages on which studies are made, sites invited, runs watched and results read."""
    if context.invoked_subcommand is not None:
        return
    os.umask(0o077)  # what it and its studies write is for its user alone
    try:
        import uvicorn

        from cupola.web.app import make_app
        from cupola.web.demo import demonstrations, first_account
        from cupola.web.organiser import organiser_of
        from cupola.web.settings import Settings
        from cupola.web.study_service import StudyService
    except ImportError as error:
        raise _missing(error) from None
    settings = Settings(
        folder,
        database,
        data if data is not None else folder / "data",
        url.rstrip("/"),
        secure=url.startswith("https://"),
        at_once=at_once,
        federation=federation,
        modules=tuple(modules or ()),
        memory=int(1e9 * memory) if memory is not None else 3 * _physical() // 4,
        hours=hours,
    )
    organised = organiser_of(settings)
    if organised is not None:
        organised.prepare()
    application = make_app(settings)
    with application.state.sessions() as db:
        service = StudyService(db, settings, application.state.launcher)
        first = first_account(service)
        if first:  # before anything else can fail: it is told once
            typer.echo(f"First account, shown once: name {first[0]}, password {first[1]}")
        for line in demonstrations(service) if first and demo else ():
            typer.echo(line)
    where = url or f"http://{host}:{port}"
    typer.echo(f"Open {where} (Ctrl-C ends the server; studies that run go on)")
    _raise_files()
    uvicorn.run(
        application,
        host=host,
        port=port,
        log_level="warning",
        timeout_graceful_shutdown=3,
        limit_concurrency=CONNECTIONS,
    )


@server.command("reset-password")
def reset_password(
    name: Annotated[str, typer.Argument(help="Of the account.")] = "coordinator",
    folder: Kept = Path("cupola-web"),
    database: Database = None,
) -> None:
    """Give an account a new password, which is shown once; its sessions end.

    For whoever may read the server's folder; the server may run meanwhile.
    """
    os.umask(0o077)
    try:
        from cupola.web import accounts
        from cupola.web.database import open_database
        from cupola.web.settings import Settings
    except ImportError as error:
        raise _missing(error) from None
    if database is None and not (folder / "cupola.sqlite").exists():
        raise CupolaError(f"{folder} holds no web application; name its folder by --folder")
    settings = Settings(folder, database)
    with open_database(settings)() as db:
        password = accounts.reset_password(db, settings, name)
        db.commit()
    typer.echo(f"New password, shown once: name {name}, password {password}")


def _missing(error: ImportError) -> CupolaError:
    return CupolaError(f"the web application needs {error.name}: pip install 'cupola[web]'")


def _raise_files() -> None:
    """As many open files as connections need, if the machine allows it."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS if hard == resource.RLIM_INFINITY else min(2 * CONNECTIONS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _physical() -> int:
    """Bytes of memory of this machine; 0 if it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
