"""Three cohorts with folders of their own, who have joined an association study."""

import importlib.util
import sys
from pathlib import Path

import consortium as made
import numpy as np
import tomli_w

from cupola.analysis.plan_file import load
from cupola.association.plan import StudyPlan
from cupola.secure import Masked, Roster
from cupola.secure.open_sums import Open
from cupola.secure.pairwise import Pairwise
from cupola.secure.replayed_totals import Witnessed
from cupola.site import join_compensator, join_site, make_keys

# Of 150 people in three places; an estimate of heritability would hang on signs that are secret.
MIXED = {"groups": 2, "calibration": 3, "sums": 10, "heritability": 0.4}
GENOME = {"block": 6, "folds": 2, "components_elsewhere": True, "people": 0, "own_people": 0,
          "carriers": 3, "people_per_marker": 0, "people_per_prediction": 0}  # fmt: skip
COMPONENTS = {"count": 2, "block": 3, "sums": 3}
FEW = {  # people: what a site allows of studies of so few
    "mixed": {"people": 50},
    "whole_genome": {f"genome_{key}": 0 for key in GENOME if key.endswith(("people", "carriers"))}
    | {"genome_people_per_marker": 0},
    "components": {"people": 50, "carriers": 3},
}
COHORTS = Path(__file__).parents[1] / "association" / "cohorts.py"


def cohorts():
    """The module that makes up cohorts, of the tests of studies."""
    if "gwas_cohorts" not in sys.modules:
        spec = importlib.util.spec_from_file_location("gwas_cohorts", COHORTS)
        sys.modules["gwas_cohorts"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules["gwas_cohorts"]


def association(base, test, sums="compensator", covariates=1, **more):
    """Three cohorts that have joined a study, and the study. sums: their protocol, or 'plain'.
    covariates: how many; all but the first are made up."""
    base.mkdir()
    names = [f"C{i}" for i in range(1, covariates)]
    given = {
        "name": "traits", "test": test, "sum": _sum(sums), **more,
        "trait": {"column": "QT" if test in ("linear", "mixed") else "CC"},
        **({"mixed": MIXED, "chunk": 8, "limits": {"people": 50}} if test == "mixed" else {}),
        "covariates": [] if test == "chi-square" else ["AGE", *names],
        "cohorts": [{"name": f"clinic {i}", "bfile": f"site-{i}/c"} for i in range(3)],
    }  # fmt: skip
    (base / "study.toml").write_text(tomli_w.dumps(given))
    of_markers = [key for key in FEW if key in (test, *more)]
    several = {"m": 40, "chromosomes": (1, 2)} if of_markers else {}
    limits = {key: n for one in of_markers for key, n in FEW[one].items()}
    data = cohorts().people(1, n=150, **several)
    for i in range(3):
        folder = base / f"site-{i}"
        folder.mkdir()
        cohorts().write(folder, "c", data, range(50 * i, 50 * i + 50))
        _widen(folder / "c.cov", names, i)
        own = {"bfile": "c", "pheno": "c.pheno", "cov": "c.cov"}
        unmasked = ["gwas *"] if sums == "plain" else ["gwas propose", "gwas fingerprints"]
        settings = {"name": f"clinic {i}", "tasks": ["gwas *"], "data": {"cohort": own},
                    "unmasked_tasks": unmasked,
                    **({"limits": limits} if limits else {})}  # fmt: skip
        (folder / "cupola-site.toml").write_text(tomli_w.dumps(settings))
    third = base / "compensator"
    third.mkdir()
    (third / "cupola-compensator.toml").write_text('name = "trustee"\n')
    parties = tuple(make_keys(base / f"site-{i}", f"clinic {i}").public for i in range(3))
    third_party = make_keys(third, "trustee").public if sums == "compensator" else None
    roster = Roster("traits 1", parties, third_party)
    (base / "roster.json").write_text(roster.to_json())
    for i in range(3):
        join_site(base / f"site-{i}", base / "study.toml", base / "roster.json")
    if sums == "compensator":
        join_compensator(third, base / "study.toml", base / "roster.json")
    plan = load(base / "study.toml", of=StudyPlan)
    return made.Consortium(base, plan, roster), plan


def _widen(path, names, seed):
    head, *rows = path.read_text().splitlines()
    more = np.random.default_rng(seed).normal(size=(len(rows), len(names))).round(3)
    lines = [" ".join([row, *map(str, own)]) for row, own in zip(rows, more)]
    path.write_text("\n".join([" ".join([head, *names]), *lines]) + "\n")


def _sum(sums):
    return "plain" if sums == "plain" else {"kind": "masked", "protocol": sums}


def hidden(trial, sites, third):
    """The coordinator's side of the study's sums."""
    if not trial.plan.sum.masked:
        return Open(sites, trial.roster)
    if trial.roster.compensator is None:
        return Pairwise(sites, trial.roster)
    return Masked(sites, third, trial.roster)


def witnessed(trial, sites, third):
    """A coordinator that tells sites the totals."""
    return Witnessed(hidden(trial, sites, third))
