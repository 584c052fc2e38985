"""Style and script of reports."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import FileResponse, Response

from cupola.pages import page

router = APIRouter()
_DAY = {"Cache-Control": "public, max-age=86400"}


@router.get("/assets/report.css")
def report_css() -> Response:
    return FileResponse(page.STYLE, headers=_DAY)


@router.get("/assets/report.js")
def report_js() -> Response:
    """The script of reports: hover values, tabs, legends."""
    guarded = "if (document.querySelector('svg')) {" + page.SCRIPT + "}"
    return Response(guarded, media_type="text/javascript", headers=_DAY)
