"""The command `cupola`."""

from cupola.cli import audit, demo, gwas, look, runs, search, study  # noqa: F401 (they register their commands)
from cupola.cli.shell import app, main

__all__ = ["app", "main"]
