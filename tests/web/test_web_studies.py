"""The form, the plan as text, and the life of a study."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupola.web import form_fields, plans
from cupola.web.kinds import forms
from cupola.web.models import Run
from cupola.web.study_service import StudyService

STARTS = {kind: form.start for kind, form in forms().items()}
KINDS = list(STARTS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_form_makes_the_plan_that_filled_it(world, kind):
    ada, start = world.known("ada"), STARTS[kind]
    page = ada.get(f"/studies/new?kind={kind}").text
    for shown in form_fields.all_fields(kind):
        assert f'id="{shown.id}"' in page
        assert len(shown.about) > 8
    assert "module:name" not in page  # a plan from a browser names no code
    made = world.post(ada, "/studies/new", kind=kind, **form_fields.filled(kind, start))
    where = made.headers["location"]
    assert plans.parse(ada.get(f"{where}/plan.toml").text) == start
    assert ada.get(f"{where}/edit").status_code == 200
    saved = world.post(ada, f"{where}/edit", **form_fields.filled(kind, start))
    assert saved.status_code == 303


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rounds", "0"),
        ("rounds", "many"),
        ("local.lr", "-1"),
        ("data.partition.alpha", "x"),
        ("name", "<script>alert(1)</script>"),
        ("participation.kind", "sometimes"),
        ("privacy.mechanism", "magic"),
        ("data.name", "nothing"),
        ("model.name", "os:system"),
        ("rounds", "1000000"),
    ],
)
def test_problems_are_shown_at_their_field(world, key, value):
    ada = world.known("ada")
    form = {**form_fields.filled("training", STARTS["training"]), key: value}
    answer = world.post(ada, "/studies/new", kind="training", **form)
    assert answer.status_code == 422
    assert f'id="f-{key.replace(".", "-")}-wrong"' in answer.text
    assert "<script>" not in answer.text


def test_sentences_speak_of_nothing_that_a_browser_cannot_do():
    told = "A [data set](d.md), or your own function at `module:name` that gives `cupola.Source`."
    assert form_fields.as_html(told) == "A data set."
    for kind in KINDS:
        for shown in form_fields.all_fields(kind):
            assert form_fields.as_html(shown.about).count("`") == 0, shown.key


def test_plans_are_written_with_short_lists_in_a_line():
    given = {**STARTS["personalisation"], "x": [["[", "]"], [1, 2]], "long": list(range(200))}
    text = plans.to_text(given)
    assert "hidden = [64]" in text
    assert plans.parse(text) == plans.normal(given)


def test_what_does_not_apply_is_not_written():
    form = {
        **form_fields.filled("training", STARTS["training"]),
        "privacy.epsilon": "3",
        "sum.minimum": "4",
        "participation.count": "2",
    }
    made = form_fields.from_form("training", {}, form)
    assert "privacy" not in made
    assert "sum" not in made
    assert form_fields.from_form("training", {}, {**form, "privacy.mechanism": "dp-sgd"})[
        "privacy"
    ] == {
        "mechanism": "dp-sgd",
        "epsilon": 3,
    }
    private = form_fields.from_form("training", {}, {**form, "recipe": "dp-sgd"})
    assert private["privacy"] == {"epsilon": 3}


def test_data_that_only_real_sites_hold_are_described_in_the_form(world):
    ada = world.known("ada")
    form = {
        **form_fields.filled("training", STARTS["training"]),
        "data.name": "elsewhere", "data.called": "patients", "data.kind": "classification",
        "data.shape": "3", "data.class_names": "not ill, ill", "evaluation.on": "sites",
    }  # fmt: skip
    made = world.post(ada, "/studies/new", kind="training", **form)
    assert made.status_code == 303, made.text
    where = made.headers["location"]
    assert plans.parse(ada.get(f"{where}/plan.toml").text)["data"] == {
        "name": "elsewhere", "called": "patients", "kind": "classification", "shape": [3],
        "class_names": ["not ill", "ill"], "partition": {"kind": "iid", "sites": 5},
    }  # fmt: skip
    page = ada.get(where).text
    assert "Start as a simulation" not in page
    for action in ("start", "invite"):
        answer = world.post(ada, f"{where}/{action}", sites="north")
        assert answer.status_code == 409
        assert "invite real sites" in answer.text
    simulated = {k: v for k, v in form.items() if k != "data.name"} | {"data.name": "digits"}
    assert "called" not in form_fields.from_form("training", {}, simulated)["data"]


def test_what_data_at_real_sites_cost_is_foreseen_for_a_few_sizes():
    from cupola.analysis.plan_file import load
    from cupola.training.web_forecast import SAMPLES, check_elsewhere

    plan = {
        "name": "x", "rounds": 4, "sum": "masked", "model": "linear", "local": {"lr": 0.1},
        "data": {
            "name": "elsewhere", "called": "p", "kind": "classification", "shape": [3],
            "class_names": ["0", "1"], "partition": {"kind": "iid", "sites": 3, "test": 0.2},
        },
        "privacy": {"mechanism": "dp-sgd", "noise_multiplier": 2.0, "clip": 1.0, "delta": 1e-5},
    }  # fmt: skip
    told, _ = check_elsewhere(load(plan))
    assert told["bytes"]["per_site_down"] > 100
    groups = told["privacy"]["groups"]
    assert [group["samples"] for group in groups] == list(SAMPLES)
    costs = [group["epsilon"] for group in groups]
    assert costs == sorted(costs, reverse=True)  # the more samples, the smaller the share drawn
    assert told["privacy"]["epsilon"] == costs[1]
    assert check_elsewhere(load({**plan, "privacy": {}}))[0]["privacy"] is None


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_is_foreseen_is_shown(world, monkeypatch, elsewhere):
    from cupola.analysis.kinds import analysis_of
    from cupola.analysis.plan_file import load

    private = {"mechanism": "dp-sgd", "noise_multiplier": 2.0, "clip": 1.0, "delta": 1e-5}
    plan = {**STARTS["training"], "rounds": 2, "privacy": private}
    if elsewhere:
        told = {"called": "p", "kind": "classification", "shape": [3], "class_names": ["0", "1"]}
        plan["data"] = {"name": "elsewhere", "partition": {"kind": "iid", "sites": 3}, **told}
    found = analysis_of(load(plan)).foresee(Path())
    monkeypatch.setattr(StudyService, "foresee", lambda *_: found)
    page = world.known("ada").get(f"/studies/{world.study('ada', **plan)}").text
    for part in ("Sent in a round", "Epsilon of each site", "Who learns what", "Nothing protects"):
        assert part in page
    assert ("any with" in page) == elsewhere


def test_the_form_shows_ones_and_zeros_as_numbers():
    plan = {"rounds": 1, "privacy": {"clip": 1.0}, "data": {"partition": {"test": 0.0}}}
    shown = form_fields.filled("training", {**plan, "twin": True})
    assert shown == {
        "rounds": "1", "privacy.clip": "1.0", "data.partition.test": "0.0", "twin": "true",
    }  # fmt: skip


def test_keys_that_the_form_does_not_show_stay():
    before = {**STARTS["training"], "link": {"down": 3.0}, "trainable": {"freeze": ["x"]}}
    form = {**form_fields.filled("training", before), "rounds": "7"}
    after = form_fields.from_form("training", before, form)
    assert after["link"] == {"down": 3.0}
    assert after["trainable"] == {"freeze": ["x"]}
    assert after["rounds"] == 7


REFUSED = [
    'kind = "antigravity:Analysis"',
    'kind = "no-such-kind"',
    'task = "os:system"',
    'data = "digits"\nmodel = "antigravity:a.b"',  # looking it up would import it
    'data = "digits"\nmodel = "antigravity: a"',
    '[model]\nname = "mlp"\nx = "a:b:c"',
    'recipe = "my.module:thing"',
    '[model]\nname = "os:getcwd"',
    '[data]\nname = "csv"\npath = "/etc/passwd"',
    '[data]\nname = "digits"\nfolder = "/"',
    '[data]\nname = "cifar10"\ndownload = true',
    '[grid]\n"local.lr" = [0.1, 0.2]',
    "seeds = [1, 2]",
    '[privacy.budget]\nepsilon = 1.0\nfile = "x"',
    '[model]\nname = "pretrained"\nsource = "../run"',
    '[engine]\nkind = "processes"',
    '[personalise]\nrounds=1\n[personalise.adapt]\nrecipe = "a:b"',
]


@pytest.mark.parametrize("text", REFUSED)
def test_plans_from_a_browser_name_neither_code_nor_files(world, text):
    ada = world.known("ada")
    whole = 'name = "x"\nrounds = 1\n' + text
    answer = world.post(ada, "/studies/upload", text=whole)
    assert answer.status_code == 422
    assert "antigravity" not in sys.modules
    with pytest.raises(plans.Wrong):
        plans.check("training", plans.parse(whole))


@pytest.mark.parametrize(
    "text",
    [
        'cohorts = [{name="a", bfile="/x"}]',
        'folder = "/"',
        'salt = "s"',
        'variants = "x.bim"',
        'covariates = ["../x"]',
    ],
)
def test_association_plans_name_no_files(text):
    with pytest.raises(plans.Wrong):
        plans.check("association", plans.parse('test = "linear"\n' + text))


@given(
    st.recursive(
        st.one_of(st.booleans(), st.integers(-5, 5), st.sampled_from(["a:b", "/x", "iid", "fine"])),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(
                st.sampled_from(["data", "model", "name", "kind", "x"]), inner, max_size=3
            ),
        ),
        max_leaves=8,
    )
)
def test_no_shape_of_a_plan_hides_code(tree):
    given = {"name": "x", "rounds": 1, "model": tree}
    found = {value for key, value in plans.leaves(given) if key != "name"}
    if {"a:b", "/x"} & found:
        with pytest.raises(plans.Wrong):
            plans.check("training", given)


def test_wrong_and_huge_uploads_are_refused(world):
    ada = world.known("ada")
    slow = [b"x = " + b"9" * 5000, b".".join([b"a"] * 50_000) + b" = 1",
            ".".join(['"\u2028"'] * 20_000).encode() + b" = 1",
            b"".join(b"k%d = 1\n" % i for i in range(20_000)),
            b'name = "' + b"x" * 101 + b'"\nrounds = 1\ndata = "digits"\nmodel = "mlp"',
            ]  # fmt: skip
    began = time.monotonic()
    for content in (b"\xff\xfe\x9f", b"not = = toml", b"[" * 5000, b"x = " + b"[" * 4000, *slow):
        answer = world.post(ada, "/studies/upload", files={"file": ("p.toml", content)})
        assert answer.status_code == 422, content[:10]
    assert time.monotonic() - began < 60  # it was minutes
    assert world.post(ada, "/studies/upload", files={"file": ("p", b"a\0b")}).status_code == 400
    huge = b"#" * 400_000
    assert world.post(ada, "/studies/upload", files={"file": ("p", huge)}).status_code == 413

    def drops():  # no length is told beforehand
        for _ in range(40):
            yield b"#" * 10_000

    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert ada.post("/studies/upload", content=drops(), headers=kind).status_code == 413
    assert world.post(ada, "/studies/upload", text="a" * 250_000).status_code == 422


def test_text_is_shown_as_text(world):
    ada = world.known("ada")
    evil = "<img src=x onerror=alert(1)>"
    plan = f'name = "x"\ntest = "linear"\ncovariates = ["{evil}"]\n'
    where = world.post(ada, "/studies/upload", text=plan).headers["location"]
    for url in (where, f"{where}/edit", f"/?search={evil}"):
        page = ada.get(url).text
        assert "&lt;img" in page
        assert evil not in page
    assert evil not in ada.get(f"/login?back={evil}").text
    for search in ("' OR 1=1 --", "%", "_", "\\", '"'):
        assert ada.get("/", params={"search": search}).status_code == 200
        assert where not in ada.get("/", params={"search": search}).text


def test_a_study_runs_stops_goes_on_and_is_repeated(world):
    ada, study = world.known("ada"), world.study("ada")
    here = f"/studies/{study}"
    assert world.post(ada, f"{here}/stop").status_code == 409
    assert world.post(ada, f"{here}/start").headers["location"] == f"{here}/runs/1"
    assert "queued" in ada.get(f"{here}/runs/1").text
    world.sweep()
    assert world.post(ada, f"{here}/start").status_code == 409
    assert (
        world.post(ada, f"{here}/edit", text=plans.to_text(STARTS["training"])).status_code == 409
    )
    assert world.post(ada, f"{here}/invite", sites="late").status_code == 409
    world.post(ada, f"{here}/stop")
    world.finish(study, status="stopped", reason="interrupted after round 3")
    assert "interrupted after round 3" in ada.get(f"{here}/runs/1").text
    assert world.post(ada, f"{here}/resume").status_code == 303
    world.sweep()
    assert world.launcher.jobs[-1][0].resume
    world.finish(study)
    assert "How it learned" in ada.get(f"{here}/runs/1").text
    assert world.post(ada, f"{here}/resume").status_code == 409
    assert world.post(ada, f"{here}/nonsense").status_code == 404
    assert world.post(ada, f"{here}/repeat").status_code == 303


def test_a_process_that_vanishes_is_a_failure_that_can_be_resumed(world):
    ada, study = world.known("ada"), world.study("ada")
    world.post(ada, f"/studies/{study}/start")
    world.sweep()
    world.launcher.living.clear()  # killed: no result was written
    world.sweep()
    assert "ended unexpectedly" in ada.get(f"/studies/{study}/runs/1").text
    assert world.post(ada, f"/studies/{study}/resume").status_code == 303
    world.finish(study)


def test_studies_wait_for_each_other(world):
    ada = world.known("ada")
    world.sweep()
    first, second = world.study("ada"), world.study("ada")
    for study in (first, second):
        world.post(ada, f"/studies/{study}/start")
    with world.app.state.sessions() as db:
        room = 1 + db.query(Run).filter_by(status="running").count()
        StudyService(db, replace(world.settings, at_once=room), world.launcher).sweep()
    assert "running" in ada.get(f"/studies/{first}").text
    assert "queued" in ada.get(f"/studies/{second}").text
    world.finish(first)
    world.finish(second)


def test_a_study_is_deleted_with_all_that_it_left_here(world):
    ada, study = world.known("ada"), world.study("ada")
    token = world.invite(ada, study, "a")["a"]
    world.join(world.known("cleo"), token)
    world.sweep()
    assert world.post(ada, f"/studies/{study}/delete").status_code == 409  # it runs
    folder = world.finish(study)
    assert folder.is_dir()
    assert world.post(world.known("ben"), f"/studies/{study}/delete").status_code == 404
    assert world.post(world.known("cleo"), f"/studies/{study}/delete").status_code == 403
    assert world.post(ada, f"/studies/{study}/delete").status_code == 303
    assert not folder.exists()
    assert ada.get(f"/studies/{study}").status_code == 404
    assert "study: delete" in ada.get("/audit").text


def test_the_bytes_of_an_association_study_are_foreseen(tmp_path):
    from cupola.analysis.kinds import analysis_of
    from cupola.analysis.plan_file import load
    from cupola.web.demo import COHORTS, simulated_cohorts

    def foreseen(**changes):
        return analysis_of(load({**plan, **changes}, elsewhere=True)).foresee(tmp_path)

    simulated_cohorts(tmp_path, variants=200, people=24)
    files = [{"name": n, "bfile": n} for n in COHORTS]
    plan = {"test": "chi-square", "sum": "masked", "chunk": 64, "cohorts": files}
    told = foreseen()
    assert (told["variants"], told["people"], told["known"]) == (120, 24, 3)  # the rest is rare
    rows = {row["task"]: row for row in told["rows"]}
    assert rows["gwas counts"]["times"] == 1  # many chunks in a question
    assert told["at_most"] == []
    assert told["total"] == sum(row["total"] for row in told["rows"])
    unmasked = foreseen(sum="plain")
    assert 0 < unmasked["total"] < told["total"]
    none = foreseen(cohorts=[{"name": n} for n in COHORTS])
    assert none["variants"] == 100_000
    assert none["total"] > 100 * told["total"]
