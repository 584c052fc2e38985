"""Privacy figures of papers, as published and rigorous, recomputed."""

from __future__ import annotations

from cupola.privacy.published import Figure, figures, papers
from parts.markdown import table

NAMES = {
    "000": "Reprogrammable-FL",
    "001": "FedPT",
    "003": "Upcycled-FL",
    "004": "kernel normalisation",
}
HEAD = ["paper", "setting", "figure", "printed", "as published", "rigorous", "rigorous, by RDP"]


def privacy() -> str:
    """A row per figure, then the reasons, each once."""
    found = [figure for paper in papers() for figure in figures(paper)]
    reasons = dict.fromkeys((figure.paper, figure.reason) for figure in found)
    lines = [f"- {_name(paper)}{_which(found, reason)}: {reason}" for paper, reason in reasons]
    return "\n".join([table(HEAD, map(_row, found)), "", "Why they differ:", "", *lines])


def _row(figure: Figure) -> list[str]:
    return [
        _name(figure.paper),
        figure.what,
        figure.unit,
        _number(figure.printed),
        _number(figure.published),
        f"**{_number(figure.rigorous)}**",
        _number(figure.rdp),
    ]


def _which(found: list[Figure], reason: str) -> str:
    """The setting, where a paper's figures differ for different reasons."""
    own = [figure for figure in found if figure.reason == reason]
    same_paper = [figure for figure in found if figure.paper == own[0].paper]
    return "" if len(own) == len(same_paper) else f", {'; '.join(f.what for f in own)}"


def _name(paper: str) -> str:
    return NAMES.get(paper, paper)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


PARTS = {"published-privacy": privacy}
