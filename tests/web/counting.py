"""An analysis of a user's own, for tests: how many samples there are, asked a few times."""

import numpy as np

from cupola.analysis import Analysis, Hosted, PlanHeader
from cupola.federation import Ask, Contribution, Question, Spec, State, task
from cupola.pages import page


class Plan(PlanHeader):
    kind: str = "counting:Counting"
    sites: int = 3
    times: int = 4


@task("count samples")
def count(site, _question):
    return Contribution({"count": np.array([float(site.data)])})


class Program:
    def __init__(self, plan, sites):
        self.plan, self.sites = plan, sites

    def start(self):
        return State()

    def ask(self, state):
        if state.step >= self.plan.times:
            return None
        expects = {"count": Spec((1,), bound=1000)}
        question = Question("count samples", expects=expects, reveals="how many samples there are")
        return Ask("sum", question, range(self.sites))

    def answer(self, state, total):
        return state.next({"count": total.arrays["count"]})


class Counting(Analysis[Plan]):
    kind, Plan, tasks, files = "counting:Counting", Plan, ("count samples",), ("count.txt",)

    def host(self):
        return Hosted(self.plan.sites, lambda site: 10 * (site + 1))

    def program(self, host):
        return Program(self.plan, len(host))

    def record(self, before, after):
        del before
        return {"step": after.step, "count": float(after.arrays["count"][0])}

    def progress(self, state):
        return self.progress_part, state.step, self.plan.times

    def finish(self, state, folder, watch):
        del watch
        (folder / "count.txt").write_text(f"{state.arrays['count'][0]:g}\n")

    def summary(self, state, folder, real):
        del folder, real
        return {"count": float(state.arrays["count"][0]) if state.arrays else None}

    def sections(self, run):
        return [page.section("How many there are", "", str(run.result["count"]))]
