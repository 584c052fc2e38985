"""Web server, three sites and a compensator in processes of their own, over FLARE on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import hapmap
import numpy as np
import psutil  # which nvflare needs, too
import pytest
import tomli_w
from patience import wait
from ports import free_ports
from test_association_study import asked, same_as_plink

import cupola
from cupola.site import spent
from cupola.web.launcher import holder

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SITES = ["north", "south", "west"]
CHROMIUM = next((p for n in ("chromium", "google-chrome") if (p := shutil.which(n))), None)
ROUNDS = 30
TABLES = ("hapmap.assoc.logistic", "hapmap.dropped.tsv")
FORM = {
    "name": "outcome",
    "rounds": ROUNDS,
    "data.name": "elsewhere",
    "data.called": "patients",
    "data.kind": "classification",
    "data.shape": 3,
    "data.class_names": "0, 1",
    "data.partition.sites": 3,
    "data.partition.test": 0.2,
    "model.name": "linear",
    "local.lr": 0.1,
    "local.batch_size": 16,
    "privacy.mechanism": "dp-sgd",
    "privacy.noise_multiplier": 2.0,
    "privacy.clip": 1.0,
    "privacy.delta": 1e-5,
    "sum.kind": "masked",
    "evaluation.on": "sites",
    "evaluation.every": 5,
}
BUDGET = 40  # of each site, for the study and its repetition


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
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
        self.children[name].stdin.write(b"y\n")  # somebody compares the roster, and says so
        self.children[name].stdin.close()

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
        for name in self.children:  # seen only where a test fails
            print(f"-- {name} --\n{self.said(name)[-4000:]}")


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


class Lead:
    """The coordinator's browser."""

    def __init__(self, driver, api, base, password):
        self.browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        self.base, self.foreign, self.troubles = base, [], []
        self.page = self.opened(base)
        wait(lambda: reached(api, self.page, base))
        self.page.fill("#name", "coordinator")
        self.page.fill("#password", password)
        self.page.press("#password", "Enter")

    def opened(self, start):
        """A page that notes what it loads from elsewhere, and what goes wrong in it."""
        page = self.browser.new_page()
        page.set_default_timeout(300_000)
        page.on("request", lambda r: r.url.startswith(start) or self.foreign.append(r.url))
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        return page

    def fill(self, kind, fields):
        """The form of a new study."""
        page = self.page
        page.click("text=New study")
        page.click(f"a.card:has-text('{kind}')")
        page.eval_on_selector_all("details", "all => all.forEach(one => one.open = true)")
        for key, value in fields.items():
            place = "#f-" + key.replace(".", "-")
            if page.locator(f"select{place}").count():
                page.select_option(place, value)
            else:
                page.fill(place, str(value))
        page.click("button:has-text('Make the study')")

    def invite(self):
        """(path of the study, tokens by party)"""
        page = self.page
        page.check("#real")
        page.fill("#sites", "\n".join(SITES))
        page.click("button:has-text('Make tokens')")
        page.wait_for_selector(".secret pre")
        shown = page.locator(".secret pre").all_inner_texts()
        return page.url.partition("/tokens/")[0], dict(zip([*SITES, "university"], shown))

    def get(self, url):
        return self.page.request.get(url)


def join(machines, base, tokens, *more, names=(*SITES, "university")):
    """The same words again go on with what was broken off."""
    for name in names:
        words = ["--folder", name, "--yes"]
        if name == "university":
            machines.start(name, "compensator", "join", base, tokens[name], *words)
        else:
            own = [word.format(name) for word in more]
            machines.start(name, "site", "join", base, tokens[name], *words, "--json", *own)


