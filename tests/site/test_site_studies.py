"""The same plans as in simulation: training, personalisation and association studies open at real
sites, and come out as in one process."""

import consortium as made
import numpy as np
import pytest
import tomli_w
from traits import association, cohorts, witnessed

from cupola.association import Association, Site, StudyHost, results
from cupola.association.site import FIRTH_ITERATIONS
from cupola.engines import InProcess
from cupola.errors import FederationError
from cupola.federation import drive
from cupola.secure import Masked
from cupola.site import read_ledger
from cupola.site.consent_preview import preview
from cupola.site.proposal import read_proposal
from cupola.training import build


def in_process(plan, base):
    sites = []
    for i in range(3):
        files = plan.cohorts[i].files(base)
        own = base / f"site-{i}"
        files = type(files)(files.name, files.bed, files.bim, files.fam, own / "c.pheno",
                            own / "c.cov")  # fmt: skip
        most = plan.newton.iterations + FIRTH_ITERATIONS
        sites.append(Site(files, plan.wanted, rare=plan.rare, iterations=most,
                          limits=plan.limits, study=plan.study()))  # fmt: skip
    program = Association(plan.study(), 3)
    return program, drive(program, InProcess(StudyHost(sites)))


@pytest.mark.slow
@pytest.mark.parametrize("test", ["linear", "logistic", "mixed"])
def test_an_association_study_at_real_sites(tmp_path, opened, test):
    trial, plan = association(tmp_path / "all", test)
    opened.append(trial)
    shown = preview(trial.site(1), trial.base / "study.toml", trial.base / "roster.json")
    assert {row["task"] for row in shown.answers} >= {"gwas people", "gwas counts", "gwas propose"}
    assert all(row["bytes"] > 0 and row["reveals"] for row in shown.answers)
    # 50 people here, 6 vectors in up to 10 sums.
    assert any("if all other sites helped" in line for line in shown.limits) == (test == "mixed")
    sites, third = trial.open()
    program, expected = in_process(plan, trial.base)
    states = []

    def after(state):
        """Every party is stopped and opened anew in the middle of the study."""
        states.append(state)
        reach.confirm(state.step - 4)
        if len(states) == 5 or (state.values["phase"], state.values["at"]) == ("mixed test", 1):
            sites.parties, third.parties = (wire.parties for wire in trial.open())

    reach = witnessed(trial, sites, third)
    found = drive(program, reach, program.start(), after)
    ours, theirs = results(program, found), results(program, expected)
    assert np.allclose(ours.log10_p, theirs.log10_p, rtol=1e-6, equal_nan=True)
    # A coordinator that lost its last steps asks again, and is told the same.
    lost = drive(program, witnessed(trial, *trial.open()), states[-4])
    assert np.array_equal(results(program, lost).log10_p, ours.log10_p, equal_nan=True)
    heard = "nobody: this site was told"
    lines = [line for line in read_ledger(trial.site(0), trial.study) if line["to"] != heard]
    assert all(line["again"] for line in lines[-3:])
    told = {line["task"] for line in lines if "bytes" in line}
    assert "gwas propose" in told
    assert told <= {row["task"] for row in shown.answers}
    unmasked = [line["task"] for line in read_ledger(trial.site(1), trial.study)
              if line["to"] == "coordinator, unmasked" and "bytes" in line]  # fmt: skip
    assert unmasked == ["gwas propose", "gwas fingerprints"]  # that it has nothing to add


def test_what_is_wrong_with_a_cohorts_files_stays_in_its_own_log(tmp_path, opened):
    trial, plan = association(tmp_path / "all", "linear")
    opened.append(trial)
    path = trial.site(1) / "c.cov"
    path.write_text(path.read_text().replace("p60 ", "p60 secret ", 1))
    reach = witnessed(trial, *trial.open())
    reach.engine.quorum = 1.0
    with pytest.raises(FederationError, match="site 1: cov-columns") as error:
        drive(Association(plan.study(), 3), reach)
    assert "c.cov" not in str(error.value)
    log = next((trial.site(1) / "studies").iterdir()) / "log.txt"
    assert "c.cov" in log.read_text()


def test_a_study_asks_what_its_test_needs_and_nothing_else():
    names = [{"name": name} for name in "abc"]
    facts = {"test": "chi-square", "cohorts": names, "variants": "public.bim",
             "fingerprints": False}  # fmt: skip
    proposal = read_proposal(tomli_w.dumps(facts))
    assert proposal.analysis.asks("gwas counts")
    for task in ("gwas newton", "gwas propose", "gwas fingerprints", "train"):
        assert not proposal.analysis.asks(task)
    assert read_proposal(tomli_w.dumps({**facts, "test": "logistic"})).analysis.asks("gwas newton")
    assert proposal.unmasked_tasks == ("gwas *",)  # its sums are plain


