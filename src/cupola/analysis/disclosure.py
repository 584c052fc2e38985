"""Who learns what: every party, and those who might put their heads together."""

from __future__ import annotations

from cupola.secure.sum_choice import Sum

COMPENSATOR = (
    "which sites took part in which step, names and sizes of arrays, a hash of the question; "
    "random numbers otherwise: no answer, no total"
)
_REPLAYED = (
    "every total, to follow the study by itself: with three sites, the sum of the two others"
)


def learned(
    choice: Sum,
    *,
    totals: str = "totals over sites, and who took part",
    results: str = "the results",
    replayed: bool = False,
) -> list[tuple[str, str]]:
    """(party, what it learns), in a sentence each, if everybody keeps to the protocol. totals: what
    the coordinator learns of masked sums. replayed: sites follow the program on totals that they
    are told."""
    result = ("a site", f"{_REPLAYED}; {results}" if replayed else results)
    if not choice.masked:
        return [("coordinator", "every site's own sums"), result]
    parties = [("coordinator", totals)]
    if choice.protocol == "compensator":
        parties.append(("compensator", COMPENSATOR))
        parties.append(("coordinator with compensator", "every site's own sums"))
    else:
        who = "enough of its neighbours to rebuild its keys, or with all other sites"
        parties.append(("coordinator with sites", f"a site's own sums, if it works with {who}"))
    return [*parties, result]
