"""Personalisation from plans: files, resumption, reports, refusals, engines."""

import json

import pytest
from safetensors.numpy import load_file

import cupola
from cupola import report
from cupola.analysis.folder_lock import read_lines
from cupola.analysis.plan_file import load
from cupola.analysis.run_folder import Run
from cupola.errors import PlanError
from reproduce.measure import measure

PLAN = {
    "name": "personal",
    "rounds": 2,
    "data": {
        "name": "digits",
        "partition": {
            "kind": "types",
            "types": [[0, 1], [2, 3]],
            "sites_per_type": 3,
            "samples_per_site": 20,
            "test_per_site": 10,
            "validation": 0.2,
        },
    },
    "model": {"name": "mlp", "hidden": [16, 8]},
    "local": {"lr": 0.1, "batch_size": 8},
    "engine": {"workers": 1},
    "personalise": {
        "methods": ["pfa", "random", "finetune"],
        "rounds": 2,
        "layers": [0, "4"],
        "channels": 12,
        "groups": 2,
        "minimum": 2,
        "curve": [1, 100],
    },
}


def plan(**changes):
    return load(PLAN, [f"{k.replace('__', '.')}={v}" for k, v in changes.items()])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return cupola.run(plan(), tmp_path_factory.mktemp("runs") / "personal")


def test_a_run_leaves_scores_groups_models_and_a_report(finished):
    found = json.loads((finished.folder / "personal.json").read_text())
    assert found["done"]
    assert set(found["methods"]) == {"federated", "pfa", "random", "finetune"}
    assert all(facts["sites"] == 6 for facts in found["methods"].values())
    digest = finished.result["personal"]
    assert digest["methods"] == found["methods"]
    assert [p["epsilon"] for p in digest["groups"]["curve"]] == [1, 100]
    models = load_file(finished.folder / "personal.safetensors")
    trained = sum(n >= 2 for n in digest["groups"]["sizes"])
    assert len(models) == trained * len(load_file(finished.folder / "model.safetensors"))
    page = (finished.folder / "report.html").read_text()
    for words in ("Personalisation", "Adjusted Rand index", "layer 2, 12 channels", "layer 4, 8"):
        assert words in page
    assert finished.result["bytes_up"] > finished.history[-1]["bytes_up"]


def test_the_ledger_says_what_vectors_and_scores_reveal(finished):
    entries = {e["task"]: e for e in read_lines(finished.folder / "ledger.jsonl")}
    assert "how often 20 channels are silent" in entries["sparsity"]["reveals"]
    assert entries["sparsity"]["kind"] == "gather"
    assert entries["sparsity"]["protection"] == "none"
    assert "adapted alone" in entries["adapt"]["reveals"]
    assert "group" in entries["train"]["reveals"]


def test_tables_measure_methods_and_groups(finished):
    run = report.open_run(finished.folder)
    digest = finished.result["personal"]
    assert measure(run, "personal_pfa") == digest["methods"]["pfa"]["test"]
    assert measure(run, "ari") == digest["groups"]["ari"]
    assert measure(run, "ari_random") == digest["groups"]["random"]["ari"]
    assert measure(run, "ari_at_100") == digest["groups"]["curve"][1]["ari"]
    assert measure(run, "personal_ewc") is None


def test_a_stopped_run_goes_on_and_ends_as_if_it_had_not_stopped(finished, tmp_path, monkeypatch):
    from cupola.analysis import carry_out
    from cupola.analysis import session as runs

    steps = 0

    def stopping(self, state, reach, after=carry_out.Session._after):
        nonlocal steps
        steps += 1
        after(self, state, reach)
        if steps == 9:  # in the middle of a group's training
            self._save(reach)
            raise KeyboardInterrupt

    monkeypatch.setattr(carry_out.Session, "_after", stopping)
    with pytest.raises(KeyboardInterrupt):
        cupola.run(plan(), tmp_path / "run")
    assert Run.open(tmp_path / "run").status == "stopped"
    (again,) = runs.resume(tmp_path / "run")
    one, other = again.result["personal"], finished.result["personal"]
    assert one == other
    assert again.result["bytes_up"] == finished.result["bytes_up"]
    same = (tmp_path / "run" / "personal.safetensors").read_bytes()
    assert same == (finished.folder / "personal.safetensors").read_bytes()


