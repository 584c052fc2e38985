"""The command `cupola`."""

from cupola.cli import (  # noqa: F401 (they register their commands)
    audit,
    demo,
    federation,
    gwas,
    joining,
    look,
    reproduce,
    runs,
    search,
    sites,
    sources,
    study,
    web,
)
from cupola.cli.shell import app, main

__all__ = ["app", "main"]
