"""Whole ways, slowly: real processes, PostgreSQL, a real browser, and a fuzzer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from patience import wait
from web_world import World

from cupola.web.app import make_app
from cupola.web.form_fields import filled
from cupola.web.kinds import forms
from cupola.web.launcher import ChildProcess, Job
from cupola.web.models import Run
from cupola.web.study_service import StudyService

pytestmark = pytest.mark.slow
CHROMIUM = next((p for n in ("chromium", "google-chrome") if (p := shutil.which(n))), None)
POSTGRES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)), None)


@pytest.fixture(autouse=True)
def _no_study_outlives_its_test(monkeypatch):
    started = []

    class Noted(subprocess.Popen):
        def __init__(self, command, *arguments, **options):
            super().__init__(command, *arguments, **options)
            if "cupola.web.worker" in command:
                started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    yield
    for child in started:
        child.kill()
        child.wait()


def test_a_study_outlives_the_server_stops_and_goes_on(tmp_path):
    """The second server knows what the first one started; the result is that of one go."""
    world = World(tmp_path)
    first = world.app.state.launcher = world.launcher = ChildProcess()
    plan = {
        **forms()["training"].start,
        "rounds": 3000,
        "checkpoint_seconds": 0.2,
        "evaluation": {"every": 100},
    }
    study = world.study("ada", **plan)
    world.post(world.visitor("ada"), f"/studies/{study}/start")
    world.sweep()
    folder = world.settings.run_folder(study, 1)
    wait(lambda: (folder / "run" / "history.jsonl").exists())
    second = ChildProcess()
    app = make_app(world.settings, second)
    world.app, world.launcher = app, second
    ada = world.visitor("ada")
    assert second.alive(folder)
    assert "running" in ada.get(f"/studies/{study}").text
    assert world.post(ada, f"/studies/{study}/stop").status_code == 303
    wait(lambda: not second.alive(folder))
    assert not first.alive(folder)
    world.sweep()
    assert "stopped" in ada.get(f"/studies/{study}").text
    stopped = len((folder / "run" / "history.jsonl").read_text().splitlines())
    assert 0 < stopped < 3000
    second.start(Job("training", plan, resume=True), folder)
    wait(lambda: not second.alive(folder))
    with app.state.sessions() as db:
        run = db.query(Run).filter_by(study_id=study).one()
        run.status = run.study.status = "running"
        db.commit()
        StudyService(db, world.settings, second).sweep()
        assert run.status == "finished", run.reason
        assert run.summary["rounds"] == 3000
    page = ada.get(f"/studies/{study}/runs/1").text
    assert "How it learned" in page
    assert ada.get(f"/studies/{study}/runs/1/files/model.safetensors").status_code == 200


@pytest.fixture
def postgresql():
    """A server of our own, without a password, behind a socket in a folder for its user alone."""
    if POSTGRES is None:
        pytest.skip("PostgreSQL's server programs are not installed")
    # It does not run as root; a socket's path is short, and its user must be able to reach it.
    user = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
    run = {"check": True, "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    with tempfile.TemporaryDirectory(prefix="cupola-pg-") as name:
        folder, data = Path(name), Path(name) / "data"
        if user:
            shutil.chown(folder, "postgres")
        subprocess.run(
            [*user, POSTGRES, "-D", data, "-A", "trust", "-U", "cupola", "-N"], cwd=folder, **run
        )
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
        control = [*user, POSTGRES.parent / "pg_ctl", "-D", data, "-w", "-t", "120"]
        subprocess.run([*control, "-o", options, "-l", folder / "log", "start"], cwd=folder, **run)
        try:
            yield f"postgresql://cupola@/postgres?host={folder}"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], cwd=folder, **run)


def test_the_same_on_postgresql(tmp_path, postgresql):
    world = World(tmp_path, postgresql)
    ada, cleo = world.visitor("ada"), world.visitor("cleo")
    study = world.study("ada", "association")
    tokens = world.invite(ada, study, "north", "south", "west")
    for name, token in tokens.items():
        world.join(cleo, token, f"{name}/chip")
    assert world.post(cleo, "/join", token=tokens["north"]).status_code == 422
    world.finish(study, files=[])
    here = f"/studies/{study}"
    for url in ("/", here, f"{here}/runs/1", "/audit", "/accounts", "/compare", "/?search=%25"):
        assert ada.get(url).status_code == 200, url
    assert "token used" in ada.get("/audit").text
    assert world.post(world.visitor(), "/login", name="ADA", password="x").status_code == 401
    assert ada.get("/?search=%00").status_code == 400
    diverged = world.study("ada")
    world.post(ada, f"/studies/{diverged}/start")
    world.sweep()
    folder = world.settings.run_folder(diverged, 1)
    world.launcher.end(folder, "finished")
    (folder / "summary.json").write_text('{"metric": "loss", "value": NaN, "bytes": Infinity}')
    world.sweep()  # a number that the database cannot hold must not keep all others waiting
    assert "finished" in ada.get(f"/studies/{diverged}/runs/1").text
    world.app.state.sessions.kw["bind"].dispose()


def test_all_other_tests_on_postgresql(postgresql):
    """Roles, forms, tokens, log-ins, injections: what runs on SQLite at every change."""
    here = Path(__file__).parent
    files = ["access", "accounts", "invitations", "results", "web_studies"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider",
         *(here / f"test_{name}.py" for name in files)],
        env={**os.environ, "CUPOLA_TEST_DATABASE": postgresql},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
    assert "skipped" not in done.stdout


def test_a_fuzzer_finds_no_error_of_the_server(tmp_path):
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, given, settings

    world = World(tmp_path)
    ada, site = world.visitor("ada"), world.visitor()
    study = world.study("ada")
    token = world.invite(ada, study, "north", "south")["north"]
    key = site.post("/api/join", json={"token": token}).json()["key"]
    schema = schemathesis.openapi.from_asgi("/openapi.json", world.app)
    headers = {
        "Authorization": f"Bearer {key}",
        "Cookie": f"cupola_session={ada.cookies['cupola_session']}",
    }
    tried = 0
    for result in schema.get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=25,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def fuzz(case):
            nonlocal tried
            tried += 1
            world.calm()
            answer = case.call(headers=headers)
            assert answer.status_code < 500, answer.text

        fuzz()
    assert tried > 100


@pytest.fixture
def server(tmp_path):
    """The command itself, as a first visitor starts it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    log = (tmp_path / "log").open("w+")
    command = [
        sys.executable,
        "-m",
        "cupola",
        "web",
        "--folder",
        "web",
        "--port",
        "8431",
        "--no-demo",
    ]
    child = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, env=environment)

    def password():
        assert child.poll() is None, (tmp_path / "log").read_text()
        said = (tmp_path / "log").read_text()
        return re.search(r"password (\S+)\n.*Open", said, re.DOTALL)

    try:
        yield "http://127.0.0.1:8431", wait(password)[1], tmp_path
    finally:
        child.terminate()
        child.wait(20)
        log.close()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_a_first_visit_in_a_browser(server):
    api = pytest.importorskip("playwright.sync_api")
    base, password, _ = server
    foreign, troubles = [], []
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(300_000)  # a busy machine is no fault
        page.on("request", lambda r: None if r.url.startswith(base) else foreign.append(r.url))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        for _ in range(100):
            try:
                page.goto(base)
                break
            except api.Error:
                time.sleep(0.2)
        page.fill("#name", "coordinator")
        page.fill("#password", password)
        page.press("#password", "Enter")
        page.click("text=New study")
        page.click("a.card:has-text('Training')")
        page.wait_for_selector("#f-privacy-epsilon", state="hidden")  # only what applies is shown
        page.select_option("#f-privacy-mechanism", "dp-sgd")
        page.fill("#f-privacy-epsilon", "-4")
        page.fill("#f-rounds", "5")
        page.click("button:has-text('Make the study')")
        assert page.is_visible("#f-privacy-epsilon-wrong")
        page.fill("#f-privacy-epsilon", "4")
        page.select_option("#f-recipe", "dp-sgd")
        page.click("button:has-text('Make the study')")
        page.wait_for_selector("dt:has-text('Epsilon')")  # foreseen, without a reload by hand
        assert "3.99" in page.inner_text("#foreseen") or "4" in page.inner_text("#foreseen")
        page.click("button:has-text('Start as a simulation')")
        page.wait_for_selector("h2:has-text('How it learned')")  # the live page moves on by itself
        assert page.is_visible("text=Privacy spent")
        with page.expect_download() as model:
            page.click("a:has-text('model.safetensors')")
        assert Path(model.value.path()).stat().st_size > 1000
        browser.close()
    assert foreign == []
    assert troubles == []


