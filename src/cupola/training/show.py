"""What is printed of a training run at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cupola.base.formatting import count, duration, epsilon, main_metric, metric, number, size

if TYPE_CHECKING:
    from rich.table import Table

    from cupola.analysis.run_folder import Run


def show(run: Run, quiet: bool) -> list[Any]:
    """Lines, and what `rich` prints."""
    result = run.result
    final = result.get("final") or {}
    judged = main_metric(final) or "not evaluated (`cupola check` tells why)"
    sent = size(result.bytes_down + result.bytes_up)
    found: list[Any] = [
        f"{result.rounds} rounds, {judged}, {sent} sent, {duration(result.seconds)}"
    ]
    if spent := result.privacy:
        unit = "a site" if spent.unit == "site" else "an example, at the site that spent most"
        found.append(
            f"epsilon {epsilon(spent.epsilon)} at delta {spent.delta:g} "
            f"({spent.neighbours}) for {unit} ({spent.status})"
        )
    if result.reason:
        found.append(f"stopped early: {result.reason}")
    if result.personal:
        found.append(_methods(result["personal"]))
    if result.twin:
        found.append(f"centralised twin: {main_metric(result['twin'].get('final') or {})}")
    for code, n in (final.get("failed") or {}).items():
        found.append(f"[yellow]{count(n, 'site')} without answer:[/] {code}")
    return found if quiet else [*found, f"[dim]report:[/] {run.folder / 'report.html'}"]


def _methods(personal: dict[str, Any]) -> Table:
    """Personalisation: every method's mean over sites, and who gained or lost by it."""
    from rich.table import Table

    from cupola.training.personalise.personal_section import METHODS

    name, groups = personal["metric"], personal.get("groups") or {}
    said = "personalisation"
    if groups:
        said += f": {count(groups['number'], 'group')}"
    if groups.get("ari") is not None:
        said += f", adjusted Rand index {groups['ari']:.3g}"
    table = Table(title=said, title_justify="left")
    table.add_column("")
    for column in (f"{name}, mean over sites", "worst tenth", "gained", "lost"):
        table.add_column(column, justify="right")
    for method, facts in personal["methods"].items():
        table.add_row(
            METHODS.get(method, method),
            metric(name, facts.get("test")),
            metric(name, facts.get("worst")),
            number(facts.get("better")),
            number(facts.get("worse")),
        )
    return table
