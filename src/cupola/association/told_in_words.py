"""What a study will do, and what it has found, in lines for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cupola.analysis.check import ground_lines, party_lines
from cupola.association.accounting import counted_lines
from cupola.base.formatting import count, duration, size, times

TESTS = {
    "chi-square": "chi-square test",
    "linear": "linear regression",
    "logistic": "logistic regression",
    "mixed": "mixed model",
}
#: What a question is for; one that is missing here is shown by its name alone.
ABOUT = {
    "gwas people": "how many people",
    "gwas directions": "components: markers times people's projections",
    "gwas scores": "components: a check, and scores at each cohort",
    "gwas moments": "mean and spread of covariates",
    "gwas propose": "which variants a cohort has",
    "gwas agree": "who has which variants",
    "gwas counts": "alleles in cases and controls",
    "gwas genome start": "which markers are common enough everywhere",
    "gwas genome blocks": "products of neighbouring markers",
    "gwas genome predicted": "coefficients; spread of predictions",
    "gwas genome stacked": "products of predictions",
    "gwas genome errors": "how well they predict",
    "gwas genome left out": "spread without each chromosome",
    "gwas shared": "the model without a genotype",
    "gwas first": "the first step at every variant",
    "gwas newton": "further steps",
    "gwas linear": "the regression at every variant",
    "unmask": "taking the masks off totals",
}


def result_lines(found: Mapping[str, Any], name: str, sums: str) -> list[str]:
    """The end of a study. sums: 'masked' or 'plain'."""
    people, hits = found["people"], found["hits"]
    test = TESTS.get(found["test"], found["test"])
    who = f"{people['tested']:,} of {people['loaded']:,} people tested"
    if found["binary"]:
        who += f": {people['cases']:,} cases, {people['tested'] - people['cases']:,} controls"
    smallest = found["smallest_log10_p"]
    strongest = "" if smallest is None else f"; the smallest P is {_p(smallest)}"
    inflation = found["inflation"]
    lines = [
        f"[bold]{name}[/]: {test}, {count(len(found['cohorts']), 'cohort')}, {sums} sums",
        f"  {who}",
        f"  {found['tested']:,} of {found['variants']:,} variants tested",
        *counted_lines(found),
        f"  {count(hits['5e-8'], 'hit')} below 5e-8, {hits['bonferroni']:,} below "
        f"{found['bonferroni']:.2g} (Bonferroni){strongest}",
        f"  genomic inflation {'–' if inflation is None else f'{inflation:.3f}'}",
        f"  {size(found['bytes_down'] + found['bytes_up'])} sent in {duration(found['seconds'])}",
    ]
    return lines + [
        f"[yellow]warning: cohorts '{a}' and '{b}' share {n:,} people[/]"
        for a, b, n in found["shared_people"]
    ]


def _p(log10: float) -> str:
    """From its logarithm: the smallest are below what a number holds."""
    whole = int(log10 // 1)
    return f"{10 ** (log10 - whole):.3g}e{whole}"


def check_lines(facts: Mapping[str, Any]) -> list[str]:
    """Before a study: what is to be tested, who learns what, what is sent."""
    sent = facts["bytes"]
    trait = facts["trait"] or "the .fam files' trait"
    corrected = f", corrected for {', '.join(facts['columns'])}" if facts["columns"] else ""
    test = f"{TESTS.get(facts['test'], facts['test'])} of {trait}{corrected}"
    if facts["test"] is None:
        test = "principal components"
    most = "at most " if sent["at_most"] else ""
    usual = f"; {size(sent['usual'])} as it usually goes" if sent["usual"] < sent["total"] else ""
    lines = [
        f"[bold]{facts['name']}[/]: {test}",
        f"  {count(facts['cohorts'], 'cohort')}, {facts['people']:,} people, "
        f"{count(facts['variants'], 'variant')}, {facts['sum']} sums",
        *counted_lines(facts),
        f"[bold]sends[/]      {most}{size(sent['total'])} in all{usual}",
        *(_row(row) for row in sent["rows"]),
    ]
    if sent["at_most"]:
        lines.append(f"  at most, since {'; '.join(sent['at_most'])}")
    lines.append(
        f"  at real cohorts {most}{size(sent['told'])} more: each follows the study and is told "
        "every total"
    )
    lines += party_lines(facts["parties"])
    lines += [f"[bold]limits[/]     {line}" for line in facts["limits"]]
    return lines + ground_lines(facts["grounds"])


def _row(row: Mapping[str, Any]) -> str:
    told = f"  {row['task']:<14} {ABOUT.get(row['task'], ''):<32} {times(row['questions']):>9}"
    return f"{told}  {size(row['down']):>8} down  {size(row['up']):>8} up"
