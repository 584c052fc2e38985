"""Sections that the report of a run of any kind has: its results, its plan, what was sent, and the
ledger in words: who was asked what, and what an answer reveals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cupola.base.formatting import byte_unit, count, duration, finite, number, size, text
from cupola.federation.ledger import COMPENSATOR
from cupola.pages import charts, page
from cupola.pages.charts import Axis
from cupola.pages.folder import RunFolder

#: Of result.json, what is no result of the analysis itself.
_COMMON = ("status", "reason", "name", "kind", "seed", "bytes_down", "bytes_up", "seconds",
           "cpu_seconds", "simulated", "checksums", "versions")  # fmt: skip
_SHOWN = 50  # numbers of a list
_KINDS = {
    "sum": "the total over sites",
    "gather": "each site's own answer",
    "unmask": "the sum of masks",
}
_MOST = 60  # sites with a bar of their own


def sections(run: RunFolder) -> list[str]:
    """What can be said of any run."""
    return [
        trouble(run),
        headline(run),
        results(run),
        traffic(run),
        ledger_section(run),
        plan_section(run),
    ]


def trouble(run: RunFolder) -> str:
    if run.status == "unfinished":
        reached = f" after {count(run.rounds, 'round')}" if run.rounds else ""
        return (
            '<p class="alert">This run has not finished. What follows is its state'
            f"{text(reached)}; resume it with <b>cupola resume</b>.</p>"
        )
    reason = run.result.get("reason")
    if not reason:
        return ""
    bad = " bad" if run.status == "failed" else ""
    return f'<p class="alert{bad}">{text(run.status.capitalize())}: {text(reason)}</p>'


def headline(run: RunFolder) -> str:
    down, up = run.totals.get("bytes_down"), run.totals.get("bytes_up")
    sent = f"{size(down)} to sites, {size(up)} from sites"
    return page.numbers(
        [("Bytes sent", size(run.bytes_sent), sent), ("Time", duration(run.seconds), "")]
    )


def results(run: RunFolder) -> str:
    """The analysis' own part of result.json, as a table."""
    rows = own_results(run.result)
    return page.section("Results", "", page.facts(rows)) if rows else ""


