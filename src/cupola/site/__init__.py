"""What runs at a real site or compensator: settings, keys, consent, joining, answers, ledger.

A party's folder is its own: `settings` says what it allows, `proposal` reads what it is asked to
join, `consent_preview` shows what that would tell, `consent` pins what it agreed to and holds every
question to that, `open` answers, and `ledger` says what was told. `join` is the way into a study of
the web application by a token (`server` speaks with it); `join_session` is that way for a page.
"""

from cupola.site.consent import join_compensator, join_site, study_folder, withdraw
from cupola.site.ledger import as_csv, read_ledger, spent
from cupola.site.open import make_keys, open_compensator, open_site
from cupola.site.proposal import Proposal, read_proposal
from cupola.site.settings import CompensatorSettings, SiteSettings, read_settings

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
