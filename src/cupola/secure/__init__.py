"""Masked sums: totals that nobody can look inside."""

from cupola.secure.compensator import Compensator, compensator_host
from cupola.secure.compensator_client import Masked
from cupola.secure.identity import Identity, Party
from cupola.secure.member import Member
from cupola.secure.pairwise import Pairwise
from cupola.secure.roster import Roster, consent
from cupola.secure.simulation import expected_traffic, simulated_parties

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
    "simulated_parties",
]
