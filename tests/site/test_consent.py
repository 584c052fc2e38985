"""Nothing runs without a site's consent, and consent is to one plan, one roster, one data set."""

import stat
import sys
from pathlib import Path

import consortium as made
import pytest
import tomli_w

from cupola.errors import DataError, PlanError
from cupola.federation import Contribution, Failure, Question, read_answer
from cupola.federation.message import encode_question
from cupola.secure import Identity, Masked, Roster
from cupola.secure.revocation import keep_revocation, revocation, revoked_party
from cupola.site import (
    join_compensator,
    join_site,
    open_compensator,
    open_site,
    read_proposal,
    read_settings,
    withdraw,
)
from cupola.site.consent import look, own_site, study_folder
from cupola.site.settings import SiteSettings
from cupola.training.own_data import own_data


def first_question(trial):
    """The bytes of the first masked question, and the answer of site 0."""
    sites, third = trial.open()
    program = trial.training()
    reach = Masked(sites, third, trial.roster)
    ask = program.ask(program.start())
    reach.sum(ask.question, ask.sites)
    return sites.seen[0][1]


def again(trial, data, i=0):
    trial.close()
    party = open_site(trial.site(i), trial.study)
    trial.opened.append(party)
    return read_answer(party.answer(data))


def test_without_consent_nothing_runs(tmp_path):
    trial = made.consortium(tmp_path / "all", made.PLAN, join=False)
    sites, third = trial.open()
    question = encode_question(Question("evaluate"))
    for party in (*sites.parties, *third.parties):
        assert read_answer(party.answer(question)) == Failure("this study was not joined here")
    trial.close()


def test_answers_are_nobody_elses_even_if_a_study_was_asked_for_before_it_was_joined(tmp_path):
    trial = made.consortium(tmp_path / "all", made.PLAN, join=False)
    plan, roster = trial.base / "plan.toml", trial.base / "roster.json"
    (trial.site(1) / "studies").mkdir()
    place = study_folder(trial.site(1), trial.study)
    place.mkdir(mode=0o755)
    question = encode_question(Question("evaluate"))
    for i, open_party in enumerate((open_site, open_site, open_site)):
        party = open_party(trial.site(i), trial.study)
        party.answer(question)
        party.close()
        join_site(trial.site(i), plan, roster)
    for i in range(3):
        place = study_folder(trial.site(i), trial.study)
        assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_a_joined_study_is_answered_and_no_other(trial):
    data = first_question(trial)
    assert isinstance(again(trial, data), Contribution)
    other = open_site(trial.site(0), "another study")
    assert read_answer(other.answer(data)) == Failure("this study was not joined here")


def test_consent_taken_back_in_the_settings_counts_at_once(trial):
    data = first_question(trial)
    path = trial.site(0) / "cupola-site.toml"
    text = path.read_text()
    path.write_text(text[: text.index("[studies")])
    told = read_answer(trial.opened[0].answer(data))  # the same process
    assert told == Failure("this study was not joined here")


def test_a_withdrawn_site_answers_nothing_not_even_again(trial):
    data = first_question(trial)
    withdraw(trial.site(0), trial.study)
    gone = Failure("this site has withdrawn from the study")
    assert read_answer(trial.opened[0].answer(data)) == gone
    assert again(trial, data) == gone
    with pytest.raises(PlanError, match="withdrawn"):
        join_site(trial.site(0), trial.base / "plan.toml", trial.base / "roster.json")


@pytest.mark.parametrize("who", ["own", "other", "compensator"])
def test_a_revoked_key_stops_the_study(trial, who):
    data = first_question(trial)
    place = {"own": 0, "other": 1}.get(who)
    folder = trial.compensator if place is None else trial.site(place)
    text = revocation(Identity.open(folder / "identity.json"))
    keep_revocation(trial.site(0), text)
    keep_revocation(trial.compensator, text)
    for party in (trial.opened[0], trial.opened[-1]):
        told = read_answer(party.answer(data))
        assert isinstance(told, Failure)
        assert told.code.startswith("a key of the study was revoked")
    assert isinstance(read_answer(trial.opened[2].answer(data)), Contribution)  # not told yet


def test_only_the_owner_revokes_a_key(trial):
    one, two = (Identity.open(trial.site(i) / "identity.json") for i in (0, 1))
    forged = revocation(two).replace(two.public.sign.hex(), one.public.sign.hex())
    for text in (forged, "{}", "[" * 5000, "x" * 10_000, revocation(one).replace("clinic 0", "x")):
        with pytest.raises(Exception, match="not a revocation"):
            revoked_party(text)


