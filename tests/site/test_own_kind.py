"""A user's own analysis at real sites: allowed by name, consented to, masked, followed, charged."""

import sys
from dataclasses import replace
from importlib.metadata import EntryPoint

import consortium as made
import numpy as np
import pytest
import tomli_w
from traits import hidden, witnessed

from cupola.analysis import kinds
from cupola.analysis.plan_file import load
from cupola.errors import DataError, FederationError, PlanError
from cupola.federation import Failure, drive, read_answer
from cupola.federation.message import encode_question
from cupola.federation.replay import OFF_PATH
from cupola.secure import Roster
from cupola.site import join_compensator, join_site, make_keys, read_ledger, read_proposal, spent
from cupola.site.consent import agree_to_go_on, study_folder
from cupola.site.consent_preview import preview

KIND = "own_regression:Regression"
COUNT = "own_regression:Count"
SUMS = ("compensator", "pairwise", "plain")
TASKS = ["regression *"]


def rows(i):
    """The private data of site i."""
    random = np.random.Generator(np.random.PCG64(i))
    x = random.uniform(-1, 1, (20, 2))
    return np.column_stack([x, 1 + x @ [2.0, -1.0] + 0.1 * random.normal(size=20)])


def parties(base, kind=KIND, sums="compensator", join=True, **more):
    """Three hospitals and a compensator that know the analysis, and have joined (or not yet)."""
    choice = "plain" if sums == "plain" else {"kind": "masked", "protocol": sums}
    plan = load({"name": "pressure", "kind": kind, "sum": choice})
    unmasked = {"unmasked_tasks": TASKS} if sums == "plain" else {}
    for i in range(3):
        folder = base / f"site-{i}"
        folder.mkdir(parents=True)
        lines = [";".join(map(repr, row)) for row in rows(i).tolist()]
        (folder / "rows.csv").write_text("\n".join(["age;dose;pressure", *lines]) + "\n")
        data = {"patients": {"path": "rows.csv", "separator": ";"}}
        settings = {"name": f"clinic {i}", "tasks": TASKS, "modules": ["own_regression"],
                    "data": data, **unmasked, **more}  # fmt: skip
        (folder / "cupola-site.toml").write_text(tomli_w.dumps(settings))
    third = base / "compensator"
    third.mkdir()
    (third / "cupola-compensator.toml").write_text('name = "t"\nmodules = ["own_regression"]\n')
    sites = tuple(make_keys(base / f"site-{i}", f"clinic {i}").public for i in range(3))
    keys = make_keys(third, "t").public if sums == "compensator" else None
    roster = Roster("pressure 1", sites, keys)
    (base / "plan.toml").write_text(plan.to_toml())
    (base / "roster.json").write_text(roster.to_json())
    trial = made.Consortium(base, plan, roster)
    if join:
        for i in range(3):
            join_site(trial.site(i), base / "plan.toml", base / "roster.json")
        if keys is not None:
            join_compensator(third, base / "plan.toml", base / "roster.json")
    return trial


def program(trial):
    return kinds.analysis_of(trial.plan).program(range(3))


@pytest.fixture
def trial(tmp_path, opened):
    opened.append(parties(tmp_path / "all"))
    return opened[-1]


@pytest.mark.parametrize("sums", SUMS)
def test_real_sites_give_the_pooled_fit(tmp_path, opened, sums):
    trial = parties(tmp_path / "all", sums=sums)
    opened.append(trial)
    state = drive(program(trial), witnessed(trial, *trial.open()))
    pooled = np.concatenate([rows(i) for i in range(3)])
    x = np.column_stack([np.ones(60), pooled[:, :2]])
    beta, (squares,), *_ = np.linalg.lstsq(x, pooled[:, 2], rcond=None)
    assert np.abs(state.arrays["beta"] - beta).max() < 1e-6
    assert state.arrays["variance"] == pytest.approx(squares / 60, abs=1e-6)
    lines = [line for line in read_ledger(trial.site(0), trial.study) if "bytes" in line]
    told = [line for line in lines if line["task"].startswith("regression")]
    assert [line["reveals"] for line in told] == [
        "second moments, summed over sites",
        "squared residuals and people, summed over sites",
    ]
    masked = "coordinator, unmasked" if sums == "plain" else "coordinator, masked"
    assert {line["to"] for line in told} == {masked}
    assert spent(trial.site(0), trial.study)["unprotected"] == {line["task"]: 1 for line in told}


