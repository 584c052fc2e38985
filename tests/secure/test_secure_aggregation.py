"""The driver of secure aggregation, with a protocol of two phases that hides nothing."""

import numpy as np
import pytest
from studies import Sites

from cupola.engines import InProcess
from cupola.errors import FederationError
from cupola.federation import Total
from cupola.federation.ledger import Ledger
from cupola.secure import simulated_parties
from cupola.secure.secure_aggregation import (
    ATTEMPTS,
    STAYS_OUT,
    Aggregation,
    Missing,
    Newcomers,
    SecureSums,
    TooFew,
)


class Toy(Aggregation):
    """Asks twice: who is there, and for the answers."""

    beside = ("toy greeting", "who is there")

    def __init__(self, engine, roster, question, script):
        super().__init__(engine, roster, question)
        self.script, self.sums = script, Total()

    @property
    def charged(self):
        return self.inner

    @property
    def phases(self):
        return [self.greet, self.collect]

    def greet(self):
        there = [site for site, _ in self.ask(self.inner, self.sites)]
        outcome = next(self.script, None)
        if outcome is not None:
            raise outcome
        self.sites = there

    def collect(self):
        self.asked = self.inner
        for site, arrays in self.ask(self.asked, self.sites):
            self.sums.arrays["n"] = self.sums.arrays.get("n", 0) + arrays["n"]
            self.sums.sites.append(site)

    def total(self):
        return self.sums


class Toys(SecureSums):
    def __init__(self, engine, roster, *script):
        super().__init__(engine, roster)
        self.script, self.made = iter(script), []

    def aggregation(self, question, least=0):  # noqa: ARG002
        self.made.append(Toy(self.engine, self.roster, question, self.script))
        return self.made[-1]


@pytest.fixture
def study():
    host, lines = Sites(4), []
    roster = simulated_parties("study", seed=1, sites=4).roster

    def start(*script):
        engine = InProcess(host, seed=3, workers=1, ledger=Ledger(lines.append))
        return Toys(engine, roster, *script), host.question(options={"2": "decline"}), lines

    return start


def test_phases_follow_each_other_and_all_bytes_are_booked(study):
    toys, question, lines = study()
    total = toys.sum(question, range(4))
    assert total.sites == [0, 1, 3]
    assert total.failed == {2: "not today"}
    expected = sum(
        toys.engine.ledger is toys.ledger and Sites(4).data(s)[0]["n"] for s in (0, 1, 3)
    )
    assert (np.asarray(total.arrays["n"]) == expected).all()
    beside, told = lines
    assert (beside["task"], beside["kind"], beside["sites"]) == (
        "toy greeting",
        "unmask",
        [0, 1, 2, 3],
    )
    assert beside["bytes_up"][2] == 0
    assert beside["bytes_up"][0] == told["bytes_up"] > 0
    assert (told["task"], told["sites"]) == ("study numbers", [0, 1, 3])
    assert told["protection"] == "masked sum of at least 3 sites"


def test_too_few_sites_are_a_total_of_nobody(study):
    toys, question, lines = study(TooFew("too few"))
    total = toys.sum(question, range(4))
    assert total.sites == []
    assert total.failed == {2: "not today", 0: "too few", 1: "too few", 3: "too few"}
    assert [line["bytes_down"] > 0 for line in lines] == [True, False]  # nobody was asked to answer


def test_newcomers_stay_out_of_this_total_and_of_later_ones(study):
    toys, question, _ = study(Newcomers("exposed", [3]), None)
    for _ in range(2):
        assert toys.sum(question, range(4)).failed == {2: "not today", 3: STAYS_OUT}
    assert len(toys.made) == 3


def test_a_missing_site_is_waited_for_a_few_times(study):
    toys, question, _ = study(*[Missing(Sites(4).question(), ["site 1"])] * (ATTEMPTS - 1))
    assert toys.sum(question, range(4)).sites == [0, 1, 3]
    gone = [Missing(question, ["site 1"])] * ATTEMPTS
    toys, question, lines = study(*gone)
    with pytest.raises(FederationError, match="no total is told without site 1"):
        toys.sum(question, range(4))
    assert len(toys.made) == ATTEMPTS
    assert {line["kind"] for line in lines[-ATTEMPTS:]} == {"unmask"}  # sent, though in vain
