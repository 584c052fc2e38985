"""A user's own analysis: regression over the patients of several hospitals, in two steps.

Installed where the tests run; a site must allow it by name (`modules`).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import Any

import numpy as np

from cupola.analysis.header import PlanHeader
from cupola.analysis.protocol import Analysis
from cupola.federation import Ask, Charge, Contribution, Question, Spec, State, task
from cupola.privacy.events import Gaussian

LARGEST = 100.0  # of a sum at a hospital


@task("regression moments")
def moments(site, _question):
    x, y = site.data
    return Contribution({"xx": x.T @ x, "xy": x.T @ y})


@task("regression residuals")
def residuals(site, question):
    x, y = site.data
    wrong = y - x @ question.arrays["beta"]
    return Contribution({"squares": np.array([wrong @ wrong]), "people": np.array([float(len(y))])})


@task("regression count")
def people(site, question):
    noise = site.generator("count", question.round, secret=True).normal(scale=2.0)
    return Contribution({"people": np.array([len(site.data[1]) + noise])})


@people.charges
def _cost(_site, _question):
    return Charge((Gaussian(2.0),))


class RegressionPlan(PlanHeader):
    kind: str = "own_regression:Regression"
    sites: int = 3
    columns: tuple[str, ...] = ("age", "dose")
    outcome: str = "pressure"


@dataclass
class Hospital:
    """One hospital's rows, at its number; data at others are elsewhere."""

    site: Any
    rows: tuple[np.ndarray, np.ndarray]

    def __len__(self):
        return self.site.sites

    def data(self, site):
        assert site == self.site.number
        return self.rows

    def workspace(self):
        return None


@dataclass
class TwoSteps:
    sites: int
    columns: int

    def start(self):
        return State()

    def ask(self, state):
        p, everybody = self.columns + 1, range(self.sites)
        if state.step == 0:
            expects = {"xx": Spec((p, p), bound=LARGEST), "xy": Spec((p,), bound=LARGEST)}
            reveals = "second moments, summed over sites"
            question = Question("regression moments", expects=expects, reveals=reveals)
            return Ask("sum", question, everybody)
        if state.step == 1:
            beta = {"beta": state.arrays["beta"]}
            expects = {n: Spec((1,), bound=LARGEST) for n in ("squares", "people")}
            reveals = "squared residuals and people, summed over sites"
            question = Question("regression residuals", beta, {}, expects, 1, reveals=reveals)
            return Ask("sum", question, everybody)
        return None

    def answer(self, state, total):
        if state.step == 0:
            return state.next({"beta": np.linalg.solve(total.arrays["xx"], total.arrays["xy"])})
        return state.next({"variance": total.arrays["squares"] / total.arrays["people"]})


class Regression(Analysis[RegressionPlan]):
    kind = "own_regression:Regression"
    Plan = RegressionPlan
    replayable = True
    tasks = ("regression moments", "regression residuals")

    def own_host(self, site):
        with (site.folder / site.data["path"]).open() as file:
            rows = list(csv.DictReader(file, delimiter=site.data.get("separator", ",")))
        columns = [[1.0, *(float(row[c]) for c in self.plan.columns)] for row in rows]
        return Hospital(site, (np.array(columns), np.array([float(r["pressure"]) for r in rows])))

    def data_problems(self, site):
        found = (site.folder / site.data["path"]).is_file()
        return [] if found else [f"there is no file '{site.data['path']}'"]

    def program(self, host):
        return TwoSteps(len(host), len(self.plan.columns))


@dataclass
class Counting(TwoSteps):
    def ask(self, state):
        if state.step:
            return None
        expects = {"people": Spec((1,), bound=LARGEST)}
        said = {"reveals": "people, noised", "protection": "Gaussian noise"}
        question = Question("regression count", {}, {"of": "everybody"}, expects, **said)
        return Ask("sum", question, range(self.sites))

    def answer(self, state, total):
        return state.next(dict(total.arrays))


class CountPlan(RegressionPlan):
    kind: str = "own_regression:Count"


class Count(Regression):
    """Draws noise, so that no site can run a copy of it; it says what follows from its plan."""

    kind = "own_regression:Count"
    Plan = CountPlan
    replayable = False
    tasks = ("regression count",)

    def allows(self, question):
        fine = question.options == {"of": "everybody"}
        return None if fine else "the plan counts everybody"

    def may_ask(self, step):
        return step == 0

    def program(self, host):
        return Counting(len(host), len(self.plan.columns))
