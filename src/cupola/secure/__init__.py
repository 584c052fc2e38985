"""Masked sums: totals that nobody can look inside."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cupola.secure.compensator import Compensator, compensator_host
from cupola.secure.compensator_client import Masked
from cupola.secure.identity import Identity, Party
from cupola.secure.member import Member
from cupola.secure.pairwise import Pairwise
from cupola.secure.roster import Roster, consent
from cupola.secure.simulation import expected_traffic, simulated_parties

if TYPE_CHECKING:
    from cupola.engines.one_sum import masked_sum as masked_sum

__all__ = [
    "Compensator",
    "Identity",
    "Masked",
    "Member",
    "Pairwise",
    "Party",
    "Roster",
    "compensator_host",
    "consent",
    "expected_traffic",
    "masked_sum",
    "simulated_parties",
]


def __getattr__(name: str) -> Any:
    """`masked_sum` needs an engine, which is of a layer above: loaded when asked for."""
    if name == "masked_sum":
        return importlib.import_module("cupola.engines.one_sum").masked_sum
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