def ended(machines):
    for name, child in machines.children.items():
        if name != "server":
            code = child.wait(300)
            assert code == 0, (name, machines.said(name), machines.said("server"))


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_private_study_of_sites_that_join_by_tokens_is_stopped_resumed_and_repeated(
    server, machines, tmp_path
):
    api = pytest.importorskip("playwright.sync_api")
    base, password = server
    for i, name in enumerate(SITES):
        table(tmp_path / f"{name}.csv", i)
    with api.sync_playwright() as driver:
        lead = Lead(driver, api, base, password)
        page = lead.page
        lead.fill("Training", FORM)
        page.wait_for_selector("dt:has-text('Sent in a round')")  # foreseen, before it starts
        foreseen = page.inner_text("#foreseen")
        assert "10,000" in foreseen  # epsilon of sites by their size
        assert "works out its own epsilon before it joins" in foreseen.lower()
        where, tokens = lead.invite()
        data = ["--data", "patients={}.csv", "--target", "outcome", "--epsilon", str(BUDGET)]
        join(machines, base, tokens, *data)
        wait(lambda: page.goto(f"{where}/runs/1").ok)  # when all have joined
        wait(lambda: rounds_of(page) >= 8)
        assert page.locator("#curves svg").count() == 2  # bytes, epsilon: no unprotected metrics
        assert page.locator("#sites tr").count() == 3
        page.click("button:has-text('Stop')")
        page.wait_for_selector("#status:has-text('stopped')")
        page.wait_for_selector("text=stopped after round")
        waits = "stopped after round"
        wait(lambda: all(waits in machines.said(name) for name in SITES))
        machines.children["west"].terminate()  # the others stay; it comes back later
        machines.children["west"].wait(60)
        page.goto(where)
        page.click("button:has-text('Resume')")
        join(machines, base, tokens, names=["west"])
        page.wait_for_selector("h2:has-text('How it learned')")  # the live page moves on by itself
        assert page.is_visible("text=real sites")
        ended(machines)
        asked = machines.said("north")
        assert f"train: {ROUNDS} times" in asked
        assert "protection  dp-sgd" in asked
        told = re.search(rf"epsilon ([\d.]+) at delta 1e-05 .*budget {BUDGET}", asked)
        rosters = {re.search(r"roster     ([\w-]{29})\n", machines.said(n))[1] for n in tokens}
        shown = lead.get(where).text()
        assert len(rosters) == 1
        assert rosters.pop() in shown
        assert "finished" in shown
        study = results_of(asked)
        models, costs = [], {}
        for name in SITES:
            models.append((tmp_path / name / "results" / study / "model.safetensors").read_bytes())
            costs[name] = spent(tmp_path / name, study)["epsilon"]
            assert (tmp_path / name / "identity.json").stat().st_mode & 0o077 == 0
        # Stopped and resumed, it cost what the site was told before: nothing was charged twice.
        assert costs["north"] == pytest.approx(float(told[1]), abs=0.051)  # printed in 3 digits
        got = lead.get(f"{where}/runs/1/files/model.safetensors").body()
        assert set(models) == {got}
        history = lead.get(f"{where}/runs/1/files/history.jsonl").text().splitlines()
        assert [json.loads(line)["round"] for line in history] == list(range(1, ROUNDS + 1))
        for kept in (tmp_path / "federation", tmp_path / "cupola-web"):  # no key of a party's own
            for path in kept.rglob("*.key"):
                assert not {*SITES, "university"} & set(path.parts), path
        page.goto(base + "/join")
        again = page.request.post(f"{base}/api/join", data={"token": tokens["north"]})
        assert again.status == 404

        page.goto(where)
        page.click("button:has-text('Repeat as a new study')")
        page.click("text=Change the plan")
        page.fill("#f-rounds", "2")
        page.click("button:has-text('Save') >> nth=0")
        repeated, tokens = lead.invite()
        assert repeated != where
        join(machines, base, tokens, "--data", "patients")
        wait(lambda: page.goto(f"{repeated}/runs/1").ok)
        page.wait_for_selector("h2:has-text('How it learned')")
        ended(machines)
        other = results_of(machines.said("north"))
        assert other != study
        for name in SITES:  # one budget for both
            both = spent(tmp_path / name, other)
            assert costs[name] < both["epsilon"] <= BUDGET, both
        assert lead.foreign == []
        assert lead.troubles == []
        lead.browser.close()


def rounds_of(page):
    """How far the live page says it is."""
    found = re.search(r"training: (\d+) of", page.inner_text("#phase"))
    return int(found[1]) if found else 0


def results_of(said):
    """The study's name, from what a site's command printed last."""
    return json.loads("{" + said.rsplit("\n{", 1)[1])["results"].rsplit("/", 1)[1]


def opened(machines, name):
    """The address that `cupola site open` prints."""
    assert machines.children[name].poll() is None, machines.said(name)
    found = re.search(r"Open (http://\S+)", machines.said(name))
    return found and found[1]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.skipif(not hapmap.THERE, reason="set CUPOLA_DATA to the folder with gwas")
