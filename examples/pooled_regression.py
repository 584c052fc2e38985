"""A federated analysis that trains nothing: linear regression over several hospitals.

Each site adds its X'X and X'y; the coordinator sees only their sums and solves. The result is the
regression on the pooled patients, to the last digits that float64 holds. The sums can be masked, so
that nobody can look inside; the program stays as it is.

    python examples/pooled_regression.py
"""

from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_diabetes

from cupola.engines import InProcess
from cupola.federation import Ask, Contribution, Question, Spec, State, drive, task
from cupola.secure import hidden_sums, simulated_parties

SITES = 5
PATIENTS = 1000  # at most, at a hospital; masked sums need to know how large their parts can be
OUTCOME = 400.0  # at most; features are between -1 and 1


@task("moments")
def moments(site, _question):
    """X'X and X'y of this site, with a column of ones for the intercept."""
    x, y = site.data
    x = np.column_stack([np.ones(len(x)), x])
    return Contribution({"xx": x.T @ x, "xy": x.T @ y})


@dataclass
class Regression:
    """A program of one step: ask for the sums, then solve."""

    features: int
    sites: int

    def start(self):
        return State()

    def ask(self, state):
        if state.step:
            return None
        p = self.features + 1
        expects = {
            "xx": Spec((p, p), bound=PATIENTS),
            "xy": Spec((p,), bound=PATIENTS * OUTCOME),
        }
        reveals = "second moments of the features and the outcome, summed over sites"
        return Ask("sum", Question("moments", expects=expects, reveals=reveals), range(self.sites))

    def answer(self, state, total):
        return state.next({"beta": np.linalg.solve(total.arrays["xx"], total.arrays["xy"])})


@dataclass
class Hospitals:
    """The diabetes patients of scikit-learn, dealt out to hospitals."""

    sites: int = SITES

    def __len__(self):
        return self.sites

    def data(self, site):
        x, y = load_diabetes(return_X_y=True)
        return x[site :: self.sites], y[site :: self.sites]

    def workspace(self):
        return None


def main():
    """Fit it, and compare with the pooled fit."""
    x, y = load_diabetes(return_X_y=True)
    program = Regression(x.shape[1], SITES)
    with InProcess(Hospitals()) as federation:
        beta = drive(program, federation).arrays["beta"]
    parties = simulated_parties("diabetes", seed=1, sites=SITES)
    engine = InProcess(Hospitals(), parties=parties.member)
    with hidden_sums(engine, parties) as hidden:
        masked = drive(program, hidden).arrays["beta"]
    pooled, *_ = np.linalg.lstsq(np.column_stack([np.ones(len(x)), x]), y, rcond=None)
    print("federated ", np.round(beta, 3))
    print("masked    ", np.round(masked, 3))
    print("pooled    ", np.round(pooled, 3))
    print(f"largest relative difference {np.abs(beta / pooled - 1).max():.1e}")
    print(f"with masked sums {np.abs(masked / pooled - 1).max():.1e}")
    print(f"{federation.ledger.bytes_up} bytes sent by {SITES} sites")
    return beta, masked, pooled


if __name__ == "__main__":
    main()
