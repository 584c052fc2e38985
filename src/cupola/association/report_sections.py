"""The report of an association study: Manhattan and QQ plots, hits, quality, traffic, who learned
what."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from cupola.association import regional_plot
from cupola.association.accounting import missing, mixed_line, put_right
from cupola.association.compare import GENOME_WIDE, Table, read_results
from cupola.association.manhattan import largest, manhattan, quantiles
from cupola.association.people_quality import FAR, MISSING, F
from cupola.association.pvalues import HALF_CHI2
from cupola.association.result_files import DROPPED
from cupola.association.structure.component_pages import components
from cupola.base.formatting import count, duration, number, size, text
from cupola.pages import charts, page
from cupola.pages.any_run import ledger_section, plan_section, traffic
from cupola.pages.any_run import sections as run_sections
from cupola.pages.folder import RunFolder

_TOP = 20
_SHOWN = ("SNP", "P", "OR", "BETA", "SE", "CHR", "BP", "A1", "A1_FREQ", "NMISS", "N", "COHORTS",
          "F_A", "F_U", "STAT", "CHISQ", "Q", "I", "EFFECTS", "FIRTH?")  # fmt: skip


def sections(run: RunFolder, table: Table | None = None) -> list[str]:
    """What the report of a study says, part by part, as HTML. table: its results, if at hand."""
    result = run.result
    if result.get("status") != "finished":
        return run_sections(run)
    table = table or results_in(run)
    return [
        _warnings(run),
        _headline(run),
        _plots(table, result),
        _regions(table, run),
        _hits(table),
        components(result.get("components") or {}),
        *_whole_genome(run),
        _quality(run),
        _people(run),
        traffic(run),
        ledger_section(run),
        plan_section(run),
    ]


def results_in(run: RunFolder) -> Table:
    """Of a study at real sites the result is the coordinator's word: it names a file in here."""
    return read_results(run.path / Path(str(run.result["files"][0])).name)


def _warnings(run: RunFolder) -> str:
    told = list(run.result.get("warnings") or [])
    for a, b, n in run.result.get("shared_people") or []:
        told.append(f"Cohorts '{a}' and '{b}' share {n:,} people")
    return "".join(f'<p class="alert">{text(line)}</p>' for line in told)


def _headline(run: RunFolder) -> str:
    r = run.result
    people = r["people"]
    cases = f"{people['cases']:,} cases" if r["binary"] else "quantitative trait"
    whose = "all parties" if r.get("simulated", True) else "the coordinator's"
    items = [
        ("People tested", number(people["tested"]), f"of {people['loaded']:,}; {cases}"),
        ("Variants tested", number(r["tested"]),
         f"of {r['variants']:,} listed; {_no_result(r):,} have no result"),
        ("Hits", number(r["hits"]["5e-8"]),
         f"below 5e-8; {r['hits']['bonferroni']:,} below {r['bonferroni']:.2g} (Bonferroni)"),
        ("Inflation", f"{r['inflation']:.3f}" if r["inflation"] is not None else "–",
         "median statistic over its expectation, autosomes"),
        ("Bytes sent", size(r["bytes_down"] + r["bytes_up"]), "all parties, both directions"),
        ("Time", duration(r["seconds"]), f"{duration(r['cpu_seconds'])} of processor, {whose}"),
    ]  # fmt: skip
    return page.numbers(items)


def _no_result(result: dict[str, Any]) -> int:
    """Listed variants that are left out, or have no estimate."""
    return sum(n for part in ("left_out", "without_result") for n in result[part].values())


def _plots(table: Table, result: dict[str, Any]) -> str:
    y = -table.log10_p
    told = np.isfinite(y)
    if not told.any():
        return page.section("Association", "", charts.nothing("no variant has a p-value"))
    chromosome, position, names = table.chromosome, table.position, table.name
    if not told.all():
        chromosome, position, names, y = (x[told] for x in (chromosome, position, names, y))
    lines = [GENOME_WIDE, result["bonferroni"]]
    drawn = manhattan(chromosome, position, y, names, lines)
    qq = page.figure("Expected and observed", quantiles(y, names))
    lead = (
        "A dot is a variant; lines are 5e-8 and Bonferroni. Dots that would lie on each other are "
        "drawn once."
    )
    return page.section("Association", lead, drawn, page.pair(qq, _inflation_note(result)))


def _regions(table: Table, run: RunFolder) -> str:
    """The neighbourhood of each hit, and with clumps its linkage."""
    linked = next((n for n in run.result["files"] if n.endswith(regional_plot.LINKED)), None)
    path = None if linked is None else run.path / Path(str(linked)).name
    found = regional_plot.regions(table, path)
    if not found:
        return ""
    figures = [page.figure(str(table.name[r.hit]), regional_plot.draw(table, r)) for r in found]
    pairs = [page.pair(*figures[i : i + 2]) for i in range(0, len(figures), 2)]
    said = "the best clumps" if linked else "the best variants below 1e-5, far from each other"
    lead = f"250 kilobases on either side of {said}; the diamond is the hit."
    return page.section("Regions", lead, regional_plot.legend() if linked else "", *pairs)