def test_an_association_study_in_a_browser_gives_plinks_table(server, machines, tmp_path):
    """Two sites join by the command, the third by its own page. One is killed in the middle and
    joins again by the same words. The tables are those of one place, byte for byte, and PLINK's."""
    api = pytest.importorskip("playwright.sync_api")
    base, password = server
    folders = {name: tmp_path / name for name in SITES}
    for folder in folders.values():
        folder.mkdir()
    hapmap.cut(tmp_path / "pooled", folders)
    machines.start("west", "site", "open", "--folder", "west", "--no-browser")
    own_page = wait(lambda: opened(machines, "west"))
    with api.sync_playwright() as driver:
        one = Lead(driver, api, base, password)
        lead, west = one.page, one.opened(own_page.rsplit("/", 2)[0])
        one.fill(
            "Association",
            {
                "name": "hapmap",
                "trait.column": hapmap.STUDY["trait"]["column"],
                "covariates": ", ".join(hapmap.STUDY["covariates"]),
                "sum.kind": "masked",
                "chunk": 64,
            },
        )
        lead.click("text=Change the plan")  # what no field says stands in the text
        lead.fill("#text", lead.input_value("#text") + "\n[engine]\ntimeout = 8.0\n")
        lead.click("button:has-text('Save the text')")
        where, tokens = one.invite()
        data = ["--data", "hm3={0}/hm3"]
        for task in ("gwas propose", "gwas fingerprints"):
            data += ["--unmasked-tasks", task]
        join(machines, base, tokens, *data, names=SITES[:2])
        machines.start(
            "university", "compensator", "join", base, tokens["university"],
            "--folder", "university", "--yes",
        )  # fmt: skip
        west.goto(own_page)
        west.fill("#url", base)
        west.fill("#token", tokens["west"])
        west.click("button:has-text('Go on')")
        west.select_option("#file", "hm3.bed")
        west.check("input[name=unmasked]")
        west.click("button:has-text('Show what will be revealed')")
        assert "gwas newton" in west.inner_text("#reveals")
        west.click("button:has-text('Take part')")
        west.wait_for_selector("#roster")  # the page moves on by itself
        lead.goto(where)
        fingerprint = west.inner_text("#roster .lead code")
        assert fingerprint in lead.inner_text("#roster")
        lead.wait_for_selector("#foreseen:has-text('Sent in all')")  # by itself, too
        west.click("button:has-text('All have the same')")
        wait(lambda: lead.goto(f"{where}/runs/1").ok)
        wait(lambda: newton_answers(folders["north"]) >= 2)
        killed(machines, "north")
        told = r"step (\d) of \1, testing variants: \d+ of 149"
        assert re.search(told, lead.inner_text("#log"))
        join(machines, base, tokens, names=["north"])
        lead.wait_for_selector("h2:has-text('Top hits')")  # the live page moves on by itself
        assert newton_answers(folders["north"]) > 2  # it was in the middle
        lead.set_viewport_size({"width": 390, "height": 800})
        assert beyond_the_edge(lead, "h2:has-text('Top hits') ~ .table", ("SNP", "P")) == []
        (tmp_path / "got").mkdir()
        for name in TABLES:
            with lead.expect_download() as got:
                lead.click(f"a:has-text('{name}')")
            got.value.save_as(tmp_path / "got" / name)
        west.wait_for_selector("text=The study has finished")
        one.browser.close()
    assert one.foreign == []
    assert one.troubles == []
    ours = hapmap.table(tmp_path / "got")
    assert len(ours) > 100
    same_as_plink(ours)
    for name in SITES[:2]:
        assert machines.children[name].wait(300) == 0, machines.said(name)
    here = hapmap.write_study(tmp_path / "hapmap.toml", folders, chunk=64)
    cupola.run(here, tmp_path / "here", report=False)
    for name in TABLES:
        told = (tmp_path / "here" / name).read_bytes()
        assert (tmp_path / "got" / name).read_bytes() == told, name
        for folder in folders.values():
            (own,) = (folder / "results").iterdir()
            assert (own / name).read_bytes() == told, (folder, name)


def newton_answers(folder):
    """How many questions of the test a site has answered, by its own ledger."""
    kept = [path.name.rpartition("-")[0] for path in (folder / "studies").glob("*-*")]
    return [task for study in kept for task, _ in asked(folder, study)].count("gwas newton")


def killed(machines, name):
    """A machine that loses its power: the command, FLARE's client and the job it runs."""
    child = machines.children[name]
    started = psutil.Process(child.pid).children(recursive=True)
    for process in [child, *started]:
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            process.kill()
    child.wait()


def beyond_the_edge(page, table, columns):
    """Columns of a table that a page of this width does not show whole."""
    return page.eval_on_selector(
        table,
        """(box, wanted) => [...box.querySelectorAll('thead th')]
            .filter(th => wanted.includes(th.textContent))
            .filter(th => th.getBoundingClientRect().right > box.getBoundingClientRect().right + 1)
            .map(th => th.textContent)""",
        list(columns),
    )


def reached(api, page, url):
    with contextlib.suppress(api.Error):
        return page.goto(url)
