"""The report of one run: what came out, what it cost, who learned what."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from cupola.base.formatting import (
    LOWER_IS_BETTER,
    SHARES,
    Unit,
    byte_unit,
    count,
    duration,
    finite,
    metric,
    metric_unit,
    number,
    size,
    text,
    time_unit,
    title,
)
from cupola.pages import charts, page
from cupola.pages.any_run import ledger_section, plan_section, traffic, trouble
from cupola.pages.charts import Axis, Line
from cupola.pages.folder import AXES, SPLITS, RunFolder
from cupola.training.border_picture import border_section
from cupola.training.label_section import label_section
from cupola.training.personalise.personal_section import personal_section
from cupola.training.privacy_section import headline as privacy_headline
from cupola.training.privacy_section import is_private, privacy_section

_TAB = {"rounds": "by round", "bytes": "by bytes sent", "time": "by time"}


def sections(run: RunFolder) -> list[str]:
    """What a report says, part by part, as HTML."""
    return [
        trouble(run),
        _headline(run),
        _learning(run),
        personal_section(run) if (run.path / "personal.json").is_file() else "",
        privacy_section(run) if run.result.get("privacy") else "",
        _twin(run),
        holdings(run),
        traffic(run),
        ledger_section(run),
        _confusion(run),
        border_section(run),
        label_section(run),
        _per_site(run),
        _failures(run),
        plan_section(run),
    ]


def chips(run: RunFolder) -> list[tuple[str, str]]:
    """Recipe, data, model and seed."""
    data, model = run.plan.get("data"), run.plan.get("model")
    return [
        (run.recipe, ""),
        (f"data: {run.result.get('data') or _name(data)}", ""),
        (f"model: {run.result.get('model') or _name(model)}", ""),
        (f"seed {run.seed}" if run.seed is not None else "", ""),
    ]


def in_short(run: RunFolder) -> dict[str, Any]:
    """A finished run in a few numbers: what lists and the comparison show."""
    spent, value = run.result.get("privacy") or {}, run.final()
    said = f"{run.metric} {metric(run.metric, value)}"
    if spent.get("epsilon") is not None:
        said += f", epsilon {number(spent['epsilon'])} ({spent.get('neighbours')})"
    return {
        "said": said,
        "metric": run.metric,
        "value": value,
        "rounds": run.rounds,
        "bytes": run.bytes_sent,
        "seconds": run.result.get("seconds"),
        "epsilon": spent.get("epsilon"),
        "neighbours": spent.get("neighbours"),
        "unit": spent.get("unit"),
        "private": is_private(run.plan),
        "recipe": run.recipe,
        "data": run.result.get("data"),
        "model": run.result.get("model"),
        "sites": run.result.get("sites"),
    }


def _name(value: Any) -> str:
    return str(value.get("name", "–") if isinstance(value, dict) else value or "–")


def _headline(run: RunFolder) -> str:
    name = run.metric
    best = run.best()
    place = SPLITS.get(run.split or "", "not measured")
    free = sum("upcycled" in r for r in run.history)  # made by the coordinator alone
    planned = run.plan.get("rounds")
    rounds = [f"of {number(planned)} planned"] if planned else []
    rounds += [f"{number(free)} without sites"] if free else []
    last = run.totals
    per_round = run.seconds / run.rounds if finite(run.seconds) and run.rounds else None
    sites = run.result.get("sites") or run.partition.get("sites")
    low = "lowest" if name in LOWER_IS_BETTER else "highest"
    items = [
        (
            f"{title(name)}, at the end",
            metric(name, run.final()),
            f"on {place}; {low} {metric(name, best)}" if best is not None else place,
        ),
        ("Rounds", number(run.rounds), "; ".join(rounds)),
        (
            "Bytes sent",
            size(run.bytes_sent),
            f"{size(last.get('bytes_down'))} to sites, {size(last.get('bytes_up'))} from sites"
            + (", personalisation included" if run.result.get("personal") else ""),
        ),
        ("Time", duration(run.seconds), f"{duration(per_round)} a round" if per_round else ""),
    ]
    if (spent := privacy_headline(run)) is not None:
        items.insert(2, spent)
    if sites:
        came = next((r["sites"] for r in reversed(run.history) if r.get("sites")), 0)
        where = "training round" if free else "round"
        items.append(("Sites", number(sites), f"{number(came)} in the last {where}"))
    if run.result.get("parameters"):
        whole, trained = run.result["parameters"], run.result.get("trainable")
        part = f"{100 * trained / whole:.2f} % of them trained" if finite(trained) else ""
        items.append(("Parameters", number(whole), "in the model" if trained == whole else part))
    return page.numbers(items)


def x_axis(axis: str, most: float) -> Axis:
    if axis == "bytes":
        return Axis("sent, all sites", byte_unit(most), zero=True)
    if axis == "time":
        return Axis("time", time_unit(most), zero=True)
    return Axis("round", zero=True)


def y_axis(name: str) -> Axis:
    top = 1.0 if name in SHARES or name == "r2" else None
    return Axis(title(name), metric_unit(name), top=top)


def _learning(run: RunFolder) -> str:
    """Metric and loss against rounds, bytes and time."""
    shown = [run.metric] if run.metric == "loss" else [run.metric, "loss"]
    panels = []
    for axis, name in _TAB.items():
        at = AXES[axis]
        figures = []
        for measured in shown:
            series: list[Line] = []
            for split, place in SPLITS.items():
                if curve := run.curve(measured, split):
                    colour = len(series)
                    x, y = [at(r) for r, _ in curve], [v for _, v in curve]
                    series.append(Line(place, x, y, colour=colour))
            if run.twin and axis == "rounds" and (curve := run.twin.curve(measured)):
                x, y = [at(r) for r, _ in curve], [v for _, v in curve]
                series.append(Line("centralised twin", x, y, dashed=True, colour=7))
            most = max((v for s in series for v in s.x), default=1.0)
            if axis != "rounds" and most <= 0:
                continue
            what = f"{title(measured)} {name} of {run.name}"
            chart = charts.lines(series, x_axis(axis, most), y_axis(measured), what)
            figures.append(page.figure(title(measured), chart))
        if figures:
            panels.append((name, page.pair(*figures)))
    return page.section("How it learned", "", page.tabs(panels))


def _twin(run: RunFolder) -> str:
    twin, facts = run.twin, run.result.get("twin")
    if twin is None:
        return ""
    name = run.metric
    ours, theirs = dict(_by_round(run, name)), dict(_by_round(twin, name))
    common = [r for r in ours if r in theirs]
    gap = [ours[r] - theirs[r] for r in common]
    items = [
        (f"{title(name)}, federated", metric(name, run.final()), ""),
        (f"{title(name)}, centralised", metric(name, twin.final()), ""),
    ]
    if gap:
        most = max(gap, key=abs)
        items.append(("Difference at the end", _gap(name, gap[-1]), "federated minus centralised"))
        items.append(("Largest difference", _gap(name, most), f"of {count(len(gap), 'round')}"))
    parts = [page.numbers(items)]
    if gap:
        unit = Unit(0.01, "points") if name in SHARES else Unit()
        axis = Axis("federated − centralised", unit)
        line = Line("difference", common, gap)
        chart = charts.lines([line], x_axis("rounds", 1), axis, "difference to the twin", 240, True)
        parts.append(page.figure("Difference by round", chart))
    if isinstance(facts, dict):
        more = [
            (str(k).replace("_", " "), number(v) if finite(v) else str(v))
            for k, v in facts.items()
            if not isinstance(v, dict | list)
        ]
        parts.append(page.facts(more))
    lead = "The same training on pooled data at one place: what federation costs in utility."
    return page.section("Against the centralised twin", lead, *parts)


def _gap(name: str, value: float) -> str:
    return f"{100 * value:+.3g} points" if name in SHARES else f"{value:+.3g}"


def _by_round(run: RunFolder, name: str) -> list[tuple[float, float]]:
    return [(AXES["rounds"](r), v) for r, v in run.curve(name)]


def holdings(run: RunFolder) -> str:
    """Who holds what: samples per site, and per class where there are classes."""
    sizes = [float(v) for v in run.partition.get("sizes") or [] if finite(v)]
    counts = _matrix(run.partition.get("counts"))
    if not sizes and counts is not None:
        sizes = counts.sum(1).tolist()
    if not sizes:
        return ""
    sites = run.partition.get("sites")
    sites = int(sites) if finite(sites) else len(sizes)
    low, middle, high = np.percentile(sizes, [0, 50, 100])
    held = number(int(low))
    if low == high:
        lead = f"{count(sites, 'site')} with {held} training samples each."
    else:
        held = f"{held} to {number(int(high))} training samples, median {number(float(middle))}"
        lead = f"{count(sites, 'site')} with {held}."
    if empty := sum(v == 0 for v in sizes):
        lead += f" {count(empty, 'site')} empty."
    most = 100
    if sites > most:
        lead += f" The first {min(most, len(sizes))} are drawn."
    known = run.partition.get("names")
    names = [str(i) for i in range(len(sizes))]
    if isinstance(known, list):
        names[: len(known)] = [str(n).removeprefix("site ") for n in known][: len(names)]
    names = names[:most]
    bars = charts.bars(
        names, [("samples", sizes[:most])], Axis("training samples"), "site", "samples per site"
    )
    figures = [page.figure("Samples at each site", bars)]
    if counts is not None and counts.shape[1] > 1:
        classes = [str(c) for c in run.partition.get("classes") or range(counts.shape[1])]
        classes += [str(c) for c in range(len(classes), counts.shape[1])]
        shown = counts[: len(names)].T
        chart = charts.heat(
            shown, classes, names[: shown.shape[1]], "class", "site",
            "training samples of each class at each site",
        )  # fmt: skip
        figures.append(page.figure("Classes at each site (darker: more)", chart))
    return page.section("Who holds what", lead, page.pair(*figures))


def _matrix(value: Any) -> np.ndarray | None:
    try:
        table = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        return None
    good = table.ndim == 2 and table.size and np.isfinite(table).all() and (table >= 0).all()
    return table if good else None


def _confusion(run: RunFolder) -> str:
    """The confusion matrix, where the run kept it (in its result or last judged record)."""
    held: list[Any] = [run.result.get("confusion")]
    for record in reversed(run.history):
        held += [record[s].get("confusion") for s in SPLITS if isinstance(record.get(s), dict)]
        if any(h is not None for h in held):
            break
    table = next((t for h in held if (t := _matrix(h)) is not None), None)
    if table is None or table.shape[0] != table.shape[1]:
        return ""
    names = [str(c) for c in run.partition.get("classes") or []]
    names += [str(c) for c in range(len(names), len(table))]
    names = names[: len(table)]
    few = len(table) <= 20
    chart = charts.heat(
        table, names, names, "true class", "predicted", "confusion matrix", few, few
    )
    held_of = table.sum(1)
    right = np.divide(np.diag(table), held_of, out=np.zeros(len(table)), where=held_of > 0)
    found = [("found", right.tolist())]
    recall = charts.bars(
        names, found, Axis("found", Unit(0.01, "%")), "class", "recall by class", 300
    )
    lead = "Rows are the truth, columns what the model said; the diagonal is right."
    return page.section(
        "Right and wrong",
        lead,
        page.pair(
            page.figure("Confusion matrix", chart),
            page.figure("Share of each class that was found", recall),
        ),
    )


def _per_site(run: RunFolder) -> str:
    """Spread of the metric over sites, where sites gave their own numbers."""
    record = next((r for r in reversed(run.history) if isinstance(r.get("per_site"), dict)), None)
    if record is None:
        return ""
    found = [
        (str(site), m.get(run.metric))
        for site, m in record["per_site"].items()
        if isinstance(m, dict)
    ]
    rows = sorted(((s, float(v)) for s, v in found if finite(v)), key=lambda row: row[1])
    if not rows:
        return ""
    values = [v for _, v in rows]
    low, tenth, middle, high = np.percentile(values, [0, 10, 50, 100])
    shown = [("lowest", low), ("10th percentile", tenth), ("median", middle), ("highest", high)]
    places = list(range(1, len(rows) + 1))
    line = Line("site", places, values, steps=False)
    axis = Axis("sites, from worst to best")
    chart = charts.lines([line], axis, y_axis(run.metric), "metric of each site, sorted", 240, True)
    lead = (
        f"{title(run.metric)} on each site's own held-out data after round "
        f"{number(record.get('round'))}. Sites revealed these numbers (opt-in)."
    )
    summary = page.numbers([(n.capitalize(), metric(run.metric, float(v)), "") for n, v in shown])
    return page.section("Spread over sites", lead, summary, chart)


def _failures(run: RunFolder) -> str:
    """Sites that gave no usable answer, by round and reason."""
    failed = [r for r in run.history if isinstance(r.get("failed"), dict) and r["failed"]]
    if not failed:
        lead = "Every site that was asked has answered." if run.history else ""
        return page.section("Failures", lead) if lead else ""
    totals: Counter[str] = Counter()
    for record in failed:
        totals.update({str(c): int(n) for c, n in record["failed"].items() if finite(n)})
    codes = [c for c, _ in totals.most_common(charts.COLOURS)]
    width = max(1, -(-len(run.history) // 80))  # rounds per bar
    blocks = [run.history[i : i + width] for i in range(0, len(run.history), width)]
    names = [str(b[0].get("round", "")) for b in blocks]
    stacks = [
        (c, [float(sum((r.get("failed") or {}).get(c, 0) for r in b)) for b in blocks])
        for c in codes
    ]
    chart = charts.bars(names, stacks, Axis("sites failed"), "round", "failed answers by round")
    rows = [(text(c), number(n)) for c, n in totals.most_common()]
    lead = (
        f"{count(sum(totals.values()), 'answer')} failed in {count(len(failed), 'round')} of "
        f"{number(len(run.history))}; the rounds went on with the others."
    )
    listing = page.table([("reason", False), ("times", True)], rows)
    return page.section("Failures", lead, page.pair(page.figure("", chart), listing))