@pytest.mark.parametrize("again", [False, True])
def test_a_question_off_the_plan_is_refused_also_after_a_restart(trial, again):
    steps, reach = program(trial), witnessed(trial, *trial.open())
    state = steps.start()
    state = steps.answer(state, reach.sum(steps.ask(state).question, range(3)))
    if again:
        reach = witnessed(trial, *trial.open())
    reach.engine.quorum = 1.0
    due = steps.ask(state).question
    aimed = replace(due, arrays={"beta": np.array([1e3, 0.0, 0.0])})
    with pytest.raises(FederationError, match=OFF_PATH):
        reach.sum(aimed, range(3))
    assert reach.sum(due, range(3)).arrays["people"] == pytest.approx(60)


def test_only_its_own_tasks_are_answered_and_nothing_without_masks(trial):
    trial.open()
    first = program(trial).ask(program(trial).start()).question
    for question, said in (
        (first, "this site answers this in masked sums only"),
        (replace(first, task="regression count"), "this site does not run this task"),
        (replace(first, task="train"), "this site does not run this task"),
        (replace(first, step=-1), "the plan has no such step"),
    ):
        told = read_answer(trial.opened[0].answer(encode_question(question)))
        assert told == Failure(said)


@pytest.mark.parametrize("kind", ["evil_kind:Study", "evil_kind.inner:Study", "evil:kind:Study"])
def test_a_kind_that_is_not_allowed_is_not_imported(tmp_path, monkeypatch, kind):
    for name in ("evil_kind", "evil"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('code of a plan was run')\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = tomli_w.dumps({"name": "x", "kind": kind})
    with pytest.raises(PlanError, match=rf"names code, '{kind}'.*to modules"):
        read_proposal(text, ["own_regression", "inner", "Study"])
    assert not {"evil_kind", "evil"} & set(sys.modules)


def test_an_installed_kind_is_allowed_by_its_module(tmp_path, monkeypatch):
    """Of an entry point the plan says a plain name."""
    (tmp_path / "evil_kind.py").write_text("raise SystemExit('code of a plan was run')\n")
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        EntryPoint("pooled", KIND, kinds.GROUP),
        EntryPoint("evil", "evil_kind:Study", kinds.GROUP),
        EntryPoint("training", "evil_kind:Study", kinds.GROUP),  # ours go first
    ]
    monkeypatch.setattr(kinds, "entry_points", lambda **_: points)
    with pytest.raises(PlanError, match=r"names code, 'evil'.*add 'evil_kind' to modules"):
        read_proposal('kind = "evil"\nname = "x"\n', ["evil", "own_regression"])
    with pytest.raises(PlanError, match="names code, 'pooled'"):
        read_proposal('kind = "pooled"\nname = "x"\n')
    found = read_proposal('kind = "pooled"\nname = "x"\n', ["own_regression"])
    assert found.analysis.tasks == ("regression moments", "regression residuals")
    assert read_proposal(tomli_w.dumps(made.PLAN)).analysis.kind == "training"
    kinds.find_kind.cache_clear()


@pytest.mark.parametrize("kind", [["evil_kind"], {"evil_kind": 1}, 3])
def test_a_kind_is_a_name(kind):
    with pytest.raises(PlanError, match="kind is the name of an analysis"):
        read_proposal(tomli_w.dumps({"name": "x", "kind": kind}))


def test_a_compensator_allows_it_as_well(tmp_path):
    trial = parties(tmp_path / "all", join=False)
    files = trial.base / "plan.toml", trial.base / "roster.json"
    (trial.compensator / "cupola-compensator.toml").write_text('name = "t"\n')
    with pytest.raises(PlanError, match="names code"):
        join_compensator(trial.compensator, *files)


def test_a_plan_is_pinned_whatever_its_kind(trial):
    path = study_folder(trial.site(0), trial.study) / "plan.toml"
    path.write_text(path.read_text().replace("dose", "weight"))
    trial.open()
    question = program(trial).ask(program(trial).start()).question
    assert read_answer(trial.opened[0].answer(encode_question(question))).broken
    assert "not the plan that was joined" in (path.parent / "log.txt").read_text()


