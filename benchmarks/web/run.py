"""How long pages take with many studies and users in the database, under load.

    python benchmarks/web/run.py [--studies 1000] [--users 100] [--browsers 10] [--seconds 20]
        [--database postgresql://...] [--repeat 3]

The server is a process of its own (uvicorn; SQLite, or an empty database of PostgreSQL); browsers
are threads that open one page after the other. Prints JSON: milliseconds by page, median and 95th
percentile, and requests per second.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx2

from cupola.web import accounts, hits
from cupola.web.app import make_app
from cupola.web.kinds import forms
from cupola.web.models import Account, Event, Invitation, Run, Study
from cupola.web.plans import to_text
from cupola.web.security_middleware import COOKIE
from cupola.web.settings import Settings

PASSWORD = "benchmark-password"


def fill(settings: Settings, studies: int, users: int, variants: int) -> list[tuple[str, str]]:
    """Studies of every kind and state; (cookie, study) of each coordinator who looks at pages."""
    app = make_app(settings)
    rng = random.Random(1)
    looks: list[tuple[str, str]] = []
    with app.state.sessions() as db:
        first = accounts.create(db, settings, "user0", PASSWORD, "coordinator", manager=True)
        people = [first]
        for i in range(1, users):  # the same hash: it is not passwords that are measured
            role = "coordinator" if i % 2 == 0 else "participant"
            people.append(Account(name=f"user{i}", password=first.password, role=role))
        db.add_all(people)
        db.flush()
        leaders = [p for p in people if p.role == "coordinator"]
        summary = {"metric": "accuracy", "value": 0.9, "bytes": 1e6, "epsilon": 2.0, "unit": "site",
                   "recipe": "fedavg", "data": "digits", "tested": variants}  # fmt: skip
        for i in range(studies):
            kind, owner = rng.choice(list(forms())), leaders[i % len(leaders)]
            study = Study(
                id=f"{i:016x}", owner_id=owner.id, name=f"study {i}", kind=kind, status="finished",
                plan=to_text({**forms()[kind].start, "name": f"study {i}"}),
                foreseen={"error": "not foreseen"}, created=time.time() - 3600 * i,
            )  # fmt: skip
            db.add(study)
            db.flush()
            for k in range(5):
                guest = rng.choice(people)
                db.add(Invitation(study_id=study.id, site=f"site {k}", status="joined",
                                  account_id=guest.id))  # fmt: skip
            db.add(Run(study_id=study.id, number=1, status="finished", summary=summary,
                       sites=[f"site {k}" for k in range(5)]))  # fmt: skip
            db.add_all(Event(account_id=owner.id, who=owner.name, address="127.0.0.1",
                             action="start", study_id=study.id) for _ in range(10))  # fmt: skip
        db.commit()
        for i, owner in enumerate(leaders[:20]):
            looks.append((accounts.open_session(db, settings, owner), f"{i:016x}"))
    _variants(settings, looks, variants)
    app.state.sessions.kw["bind"].dispose()
    return looks


def _variants(settings: Settings, looks: list[tuple[str, str]], m: int) -> None:
    """One large table of variants, shared by all studies that are looked at."""
    import numpy as np

    from cupola.association.compare import Table

    rng = np.random.default_rng(1)
    p = rng.random(m)
    place = np.sort(rng.integers(1, 23, m)), rng.integers(1, 10**8, m)
    names = [f"rs{i}" for i in range(m)]
    rows = [[str(c), n, str(b), f"{v:.4g}"] for c, n, b, v in zip(*place[:1], names, place[1], p)]
    table = Table(names, place[0], place[1], np.log10(p), ["CHR", "SNP", "BP", "P"], rows)
    first = None
    for _, study in looks:
        folder = settings.run_folder(study, 1)
        (folder / "run").mkdir(parents=True)
        (folder / "results.html").write_text("<section><h2>Results</h2></section>")
        if first is None:
            first = folder / "hits.sqlite"
            hits.build(first, table)
        else:
            (folder / "hits.sqlite").symlink_to(first.resolve())


def pages(study: str, m: int, rng: random.Random) -> dict[str, str]:
    here = f"/studies/{study}"
    return {
        "studies": "/",
        "search": f"/?search={rng.randrange(1000)}",
        "study": here,
        "form": "/studies/new?kind=training",
        "run": f"{here}/runs/1",
        "variants": f"{here}/runs/1/hits?page={rng.randrange(1, m // 50)}",
        "variant": f"{here}/runs/1/hits?search=rs{rng.randrange(m)}",
        "compare": "/compare",
        "accounts": "/accounts",
        "audit": "/audit",
        "api": "/api/studies",
    }


def load(base: str, looks: list[tuple[str, str]], browsers: int, seconds: float, m: int) -> dict:
    times: dict[str, list[float]] = {}
    end, guard = time.monotonic() + seconds, threading.Lock()

    def browse(number: int) -> None:
        rng = random.Random(number)
        cookie, study = looks[number % len(looks)]
        with httpx2.Client(base_url=base, cookies={COOKIE: cookie}, timeout=60) as client:
            while time.monotonic() < end:
                name, url = rng.choice(list(pages(study, m, rng).items()))
                start = time.perf_counter()
                answer = client.get(url)
                took = 1000 * (time.perf_counter() - start)
                assert answer.status_code == 200, (url, answer.status_code, answer.text[:500])
                with guard:
                    times.setdefault(name, []).append(took)
                time.sleep(rng.expovariate(1 / 0.3))  # people read, a little

    threads = [threading.Thread(target=browse, args=(i,)) for i in range(browsers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = [t for some in times.values() for t in some]
    return {
        "requests": len(every),
        "per_second": round(len(every) / seconds, 1),
        "median_ms": round(statistics.median(every), 1),
        "p95_ms": round(sorted(every)[int(0.95 * len(every))], 1),
        "pages_median_ms": {n: round(statistics.median(t), 1) for n, t in sorted(times.items())},
    }


def processor(pid: int) -> float:
    """Seconds that a process has computed: a measure that other work does not disturb."""
    facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(facts[11]) + int(facts[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--users", type=int, default=100)
    parser.add_argument("--browsers", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--variants", type=int, default=1_000_000)
    parser.add_argument("--database", help="of PostgreSQL, empty; without it SQLite")
    parser.add_argument("--repeat", type=int, default=1)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cupola-web-"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = None
    try:
        settings = Settings(folder, given.database)
        looks = fill(settings, given.studies, given.users, given.variants)
        command = [
            sys.executable, "-m", "cupola", "web", "--folder", str(folder), "--port", str(port),
        ]  # fmt: skip
        if given.database:
            command += ["--database", given.database]
        server = subprocess.Popen([*command, "--no-demo"], stdout=subprocess.DEVNULL)
        base = f"http://127.0.0.1:{port}"
        for _ in range(600):
            try:
                httpx2.get(base + "/login")
                break
            except httpx2.TransportError:
                time.sleep(0.2)
        load(base, looks, 2, 2.0, given.variants)  # everything is read once before it counts
        every = []
        for _ in range(given.repeat):
            before = processor(server.pid)
            turn = load(base, looks, given.browsers, given.seconds, given.variants)
            spent = 1000 * (processor(server.pid) - before) / turn["requests"]
            every.append({**turn, "processor_ms_a_request": round(spent, 1)})
        asked = {**vars(given), "database": "PostgreSQL" if given.database else "SQLite"}
        print(json.dumps({**asked, "turns": every, "machine_load": os.getloadavg()}, indent=2))
    finally:
        if server is not None:
            server.terminate()
            server.wait()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
