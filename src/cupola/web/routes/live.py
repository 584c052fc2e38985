"""The live page's stream: what is new in the folder of a run, as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import StreamingResponse

from cupola.web import accounts
from cupola.web.access import Config, Me, SeenRun
from cupola.web.models import QUEUED, RUNNING, Run
from cupola.web.progress import Follow, site_states

router = APIRouter()
EVERY, AGAIN = 0.5, 30  # seconds between looks, looks between checks of the session
MOST, IN_ALL = 20, 200  # streams of one account, of all
LOOKS = 3  # at the same time: live pages share these threads and connections, and no others


@router.get("/studies/{study_id}/runs/{number}/stream")
def stream(request: Request, run: SeenRun, me: Me, config: Config) -> StreamingResponse:
    open_ = request.app.state.__dict__.setdefault("streams", {})
    if open_.get(me.id, 0) >= MOST:
        raise HTTPException(429, "too many live pages are open")
    if sum(open_.values()) >= IN_ALL:
        wait = {"Retry-After": "10"}
        raise HTTPException(503, "too many live pages are open", headers=wait)
    follow = Follow(config.run_folder(run.study_id, run.number))
    follow.go_to(request.headers.get("last-event-id", ""))
    return StreamingResponse(
        _events(request, run.id, list(run.sites), follow, me.id),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


async def _events(
    request: Request, run_id: int, sites: list[str], follow: Follow, account: int
) -> AsyncIterator[str]:
    app, looks = request.app, 0
    open_ = app.state.__dict__.setdefault("streams", {})
    open_[account] = open_.get(account, 0) + 1
    few = app.state.__dict__.setdefault("looks", CapacityLimiter(LOOKS))
    try:
        yield "retry: 1500\n\n"
        while not app.state.ending.is_set() and not await request.is_disconnected():
            if looks % AGAIN == 0 and not await to_thread.run_sync(
                _logged_in, request, limiter=few
            ):
                return
            looks += 1
            facts = await to_thread.run_sync(_look, app, run_id, sites, follow, limiter=few)
            if facts["rounds"] or facts["events"] or looks == 1 or facts["over"]:
                yield f"id: {follow.mark}\ndata: {json.dumps(facts)}\n\n"
            elif looks % AGAIN == 0:
                yield ": still here\n\n"
            if facts["over"]:
                return
            await asyncio.sleep(EVERY)
    finally:
        open_[account] -= 1


def _logged_in(request: Request) -> bool:
    with request.app.state.sessions() as db:
        return accounts.who(db, request.state.cookie) is not None


def _look(app: Any, run_id: int, sites: list[str], follow: Follow) -> dict[str, Any]:
    with app.state.sessions() as db:
        run = db.get(Run, run_id)
        status, reason = (run.status, run.reason) if run else ("failed", "it is gone")
    return {
        "status": status,
        "reason": reason,
        "over": status not in (QUEUED, RUNNING),
        "rounds": follow.rounds(),
        "events": follow.events(),
        "sites": site_states(follow.folder, sites),
    }
