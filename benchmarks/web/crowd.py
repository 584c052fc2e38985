"""A crowd at the door: many anonymous visitors and many log-ins at once, while somebody works.

    python benchmarks/web/crowd.py [--visitors 300] [--log-ins 60] [--database postgresql://...]

The server is `cupola web`, a process of its own; visitors are connections of this one, opened all
at the same moment. Every request must be answered, if need be by 503, within five seconds; the
median page of the one who is logged in is to stay below 300 ms meanwhile. Prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from cupola.web import accounts
from cupola.web.database import open_database
from cupola.web.settings import Settings

PASSWORD = "benchmark-password"
LOST = 0  # in the place of a status: no answer at all


@dataclass
class Answer:
    """seconds: from before the connection was opened to the last byte."""

    status: int
    seconds: float
    text: str = ""
    cookies: dict[str, str] = field(default_factory=dict)
    again: bool = False


async def ask(
    port: int, method: str, path: str, cookies: dict[str, str], body: bytes = b""
) -> Answer:
    """A request by a connection of its own."""
    began = time.perf_counter()
    held = "; ".join(f"{name}={value}" for name, value in cookies.items())
    words = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    words += [f"Cookie: {held}"] if held else []
    if body:
        words += ["Content-Type: application/x-www-form-urlencoded", f"Content-Length: {len(body)}"]
    try:
        async with asyncio.timeout(60):
            reading, writing = await asyncio.open_connection("127.0.0.1", port)
            writing.write("\r\n".join([*words, "", ""]).encode() + body)
            whole = await reading.read()
            writing.close()
    except (OSError, TimeoutError):
        return Answer(LOST, time.perf_counter() - began)
    head, _, text = whole.decode("utf-8", "replace").partition("\r\n\r\n")
    if not head.startswith("HTTP/1.1 "):
        return Answer(LOST, time.perf_counter() - began)
    new = dict(re.findall(r"set-cookie: ([\w-]+)=([^;]+)", head, re.IGNORECASE))
    again = "retry-after:" in head.lower()
    return Answer(int(head.split()[1]), time.perf_counter() - began, text, new, again)


async def prepared(port: int, name: str) -> tuple[dict[str, str], bytes]:
    """The cookies and the filled log-in form of a browser."""
    page = await ask(port, "GET", "/login", {})
    token = page.text.split('name="csrf" value="')[1].split('"')[0]
    form = {"csrf": token, "name": name, "password": PASSWORD}
    return page.cookies, urlencode(form).encode()


async def crowd(port: int, visitors: int, log_ins: int) -> dict:
    cookies, form = await prepared(port, "user0")
    me = {**cookies, **(await ask(port, "POST", "/login", cookies, form)).cookies}
    assert (await ask(port, "GET", "/", me)).status == 200
    alone = [await ask(port, "GET", "/", me) for _ in range(20)]
    forms = [await prepared(port, f"user{i + 1}") for i in range(log_ins)]
    over, pages = asyncio.Event(), []

    async def work() -> None:
        while not over.is_set():
            pages.append(await ask(port, "GET", "/", me))

    beside = asyncio.create_task(work())
    began = time.perf_counter()
    strangers = [ask(port, "GET", "/login", {}) for _ in range(visitors)]
    entering = [ask(port, "POST", "/login", held, body) for held, body in forms]
    answers = await asyncio.gather(*strangers, *entering)
    took = time.perf_counter() - began
    over.set()
    await beside
    return {
        "seconds": round(took, 2),
        "visitors": told(answers[:visitors]),
        "log_ins": told(answers[visitors:]),
        "logged_in": {**told(pages), "median_ms_alone": median([a.seconds for a in alone])},
    }


def median(seconds: list[float]) -> float:
    return round(1000 * statistics.median(seconds), 1)


def told(answers: list[Answer]) -> dict:
    statuses = Counter(answer.status for answer in answers)
    seconds = [answer.seconds for answer in answers]
    return {
        "requests": len(answers),
        "lost": statuses.pop(LOST, 0),
        "statuses": {str(status): number for status, number in sorted(statuses.items())},
        "503_without_retry_after": sum(a.status == 503 and not a.again for a in answers),
        "median_ms": median(seconds),
        "slowest_ms": round(1000 * max(seconds), 1),
    }


def verdict(turn: dict) -> dict[str, bool]:
    every = [turn["visitors"], turn["log_ins"], turn["logged_in"]]
    good = {"200", "303", "503"}
    return {
        "none_lost": not any(one["lost"] for one in every),
        "answered_or_503": all(set(one["statuses"]) <= good for one in every),
        "within_5_s": all(one["slowest_ms"] <= 5000 for one in every),
        "logged_in_median_below_300_ms": turn["logged_in"]["median_ms"] < 300,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--visitors", type=int, default=300)
    parser.add_argument("--log-ins", type=int, default=60)
    parser.add_argument("--database", help="of PostgreSQL, empty; without it SQLite")
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cupola-web-"))
    server = None
    try:
        settings = Settings(folder, given.database)
        with open_database(settings)() as db:
            first = accounts.create(db, settings, "user0", PASSWORD, "coordinator", manager=True)
            for i in range(given.log_ins):
                role, known = "participant", first.password
                db.add(accounts.Account(name=f"user{i + 1}", password=known, role=role))
            db.commit()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        words = ["web", "--folder", str(folder), "--port", str(port), "--no-demo"]
        words += ["--database", given.database] if given.database else []
        server = subprocess.Popen([sys.executable, "-m", "cupola", *words], stdout=subprocess.PIPE)
        while asyncio.run(ask(port, "GET", "/login", {})).status != 200:
            assert server.poll() is None, "the server did not start"
            time.sleep(0.2)
        turns = []
        for _ in range(given.repeat):
            turn = asyncio.run(crowd(port, given.visitors, given.log_ins))
            turns.append({**turn, "holds": verdict(turn)})
            time.sleep(2)
        asked = {**vars(given), "database": "PostgreSQL" if given.database else "SQLite"}
        facts = {"cores": os.cpu_count(), "machine_load": [round(x, 1) for x in os.getloadavg()]}
        print(json.dumps({**asked, **facts, "turns": turns}, indent=2))
    finally:
        if server is not None:
            server.terminate()
            server.wait()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