def test_what_it_asks_is_found_out_by_playing_it_through(tmp_path):
    trial = parties(tmp_path / "all", join=False)
    files = trial.base / "plan.toml", trial.base / "roster.json"
    found = preview(trial.site(0), *files)
    told = [(row["task"], row["times"], row["numbers"]) for row in found.answers]
    assert told == [("regression moments", 1, 12), ("regression residuals", 1, 2)]
    assert "total of at least 3 sites" in found.answers[0]["to"]
    assert "masked" in found.answers[0]["protection"]
    assert found.complete
    assert (found.epsilon, found.limits, found.objections) == (None, [], [])
    others = [party for party, _ in found.parties if "compensator" in party]
    assert others == ["compensator", "coordinator with compensator"]
    assert not study_folder(trial.site(0), trial.study).exists()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"tasks": ["regression moments"]}, "'regression residuals', which is not in tasks"),
        ({"minimum": 4}, "wants at least 4"),
        ({"budget": {"epsilon": 1.0}}, "nothing protects"),
        ({"data": {"patients": {"path": "nowhere.csv"}}}, "no file 'nowhere.csv'"),
        ({"data": {"a": {"path": "x"}, "b": {"path": "x"}}}, "say which data set"),
        ({"modules": []}, "names code"),
    ],
)
def test_what_the_settings_do_not_allow_is_not_joined(tmp_path, settings, reason):
    trial = parties(tmp_path / "all", join=False, **settings)
    with pytest.raises(PlanError, match=reason):
        join_site(trial.site(0), trial.base / "plan.toml", trial.base / "roster.json")


def test_a_roster_of_other_sites_is_not_joined(tmp_path):
    trial = parties(tmp_path / "all", join=False)
    four = (*trial.roster.sites, make_keys(tmp_path / "four", "four").public)
    other = tmp_path / "roster.json"
    other.write_text(Roster("x", four, trial.roster.compensator, changes=True).to_json())
    with pytest.raises(PlanError, match="for 3 sites, the roster names 4") as error:
        join_site(trial.site(0), trial.base / "plan.toml", other)
    assert "without --changes" in str(error.value)


def test_sites_that_change_are_agreed_on(tmp_path):
    trial = parties(tmp_path / "all", join=False)
    plan, roster = trial.base / "plan.toml", trial.base / "roster.json"
    plan.write_text(trial.plan.change({"sum.changes": True}).to_toml())
    found = preview(trial.site(0), plan, roster)
    assert any("make the roster with --changes" in line for line in found.objections)
    assert any("differences of totals" in what for _, what in found.parties)


def test_nobody_goes_on_without_a_site_that_others_follow(trial):
    with pytest.raises(PlanError, match="every total of this study is of all sites"):
        agree_to_go_on(trial.site(0), trial.study, ["clinic 1"])


def test_a_noised_answer_is_charged_to_the_sites_budget(tmp_path, opened):
    budget = {"epsilon": 3.0, "delta": 1e-5}
    trial = parties(tmp_path / "all", COUNT, budget=budget)
    opened.append(trial)
    found = preview(trial.site(0), trial.base / "plan.toml", trial.base / "roster.json")
    assert 1 < found.epsilon["epsilon"] < 3
    assert (found.epsilon["budget"], found.epsilon["unprotected"]) == (3.0, [])
    reach = hidden(trial, *trial.open())
    state = drive(program(trial), reach)
    assert state.arrays["people"] == pytest.approx(60, abs=30)
    cost = spent(trial.site(0), trial.study)
    assert cost["epsilon"] == pytest.approx(found.epsilon["epsilon"])
    assert cost["unprotected"] == {}


def test_what_draws_says_itself_which_questions_follow_from_its_plan(tmp_path, opened):
    trial = parties(tmp_path / "all", COUNT)
    opened.append(trial)
    reach = hidden(trial, *trial.open())
    question = program(trial).ask(program(trial).start()).question
    total = reach.sum(replace(question, options={"of": "one person"}), range(3))
    assert set(total.failed.values()) == {"the plan counts everybody"}
    total = reach.sum(replace(question, step=1), range(3))
    assert set(total.failed.values()) == {"the plan has no such step"}
    assert reach.sum(question, range(3)).sites == [0, 1, 2]


def test_a_site_is_told_where_questions_are_not_checked(tmp_path, monkeypatch):
    import own_regression

    from cupola.analysis.protocol import Analysis

    trial = parties(tmp_path / "all", COUNT, join=False)
    files = trial.base / "plan.toml", trial.base / "roster.json"
    assert preview(trial.site(0), *files).limits == []
    monkeypatch.setattr(own_regression.Count, "allows", Analysis.allows)
    (line,) = preview(trial.site(0), *files).limits
    assert "the coordinator chooses what is in them" in line


def test_a_program_that_fails_in_its_rehearsal_says_so(tmp_path):
    trial = parties(tmp_path / "all", join=False)
    (trial.site(0) / "rows.csv").write_text("age;dose;pressure\n1;1;1\n")  # no fit of one patient
    found = preview(trial.site(0), trial.base / "plan.toml", trial.base / "roster.json")
    assert not found.complete
    assert found.limits == ["the rehearsal ended after 0 steps: LinAlgError"]
    with pytest.raises(DataError, match="no data set 'x'"):
        preview(trial.site(0), trial.base / "plan.toml", trial.base / "roster.json", "x")
