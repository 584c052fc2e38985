"""Real parties and differences of totals: the attack, the agreement to change, and going on."""

import json
from dataclasses import replace

import consortium as made
import numpy as np
import pytest
from test_attacks import asked
from test_following import association
from typer.testing import CliRunner

from cupola.cli import app
from cupola.errors import FederationError, PlanError
from cupola.secure import Masked, Pairwise
from cupola.secure.roster import Roster, party_to_json
from cupola.site import join_compensator, join_site, make_keys
from cupola.site.consent_preview import preview


def run(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output + str(done.exception or "")


@pytest.fixture(scope="module")
def _four(tmp_path_factory):
    return made.consortium(tmp_path_factory.mktemp("four") / "all", made.of_sites(4), sites=4)


@pytest.fixture
def four(_four, tmp_path):
    """Four sites and a compensator that have joined a masked training."""
    copy = made.copied(_four, tmp_path / "all")
    yield copy
    copy.close()


def reach_of(trial):
    sites, third = trial.open()
    return sites, Masked(sites, third, trial.roster)


def nearly(trial, step):
    """Another model by a hair."""
    question = asked(trial, step, round=step + 1)
    moved = {n: a + np.float32(1e-6 * step) for n, a in question.arrays.items()}
    return replace(question, arrays=moved)


def test_a_site_cannot_be_left_out_of_a_nearly_equal_question(four):
    sites, reach = reach_of(four)
    assert reach.sum(nearly(four, 0), range(4)).sites == [0, 1, 2, 3]
    for restarted in (False, True):
        if restarted:
            sites, reach = reach_of(four)
        sites.away = {3}  # or so the coordinator says
        with pytest.raises(FederationError, match="no total is told without clinic 3"):
            reach.sum(nearly(four, 1), range(4))
    sites.away = set()  # an honest drop-out comes back, and the study goes on
    assert reach.sum(nearly(four, 1), range(4)).sites == [0, 1, 2, 3]


def test_a_roster_that_lets_sites_change_must_be_everybodys(four, tmp_path):
    """The coordinator's own roster, for the compensator alone."""
    _, reach = reach_of(four)
    own = Roster(four.study, four.roster.sites, four.roster.compensator, changes=True)
    reach.roster = own
    assert not reach.sum(nearly(four, 0), range(4)).sites
    path = tmp_path / "other.json"
    path.write_text(own.to_json())
    for join, folder in ((join_site, four.site(0)), (join_compensator, four.compensator)):
        with pytest.raises(PlanError, match="the roster lets sites change"):
            join(folder, four.base / "plan.toml", path)


@pytest.mark.parametrize(
    "choice",
    [
        {"participation": {"kind": "fraction", "count": 3}},
        {"participation": {"dropouts": 0.1}},
        {"sum": {"kind": "masked", "changes": True}},
    ],
)
def test_a_plan_whose_sites_change_needs_a_roster_that_says_so(tmp_path, choice):
    trial = made.consortium(tmp_path / "all", made.of_sites(4, **choice), join=False, sites=4)
    assert trial.roster.changes
    paths = trial.base / "plan.toml", trial.base / "roster.json"
    found = preview(trial.site(0), *paths)
    assert not found.objections
    rows = [row for row in found.answers if row["task"] == "train"]
    assert all("differences can tell of one" in row["protection"] for row in rows)
    assert rows
    assert any("differences of totals can tell about single" in what for _, what in found.parties)
    strict = replace(trial.roster, changes=False)
    paths[1].write_text(strict.to_json())
    (line,) = preview(trial.site(0), *paths).objections
    assert "make the roster with --changes" in line


def test_the_roster_command_says_whether_sites_may_change(four, tmp_path):
    public = []
    for i, party in enumerate(four.roster.sites):
        public.append(tmp_path / f"{i}.json")
        public[-1].write_text(json.dumps(party_to_json(party)))
    for changes in (False, True):
        out = tmp_path / f"{changes}.json"
        run("federation", "roster", "a", *public, "--out", out, *(["--changes"] * changes))
        assert Roster.from_json(out.read_text()).changes is changes


def test_a_study_goes_on_when_all_that_stay_agree(four):
    sites, reach = reach_of(four)
    reach.sum(nearly(four, 0), range(4))
    sites.away = {3}
    files = []
    for i in range(3):
        said = run("site", "go-on", four.study, "--without", "clinic 3", "-f", four.site(i))
        files.append(four.site(i) / "go-on.json")
        assert "have not signed" in said
        with pytest.raises(FederationError, match="no total is told without"):
            reach.sum(nearly(four, 1), range(4))
        last = run("compensator", "go-on", four.study, "--of", files[-1], "-f", four.compensator)
    assert "goes on without clinic 3, for good" in last
    assert reach.sum(nearly(four, 1), range(4)).sites == [0, 1, 2]
    sites, reach = reach_of(four)  # it is back, and stays out
    total = reach.sum(nearly(four, 2), range(4))
    assert total.sites == [0, 1, 2]
    assert "stays out" in total.failed[3]
    forged = json.loads(files[0].read_text()) | {"without": [2]}
    files[0].write_text(json.dumps(forged))
    words = ("compensator", "go-on", four.study, "--of", files[0], "-f", four.compensator)
    assert "not an agreement" in run(*words, code=1)


def test_with_pairwise_masks_every_site_believes_the_agreement(tmp_path):
    plan = made.of_sites(4, sum={"kind": "masked", "protocol": "pairwise"})
    trial = made.consortium(tmp_path / "all", plan, third=False, sites=4)
    try:
        sites, _ = trial.open()
        reach = Pairwise(sites, trial.roster)
        reach.sum(nearly(trial, 0), range(4))
        sites.away = {3}
        with pytest.raises(FederationError, match="no total is told without clinic 3"):
            reach.sum(nearly(trial, 1), range(4))
        for i in range(3):
            run("site", "go-on", trial.study, "--without", "clinic 3", "-f", trial.site(i))
        for i in range(3):
            others = [word for j in range(3) for word in ("--of", trial.site(j) / "go-on.json")]
            run("site", "go-on", trial.study, *others, "-f", trial.site(i))
        assert reach.sum(nearly(trial, 1), range(4)).sites == [0, 1, 2]
    finally:
        trial.close()


def test_a_second_study_of_nearly_the_same_sites_is_named(four, tmp_path):
    """Another name, another memory: the site is asked again, and told."""
    fewer = made.of_sites(3)
    plan, roster = tmp_path / "plan.toml", tmp_path / "roster.json"
    plan.write_text(made.load(fewer).to_toml())
    parties = (four.roster.sites[:3], four.roster.compensator)
    roster.write_text(Roster("trial 2", *parties).to_json())
    found = preview(four.site(0), plan, roster)
    (line,) = [what for _, what in found.parties if "nearly the same sites" in what]
    assert "'trial 1'" in line
    assert line.endswith("can tell of clinic 3")
    words = ("compensator", "join", plan, "--roster", roster, "-f", four.compensator)
    assert "which had nearly the same sites" in run(*words)
    others = [make_keys(tmp_path / f"{i}", f"other {i}").public for i in range(3)]
    roster.write_text(Roster("trial 3", (four.roster.sites[0], *others[:2]), parties[1]).to_json())
    assert not any("nearly the same" in w for _, w in preview(four.site(0), plan, roster).parties)


def test_an_association_study_cannot_go_on_without_a_cohort(tmp_path, opened):
    trial, _ = association(tmp_path / "all", "linear")
    opened.append(trial)
    lost = trial.roster.sites[2].name
    words = ("site", "go-on", trial.study, "--without", lost, "-f", trial.site(0))
    assert "without one it is a new study" in run(*words, code=2)