def test_a_restarted_cohort_remembers_how_it_was_asked(tmp_path):
    data = cohorts().people(2)
    cohorts().write(tmp_path, "c", data)
    from cupola.association import Wanted
    from cupola.association.plan import CohortFiles
    from cupola.federation import Declined, Question
    from cupola.secure.durable_dict import Memory

    files = CohortFiles(name="c", bfile="c").files(tmp_path)

    def start():
        memory = Memory(tmp_path / "asked.jsonl")
        return Site(files, Wanted(), iterations=3, memory=memory, folder=tmp_path / "asked")

    places = np.array([0, 2])
    for step in range(5):
        site = start()
        site.pin("design", (True, [1.0, 2.0]))
        question = Question("gwas newton", {"beta": np.full(2, float(step))}, {}, step=step)
        if step < 3:
            site.count(question, "gwas newton", places, 12)
        else:
            with pytest.raises(Declined, match="asked-too-often"):
                site.count(question, "gwas newton", places, 12)
        site.close()
    site = start()
    with pytest.raises(Declined, match="asked-otherwise-before"):
        site.pin("design", (True, [1.0, 2.5]))
    site.close()


def test_personalisation_at_real_sites(tmp_path, opened):
    plan = {
        **made.PLAN,
        "rounds": 1,
        "model": {"name": "mlp", "hidden": [6]},
        "data": {**made.PLAN["data"], "partition": {"kind": "iid", "sites": 3, "test": 0.25}},
        "personalise": {"methods": ["finetune"], "rounds": 1},
    }
    unmasked = ["evaluate", "sparsity", "adapt"]
    tasks = ["train", *unmasked]
    trial = made.consortium(tmp_path / "all", plan, tasks=tasks, unmasked_tasks=unmasked)
    opened.append(trial)
    shown = preview(trial.site(0), trial.base / "plan.toml", trial.base / "roster.json")
    assert {"train", "adapt"} <= {row["task"] for row in shown.answers}
    sites, third = trial.open()
    host = build.host(trial.plan)
    program = build.program(trial.plan, host, build.training(trial.plan, host))
    state = drive(program, Masked(sites, third, trial.roster))
    told = [line for line in read_ledger(trial.site(0), trial.study) if "bytes" in line]
    assert {"train", "adapt"} <= {line["task"] for line in told}
    assert state.step >= 2


def test_a_preview_tells_everything_and_joins_nothing(tmp_path):
    budget = {"epsilon": 3.0, "delta": 1e-5}
    trial = made.consortium(tmp_path / "all", made.PRIVATE, join=False, budget=budget)
    shown = preview(trial.site(0), trial.base / "plan.toml", trial.base / "roster.json")
    assert shown.complete
    (row,) = shown.answers
    assert (row["task"], row["times"], row["numbers"]) == ("train", 2, 10)
    assert "masked sum of at least 3 sites" in row["protection"]
    assert row["to"] == "coordinator: the total of at least 3 sites"
    assert shown.epsilon["epsilon"] > 0
    assert shown.epsilon["budget"] == 3.0
    assert "[studies" not in (trial.site(0) / "cupola-site.toml").read_text()


@pytest.mark.parametrize(("old", "new"), [("AGE", "Age"), ("QT", "QTT")])
def test_a_wrong_name_is_found_before_joining(tmp_path, old, new):
    """By preview and join, with the file, its columns and what may be meant."""
    from cupola.errors import PlanError
    from cupola.site import join_site

    trial, _ = association(tmp_path / "all", "linear")
    plan, roster = trial.base / "other.toml", trial.base / "roster.json"
    plan.write_text((trial.base / "study.toml").read_text().replace(f'"{old}"', f'"{new}"'))
    file = "c.cov" if old == "AGE" else "c.pheno"
    said = f"{trial.site(1) / file}: has no column '{new}'; it has "
    (objection,) = preview(trial.site(1), plan, roster).objections
    assert objection.startswith(said)
    assert f"did the study mean '{old}'?" in objection
    with pytest.raises(PlanError, match=f"has no column '{new}'"):
        join_site(trial.site(1), plan, roster)


def test_a_cohort_without_a_table_is_told_which_one_is_missing(tmp_path):
    trial, _ = association(tmp_path / "all", "linear")
    path = trial.site(2) / "cupola-site.toml"
    path.write_text(path.read_text().replace('cov = "c.cov"', ""))
    shown = preview(trial.site(2), trial.base / "study.toml", trial.base / "roster.json")
    assert shown.objections == [
        "cohort 'clinic 2': the study asks for AGE, but the cohort names no cov file"
    ]
