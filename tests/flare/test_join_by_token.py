"""Web server, three sites and a compensator in processes of their own, over FLARE on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import hapmap
import numpy as np
import pytest
import tomli_w
from test_association_study import same_as_plink

from cupola.sites import spent
from cupola.web.launch import holder

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SITES = ["north", "south", "west"]
CHROMIUM = next((p for n in ("chromium", "google-chrome") if (p := shutil.which(n))), None)
PLAN = {
    "name": "outcome",
    "rounds": 2,
    "sum": "masked",
    "model": {"name": "linear"},
    "data": {
        "name": "elsewhere",
        "called": "patients",
        "kind": "classification",
        "shape": [3],
        "class_names": ["0", "1"],
        "partition": {"kind": "iid", "sites": 3, "test": 0.2},
    },
    "local": {"lr": 0.1, "batch_size": 16},
    "privacy": {"mechanism": "dp-sgd", "noise": 2.0, "clip": 1.0, "delta": 1e-5},
    "evaluation": {"every": 2, "on": "sites"},
    "engine": {"timeout": 60},
}


def free_ports(count):
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("localhost", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def wait(until, seconds=600.0, every=0.2):
    end = time.monotonic() + seconds
    while not (found := until()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(every)
    return found


def table(path, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(80, 3))
    y = (x[:, 0] + 0.2 * rng.normal(size=80) > 0).astype(int)
    lines = [",".join([*(f"{v:.3f}" for v in row), str(label)]) for row, label in zip(x, y)]
    path.write_text("a,b,c,outcome\n" + "\n".join(lines) + "\n")


class Machines:
    """Processes of several parties, ended with all that they started."""

    def __init__(self, folder):
        self.folder, self.children = folder, {}
        # FLARE keeps notes at home; fonts are not to be looked for anew.
        cache = {"XDG_CACHE_HOME": str(Path.home() / ".cache"), "HOME": str(folder)}
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", **cache}

    def start(self, name, *words):
        with (self.folder / f"{name}.log").open("wb") as log:
            self.children[name] = subprocess.Popen(
                [sys.executable, "-m", "cupola", *map(str, words)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )

    def said(self, name):
        return (self.folder / f"{name}.log").read_text()

    def close(self):
        """A party's end takes its FLARE process along; a server leaves what a study needs."""
        for child in self.children.values():
            child.terminate()
        for lock in self.folder.glob("cupola-web/**/*.lock"):
            number = holder(lock)
            if number is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(number, signal.SIGKILL)
        for child in self.children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