@pytest.mark.parametrize("file", ["plan.toml", "roster.json"])
def test_what_was_pinned_cannot_be_exchanged(trial, file):
    data = first_question(trial)
    path = next((trial.site(0) / "studies").iterdir()) / file
    if file == "plan.toml":
        path.write_text(path.read_text().replace("rounds = 2", "rounds = 3"))
    else:
        whole = trial.roster
        path.write_text(Roster(whole.study + "!", whole.sites, whole.compensator).to_json())
    told = again(trial, data)
    assert told == Failure("data or files are not usable: see the site's own log", broken=True)
    assert "that was joined" in (path.parent / "log.txt").read_text()


def test_a_changed_study_needs_a_new_name(trial):
    plan = trial.base / "plan.toml"
    plan.write_text(plan.read_text().replace("rounds = 2", "rounds = 3"))
    with pytest.raises(PlanError, match="new name"):
        join_site(trial.site(0), plan, trial.base / "roster.json")
    with pytest.raises(PlanError, match="new name"):
        join_compensator(trial.compensator, plan, trial.base / "roster.json")


def test_joining_again_changes_nothing(trial):
    before = (trial.site(0) / "cupola-site.toml").read_text()
    join_site(trial.site(0), trial.base / "plan.toml", trial.base / "roster.json")
    assert (trial.site(0) / "cupola-site.toml").read_text() == before


@pytest.mark.parametrize(
    ("settings", "plan", "reason"),
    [
        ({"tasks": ["evaluate"]}, {}, "'train', which is not in tasks"),
        ({}, {"sum": "plain"}, "without masks, which is not in unmasked_tasks"),
        ({"minimum": 4}, {}, "wants at least 4"),
        ({"budget": {"epsilon": 1.0}}, {}, "nothing protects"),
        ({}, {"privacy": {"mechanism": "dp-sgd", "epsilon": 1.0}}, r"set a \[budget\]"),
        (
            {},
            {"privacy": {"mechanism": "central", "noise_multiplier": 1.0, "clip": 1.0}},
            "the plan's seed",
        ),
        ({"data": {"other": {"part": 0}}}, {}, "no data set 'patients'"),
        ({}, {"data": {"name": "digits", "partition": {"kind": "iid", "sites": 4}}}, "for 4 sites"),
        ({}, {"evaluation": {"per_site": True}}, "'evaluate' without masks"),
    ],
)
def test_a_study_that_the_settings_do_not_allow_is_not_joined(tmp_path, settings, plan, reason):
    trial = made.consortium(tmp_path / "all", {**made.PLAN, **plan}, join=False)
    path = trial.site(0) / "cupola-site.toml"
    path.write_text(tomli_w.dumps(made.settings(0) | settings))
    with pytest.raises(PlanError, match=reason):
        join_site(trial.site(0), trial.base / "plan.toml", trial.base / "roster.json")
    assert not read_settings(trial.site(0), SiteSettings).studies


def test_a_stranger_cannot_join(trial, tmp_path):
    strange = made.consortium(tmp_path / "strange", made.PLAN, join=False)
    with pytest.raises(DataError, match="keys are not in the roster"):
        join_site(strange.site(0), trial.base / "plan.toml", trial.base / "roster.json")
    with pytest.raises(DataError, match="another compensator"):
        join_compensator(strange.compensator, trial.base / "plan.toml", trial.base / "roster.json")


