"""A small study: sites that hold numbers, and tasks that tell them. Processes import it, too."""

import numpy as np

from cupola.base.randomness import generator
from cupola.federation import Contribution, Declined, Question, Spec, task


class Sites:
    """Site i holds floats 'x', integers 'n', flags 'b' and a weight."""

    def __init__(self, sites=5, shape=(3,), bound=4.0, whole=1000, absent=None):
        self.sites, self.shape, self.bound, self.whole = sites, tuple(shape), bound, whole
        self.away = set()  # sites that do not answer today
        self.absent = {int(site): names for site, names in (absent or {}).items()}

    def __len__(self):
        return self.sites

    def data(self, site):
        random = generator(7, "study", 0, site)
        arrays = {
            "x": random.uniform(-self.bound, self.bound, self.shape).astype(np.float32),
            "n": random.integers(-self.whole, self.whole + 1, self.shape),
            "b": random.uniform(size=self.shape) < 0.5,
        }
        kept = {k: a for k, a in arrays.items() if k not in self.absent.get(site, ())}
        return kept, float(random.integers(1, 10))

    def workspace(self):
        return self

    def question(self, step=0, **changes):
        heaviest = 10.0
        expects = {
            "x": Spec(self.shape, "float", self.bound * heaviest),
            "n": Spec(self.shape, "int", self.whole * heaviest),
            "b": Spec(self.shape, "bool", heaviest),
        }
        facts = {"expects": expects, "step": step, "heaviest": heaviest, "round": step, **changes}
        return Question("study numbers", **facts)


@task("study numbers")
def numbers(site, question):
    """What options say of a site may differ: {site: 'decline', 'nan', ...}."""
    arrays, weight = site.data
    what = question.options.get(str(site.index))
    if what == "decline" or site.index in site.workspace.away:
        raise Declined("not today")
    if what == "heavy":
        return Contribution(arrays, 11.0)
    if what == "many":
        return Contribution({**arrays, "n": np.full_like(arrays["n"], -(2**63))}, weight)
    if what in ("nan", "large"):
        x = arrays["x"].copy()
        x[...] = np.nan if what == "nan" else 1e6
        return Contribution({**arrays, "x": x}, weight)
    return Contribution(arrays, weight)


@task("study draws", random=lambda _: True)
def draws(site, question):
    x = site.generator("study draws", question.round).uniform(-1, 1, 3)
    return Contribution({"x": x})
