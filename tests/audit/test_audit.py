"""The command on real runs: what it writes, prints and refuses, and what it leaves alone."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from audit_data import BASE, UNIFORM, plan
from typer.testing import CliRunner

import cupola
from cupola.audit import NO_CLAIM, Subject, audit, read, stepwise
from cupola.audit.bounds import reach, vectors
from cupola.audit.canaries import gradient_canary
from cupola.cli import app
from cupola.errors import CupolaError
from cupola.federation import Question, SiteContext
from cupola.privacy.accounting import epsilon
from cupola.privacy.events import Event
from cupola.training.local import train
from cupola.training.mechanisms import central
from cupola.training.plan import Plan

PRIVATE = {
    **BASE,
    "name": "private",
    "rounds": 5,
    "data": {"name": "digits", "partition": {"kind": "iid", "sites": 60}},
    "local": {"work": "batches", "batch_size": 12, "lr": 0.2, "weighting": "uniform"},
    "privacy": {"mechanism": "dp-sgd", "epsilon": 2.0, "budget": {"epsilon": 2.0}},
}


@pytest.fixture(scope="module")
def private(tmp_path_factory):
    folder = tmp_path_factory.mktemp("private") / "run"
    cupola.run(PRIVATE, folder, report=False)
    return folder


@pytest.fixture(scope="module")
def open_run(tmp_path_factory):
    """Without privacy, and overfitted: many epochs on few rows."""
    folder = tmp_path_factory.mktemp("open") / "run"
    few = {"name": "digits", "partition": {"kind": "iid", "sites": 4, "test": 0.8}}
    local = {**UNIFORM, "epochs": 5, "batch_size": 8, "lr": 0.5}
    whole = {**BASE, "name": "open", "rounds": 20, "data": few, "local": local}
    cupola.run(whole, folder, report=False)
    return folder


def command(*arguments, code=(0,)):
    result = CliRunner().invoke(app, ["audit", *(str(a) for a in arguments)])
    assert result.exit_code in code, result.output
    return result


def files(folder):
    skip = ("audit.json", ".lock")
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name not in skip}


def test_the_command_says_what_it_found_and_touches_nothing_else(private):
    before = files(private)
    options = ("--trials", 40, "--rounds", 2, "--shadows", 4, "--workers", 1)
    result = command(private, *options)
    assert files(private) == before, "books, model, ledger and result stay as they are"
    found = read(private)
    bounds = found["epsilon"]
    assert bounds["verdict"] == "consistent"
    assert found["parts"]["refuted"] == []
    assert found["false_alarm"] == pytest.approx(1e-3)
    for word in (
        "claim", "gradient", "row", "no assumption", "mu-GDP", "inclusion rate", "AUC",
        "4 shadow runs", "advantage", "99.95 %", "noise / 2", "many", "0.1 %",
    ):  # fmt: skip
        assert word in " ".join(result.stdout.split()), word
    assert "canary: 40" in result.stderr
    # The claim is the accountant's for exactly the rounds repeated, the whole run's stands beside.
    events = [Event.from_dict(event) for event in bounds["events"]]
    assert bounds["claim"] == pytest.approx(epsilon(events, 1e-5))
    assert bounds["claim"] < bounds["run_epsilon"] <= 2.0
    assert bounds["rounds"] == len(events) == 2
    assert [c["canary"] for c in bounds["canaries"]] == ["gradient", "row"]
    assert all(c["norm_in_clips"] >= 10 for c in bounds["canaries"])
    shared = 1 - 5e-4 / 3  # two canaries, and many in one run
    assert bounds["canaries"][0]["lower_bound"]["confidence"] == pytest.approx(shared)
    ratio = found["membership"]["likelihood_ratio"]
    assert ratio["shadows"] == 4
    assert 0.3 < ratio["auc"] < 0.7
    assert set(ratio["tpr"]) == {"0.01", "0.001"}


@pytest.mark.slow
def test_json_is_one_document_and_the_same_again(private, monkeypatch):
    monkeypatch.setattr(stepwise, "CASES", 26)
    options = ("--trials", 30, "--rounds", 1, "--shadows", 0, "--json")
    documents = []
    for workers in (1, 2):
        result = command(private, *options, "--workers", workers)
        document = json.loads(result.stdout)
        many = document["epsilon"]["many_canaries"]
        for part in (document, document["parts"], many, *document["epsilon"]["canaries"]):
            del part["seconds"]
        tests = document["parts"]["tests"]
        document["parts"]["tests"] = [test for test in tests if "real" not in test["part"]]
        assert len(tests) == len(document["parts"]["tests"]) + 3, "those draw anew every time"
        documents.append(document)
    assert documents[0] == documents[1], "fixed seeds; workers change no result"
    assert documents[0]["membership"]["without_likelihood_ratio"] == "no shadow runs were asked for"
    assert documents[0]["folder"] == str(private)


def test_a_run_without_privacy_has_no_claim_but_is_attacked(open_run):
    result = command(open_run, "--shadows", 8)
    assert NO_CLAIM in " ".join(result.stdout.split())
    found = read(open_run)
    assert found["verdict"] is None
    assert found["epsilon"] is None
    members = found["membership"]
    assert members["held_out"] == "rows that sites hold out"
    loss, ratio = members["loss_threshold"], members["likelihood_ratio"]
    assert loss["auc_interval"][0] > 0.5, "an overfitted model betrays its rows"
    assert ratio["auc_interval"][0] > 0.5
    assert ratio["members"] + ratio["others"] > 500


def test_a_refuted_claim_fails_the_command(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    cupola.run(plan("central"), folder, report=False)
    monkeypatch.setattr(central, "add_noise", lambda value, *_: np.asarray(value, float))
    result = command(folder, "--trials", 200, "--shadows", 0, "--workers", 1, code=(1,))
    assert "refuted" in result.stdout
    assert read(folder)["verdict"] == "refuted"


def test_what_cannot_be_audited_is_refused(private, tmp_path):
    with pytest.raises(CupolaError, match="holds no run"):
        audit(tmp_path)
    with pytest.raises(CupolaError, match="30 is the least"):
        audit(private, trials=3)
    copy = tmp_path / "copy"
    shutil.copytree(private, copy)
    result = json.loads((copy / "result.json").read_text())
    del result["checksum"]  # as if it had been written so
    (copy / "result.json").write_text(json.dumps({**result, "status": "stopped"}))
    with pytest.raises(CupolaError, match="not finished"):
        audit(copy)
    for group in result["privacy"]["groups"]:
        for event in group["events"]:
            event["noise"] *= 2
    (copy / "result.json").write_text(json.dumps(result))
    with pytest.raises(CupolaError, match="ledger of site"):
        audit(copy, trials=30)
    with pytest.raises(CupolaError, match="even number"):
        audit(private, trials=30, rounds=1, shadows=3)


def test_no_plan_or_question_can_set_a_canary(private):
    assert "canary" not in json.dumps(Plan.model_json_schema())
    assert "canary" not in Question.__dataclass_fields__
    assert SiteContext.__dataclass_fields__["canary"].default is None
    subject = Subject.open(private, 1)
    question = subject.question(1)
    mark = {"row": 0, "gradients": {"1": [1e9]}}
    asked = replace(question, options={**question.options, "canary": mark})
    answers = [train(subject.context(0, subject.host.data(0), 3), q) for q in (question, asked)]
    assert np.array_equal(*(answer.arrays["model/1.weight"] for answer in answers))


def test_trials_are_independent_and_the_canary_shows_without_noise(private):
    subject = Subject.open(private, 2)
    made = gradient_canary(subject, subject.site(), 1)
    one, two = vectors(made, 20, seed=3)
    assert one.shape == two.shape == (20, 2)
    assert len(np.unique(np.concatenate([one, two]).reshape(-1))) == 80, "never the same noise"
    again, _ = vectors(made, 20, seed=3)
    assert np.array_equal(one, again)


def test_reach_grows_with_the_trials():
    values = [reach(n, 1e-5, 0.99) for n in (30, 100, 1000, 10_000)]
    assert values == sorted(values)
    assert 4.0 < values[2] < 4.3


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_default_audit_of_a_real_run(tmp_path):
    """Linear model, 6 rounds, as many trials as there is patience; prints the seconds."""
    folder = tmp_path / "run"
    whole = {**plan("dp-sgd"), "rounds": 8}
    cupola.run(whole, folder, report=False)
    found = json.loads(command(folder, "--shadows", 0, "--json").stdout)
    assert found["epsilon"]["verdict"] == "consistent"
    assert found["epsilon"]["rounds"] == 6
    assert found["epsilon"]["trials"] >= 100
    assert found["seconds"] < 180
    print({c["canary"]: c["seconds"] for c in found["epsilon"]["canaries"]})
