"""One federation for all slow tests: real processes on loopback, mutual TLS."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hapmap import COHORT
from hospitals import CLOCKS, LEAD, MEMBER, PLANS, SITES, plan
from ports import free_ports


@pytest.fixture(scope="session")
def trial(tmp_path_factory):
    from trial_federation import Trial

    from cupola.engines.flare.settings import FederationSettings

    (port,) = free_ports(1)
    settings = FederationSettings(
        name="trial",
        coordinator=f"localhost:{port}",
        sites=SITES,
        compensator="university",
        users={LEAD: "lead", MEMBER: "member"},
    )
    folder = tmp_path_factory.mktemp("flare")
    home, os.environ["HOME"] = os.environ.get("HOME"), str(folder)  # FLARE keeps notes there
    data = {name: {"digits": {"part": i}, "cohort": COHORT} for i, name in enumerate(SITES)}
    here = [str(Path(__file__).parent / "clocks"), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, here))
    clocks = {n: {"PYTHONPATH": path, "CUPOLA_TEST_CLOCK": str(s)} for n, s in CLOCKS.items()}
    try:
        with Trial(folder / "trial", settings, data, clocks) as made:
            made.jobs = {name: made.study(name, plan(name)) for name in PLANS}
            made.start()
            made.wait_until_connected(timeout=200)
            yield made
    finally:
        if home is not None:
            os.environ["HOME"] = home
