"""On what grounds each guarantee stands."""

from __future__ import annotations

from cupola.analysis.grounds import GROUNDS, MEANING
from parts.markdown import table


def grounds() -> str:
    marks = [f"- *{mark}*: {meaning}." for mark, meaning in MEANING.items()]
    ordered = sorted(GROUNDS, key=lambda ground: list(MEANING).index(ground.mark))
    rows = [
        [ground.guarantee, f"*{ground.mark}*", ", ".join(map(_where, ground.where))]
        for ground in ordered
    ]
    return "\n".join(marks) + "\n\n" + table(["guarantee", "mark", "where"], rows)


def _where(place: str) -> str:
    if place.startswith("docs/"):
        page = place.removeprefix("docs/")
        return f"[{page.partition('.md')[0]}]({page})"
    return f"`{place.removeprefix('src/cupola/')}`"


PARTS = {"grounds": grounds}
