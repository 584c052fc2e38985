"""The report of many runs: mean and spread, curves with bands, cost against utility."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cupola.base.formatting import (
    LOWER_IS_BETTER,
    byte_unit,
    count,
    duration,
    goal,
    metric,
    number,
    size,
    text,
    title,
)
from cupola.pages import charts, page
from cupola.pages.any_run import plan_section
from cupola.pages.charts import Axis, Line
from cupola.pages.folder import SPLITS, RunFolder
from cupola.report.groups import Group, common_metric, easy_target, group
from cupola.training.privacy_section import cell, heading, is_private
from cupola.training.report_sections import x_axis, y_axis

_TAB = {"rounds": "by round", "bytes": "by bytes sent", "time": "by time"}
_MOST_CURVES = 16


def compare_page(
    runs: Sequence[RunFolder],
    name: str,
    where: Path,
    target: float | None = None,
    extra: Sequence[str] = (),
    remark: str = "",
    crown: bool = True,
) -> str:
    """The whole document; links are relative to the folder `where`. `extra` is HTML put first."""
    body = sections(runs, where, target, extra, remark, crown)
    done = sum(run.status in ("finished", "stopped") for run in runs)
    state = "good" if done == len(runs) else "warn"
    chips = [(f"{done} of {len(runs)} finished", state)]
    if all(run.result.get("simulated", True) for run in runs):
        chips.append(("simulated", "warn"))
    chips += [(d, "") for d in sorted({_data(run) for run in runs} - {""})]
    return page.page(name, "comparison", page.chips(chips), body)


def sections(
    runs: Sequence[RunFolder],
    where: Path | None,
    target: float | None = None,
    extra: Sequence[str] = (),
    remark: str = "",
    crown: bool = True,
) -> list[str]:
    """What a comparison says, part by part, as HTML. where: folder that links are relative to;
    without it there are none.

    crown: point out the best setting (not where something else than this data chose it).
    """
    groups = group(runs)
    measured = common_metric(runs)
    if target is None:
        target = easy_target(groups, measured)
    rows = [g.row(measured, target) for g in groups]
    low = measured in LOWER_IS_BETTER
    scored = [(r[measured], i) for i, r in enumerate(rows) if r[measured] is not None]
    winner = (min(scored) if low else max(scored))[1] if scored and crown else None
    return [
        f'<p class="alert">{text(remark)}</p>' if remark else "",
        _headline(groups, rows, winner, measured, target),
        *extra,
        _table(groups, rows, winner, measured, target),
        _exchange(groups, measured),
        _curves(groups, measured),
        _runs(runs, measured, where),
        plan_section(runs[0]) if len(groups) == 1 else "",
    ]


def _data(run: RunFolder) -> str:
    data = run.plan.get("data")
    return str(run.result.get("data") or (data.get("name", "") if isinstance(data, dict) else ""))


def _headline(
    groups: Sequence[Group],
    rows: list[dict],
    winner: int | None,
    measured: str,
    target: float | None,
) -> str:
    items = [("Settings", number(len(groups)), count(sum(len(g.runs) for g in groups), "run"))]
    if winner is not None:
        best = rows[winner]
        items.insert(
            0, (f"Best {title(measured).lower() if measured == 'accuracy' else title(measured)}",
                metric(measured, best[measured], best["spread"]), groups[winner].label)
        )  # fmt: skip
    cheap = [
        (r["bytes_to_target"], i)
        for i, r in enumerate(rows)
        if r["bytes_to_target"] and not groups[i].central
    ]
    if winner is not None and cheap and target is not None:
        cost, i = min(cheap)
        shown = goal(measured, target)
        items.insert(1, (f"Fewest bytes to {shown}", size(cost), groups[i].label))
    items.append(("Sent in all", size(sum(r["bytes"] * r["runs"] for r in rows if r["bytes"])), ""))
    times = [r["seconds"] * r["runs"] for r in rows if r["seconds"]]
    items.append(("Time in all", duration(sum(times)) if times else "–", ""))
    return page.numbers(items)


def _table(
    groups: Sequence[Group],
    rows: list[dict],
    winner: int | None,
    measured: str,
    target: float | None,
) -> str:
    said = goal(measured, target)
    extreme = "lowest" if measured in LOWER_IS_BETTER else "highest"
    head = [
        ("setting", False), ("runs", True), (title(measured), True), (extreme, True),
        ("rounds", True), ("sent", True), ("time", True),
        (f"rounds to {said}", True), (f"bytes to {said}", True),
    ]  # fmt: skip
    private = any(row["epsilon"] is not None for row in rows)
    if private:
        head.insert(3, (heading(rows), True))
    lines = []
    for i, (g, row) in enumerate(zip(groups, rows)):
        value = text(metric(measured, row[measured], row["spread"]))
        missed = f"{row['reached']} of {row['runs']} reach it" if row["reached"] else "not reached"
        lines.append(
            (
                text(g.label),
                f"{row['runs']}",
                f"<b>{value}</b>" if i == winner else value,
                *([_epsilon(row, heading(rows), g)] if private else []),
                text(metric(measured, row["best"])),
                number(row["rounds"], 3),
                size(row["bytes"]),
                duration(row["seconds"]),
                number(row["rounds_to_target"], 3) if row["rounds_to_target"] else missed,
                size(row["bytes_to_target"])
                if row["bytes_to_target"] or row["rounds_to_target"]
                else missed,
            )
        )
    split = groups[0].runs[0].split or ""
    several = any(len(g.runs) > 1 for g in groups)
    lead = f"Measured on {SPLITS.get(split, 'held-out data')} at the end of each run."
    if several:
        lead += " ± is the standard deviation over seeds."
    return page.section("Side by side", lead, page.table(head, lines))


def _epsilon(row: dict[str, Any], column: str, group: Group) -> str:
    if row["epsilon"] is not None:
        return cell(row, column)
    return "only sites know it" if is_private(group.runs[0].plan) else "not private"


def _exchange(groups: Sequence[Group], measured: str) -> str:
    """Utility against communication: the best level reached so far for the bytes sent."""
    drawn = groups[:_MOST_CURVES]
    series = [
        Line(g.label, *g.reached(measured), colour=i, steps=True)
        for i, g in enumerate(drawn)
        if not g.central
    ]
    costs = [v for s in series for v in s.x if v > 0]
    if not costs:
        return ""
    most = max(costs)
    for i, g in enumerate(drawn):
        if g.central and (level := g.band(measured, "bytes")[1]):
            ends = [min(costs), most]
            series.append(Line(g.label, ends, [level[-1]] * 2, colour=i, dashed=True))
    axis = Axis("sent, all sites", byte_unit(most / 10), log=True)
    chart = charts.lines(
        series, axis, y_axis(measured), "best so far against bytes sent", 320, True
    )
    lead = (
        "The best level reached so far for the bytes sent (logarithmic). Further up and to the "
        "left is better."
    )
    if any(g.central for g in drawn):
        lead += " Dashed: all data at one site, for comparison."
    return page.section("Communication and utility", lead, chart)


def _curves(groups: Sequence[Group], measured: str) -> str:
    shown = [measured] if measured == "loss" else [measured, "loss"]
    panels = []
    for axis, name in _TAB.items():
        figures = []
        for quantity in shown:
            series = []
            for i, g in enumerate(groups[:_MOST_CURVES]):
                x, y, spread = g.band(quantity, axis)
                series.append(Line(g.label, x, y, spread, colour=i))
            most = max((v for s in series for v in s.x), default=0.0)
            if axis != "rounds" and most <= 0:
                continue
            what = f"{title(quantity)} {name} for each setting"
            chart = charts.lines(series, x_axis(axis, most), y_axis(quantity), what)
            figures.append(page.figure(title(quantity), chart))
        if figures:
            panels.append((name, page.pair(*figures)))
    lead = (
        "Bands are one standard deviation over seeds."
        if any(len(g.runs) > 1 for g in groups)
        else ""
    )
    if len(groups) > _MOST_CURVES:
        lead += f" The first {_MOST_CURVES} of {len(groups)} settings are drawn."
    return page.section("How they learned", lead, page.tabs(panels))


def cup(points: Sequence[Mapping[str, Any]]) -> str:
    """Communication, utility and privacy in one picture. points: with name, bytes, value, metric,
    epsilon (None: not known here) and whether they are private."""
    if not points:
        return ""
    known = [p["epsilon"] for p in points if p["epsilon"] is not None]
    most = max(known, default=0.0)
    shown, marks = [], []
    for p in points:
        spent = f"epsilon {number(p['epsilon'], 3)}"
        if p["epsilon"] is None:
            spent = "epsilon: only sites know it" if p["private"] else "not private"
        said = f"{p['name']}: {metric(p['metric'], p['value'])}, {size(p['bytes'])} sent, {spent}"
        shown.append((max(float(p["bytes"]), 1.0), float(p["value"]), said))
        dark = None if p["epsilon"] is None else p["epsilon"] / most if most else 0.0
        marks.append((p["name"], dark))
    measured, largest = points[0]["metric"], max(x for x, _, _ in shown)
    x, what = (
        Axis("sent, all sites", byte_unit(largest / 10), log=True),
        "metric against bytes sent",
    )
    chart = charts.dots(shown, x, y_axis(measured), what, height=320, marks=marks)
    lead = (
        "A dot is a run: further up is better, further left is cheaper, paler is more private; "
        "diamonds have no epsilon that is known here. Of simulated studies it is not valid for "
        "release."
    )
    return page.section("Communication, utility, privacy", lead, chart)


def _runs(runs: Sequence[RunFolder], measured: str, where: Path | None) -> str:
    rows = []
    for run in runs:
        report = run.path / "report.html"
        label = text(run.label)
        if where is not None and report.is_file():
            link = quote(Path(os.path.relpath(report, where)).as_posix())
            label = f'<a href="{text("./" + link)}">{label}</a>'
        rows.append(
            (
                label,
                text(run.seed if run.seed is not None else "–"),
                text(run.status),
                text(metric(measured, run.final(measured))),
                number(run.rounds),
                size(run.bytes_sent),
                duration(run.seconds),
            )
        )
    head = [
        ("run", False), ("seed", True), ("status", False), (title(measured), True),
        ("rounds", True), ("sent", True), ("time", True),
    ]  # fmt: skip
    listing = page.table(head, rows)
    if len(rows) > 12:
        listing = f"<details><summary>{count(len(rows), 'run')}</summary>{listing}</details>"
    return page.section("Every run", "", listing)
