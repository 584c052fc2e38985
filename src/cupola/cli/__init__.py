"""The command `cupola`."""

from cupola.cli import (  # noqa: F401 (they register their commands)
    audit,
    check_plan,
    compare_runs,
    demo,
    federation,
    gwas,
    joining,
    reproduce,
    runs,
    sites,
    web,
)
from cupola.cli.shell import app, main

__all__ = ["app", "main"]
