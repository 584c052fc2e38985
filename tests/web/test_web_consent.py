"""What a site reads before it consents is what the study's program asks, of every kind of study."""

from __future__ import annotations

import html
import os
import re
from pathlib import Path

import pytest

import cupola
from cupola.analysis.session import run
from cupola.association import Association
from cupola.association.file_sets import file_sets
from cupola.training import Training
from cupola.training.personalise import Personalisation
from cupola.web import worker
from cupola.web.demo import COHORTS, simulated_cohorts
from cupola.web.kinds import forms

SMALL = {
    "rounds": 2, "model": {"name": "linear"}, "recipe": "fedavg",
    "local": {"lr": 0.1, "batch_size": 32},
    "data": {"name": "digits", "partition": {"kind": "iid", "sites": 4, "test": 0.2}},
}  # fmt: skip
PERSONAL = {
    **SMALL, "model": {"name": "mlp"}, "rounds": 1,
    "personalise": {"rounds": 1, "methods": ["finetune"]},
}  # fmt: skip
KINDS = {
    "training": ("training", SMALL),
    "masked": ("training", {**SMALL, "sum": {"kind": "masked"}}),
    "pairwise": ("training", {**SMALL, "sum": {"kind": "masked", "protocol": "pairwise"}}),
    "private": ("training", {**SMALL, "privacy": {"mechanism": "dp-sgd", "noise_multiplier": 1.0}}),
    "unmasked": ("training", {**SMALL, "evaluation": {"on": "sites", "per_site": True}}),
    "personal": ("personalisation", PERSONAL),
    "released": ("personalisation", {**PERSONAL, "personalise": {
        **PERSONAL["personalise"], "release": {"epsilon": 2.0}}}),
    "chi-square": ("association", {"test": "chi-square"}),
    "trend": ("association", {"test": "chi-square", "trend": True,
                              "quality": {"hardy_weinberg": 1e-9}}),
    "linear": ("association", {"test": "linear", "trait": {"kind": "quantitative"},
                               "covariates": ["AGE"]}),
    "logistic": ("association", {"test": "logistic", "covariates": ["AGE"]}),
    "masked association": ("association", {"test": "logistic", "sum": {"kind": "masked"}}),
}  # fmt: skip
#: What a study may ask and this one did not, since no variant needed it.
RARELY = {"logistic": {"gwas firth"}, "masked association": {"gwas firth"}}


@pytest.fixture(scope="module")
def cohorts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cohorts")
    simulated_cohorts(folder, variants=40, people=150)
    return folder


def carried_out(kind, plan, folder, cohorts, monkeypatch):
    """(task, what it reveals) of every question that the program put to sites."""
    told, program = set(), {"association": Association, "personalisation": Personalisation}.get(
        kind, Training
    )  # fmt: skip
    ask = program.ask

    def heard(self, state):
        found = ask(self, state)
        if found is not None and found.kind != "alone":
            told.add((found.question.task, found.question.reveals))
        return found

    monkeypatch.setattr(program, "ask", heard)
    if kind == "association":
        monkeypatch.chdir(cohorts)
        cupola.run(plan, folder)
    else:
        run(plan, folder)
    return told


def shown(world, kind, plan, sites):
    """The same, of the page on which a site consents."""
    study = world.study("ada", kind, **plan)
    tokens = world.invite(world.known("ada"), study, *sites)
    cleo = world.known("cleo")
    answer = world.post(cleo, "/join", token=tokens[sites[0]])
    page = cleo.get(answer.headers["location"]).text
    assert "being worked out" not in page
    table = page.split('id="reveals"')[1].split("</table>")[0]
    rows = re.findall(r'<tr><th scope="row">(.*?)</th><td[^>]*>.*?</td><td[^>]*>(.*?)</td>', table)
    return {(html.unescape(task), html.unescape(reveals)) for task, reveals in rows}


@pytest.mark.parametrize("name", KINDS)
def test_the_page_shows_what_the_program_asks(name, world, cohorts, tmp_path, monkeypatch):
    kind, plan = KINDS[name]
    whole = {**forms()[kind].start, "sum": {"kind": "plain"}, **plan}
    if kind == "association":
        files = file_sets(cohorts)
        whole["cohorts"] = [{"name": one, **files[one]} for one in COHORTS]

    def rehearsed(job, folder):
        """The server's own way to foresee, in this process."""
        folder.mkdir(parents=True, exist_ok=True)
        made = {**vars(job), "data": str(cohorts)}
        worker._foresee(folder, made)
        (folder / "job.json").write_text("{}")

    monkeypatch.setattr(world.launcher, "start", rehearsed)
    sites = COHORTS if kind == "association" else ["a", "b", "c", "d"]
    page = shown(world, kind, plan, sites)
    monkeypatch.undo()
    program = carried_out(kind, whole, tmp_path / "run", cohorts, monkeypatch)
    assert program, "nothing was asked"
    assert program <= page
    assert {task for task, _ in page - program} <= RARELY.get(name, set())


def test_nobody_consents_before_it_is_known_what_is_asked(world, monkeypatch):
    def slow(job, folder):
        del job, folder

    monkeypatch.setattr(world.launcher, "start", slow)
    study = world.study("ada")
    tokens = world.invite(world.known("ada"), study, "north", "south")
    cleo = world.known("cleo")
    where = world.post(cleo, "/join", token=tokens["north"]).headers["location"]
    page = cleo.get(where).text
    assert "being worked out" in page
    assert "Take part" not in page
    assert cleo.get(f"{where}/foreseen").json() == {"known": False}
    refused = world.post(cleo, f"{where}/accept")
    assert refused.status_code == 409
    site = world.visitor()
    joined = site.post("/api/join", json={"token": tokens["south"]}).json()
    assert joined["asked"]["questions"] is None
    bearer = {"Authorization": f"Bearer {joined['key']}"}
    assert site.post("/api/site/accept", json={}, headers=bearer).status_code == 409
    monkeypatch.undo()
    assert cleo.get(f"{where}/foreseen").status_code == 200
    assert "Take part" in cleo.get(where).text
    assert world.post(cleo, f"{where}/accept").status_code == 303


def test_why_it_cannot_be_said_is_said(world, monkeypatch):
    def failing(job, folder):
        del job
        folder.mkdir(parents=True)
        (folder / "job.json").write_text("{}")
        (folder / "foreseen.json").write_text('{"error": "no data in /srv/secret/x.npz"}')

    monkeypatch.setattr(world.launcher, "start", failing)
    token = world.invite(world.known("ada"), world.study("ada"), "north")["north"]
    cleo = world.known("cleo")
    where = world.post(cleo, "/join", token=token).headers["location"]
    for _ in range(2):
        page = cleo.get(where).text
    assert "no data in x.npz" in page
    assert "Take part" not in page
    assert world.post(cleo, f"{where}/accept").status_code == 409


def test_there_is_one_list_of_what_is_asked():
    """Written by hand, a second one would tell less than the program."""
    import cupola.web

    assert not (Path(os.path.dirname(cupola.web.__file__)) / "reveal.py").exists()
