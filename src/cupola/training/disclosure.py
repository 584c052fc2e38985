"""Who learns what from a plan's run: every party, and those who might put their heads together."""

from __future__ import annotations

from typing import Any

from cupola.analysis.disclosure import COMPENSATOR
from cupola.secure.wrapped_question import layout_of
from cupola.training.loop import Training

_COMPENSATOR = f"{COMPENSATOR}, no model"


def learned(program: Training, differences: str | None = None) -> list[tuple[str, str]]:
    """(party, what it learns), in a sentence each, if everybody keeps to the protocol. differences:
    what those of masked totals tell, where sites change."""
    choice, mechanism = program.sum, program.mechanism
    what, own = mechanism.sends, mechanism.sends_alone
    counts = " and metrics" if _asks_metrics(program) else ""
    if not choice.masked:
        parties = [("coordinator", f"every site's own {what}{counts}, and its number of samples")]
    else:
        told = (
            f"totals of {what}{counts} over at least {choice.minimum} sites, with the sum of "
            "their weights; who took part"
        )
        if (least := program.methods.least_told()) is not None:
            told += f"; in every round the total of each group of {least} or more sites apart"
        parties = [("coordinator", told)]
    if program.maps.by == "sites":
        whose = "totals over sites" if choice.masked else "every site's own"
        parties.append(
            ("coordinator", f"{whose} of how often the source takes examples of each class for "
             "each of its own classes")
        )  # fmt: skip
    if differences is not None:
        parties.append(("coordinator", differences))
    if choice.masked and choice.protocol == "compensator":
        parties.append(("compensator", _COMPENSATOR))
        parties.append(
            (
                "coordinator with compensator",
                f"every site's own {own}{counts}: they must not be one",
            )
        )
    elif choice.masked:
        parties.append(
            (
                "coordinator with sites",
                f"a site's own {own}{counts} if it works with enough of that site's neighbours "
                "to rebuild its keys, or with all but one of a total's sites",
            )
        )
    parties.append(("a site", "the model of every round it takes part in; nothing of other sites"))
    if choice.masked and choice.minimum == 2:
        parties.append(("one of two sites", "with the total, the other site's answer"))
    if program.evaluation.per_site:
        parties.append(("coordinator", "each site's own metrics, which were asked for unmasked"))
    return parties


def masking(program: Training) -> dict[str, Any] | None:
    """How parameters are encoded where sums are masked, and how much that can cost."""
    if not program.sum.masked:
        return None
    asked = program.first_ask().question
    layout = layout_of(asked, program.sites)
    entry = next(e for e in layout if e.name.startswith(("model/", "packed/")))
    return {
        "protocol": program.sum.protocol,
        "minimum": program.sum.minimum,
        "bits": entry.bits,
        "fraction": entry.fraction,
        "bound": entry.bound,
        "error": entry.error,
        "transforms": [step.describe() for step in program.transforms],
    }


def _asks_metrics(program: Training) -> bool:
    return any(kind == "sum" for kind, _ in program._judgements())
