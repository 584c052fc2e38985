"""The HTML around the charts: one file, nothing loaded from anywhere.

A content policy names the one script by its hash and forbids everything else, so that even text
that slipped through the escaping could not run or call home.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from cupola.base.formatting import text

_HERE = Path(__file__).parent
STYLE = _HERE / "style.css"
#: Hover values, tabs and legend. Without it every panel is shown and the curves are complete.
SCRIPT = "\n" + (_HERE / "report.js").read_text("utf-8")

_MARK = (
    '<svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.8" '
    'stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">'
    '<path d="M4 16a8 8 0 0 1 16 0M2.5 20h19M4 16h16M4 16v4M20 16v4M12 8V4M10.7 4h2.6'
    'M12 8c-2.6 2-3.4 5-3.4 8M12 8c2.6 2 3.4 5 3.4 8"/></svg>'
)


def page(title: str, kind: str, head: str, body: Iterable[str]) -> str:
    """A whole document. `title` and `kind` are plain text; `head` and `body` are HTML."""
    css = STYLE.read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)} · Cupola</title>\n<style>\n{css}</style>\n</head>\n<body>\n"
        f'<header><div class="inner"><div class="brand">{_MARK}<b>Cupola</b> {text(kind)}</div>'
        f"<h1>{text(title)}</h1>{head}</div></header>\n<main>\n"
        + "\n".join(part for part in body if part)
        + "\n</main>\n<footer>Self-contained: this file loads nothing and sends nothing.</footer>\n"
        f"<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def section(title: str, lead: str, *parts: str) -> str:
    """A titled card; `title` and `lead` are plain text."""
    said = f'<p class="lead">{text(lead)}</p>' if lead else ""
    return f"<section><h2>{text(title)}</h2>{said}{''.join(parts)}</section>"


def figure(title: str, chart: str) -> str:
    return f"<div><h3>{text(title)}</h3>{chart}</div>"


def pair(*figures: str) -> str:
    return f'<div class="pair">{"".join(figures)}</div>'


def tabs(panels: Sequence[tuple[str, str]]) -> str:
    """Panels of which one is shown at a time; all of them without scripts and in print."""
    inner = "".join(
        f'<div class="panel" data-tab="{text(name)}">{html}</div>' for name, html in panels
    )
    return f'<div class="tabbed">{inner}</div>'


def numbers(items: Sequence[tuple[str, str, str]]) -> str:
    """Headline figures as (name, value, remark)."""
    cells = "".join(
        f"<div><dt>{text(n)}</dt><dd>{text(v)}<small>{text(r)}</small></dd></div>"
        for n, v, r in items
    )
    return f'<dl class="numbers">{cells}</dl>'


def chips(items: Sequence[tuple[str, str]]) -> str:
    """Small labels as (text, kind); kind is '', good, warn or bad."""
    cells = "".join(f'<span class="chip {kind}">{text(t)}</span>' for t, kind in items if t)
    return f'<div class="chips">{cells}</div>'


def table(
    head: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]], stacked: bool = False
) -> str:
    """A table; head is (text, is a number), cells are HTML (escape them). stacked: on a phone a row
    is a block of labelled lines, so that nothing is beyond the edge."""
    labels = [f' data-label="{text(name)}"' if stacked else "" for name, _ in head]
    top = "".join(f'<th scope="col"{_n(number)}>{text(name)}</th>' for name, number in head)
    lines = []
    for row in rows:
        cells = [f'<th scope="row"{_n(head[0][1])}>{row[0]}</th>']
        cells += [
            f"<td{_n(number)}{label}>{cell}</td>"
            for cell, (_, number), label in zip(row[1:], head[1:], labels[1:])
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = "".join(lines)
    inner = f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
    kind = "table stacked" if stacked else "table"
    return f'<div class="{kind}"><table>{inner}</table></div>'


def facts(items: Iterable[tuple[str, str]]) -> str:
    cells = "".join(f"<div><dt>{text(k)}</dt><dd>{text(v)}</dd></div>" for k, v in items)
    return f'<dl class="facts">{cells}</dl>'


def _n(number: bool) -> str:
    return ' class="n"' if number else ""
