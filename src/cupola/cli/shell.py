"""The command line's frame: the app, exit codes, and errors in one line.

Exit codes: 0 fine, 1 a run failed, 2 wrong input, 130 interrupted.
Commands import what they need when they run, so that `cupola --help` is quick.
"""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from cupola import __version__
from cupola.errors import CupolaError, DataError, PlanError

FAILED, WRONG_INPUT, INTERRUPTED = 1, 2, 130


class _Group(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        # Plans may name code in the current folder; a console script does not look there.
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            return super().invoke(ctx)
        except CupolaError as error:
            if Shell.debug:
                raise
            wrong = isinstance(error, PlanError | DataError)
            _fail(str(error), WRONG_INPUT if wrong else FAILED)
        except KeyboardInterrupt as stop:
            _fail(str(stop) or "interrupted", INTERRUPTED)
        except Exception as error:
            if Shell.debug or type(error).__module__.split(".")[0] in ("click", "typer"):
                raise
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            _fail(f"unexpected {what} (`cupola --debug ...` shows where)", FAILED)


class Shell:
    """What the global options and the running command said."""

    debug = bool(os.environ.get("CUPOLA_DEBUG"))
    json = False


def _fail(message: str, code: int) -> None:
    typer.echo("\n".join(f"cupola: {line}" for line in message.splitlines()), err=True)
    if Shell.json:
        status = "stopped" if code == INTERRUPTED else "failed"
        typer.echo(json.dumps({"status": status, "reason": message, "exit_code": code}))
    raise typer.Exit(code)


app = typer.Typer(
    name="cupola",
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Begin with `cupola demo`. A plan is a TOML file; `cupola check PLAN` explains it.",
)

# Groups to which several modules add commands.
site = typer.Typer(no_args_is_help=True, help="Run a site: what it joins, what it sent.")
compensator = typer.Typer(no_args_is_help=True, help="Run the third party of masked sums.")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cupola {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", hidden=True, help="Show where an error comes from.")
    ] = False,
) -> None:
    """Federated learning and analysis: communication, utility and privacy, side by side."""
    del version
    Shell.debug = Shell.debug or debug
    Shell.json = False


def answer_in_json(wanted: bool) -> bool:
    """Errors of a command with --json are JSON, too."""
    Shell.json = wanted
    return wanted


def main() -> None:
    """Entry point of the command `cupola`."""
    sys.stdout, sys.stderr = (_while_read(stream) for stream in (sys.stdout, sys.stderr))
    app()


class _WhileRead(io.FileIO):
    """A pipe whose reader may leave, as `cupola ... | head` does: what nobody reads any more is
    thrown away, and the command comes to its own end."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            return memoryview(data).nbytes


def _while_read(stream: TextIO) -> TextIO:
    try:
        if not stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode):
            return stream
    except (OSError, ValueError, AttributeError):  # closed, or none at all
        return stream
    stream.flush()
    pipe = io.BufferedWriter(_WhileRead(stream.fileno(), "w", closefd=False))
    lines = stream is sys.stderr
    return io.TextIOWrapper(pipe, stream.encoding, stream.errors, line_buffering=lines)


def print_json(document: Any) -> None:
    """The one JSON document of a command with --json."""
    from cupola.analysis.checkpoint import json_line

    typer.echo(json_line(document, indent=2))
