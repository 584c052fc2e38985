"""An analysis of one's own: linear regression over several hospitals, by two sums.

Each site adds its X'X and X'y; the coordinator sees only their sums and solves. The result is the
regression on the pooled patients, to the last digits that float64 holds. As an analysis it gets all
that training has: a run folder, resume, masked sums, consent and replay at real sites, a report.

    cd examples && cupola run pooled_regression.toml
    cupola run pooled_regression.toml --set sum=masked
"""

import numpy as np
from sklearn.datasets import load_diabetes

from cupola.analysis import Analysis, Hosted, PlanHeader
from cupola.federation import Ask, Contribution, Question, Spec, State, task


class Plan(PlanHeader):
    """patients, largest: of a site at most, and the largest number: masked sums need bounds."""

    kind: str = "pooled_regression:PooledRegression"
    features: tuple[str, ...] = ("age", "sex", "bmi", "bp")
    outcome: str = "progression"
    hospitals: int = 5
    patients: int = 1000
    largest: float = 400.0


@task("moments")
def moments(site, _question):
    """X'X and X'y of this site, with a column of ones for the intercept."""
    x, y = site.data
    x = np.column_stack([np.ones(len(x)), x])
    return Contribution({"xx": x.T @ x, "xy": x.T @ y})


class Regression:
    """A program of one step: ask for the sums, then solve."""

    def __init__(self, plan, sites):
        self.plan, self.sites = plan, sites

    def start(self):
        return State()

    def ask(self, state):
        if state.step:
            return None
        p, bound = len(self.plan.features) + 1, self.plan.patients * self.plan.largest**2
        expects = {"xx": Spec((p, p), bound=bound), "xy": Spec((p,), bound=bound)}
        reveals = "second moments of features and outcome"
        return Ask("sum", Question("moments", expects=expects, reveals=reveals), range(self.sites))

    def answer(self, state, total):
        return state.next({"beta": np.linalg.solve(total.arrays["xx"], total.arrays["xy"])})


class PooledRegression(Analysis[Plan]):
    """The program with its data, and what is left behind."""

    kind, Plan, tasks, replayable = "pooled_regression:PooledRegression", Plan, ("moments",), True

    def host(self):
        """Patients dealt out to hospitals."""
        known, sites = load_diabetes(), self.plan.hospitals
        x = known.data[:, [known.feature_names.index(name) for name in self.plan.features]]
        return Hosted(sites, lambda i: (x[i::sites], known.target[i::sites]))

    def own_host(self, site):
        """A table of this hospital's own: `[data.NAME]` with `path = "patients.csv"`."""
        table = np.genfromtxt(site.folder / site.data["path"], delimiter=",", names=True)
        x = np.column_stack([table[name] for name in self.plan.features])
        return Hosted(site.sites, lambda _: (x, table[self.plan.outcome]))

    def program(self, host):
        return Regression(self.plan, len(host))

    def summary(self, state, *_):
        names = ("intercept", *self.plan.features)
        return {"beta": dict(zip(names, map(float, state.arrays.get("beta", ()))))}
