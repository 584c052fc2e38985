"""The report of components: eigenvalues, how sure each is, and a picture of all if cohorts gave
their densities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cupola.association.accounting import missing, put_right
from cupola.association.structure.component_tasks import BINS, WIDEST
from cupola.base.formatting import count, duration, number, size, text
from cupola.pages import charts, page
from cupola.pages.any_run import ledger_section, plan_section, traffic
from cupola.pages.any_run import sections as run_sections
from cupola.pages.folder import RunFolder


def in_words(facts: Mapping[str, Any], people: int, cohorts: int) -> list[str]:
    """What was found, a line each."""
    values = facts["eigenvalues"]
    sure = sum(facts["determined"])
    return [
        f"{len(values)} components of {people:,} people in {count(cohorts, 'cohort')}, from "
        f"{facts['markers']:,} markers in {count(facts['sums'], 'sum')}; {sure} determined",
        f"eigenvalues {', '.join(f'{value:.4g}' for value in values)}",
    ]


def sections(run: RunFolder) -> list[str]:
    """The whole report of a study of components alone, as HTML."""
    result = run.result
    if result.get("status") != "finished":
        return run_sections(run)
    told = "".join(f'<p class="alert">{text(line)}</p>' for line in result.get("warnings") or [])
    facts = result["components"]
    people = result["people"]["loaded"]
    headline = page.numbers([
        ("Components", number(len(facts["eigenvalues"])),
         f"{sum(facts['determined'])} of them determined"),
        ("People", number(people), count(len(result["cohorts"]), "cohort")),
        ("Markers", number(facts["markers"]), f"{facts['withheld']:,} withheld by some cohort"
         + (f", {facts['pruned']:,} pruned" if "pruned" in facts else "")),
        ("Sums", number(facts["sums"]), "of directions"),
        ("Bytes sent", size(result["bytes_down"] + result["bytes_up"]), "all parties"),
        ("Time", duration(result["seconds"]), ""),
    ])  # fmt: skip
    rows = [(words, f"{n:,}") for words, n in (*missing(result), *put_right(result))]
    rows = [("variants on the list", f"{result['variants']:,}"), *rows]
    return [
        told,
        headline,
        components(facts),
        page.section("Quality", "Which variants were left out, and why.", page.facts(rows)),
        traffic(run),
        ledger_section(run),
        plan_section(run),
    ]


def components(facts: Mapping[str, Any]) -> str:
    """The section on components, of any report; empty if there are none."""
    if not facts:
        return ""
    values = facts["eigenvalues"]
    names = [f"PC{i + 1}" for i in range(len(values))]
    scree = charts.bars(names, [("eigenvalue", values)], charts.Axis("eigenvalue"), "component",
                        "Eigenvalues of the components")  # fmt: skip
    rows = [
        (name, f"{value:.5g}", f"{share:.2%}", f"{residual:.1e}", f"{gap:.2%}",
         "yes" if sure else "no")
        for name, value, share, residual, gap, sure in zip(
            names, values, *(facts[k] for k in ("shares", "residuals", "gaps", "determined")))
    ]  # fmt: skip
    head = [("", False), ("eigenvalue", True), ("of the variance", True), ("residual", True),
            ("gap", True), ("determined", False)]  # fmt: skip
    lead = (
        "Directions in which people differ most. A component is determined if its eigenvalue is "
        "farther from its neighbours' (gap) than it is uncertain (residual); others may be mixed "
        "with their neighbours, which does no harm where all are covariates. Scores, and a picture "
        "of them, are at each cohort and nowhere else."
    )
    parts = [scree, page.table(head, rows)]
    if "density" in facts:
        parts.append(page.figure("All people", _density(np.array(facts["density"], float))))
    return page.section("Principal components", lead, *parts)


def _density(counts: np.ndarray) -> str:
    edge = [f"{(i + 0.5) * 2 * WIDEST / BINS - WIDEST:.1f}" for i in range(BINS)]
    turned = counts.T[::-1]  # PC2 upwards
    return charts.heat(turned, edge[::-1], edge, "PC2", "PC1",
                       "People in squares of the first two components", square=True)  # fmt: skip