def test_an_association_study_with_real_files_gives_the_table_of_the_command(tmp_path):
    """Cohorts join by the page; the download is what `cupola gwas run` writes for them."""
    import cupola
    from cupola.web.demo import COHORTS, simulated_cohorts

    world = World(tmp_path / "web")
    world.app.state.launcher = world.launcher = ChildProcess()
    simulated_cohorts(world.settings.data / "demo", variants=300, people=240)
    start = {
        "covariates": ["AGE"],
        "sum": {"kind": "masked"},
        "name": "three cohorts",
        "tables": ["plink", "parquet"],
    }
    study = world.study("ada", "association", **start)
    ada, cleo = world.visitor("ada"), world.visitor("cleo")
    for name, token in world.invite(ada, study, *COHORTS).items():
        world.join(cleo, token, f"demo/{name}")
    world.sweep()
    folder = world.settings.run_folder(study, 1)
    wait(lambda: not world.launcher.alive(folder))
    world.sweep()
    page = cleo.get(f"/studies/{study}/runs/1").text
    assert "p-values along the genome" in page, (folder / "output.log").read_text()
    assert str(tmp_path) not in page
    got = cleo.get(f"/studies/{study}/runs/1/files/three_cohorts.assoc.logistic")
    cohorts = [{"name": n, "bfile": n, "cov": f"{n}.cov"} for n in COHORTS]
    own = {
        "test": "logistic",
        **start,
        "cohorts": cohorts,
        "folder": str(world.settings.data / "demo"),
    }
    cupola.run(own, tmp_path / "own", report=False)
    assert got.content == (tmp_path / "own" / "three_cohorts.assoc.logistic").read_bytes()
    exact = cleo.get(f"/studies/{study}/runs/1/files/three_cohorts.parquet")
    assert exact.content == (tmp_path / "own" / "three_cohorts.parquet").read_bytes()
    top = cleo.get(f"/studies/{study}/runs/1/hits").text
    assert "300 variants" in top
    assert filled("association", start)
