"""Personalisation in a report: groups against known types, heat maps, accuracy before and after."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupola.base.chain import read_json
from cupola.base.formatting import (
    LOWER_IS_BETTER,
    count,
    finite,
    metric,
    metric_unit,
    number,
    size,
    text,
    title,
)
from cupola.pages import charts, page
from cupola.pages.charts import Axis, Line
from cupola.pages.folder import RunFolder

METHODS = {
    "federated": "federated model as it is",
    "pfa": "PFA: groups of similar sites",
    "random": "random groups",
    "finetune": "fine-tuning alone",
    "distill": "distillation alone",
    "ewc": "EWC alone",
    "scratch": "from scratch, alone",
    "ditto": "Ditto: all sites, and a model of its own beside",
    "pfedme": "pFedMe: all sites, Moreau envelopes",
    "fedper": "FedPer: all sites, last layers stay",
    "fedrep": "FedRep: all sites, last layers stay, trained first",
    "fedbn": "FedBN: all sites, normalisation stays",
}
_MOST = 60  # sites with a row of their own


def personal_section(run: RunFolder) -> str:
    """Everything about personalisation; nothing where a run has none."""
    found = _read(run)
    if not found:
        return ""
    parts = [_methods(found)]
    groups = found.get("groups")
    if isinstance(groups, dict):
        parts += [_groups(groups), _heat(groups), _curve(groups)]
    parts += [_sites(found), _history(found)]
    chosen = (
        "Models were chosen on validation data of the sites; test data chose nothing."
        if found.get("selection") == "validation"
        else "Without validation data at the sites the last model of every method counts."
    )
    last = found.get("last_round")
    if last and found.get("selection") == "validation":
        chosen += f" Of {', '.join(last)} the last round counts: sites keep no earlier models."
    lead = f"From the federated model to one for each site. {chosen}"
    return page.section("Personalisation", lead, *parts)


def _read(run: RunFolder) -> dict[str, Any]:
    try:
        found = read_json(run.path / "personal.json")
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and found.get("methods") else {}


def _methods(found: dict[str, Any]) -> str:
    name = found["metric"]
    rows = []
    for method, facts in found["methods"].items():
        rows.append(
            (
                text(METHODS.get(method, method)),
                metric(name, facts.get("test")),
                metric(name, facts.get("worst")),
                metric(name, facts.get("validation")),
                *(number(facts[k]) if k in facts else "–" for k in ("better", "worse", "sites")),
                size(facts["bytes_down"] + facts["bytes_up"]) if "bytes_up" in facts else "–",
            )
        )
    head = [
        ("method", False), (f"{title(name)} on test data, mean over sites", True),
        ("worst tenth of sites", True), ("on validation data", True),
        ("sites that gained", True), ("that lost", True), ("sites", True),
        ("sent to adapt, all sites", True),
    ]  # fmt: skip
    told = [
        (text(METHODS.get(method, method)), text("; ".join(facts["reveals"])))
        for method, facts in found["methods"].items()
        if facts.get("reveals")
    ]
    revealed = page.table(
        [("method", False), ("what its answers told the coordinator", False)], told
    )
    return page.figure("Methods", page.table(head, rows)) + (
        page.figure("What each method revealed", revealed) if told else ""
    )


def _groups(groups: dict[str, Any]) -> str:
    items = [
        ("Groups", number(groups["number"]), f"sizes {', '.join(map(str, groups['sizes'][:12]))}"),
        (
            "Vector of a site",
            size(groups["vector_bytes"]),
            f"{count(sum(groups['channels']), 'number')}; layer {groups['layers'][0]}",
        ),
    ]
    if finite(groups.get("ari")):
        items.append(
            (
                "Adjusted Rand index",
                number(groups["ari"]),
                f"against the known types; random groups {number(groups['random']['ari'])}",
            )
        )
        items.append(("Sites in the right group", f"{100 * groups['matched']:.3g} %", ""))
    if groups["left_over"]:
        remark = f"in groups below the minimum of {groups['minimum']}; they did not train together"
        items.append(("Sites left over", number(groups["left_over"]), remark))
    release = groups.get("release")
    if release:
        said = f"at delta {release['delta']:g}, {release['neighbours']}; {release['status']}"
        items.append(("Epsilon of a site's vector", number(release["epsilon"]), said))
    else:
        items.append(("Protection of the vectors", "none", "exact shares: no formal guarantee"))
    parts = [page.numbers(items)]
    types = groups.get("types")
    if types:
        labels = np.array(list(groups["labels"].values()))
        kinds = sorted(set(types))
        table = np.array(
            [
                [np.sum((labels == g) & (np.array(types) == t)) for g in range(groups["number"])]
                for t in kinds
            ],
            float,
        )[:, :_MOST]
        chart = charts.heat(
            table, [str(t) for t in kinds], [str(g) for g in range(table.shape[1])],
            "type", "group", "sites of each type in each group", numbers=True,
        )  # fmt: skip
        parts.append(page.figure("Types of sites and the groups they came into", chart))
    return "".join(parts)


def _heat(groups: dict[str, Any]) -> str:
    """Distances between sites, a tab for every layer and number of channels."""
    panels = []
    for part in groups.get("heat", []):
        names = [str(s) for s in part["sites"]]
        table = np.array(part["distances"], float)
        chart = charts.heat(
            table, names, names, "site", "site", "distances of vectors", square=True
        )
        facts = [("mean sparsity", number(part["mean_sparsity"]))]
        if finite(part.get("ari")):
            facts.append(("adjusted Rand index", number(part["ari"])))
        if finite(part.get("separation")):
            facts.append(("distance between types over within", number(part["separation"])))
        label = f"layer {part['layer']}, {part['channels']} channels"
        panels.append((label, chart + page.facts(facts)))
    if not panels:
        return ""
    return page.figure("Distances between sites (darker: farther)", page.tabs(panels))


def _curve(groups: dict[str, Any]) -> str:
    points = groups.get("curve") or []
    if not points:
        return ""
    x = [float(np.log10(p["epsilon"])) for p in points]
    lines = [
        Line("adjusted Rand index", x, [p["ari"] for p in points]),
        Line("sites in the right group", x, [p["matched"] for p in points], colour=1),
    ]
    chart = charts.lines(
        lines, Axis("log10 of epsilon (replace-one) of a site's vector"),
        Axis("agreement with types", top=1.0),
        "groups against epsilon",
    )  # fmt: skip
    return page.figure("What noise on the vectors would do to the groups", chart)


def _sites(found: dict[str, Any]) -> str:
    """Every site before and after, by method."""
    name, methods = found["metric"], list(found["sites"])
    sites = list(found["sites"].get("federated", {}))[:_MOST]
    names = found.get("names") or []
    labels = (found.get("groups") or {}).get("labels", {})
    rows = []
    for site in sites:
        values = [found["sites"][m].get(site, {}).get("test") for m in methods]
        known = [v for v in values if finite(v)]
        best = (min if name in LOWER_IS_BETTER else max)(known) if known else None
        cells = [
            f"<b>{metric(name, v)}</b>" if v == best and finite(v) else metric(name, v)
            for v in values
        ]
        own = names[int(site)] if int(site) < len(names) else site
        rows.append((text(own), text(labels.get(site, "–")), *cells))
    if not rows:
        return ""
    head = [("site", False), ("group", True), *((m, True) for m in methods)]
    more = f" (the first {_MOST})" if len(found["sites"]["federated"]) > _MOST else ""
    return page.figure(
        f"{title(name)} of every site on its test data{more}", page.table(head, rows)
    )


def _history(found: dict[str, Any]) -> str:
    """Validation metric of the groups while they train."""
    name = found["metric"]
    series: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for row in found.get("history", []):
        value = row.get("validation", {}).get(name)
        if finite(value):
            series.setdefault((row["method"], row["group"]), []).append((row["round"], value))
    drawn = [
        Line(
            m if g < 0 else f"{m}, group {g}",
            [r for r, _ in p],
            [v for _, v in p],
            colour=i % 8,
            dashed=m != "pfa",
        )
        for i, ((m, g), p) in enumerate(list(series.items())[:16])
    ]
    if not drawn:
        return ""
    chart = charts.lines(
        drawn, Axis("round of adaptation", zero=True), Axis(title(name), metric_unit(name)),
        "groups while they adapt",
    )  # fmt: skip
    return page.figure(f"{title(name)} on validation data while groups adapt", chart)