def _inflation_note(result: dict[str, Any]) -> str:
    value = result["inflation"]
    said = "–" if value is None else f"{value:.4f}"
    words = (
        f"Genomic inflation factor {said}: the median chi-square statistic of the autosomes over "
        f"{HALF_CHI2:.4f}. Near 1 the bulk of variants behaves as if nothing were associated; "
        "above 1.05 look for population structure or relatives."
    )
    return f"<div><h3>Inflation</h3><p>{text(words)}</p></div>"


def _hits(table: Table) -> str:
    finite = np.where(np.isfinite(table.log10_p), -table.log10_p, -math.inf)
    shown = [i for i in largest(finite, _TOP) if np.isfinite(finite[i])]
    columns = [name for name in _SHOWN if name in table.head]
    rows = [[text(table.fields[i][table.head.index(c)]) for c in columns] for i in shown]
    head = [(name, name not in ("SNP", "A1")) for name in columns]
    return page.section("Top hits", f"The {len(rows)} smallest p-values.", page.table(head, rows))


def _whole_genome(run: RunFolder) -> list[str]:
    """What whole-genome regression was made of."""
    facts = run.result.get("whole_genome")
    if not facts:
        return []
    best = max(facts["explained"])
    rows = [
        ("markers", f"{facts['markers']:,} in {facts['blocks']:,} blocks"),
        ("markers too rare in some cohort", f"{facts['withheld']:,}"),
        ("of the trait predicted (cross-validated; somewhat too good)", f"{best:.1%}"),
        ("heritability taken in the penalty", f"{facts['heritability']:g}"),
    ]
    lead = (
        "Every variant was tested beside what the markers of all other chromosomes predict of the "
        "trait. The predictions of people stayed with their cohorts."
    )
    return [page.section("Whole-genome regression", lead, page.facts(rows))]


def _people(run: RunFolder) -> str:
    """Missing calls, inbreeding and sex, where the study asks for them."""
    told = run.result.get("people_quality") or {}
    if not told:
        return ""
    missing = [f"below {MISSING[0]:.1%}", *(f"from {edge:.1%}" for edge in MISSING)]
    f = [f"below {F[0]:g}", *(f"from {edge:g}" for edge in F)]
    shown = [i for i, n in enumerate(told["f"]) if n]
    f_rows = [(f[i], _bar(told["f"][i], max(told["f"]))) for i in shown]
    rows = [(name, _bar(n, max(told["missing"]))) for name, n in zip(missing, told["missing"])]
    known, wrong = told["sex"]
    facts = [("sex that does not fit chromosome X", f"{wrong:,} of {known:,} with calls on it")]
    facts += [
        (f"autosomal variants more than {edge:g} from the pooled frequency", f"{n:,}")
        for edge, n in zip(FAR, told["far"])
    ]
    lead = (
        "People by share of calls they miss, and by inbreeding coefficient F from homozygous calls "
        "(PLINK's --missing and --het, by pooled frequencies); high F: relatives as parents or "
        "another population, low F: mixed samples. Variants are counted in each cohort. Who it is "
        "stands in each cohort's own people.tsv."
    )
    if held := told["held_back"][0]:
        lead += f" Too small counts of {count(held, 'cohort')} are left out."
    sizes = [("missing calls", False), ("people", False)]
    tables = page.pair(page.table(sizes, rows), page.table([("F", False), sizes[1]], f_rows))
    return page.section("Quality of people", lead, tables, page.facts(facts))


def _bar(n: int, most: int) -> str:
    wide = 100 * n / max(1, most)
    return (
        f'<span style="display:inline-block;width:5em">{n:,}</span><span class="f0" style="display:'
        f'inline-block;height:.7em;width:{0.06 * wide:.2f}em;background:currentColor;opacity:.5">'
        "</span>"
    )


def _quality(run: RunFolder) -> str:
    r = run.result
    rows = [("variants on the list", f"{r['variants']:,}")]
    if len(r.get("proposed") or []) > 1:
        rows += [(f"put on it by cohort '{name}'", f"{n:,}") for name, n in r["proposed"]]
    rows += [(words, f"{n:,}") for words, n in (*missing(r), *put_right(r))]
    rows += [("mixed model", mixed_line(r))] if mixed_line(r) else []
    named = next((name for name in r["files"] if name.endswith(DROPPED)), "study" + DROPPED)
    lead = f"Why listed variants are left out is in {named}, one by one."
    return page.section("Quality", lead, page.facts(rows))


def in_short(run: RunFolder) -> dict[str, Any]:
    """A finished study in a few numbers."""
    r = run.result
    hits = r["hits"]["5e-8"]
    return {
        "said": f"{count(hits, 'hit')}, {number(r['tested'])} variants",
        "metric": "hits",
        "value": hits,
        "tested": r["tested"],
        "people": r["people"]["tested"],
        "inflation": r["inflation"],
        "bytes": r["bytes_down"] + r["bytes_up"],
        "seconds": r["seconds"],
        "test": r["test"],
        "sites": len(r["cohorts"]),
    }
