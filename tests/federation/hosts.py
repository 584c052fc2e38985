"""Tiny hosts and tasks that separate site processes can import too."""

import os
import signal
import time

import numpy as np

from cupola.errors import DataError
from cupola.federation import Contribution, Declined, task


class Numbers:
    """Site i holds the numbers i, i + 1, ..."""

    def __init__(self, sites=4, length=3):
        self.sites, self.length = sites, length

    def __len__(self):
        return self.sites

    def data(self, site):
        return np.arange(self.length, dtype=np.float64) + site

    def workspace(self):
        return None


@task("test numbers")
def numbers(site, question):
    return Contribution({"x": site.data * question.arrays.get("scale", 1.0)}, site.index + 1.0)


@task("test misbehave")
def misbehave(site, question):
    """Sites do what the options say of them: {site: behaviour}."""
    what = question.options.get(str(site.index), "answer")
    x = site.data.copy()
    if what == "nan":
        x[0] = np.nan
    elif what == "shape":
        x = x[:-1]
    elif what == "extra":
        return Contribution({"x": x, "secret": x})
    elif what == "missing":
        return Contribution({})
    elif what == "weight":
        return Contribution({"x": x}, float("inf"))
    elif what == "decline":
        raise Declined("not today")
    elif what == "data error":
        raise DataError("column 'age' is missing")
    elif what == "bug":
        raise ZeroDivisionError("secret value 42")
    elif what == "sleep":
        time.sleep(60)
    elif what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "print":
        print("chatter on standard output")
    return Contribution({"x": x})


@task("test count")
def count(site, question):
    """Counts how often this site was asked, in its versioned state."""
    before = site.recall(question).get("n", np.array(0))
    site.keep(question, {"n": before + 1})
    return Contribution({"n": np.array(float(before))})


@task("test draw")
def draw(site, question):
    return Contribution({"x": site.generator("test", question.round).normal(size=3)})


@task("test halves")
def halves(site, question):  # noqa: ARG001
    """Sites with odd numbers leave an array out."""
    arrays = {"x": site.data[:2]}
    if site.index % 2:
        arrays["y"] = site.data[0].reshape(())
    return Contribution(arrays, site.index + 1.0)


@task("test process")
def process(site, question):  # noqa: ARG001
    """Which process a site is in."""
    return Contribution({"n": np.array(float(os.getpid()))})