@pytest.mark.parametrize(
    "change",
    [{"model": "evil_code:Net"}, {"task": "evil_code:run"}, {"recipe": "evil_code:recipe"},
     {"data": {"name": "evil_code:load"}}, {"loss": "evil_code:loss"},
     {"model": {"name": "linear", "x": ["evil_code:X"]}},
     {"evaluation": {"metrics": {"class_names": "evil_code:metric"}}}],
)  # fmt: skip
def test_a_plan_cannot_load_code(tmp_path, change, monkeypatch):
    (tmp_path / "evil_code.py").write_text("raise SystemExit('code of a plan was run')\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = tomli_w.dumps({**made.PLAN, **change})
    with pytest.raises(PlanError, match=r"names code, 'evil_code:\w+'"):
        read_proposal(text)


@pytest.mark.parametrize("section", ["model", "data"])
def test_a_plan_fetches_nothing_at_a_site(section):
    options = {"name": "huggingface", "path": "somebody/model", "download": True}
    with pytest.raises(PlanError, match=rf"{section}\.download: a plan fetches nothing"):
        read_proposal(tomli_w.dumps({**made.PLAN, section: options}))


@pytest.mark.parametrize("name", ["os.system", "torch.os.system", "run", "Net.load_state_dict"])
def test_an_allowed_module_does_not_lend_what_it_imports(tmp_path, monkeypatch, name):
    """`model = {name = "own_nets:os.system", command = ...}` would run it at every site."""
    (tmp_path / "own_nets.py").write_text(
        "import os\nfrom subprocess import run\nimport torch\n\n"
        "class Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(4, 2)\n\n"
        "made = torch.nn.CrossEntropyLoss()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_nets", raising=False)
    text = tomli_w.dumps({**made.PLAN, "model": {"name": f"own_nets:{name}", "command": "true"}})
    with pytest.raises(PlanError, match="only imported there"):
        read_proposal(text, ["own_nets"])
    honest = tomli_w.dumps({**made.PLAN, "model": "own_nets:Net"})
    assert read_proposal(honest, ["own_nets"]).plan.model.name == "own_nets:Net"


@pytest.mark.parametrize(
    "change",
    [{"model": {"name": "linear", "x": ["\x1b[8m"]}}, {"evaluation": {"metric": "loss\r\x1b[K"}},
     {"data": {**made.PLAN["data"], "called": "patients\u202e"}},
     {"data": {**made.PLAN["data"], "\x1b[2J": 1}}],
)  # fmt: skip
def test_a_plan_hides_nothing_from_who_reads_it(change):
    """A terminal would obey: lines of a preview could vanish before anybody consents."""
    with pytest.raises(PlanError, match="cannot be seen") as refused:
        read_proposal(tomli_w.dumps({**made.PLAN, **change}))
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("plan", "digest"),
    [
        (made.PLAN, "2ce7a76832d231269e03ec8d24f95de5b5ec5dc88a7c21008e314a471a8cc511"),
        ({"name": "t", "test": "chi-square", "trait": {"column": "A"}, "sum": "masked",
          "fingerprints": False,  # its default then
          "cohorts": [{"name": name} for name in "abc"]},
         "ce50375244e90369428e6db8c555c415ed422fec486284d95fdbc6810f7228a2"),
    ],
)  # fmt: skip
def test_the_hash_of_a_plan_is_that_of_the_first_edition(plan, digest):
    """Studies that were joined with it go on."""
    assert read_proposal(tomli_w.dumps(plan)).digest == digest


def test_old_names_of_settings_are_taken_with_a_warning(tmp_path):
    (tmp_path / "cupola-site.toml").write_text('name = "a"\nopenly = ["evaluate"]\n')
    with pytest.warns(FutureWarning, match="now called unmasked_tasks"):
        settings = read_settings(tmp_path, SiteSettings)
    assert settings.unmasked_tasks == ("evaluate",)
    (tmp_path / "cupola-site.toml").write_text('name = "a"\nopenly = []\nunmasked_tasks = []\n')
    with pytest.raises(PlanError, match="openly"):
        read_settings(tmp_path, SiteSettings)


def test_misspelt_settings_are_refused(tmp_path):
    (tmp_path / "cupola-site.toml").write_text('name = "a"\nminimun = 5\n')
    with pytest.raises(PlanError, match="minimun"):
        read_settings(tmp_path, SiteSettings)
    (tmp_path / "cupola-site.toml").write_text("name = ")
    with pytest.raises(DataError):
        read_settings(tmp_path, SiteSettings)


def test_a_site_holds_its_own_data_only(trial):
    joined = look(trial.site(1), trial.study, SiteSettings)
    data = own_data(trial.plan, own_site(joined))
    assert len(data.site(1).train)
    for other in (0, 2):
        with pytest.raises(DataError, match="only this site's own data"):
            data.site(other)


def test_a_compensator_runs_nothing_else(trial):
    party = open_compensator(trial.compensator, trial.study)
    told = read_answer(party.answer(encode_question(Question("train"))))
    assert told == Failure("a compensator runs no such task")


def test_names_of_studies_cannot_leave_the_folder(tmp_path):
    from cupola.site import study_folder

    names = ["../../x", "a/b", "a b", "a-b", "..", "ä"]
    names += [study_folder(tmp_path, name).name for name in names]  # somebody tries to get these
    found = {study_folder(tmp_path, name) for name in names}
    assert len(found) == 12
    assert all(Path(path).parent == tmp_path / "studies" for path in found)


def test_settings_stay_whole_and_private_when_a_study_is_joined(tmp_path):
    trial = made.consortium(tmp_path / "all", made.PLAN, join=False)
    path = trial.site(0) / "cupola-site.toml"
    path.write_text("# our own words\n" + path.read_text())
    path.chmod(0o600)
    roster = trial.base / "roster.json"
    renamed = Roster('study "ä" \\ 😀', trial.roster.sites, trial.roster.compensator)
    roster.write_text(renamed.to_json())
    join_site(trial.site(0), trial.base / "plan.toml", roster)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().startswith("# our own words\n")
    settings = read_settings(trial.site(0), SiteSettings)
    assert list(settings.studies) == [renamed.study]
    (place,) = (trial.site(0) / "studies").iterdir()
    assert place.stat().st_mode & 0o077 == 0