@pytest.fixture
def machines(tmp_path):
    made = Machines(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def server(machines, tmp_path):
    """`cupola web` with a federation; its URL and the first coordinator's password."""
    web, flare = free_ports(2)
    facts = {
        "name": "trial",
        "coordinator": f"localhost:{flare}",
        "sites": SITES,
        "compensator": "university",
        "users": {"lead@example.org": "lead"},
    }
    (tmp_path / "federation.toml").write_text(tomli_w.dumps(facts))
    subprocess.run(
        [sys.executable, "-m", "cupola", "federation", "init", "federation.toml"],
        cwd=tmp_path, env=machines.environment, check=True, capture_output=True,
    )  # fmt: skip
    machines.start("server", "web", "--port", web, "--no-demo", "--federation", "federation")

    def password():
        assert machines.children["server"].poll() is None, machines.said("server")
        return re.search(r"password (\S+)\n.*Open", machines.said("server"), re.DOTALL)

    return f"http://127.0.0.1:{web}", wait(password)[1]


class Coordinator:
    """Somebody at the pages, without a browser."""

    def __init__(self, base, password):
        import httpx2 as httpx

        self.http = httpx.Client(base_url=base, timeout=60)
        wait(self._there)
        self.post("/login", name="coordinator", password=password)

    def _there(self):
        with contextlib.suppress(Exception):
            return self.http.get("/login").status_code == 200

    def post(self, url, **fields):
        page = self.http.get("/join").text
        csrf = re.search(r'name="csrf" value="(\w+)"', page)[1]
        return self.http.post(url, data={"csrf": csrf, **fields})

    def invite(self, plan, sites):
        """(path of the new study, tokens by party)"""
        made = self.post("/studies/upload", text=tomli_w.dumps(plan))
        assert made.status_code == 303, made.text
        where = made.headers["location"]
        shown = self.post(f"{where}/invite", sites="\n".join(sites), real="yes")
        assert shown.status_code == 200, shown.text
        found = re.findall(r"<h3>([\w-]+)(?: \(compensator\))?</h3><pre>(\S+)</pre>", shown.text)
        return where, dict(found)


def test_a_private_study_of_three_sites_that_join_by_their_tokens(
    server, machines, tmp_path, request
):
    base, password = server
    lead = Coordinator(base, password)
    request.addfinalizer(lead.http.close)
    where, tokens = lead.invite(PLAN, SITES)
    assert set(tokens) == {*SITES, "university"}
    for i, name in enumerate(SITES):
        table(tmp_path / f"{name}.csv", i)
        machines.start(
            name, "site", "join", base, tokens[name], "--folder", name, "--yes", "--json",
            "--data", f"patients={name}.csv", "--target", "outcome", "--epsilon", "5",
        )  # fmt: skip
    machines.start(
        "university", "compensator", "join", base, tokens["university"],
        "--folder", "university", "--yes",
    )  # fmt: skip
    for name in (*SITES, "university"):
        code = machines.children[name].wait(600)  # a busy machine is no fault
        assert code == 0, (name, machines.said(name), machines.said("server"))
    asked = machines.said("north")
    assert "train: 2 times" in asked
    assert "protection  dp-sgd" in asked
    assert re.search(r"epsilon [\d.]+ at delta 1e-05 .*budget 5", asked)
    rosters = {re.search(r"roster     ([\w-]{29})\n", machines.said(n))[1] for n in tokens}
    page = lead.http.get(where).text
    assert len(rosters) == 1
    assert rosters.pop() in page
    assert "finished" in page
    study = json.loads("{" + asked.rsplit("\n{", 1)[1])["results"].rsplit("/", 1)[1]
    results = [tmp_path / name / "results" / study for name in SITES]
    models = {(folder / "model.safetensors").read_bytes() for folder in results}
    assert len(models) == 1
    for name in SITES:
        cost = spent(tmp_path / name, study)
        assert 0 < cost["epsilon"] <= 5
        key = tmp_path / name / "identity.json"
        assert key.stat().st_mode & 0o077 == 0
    run = f"{where}/runs/1"
    got = lead.http.get(f"{run}/files/model.safetensors").content
    assert {got} == models
    assert "real sites" in lead.http.get(run).text
    for kept in (tmp_path / "federation", tmp_path / "cupola-web"):  # no private key of a party
        for path in kept.rglob("*.key"):
            assert not {*SITES, "university"} & set(path.parts), path
    again = lead.http.post("/api/join", json={"token": tokens["north"]})
    assert again.status_code == 404


def opened(machines, name):
    """The address that `cupola site open` prints."""
    assert machines.children[name].poll() is None, machines.said(name)
    found = re.search(r"Open (http://\S+)", machines.said(name))
    return found and found[1]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.skipif(not hapmap.THERE, reason="set CUPOLA_DATA to the folder with gwas")
def test_an_association_study_in_a_browser_gives_plinks_table(server, machines, tmp_path):
    """Two sites join by the command, the third by its own page; the table is PLINK's."""
    api = pytest.importorskip("playwright.sync_api")
    base, password = server
    folders = {name: tmp_path / name for name in SITES}
    for folder in folders.values():
        folder.mkdir()
    hapmap.cut(tmp_path / "pooled", folders)
    machines.start("west", "site", "open", "--folder", "west", "--no-browser")
    own_page = wait(lambda: opened(machines, "west"))
    foreign, troubles = [], []
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        lead, west = browser.new_page(), browser.new_page()
        for page, home in ((lead, base), (west, own_page.split("/", 3)[:3])):
            start = home if isinstance(home, str) else "/".join(home)
            page.set_default_timeout(600_000)
            page.on("request", lambda r, s=start: r.url.startswith(s) or foreign.append(r.url))
            page.on("pageerror", lambda error: troubles.append(str(error)))
        wait(lambda: reached(api, lead, base))
        lead.fill("#name", "coordinator")
        lead.fill("#password", password)
        lead.press("#password", "Enter")
        lead.click("text=New study")
        lead.click("a.card:has-text('Association')")
        lead.fill("#f-name", "hapmap")
        lead.fill("#f-trait-column", hapmap.STUDY["trait"]["column"])
        lead.fill("#f-covariates", ", ".join(hapmap.STUDY["covariates"]))
        lead.select_option("#f-sum-kind", "masked")
        lead.fill("#f-chunk", "64")
        lead.click("button:has-text('Make the study')")
        lead.check("#real")
        lead.fill("#sites", "\n".join(SITES))
        lead.click("button:has-text('Make tokens')")
        tokens = dict(zip([*SITES, "university"], lead.locator(".secret pre").all_inner_texts()))
        where = lead.url.removesuffix("/invite")
        for name in SITES[:2]:
            machines.start(
                name, "site", "join", base, tokens[name], "--folder", name, "--yes",
                "--data", f"hm3={name}/hm3", "--openly", "gwas propose",
            )  # fmt: skip
        machines.start(
            "university", "compensator", "join", base, tokens["university"],
            "--folder", "university", "--yes",
        )  # fmt: skip
        west.goto(own_page)
        west.fill("#url", base)
        west.fill("#token", tokens["west"])
        west.click("button:has-text('Go on')")
        west.select_option("#file", "hm3.bed")
        west.check("input[name=openly]")
        west.click("button:has-text('Show what will be revealed')")
        assert "gwas newton" in west.inner_text("#reveals")
        west.click("button:has-text('Take part')")
        west.wait_for_selector("#roster")  # the page moves on by itself
        lead.goto(where)
        fingerprint = west.inner_text("#roster .lead code")
        assert fingerprint in lead.inner_text("#roster")
        assert "Sent in all" in lead.inner_text("#foreseen")
        west.click("button:has-text('All have the same')")
        lead.goto(f"{where}/runs/1")
        lead.wait_for_selector("h2:has-text('Top hits')")  # the live page moves on by itself
        with lead.expect_download() as got:
            lead.click("a:has-text('study.assoc.logistic')")
        (tmp_path / "got").mkdir()
        got.value.save_as(tmp_path / "got" / "study.assoc.logistic")
        west.wait_for_selector("text=The study has finished")
        browser.close()
    assert foreign == []
    assert troubles == []
    ours = hapmap.table(tmp_path / "got")
    assert len(ours) > 100
    same_as_plink(ours)
    told = (tmp_path / "got" / "study.assoc.logistic").read_bytes()
    for name in SITES[:2]:
        assert machines.children[name].wait(600) == 0, machines.said(name)
    for folder in folders.values():
        (own,) = (folder / "results").iterdir()
        assert (own / "study.assoc.logistic").read_bytes() == told


def reached(api, page, url):
    with contextlib.suppress(api.Error):
        return page.goto(url)
