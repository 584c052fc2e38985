"""What a run spent in privacy: epsilon by site, how it grew, and what nothing protected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cupola.base.formatting import count, epsilon, number, text
from cupola.pages import charts, page
from cupola.pages.charts import Axis, Line
from cupola.pages.folder import RunFolder
from cupola.training.mechanisms import mechanism_named

_LISTED = 12  # groups of sites in the table


def headline(run: RunFolder) -> tuple[str, str, str] | None:
    """The number at the top of a report."""
    spent = run.result.get("privacy")
    if not spent:
        return None
    where = "at the site that spent most" if spent["unit"] == "example" else "for every site"
    about = f"delta {spent['delta']:g}, {spent['neighbours']}, {where}"
    return ("Epsilon", epsilon(spent["epsilon"]), about)


def is_private(plan: Mapping[str, Any]) -> bool:
    """Whether a run's plan has a mechanism that hides something."""
    choice = plan.get("privacy")
    return isinstance(choice, Mapping) and mechanism_named(choice).on


def heading(rows: Sequence[Mapping[str, Any]]) -> str:
    """Of a table's column of epsilons: with the neighbours they hold for, if all are alike."""
    said = {row["neighbours"] for row in rows if row["epsilon"] is not None}
    return f"epsilon ({said.pop()})" if len(said) == 1 else "epsilon"


def cell(row: Mapping[str, Any], column: str) -> str:
    """A row's epsilon under that heading; with its neighbours where the heading names none."""
    said = epsilon(row["epsilon"])
    return f"{said} ({row['neighbours']})" if column == "epsilon" else said


def privacy_section(run: RunFolder) -> str:
    spent = run.result.get("privacy")
    if not spent:
        return ""
    noise = "" if spent["noise"] is None else f" with noise multiplier {spent['noise']:.4g}"
    clip = "" if spent["clip"] is None else f", clip {spent['clip']:g}"
    lead = (
        f"Mechanism {spent['mechanism']}{noise}{clip}. It hides "
        f"{mechanism_named(spent).hides}; data sets count as neighbours by {spent['neighbours']}. "
        f"Epsilon is at delta {spent['delta']:g}, composed over all that was asked."
    )
    alert = f'<p class="alert">{text(spent["status"].capitalize())}.</p>'
    rows = [
        (epsilon(group["epsilon"]), number(group["sites"]), text(_events(group["events"])))
        for group in spent["groups"][:_LISTED]
    ]
    head = [("epsilon", False), ("sites", True), ("what they were charged for", False)]
    parts = [alert, _course(spent), page.table(head, rows)]
    more = len(spent["groups"]) - _LISTED
    if more > 0:
        parts.append(f"<p>{more:,} more groups of sites spent less; result.json lists them.</p>")
    told = spent["unprotected_answers"]
    if told:
        named = ", ".join(f"{number(n)} to '{text(task)}'" for task, n in told.items())
        parts.append(f"<p>Answers that nothing protects: {named}.</p>")
    return page.section("Privacy spent", lead, *parts)


def _course(spent: dict[str, Any]) -> str:
    points = [(r, e) for r, e in spent.get("course", []) if e is not None]
    if len(points) < 2:
        return ""
    line = Line("epsilon", [r for r, _ in points], [e for _, e in points])
    x, y = Axis("share of the run", zero=True), Axis("epsilon", zero=True)
    return charts.lines([line], x, y, "epsilon as the run went on", wide=True)


def _events(events: list[dict[str, Any]]) -> str:
    """Charges in words."""
    words = []
    for event in events:
        times = count(int(event.get("count", 1)), "time")
        if event["kind"] == "sampled-gaussian":
            words.append(f"Gaussian noise {event['noise']:.4g} on a {event['rate']:.3%} sample, "
                         f"{times}")  # fmt: skip
        elif event["kind"] == "gaussian":
            words.append(f"Gaussian noise {event['noise']:.4g}, {times}")
        elif event["kind"] == "concentrated":
            words.append(f"zCDP with rho {event['rho']:.4g}, {times}")
        else:
            words.append(f"{event['kind']}, epsilon {event.get('epsilon', 0):.4g}, {times}")
    return "; ".join(words)
