"""Sections of the reports of sweeps and of searches for what to freeze."""

from __future__ import annotations

from typing import Any

from cupola.base.formatting import (
    PLAIN,
    byte_unit,
    count,
    finite,
    metric,
    number,
    size,
    text,
    title,
)
from cupola.pages import charts, page
from cupola.pages.charts import Axis
from cupola.training.report_sections import y_axis


def sweep_section(summary: dict[str, Any]) -> str:
    """Validation score against every key that was varied, and the ranking."""
    measured = str(summary["metric"])
    trials = [t for t in summary["trials"] if finite(t["score"])]
    rungs = summary["rungs"]
    lead = (
        f"{count(len(summary['trials']), 'setting')}, strategy {summary['strategy']}, "
        f"{number(summary['rounds'])} rounds in all; chosen by {measured} on validation data."
    )
    if len(rungs) > 1:
        steps = ", then ".join(f"{r['trials']} to round {r['rounds']}" for r in rungs)
        lead += f" Halving: {steps}."
    best = summary["best"]
    figures = [
        page.figure(str(axis["key"]), _against(axis, trials, measured)) for axis in summary["over"]
    ]
    front, costs = summary.get("front", []), summary.get("objectives", [])[1:]
    rows = [
        (
            text(t["label"]) + (" (best)" if best and t["label"] == best["label"] else ""),
            text(metric(measured, t["score"]) if finite(t["score"]) else t["reason"] or "not run"),
            *(cost(name, t[name]) for name in costs),
            *([f"front: {_number(t)}" if t["label"] in front else ""] if costs else []),
            number(t["rounds"]),
        )
        for t in summary["trials"]
    ]
    head = [("setting", False), (f"{title(measured)}, validation", True)]
    head += [(name, True) for name in costs] + ([("", False)] if costs else []) + [("rounds", True)]
    ranking = page.table(head, rows)
    if len(rows) > 12:
        ranking = f"<details><summary>All {len(rows)} settings</summary>{ranking}</details>"
    crown = ""
    if best:
        score = metric(measured, best["score"])
        crown = page.numbers(
            [(str(k), number(v) if finite(v) else str(v), "best setting")
             for k, v in best["settings"].items()]
            + [(f"{title(measured)} on validation data", score, "of the best setting")]
        )  # fmt: skip
    pareto = _pareto(trials, front, measured, costs) if costs else ""
    return page.section("The sweep", lead, crown, pareto, page.pair(*figures), ranking)


def cost(name: str, value: Any) -> str:
    """What a trial sent or spent."""
    return size(value) if name == "bytes" else number(value, 3)


def _pareto(trials: list[dict[str, Any]], front: list[str], measured: str, costs: list[str]) -> str:
    """Score against the first cost; the second as shade. Diamonds: the Pareto front."""
    across, shade = costs[0], costs[1] if len(costs) > 1 else None
    shown = [t for t in trials if finite(t[across])]
    most = max((t[across] for t in shown), default=1.0)
    least = min((t[across] for t in shown), default=1.0)
    darkest = max((t[shade] or 0.0 for t in shown), default=0.0) if shade else 0.0
    points, marks = [], []
    for t in shown:
        spent = ", ".join(f"{name} {cost(name, t[name])}" for name in costs)
        points.append(
            (t[across], t["score"], f"{t['label']}: {metric(measured, t['score'])}, {spent}")
        )
        named = t["label"] in front
        dark = t[shade] / darkest if shade and darkest and finite(t[shade]) else 0.35
        marks.append((_number(t) if named else "", None if named else dark))
    unit = byte_unit(most) if across == "bytes" else PLAIN
    name = "sent, all sites" if across == "bytes" else across
    axis = Axis(name, unit, log=least > 0 and most / least > 8)
    joined = [i for i, t in enumerate(shown) if t["label"] in front] if not shade else []
    what = f"{title(measured)} against {' and '.join(costs)}"
    chart = charts.dots(points, axis, y_axis(measured), what, height=320, marks=marks, front=joined)
    settings = "; ".join(f"{_number(t)}: {t['label']}" for t in shown if t["label"] in front)
    note = f"Diamonds: no other trial is as good in every objective and better in one. {settings}."
    if shade:
        note += f" Of the others, the darker the more {shade}."
    return page.figure(f"{what}: the Pareto front", f'{chart}<p class="note">{text(note)}</p>')


def _number(trial: dict[str, Any]) -> str:
    """Of a trial, from its folder."""
    return str(int(trial["folders"][0].split("-")[1]))


def _against(axis: dict[str, Any], trials: list[dict[str, Any]], measured: str) -> str:
    """Score against one key; numbers on a scale (logarithmic if wide), words side by side."""
    key = str(axis["key"])
    values = [t["settings"].get(key) for t in trials]
    tips = [f"{t['label']}: {metric(measured, t['score'])}" for t in trials]
    numeric = bool(values) and all(finite(v) for v in values)
    if numeric:
        positive = min(values) > 0
        log = positive and (bool(axis.get("log")) or max(values) / min(values) > 15)
        points = [(float(v), t["score"], tip) for v, t, tip in zip(values, trials, tips)]
        return charts.dots(points, Axis(key, log=log), y_axis(measured), key, best=0)
    names = list(dict.fromkeys(str(v) for v in axis["values"] or values))
    places = {name: float(i) for i, name in enumerate(names)}
    points = [(places[str(v)], t["score"], tip) for v, t, tip in zip(values, trials, tips)]
    return charts.dots(points, Axis(key), y_axis(measured), key, names, best=0)


def search_section(summary: dict[str, Any]) -> str:
    """Validation score against bytes sent, and what became of every trial."""
    measured, best = str(summary["metric"]), summary["best"]
    shown = [t for t in summary["trials"] if finite(t["score"]) and finite(t["bytes"])]
    most = max((t["bytes"] for t in shown), default=1.0)
    points = [
        (t["bytes"], t["score"], f"{frozen(t)}: {metric(measured, t['score'])}, {size(t['bytes'])}")
        for t in shown
    ]
    place = next((i for i, t in enumerate(shown) if best and t["freeze"] == best["freeze"]), None)
    log = bool(shown) and most / min(t["bytes"] for t in shown) > 8
    axis = Axis("sent, all sites", byte_unit(most), log=log)
    what = f"{title(measured)} against bytes"
    chart = charts.dots(points, axis, y_axis(measured), what, best=place)
    rows = [
        (
            text(frozen(t)),
            f"{100 * t['trainable']:.2f} %",
            text(metric(measured, t["score"]) if finite(t["score"]) else t["reason"] or "not run"),
            size(t["bytes"]),
            ("best" if best and t["freeze"] == best["freeze"] else "as good")
            if t["accepted"]
            else "worse",
        )
        for t in summary["trials"]
    ]
    head = [
        ("frozen", False), ("trained", True), (f"{title(measured)}, validation", True),
        ("bytes", True), ("", False),
    ]  # fmt: skip
    lead = (
        f"{count(len(rows), 'trial')}, {number(summary['rounds'])} of {number(summary['budget'])} "
        f"rounds; as good means at most {summary['tolerance']:g} worse than the first on "
        f"validation data. It ended because {summary['ended']}."
    )
    return page.section(
        "What can be frozen",
        lead,
        page.figure(what, chart),
        page.table(head, rows),
    )


def frozen(trial: dict[str, Any]) -> str:
    """What a trial froze, in a few words."""
    return ", ".join(trial["freeze"]) or "nothing"
