"""Pairwise masks in tests: a study in one process, lossy lines, and attempts driven by hand."""

import secrets
import time

from studies import Sites

from cupola.engines import InProcess
from cupola.federation import Failure
from cupola.secure import simulated_parties
from cupola.secure.pairwise import Pairwise, PairwiseSum
from cupola.secure.pairwise_messages import Attempt

PHASES = [f"pairwise {name}" for name in ("keys", "shares", "masked", "survivors", "unmask")]


class Study:
    """Sites, their engine, and a coordinator; `lost` says whose answers never arrive."""

    def __init__(self, sites=5, minimum=3, host=None, changes=False):
        self.host = host or Sites(sites, (3,))
        self.parties = simulated_parties(
            "study",
            seed=1,
            sites=len(self.host),
            minimum=minimum,
            protocol="pairwise",
            changes=changes,
        )
        self.engine = InProcess(self.host, seed=3, parties=self.parties.member, workers=1)
        self.federation = Pairwise(self.engine, self.parties.roster)
        self._honest = self.engine.ask
        self.engine.ask = self._ask
        self.gone = {}  # site -> phase from which on it is gone
        self.late = set()  # sites that answer their last phase, too late
        self.change = None  # (question, site, answer) -> answer: somebody on the way, or a bad site

    def _ask(self, question, sites):
        phase = PHASES.index(question.task)
        for site in sites:
            gone = self.gone.get(site, len(PHASES))
            if phase < gone or (phase == gone and site in self.late):
                ((_, answer),) = self._honest(question, [site])
                if phase < gone:
                    changed = self.change(question, site, answer) if self.change else answer
                    yield site, changed
                    continue
            yield site, Failure("late")

    def sum(self, question=None, sites=None):
        question = question or self.host.question()
        return self.federation.sum(question, range(len(self.host)) if sites is None else sites)

    def plain(self, question, sites):
        return InProcess(self.host, seed=3).sum(question, sites)

    def run(self, step=0, number=None, question=None):
        """An attempt to be driven phase by phase."""
        question = question or self.host.question(step)
        number = number or time.time_ns() // 1000
        roster = self.parties.roster
        attempt = Attempt(roster, question, number, secrets.token_bytes(32))
        run = PairwiseSum(self.engine, attempt)
        run.sites = list(range(len(self.host)))
        return run

    def ask(self, site, question):
        """One site's answer, or the code of its refusal."""
        ((_, answer),) = self._honest(question, [site])
        return answer.code if isinstance(answer, Failure) else answer.arrays


def carry_out(run, phases):
    """The first phases of an attempt."""
    for phase in run.phases[:phases]:
        phase()


def sites(**facts):
    """The host of a site process, which must know the tasks, too."""
    return Sites(**facts)
