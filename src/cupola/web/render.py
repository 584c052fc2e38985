"""Pages from templates; everything that is put into them is escaped."""

from __future__ import annotations

import time
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from cupola.base import formatting
from cupola.web.form_fields import as_html
from cupola.web.security_middleware import form_token

_WORDS = {
    "draft": "", "inviting": "warn", "queued": "warn", "running": "warn", "finished": "good",
    "joined": "good", "stopped": "", "failed": "bad", "declined": "bad", "left": "bad",
    "open": "", "asked": "warn",
}  # fmt: skip


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("cupola.web", "templates"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "size": formatting.size, "number": formatting.number, "times": formatting.times,
        "duration": formatting.duration, "moment": moment,
        "markdown": as_html, "metric": lambda v, name: formatting.metric(name, v),
        "tone": lambda status: _WORDS.get(status, ""), "count": formatting.count,
    }  # fmt: skip
    return made


def moment(seconds: float | None) -> str:
    """A time, in UTC."""
    if seconds is None:
        return "–"
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


_PAGES = _environment()


def page(
    request: Request,
    template: str,
    /,
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
    **values: Any,
) -> HTMLResponse:
    """A page for this visitor."""
    settings = request.app.state.settings
    text = _PAGES.get_template(template).render(
        me=getattr(request.state, "account", None),
        csrf=form_token(settings, request.state.cookie),
        path=request.url.path,
        **values,
    )
    return HTMLResponse(text, status, headers)