def own_results(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What result.json says beside what every run has, in words; a table row by row."""
    rows = []
    for key, value in result.items():
        if key not in _COMMON:
            table = value if isinstance(value, dict) and len(value) <= _SHOWN else {"": value}
            rows += [(f"{key} {inner}".strip(), _said(part)) for inner, part in table.items()]
    return rows


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_said(part)}" for key, part in value.items())
    if isinstance(value, list):
        more = ", ..." if len(value) > _SHOWN else ""
        return ", ".join(_said(part) for part in value[:_SHOWN]) + more
    return number(value) if finite(value) else str(value)


def plan_section(run: RunFolder) -> str:
    versions = run.result.get("versions")
    known = versions.items() if isinstance(versions, dict) else ()
    parts = [page.facts((str(k), str(v)) for k, v in known)] if versions else []
    if run.plan_text:
        parts.append(
            "<details><summary>The plan as executed</summary>"
            f"<pre>{text(run.plan_text)}</pre></details>"
        )
    lead = "Everything needed to run it again: the plan with every default, and what ran it."
    return page.section("Plan and versions", lead, *parts) if parts else ""


@dataclass
class _Asked:
    """One kind of question, over the whole run."""

    times: int = 0
    fewest: int = 0
    most: int = 0
    down: int = 0
    up: int = 0


def _answers(entry: dict[str, Any]) -> tuple[list[Any], list[Any], int, list[int]]:
    """Sites that answered, sites that failed, bytes down to each, bytes up of each answer."""
    sites: list[Any] = entry["sites"] if isinstance(entry.get("sites"), list) else []
    failed = list(entry["failed"]) if isinstance(entry.get("failed"), dict) else []
    each = entry.get("bytes_down")
    down = int(each) if finite(each) else 0
    up = entry.get("bytes_up")
    if isinstance(up, list):
        sizes = [int(v) if finite(v) else 0 for v in up][: len(sites)]
        return sites, failed, down, sizes + [0] * (len(sites) - len(sizes))
    return sites, failed, down, [int(up) if finite(up) else 0] * len(sites)


def ledger_section(run: RunFolder) -> str:
    """Questions grouped by task, kind, what they reveal and their protection."""
    asked: dict[tuple[str, str, str, str], _Asked] = {}
    for entry in run.ledger():
        names = ("task", "kind", "reveals", "protection")
        key = tuple(str(entry.get(n, "none" if n == "protection" else "")) for n in names)
        sites, failed, down, up = _answers(entry)
        group = asked.setdefault(key, _Asked(fewest=len(sites)))  # type: ignore[arg-type]
        group.times += 1
        group.fewest, group.most = min(group.fewest, len(sites)), max(group.most, len(sites))
        group.down += down * (len(sites) + len(failed))
        group.up += sum(up)
    if not asked:
        return ""
    rows = []
    for (task, kind, reveals, protection), g in asked.items():
        asked_of = number(g.most) if g.fewest == g.most else f"{g.fewest:,} to {g.most:,}"
        rows.append(
            (
                text(task),
                text(reveals or "–"),
                text(_KINDS.get(kind, kind)),
                text(protection),
                f"{g.times:,}",
                asked_of,
                size(g.down),
                size(g.up),
            )
        )
    head = [
        ("question", False), ("what an answer reveals", False), ("coordinator uses", False),
        ("protection", False), ("times asked", True), ("sites", True), ("to sites", True),
        ("from sites", True),
    ]  # fmt: skip
    lead = (
        "Every question the sites answered. Nothing else crossed a site's border. Unless sums are "
        "masked, the coordinator's machine receives each answer before it is added up."
    )
    return page.section("Who learned what", lead, page.table(head, rows, stacked=True))


def _name(site: Any) -> str:
    return "compensator" if str(site) == str(COMPENSATOR) else str(site)


def link_seconds(run: RunFolder) -> tuple[float, float, float] | None:
    """How long a round's messages would take at the site that sends most, on average over all
    rounds, and the speeds (MB/s down and up) that this is for."""
    link = run.plan.get("link")
    down, up = (link.get("down"), link.get("up")) if isinstance(link, dict) else (None, None)
    if not (finite(down) and finite(up) and down > 0 and up > 0 and run.rounds):
        return None
    total = 0.0
    for entry in run.ledger():
        sites, _, each, sizes = _answers(entry)
        if COMPENSATOR not in sites:
            total += each / (1e6 * down) + max(sizes, default=0) / (1e6 * up)
    return total / run.rounds, down, up


def traffic(run: RunFolder) -> str:
    """Bytes of each site in both directions, from the ledger."""
    down: dict[str, int] = {}
    up: dict[str, int] = {}
    for entry in run.ledger():
        sites, failed, each, sizes = _answers(entry)
        for site in map(_name, (*sites, *failed)):
            down[site] = down.get(site, 0) + each
        for site, sent in zip(map(_name, sites), sizes):
            up[site] = up.get(site, 0) + sent
    if not down:
        return ""
    order = sorted(down, key=lambda s: (not s.isdigit(), int(s) if s.isdigit() else 0, s))
    total = np.array([down[s] + up.get(s, 0) for s in order], float)
    low, middle, high = np.percentile(total, [0, 50, 100])
    amount = f"{size(low)} to {size(high)}, median {size(middle)}" if low < high else size(low)
    third = _name(COMPENSATOR)
    parties = count(len(order) - (third in down), "site")
    parties += " and the compensator of masked sums" if third in down else ""
    lead = f"{parties} took part; each exchanged {amount}. Counted on what is really sent."
    if (found := link_seconds(run)) is not None:
        seconds, *speeds = found
        lead += (
            f" At {speeds[0]:g} MB/s down and {speeds[1]:g} MB/s up the messages of a round would "
            f"take a site {duration(seconds)}."
        )
    x_title = "site"
    if len(order) > _MOST:  # evenly spaced ranks instead of a thousand bars
        ranked = [order[i] for i in np.argsort(-total, kind="stable")]
        keep = np.linspace(0, len(ranked) - 1, _MOST).astype(int)
        order = [ranked[i] for i in keep]
        lead += f" Drawn: {_MOST} of them, evenly spaced from most to least."
    unit = byte_unit(float(total.max()))
    stacks = [
        ("to the site", [float(down[s]) for s in order]),
        ("from the site", [float(up.get(s, 0)) for s in order]),
    ]
    chart = charts.bars(
        order, stacks, Axis("bytes", unit), x_title, "bytes of each site", wide=True
    )
    return page.section("What was sent", lead, chart)