@pytest.mark.slow
def test_sites_in_processes_of_their_own_answer_alike(tmp_path):
    settings = {"personalise__methods": "['pfa','finetune']", "engine__kind": "processes"}
    settings |= {"data__partition__sites_per_type": 2, "personalise__curve": "[]"}
    settings |= {"dtype": "float64", "engine__mode": "one-by-one", "engine__timeout": 900}
    apart = cupola.run(plan(**settings), tmp_path / "apart", report=False)
    assert not any(record["failed"] for record in apart.history)  # a late site trains another model
    settings["engine__kind"] = "in-process"
    here = cupola.run(plan(**settings), tmp_path / "here", report=False)
    assert apart.result["personal"]["groups"] == here.result["personal"]["groups"]
    for method, facts in here.result["personal"]["methods"].items():
        told = dict(apart.result["personal"]["methods"][method])
        assert told.pop("reveals", None) == facts.get("reveals")
        rest = {name: value for name, value in facts.items() if name != "reveals"}
        assert told == pytest.approx(rest)


def test_noised_vectors_and_private_groups_are_in_one_account(tmp_path):
    private = {
        "privacy__mechanism": "dp-sgd", "privacy__noise_multiplier": 1.0,
        "personalise__curve": "[]", "personalise__release__epsilon": 5,
        "personalise__methods": "['pfa']",
    }  # fmt: skip
    found = cupola.run(plan(**private), tmp_path / "run", report=False).result
    kinds = {e["kind"] for g in found["privacy"]["groups"] for e in g["events"]}
    assert kinds == {"sampled-gaussian", "gaussian"}
    assert found["personal"]["groups"]["release"]["epsilon"] <= 5
    assert "sparsity" not in found["privacy"]["unprotected_answers"]
    events = [e for g in found["privacy"]["groups"] for e in g["events"]]
    steps = {e["count"] for e in events if e["kind"] == "sampled-gaussian"}
    assert steps <= {2 * 2, (2 + 2) * 2}  # two a round; a site left over trained in one phase only
    assert max(steps) == 8


def test_a_budget_covers_vectors_and_groups(tmp_path):
    private = {
        "privacy__mechanism": "dp-sgd", "privacy__noise_multiplier": 2.0,
        "privacy__budget__epsilon": 8, "personalise__curve": "[]",
        "personalise__methods": "['pfa']",
        "personalise__release__epsilon": 1, "local__weighting": "uniform",
        "data__partition__validation": 0.0,
    }  # fmt: skip
    found = cupola.run(plan(**private), tmp_path / "run", report=False).result
    assert found["privacy"]["epsilon"] <= 8
    assert found["personal"]["methods"]["pfa"]["sites"] == 0  # nobody told how well it went
    assert found["personal"]["groups"]["number"] == 2
    with pytest.raises(PlanError, match=r"personalise\.release"):
        plan(**{k: v for k, v in private.items() if "release" not in k})


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"personalise__adapt__local__lr": -1}, r"personalise\.adapt: local\.lr"),
        ({"personalise__adapt__recipe": "fedpox"}, "did you mean 'fedprox'"),
        ({"personalise__adapt__rounds": 3}, "recipe, local, server, participation only"),
        ({"personalise__methods": "['random']"}, "name both"),
        ({"privacy__mechanism": "dp-sgd", "privacy__epsilon": 3}, r"give privacy\.noise"),
        (
            {"privacy__mechanism": "central", "privacy__noise_multiplier": 3,
             "personalise__curve": "[]", "personalise__release__noise_multiplier": 1,
             "local__weighting": "uniform"},
            "whole sites",
        ),
        ({"sum": "masked"}, "differences of their masked totals"),
        ({"sum": "masked", "personalise__methods": "['pfa']"}, r"below sum\.minimum"),
        ({"personalise__release__epsilon": 1}, "curve needs exact vectors"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused(settings, why):
    with pytest.raises(PlanError, match=why):
        plan(**settings)


def test_variates_of_another_federation_are_refused(tmp_path):
    with pytest.raises(PlanError, match="control variates"):
        cupola.run(plan(personalise__adapt__recipe="scaffold"), tmp_path / "run", report=False)


def test_another_recipe_for_the_groups_is_taken():
    made = plan(personalise__adapt__recipe="fedprox", personalise__adapt__local__lr=0.5)
    adapted = made.adaptation()
    assert (adapted.local.proximal, adapted.local.lr, adapted.rounds) == (0.1, 0.5, 2)
    assert (made.local.proximal, made.local.lr) == (0.0, 0.1)
    assert load(made.to_toml()) == made
