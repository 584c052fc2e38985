"""The command `cupola`."""

from cupola.cli import audit, demo, invert, look, runs, study  # noqa: F401 (they register their commands)
from cupola.cli.shell import app, main

__all__ = ["app", "main"]
