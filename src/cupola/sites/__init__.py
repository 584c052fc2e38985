"""Real sites and compensators: what they agreed to, what they hold, how they answer."""

from cupola.sites.consent import join_compensator, join_site, study_folder, withdraw
from cupola.sites.ledger import as_csv, read_ledger, spent
from cupola.sites.parties import make_keys, open_compensator, open_site
from cupola.sites.proposal import Proposal, read_proposal
from cupola.sites.settings import CompensatorSettings, SiteSettings, read_settings

__all__ = [
    "CompensatorSettings",
    "Proposal",
    "SiteSettings",
    "as_csv",
    "join_compensator",
    "join_site",
    "make_keys",
    "open_compensator",
    "open_site",
    "read_ledger",
    "read_proposal",
    "read_settings",
    "spent",
    "study_folder",
    "withdraw",
]
