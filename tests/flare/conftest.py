"""One federation for all slow tests: real processes on loopback, mutual TLS."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hapmap import COHORT
from hospitals import CLOCKS, LEAD, MEMBER, PLANS, SITES, plan
from ports import free_ports

OWN = "pooled_regression"  # an analysis that every party has installed, and allows


def _joined(folders):
    return os.pathsep.join(filter(None, folders))


@pytest.fixture(scope="session")
def trial(tmp_path_factory):
    from trial_federation import Trial

    from cupola.engines.flare.federation_settings import FederationSettings

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
    own = {"patients": {"path": "patients.csv"}}
    data = {name: {"digits": {"part": i}, "cohort": COHORT, **own} for i, name in enumerate(SITES)}
    clocks, examples = Path(__file__).parent / "clocks", Path(__file__).parents[2] / "examples"
    path = [str(examples), os.environ.get("PYTHONPATH", "")]
    found = {n: {"PYTHONPATH": _joined(path)} for n in ("localhost", *SITES, "university")}
    for n, seconds in CLOCKS.items():
        found[n] = {"PYTHONPATH": _joined([str(clocks), *path]), "CUPOLA_TEST_CLOCK": str(seconds)}
    try:
        with Trial(folder / "trial", settings, data, found, modules=[OWN]) as made:
            (made.folders["localhost"] / "cupola-coordinator.toml").write_text(
                f'modules = ["{OWN}"]'
            )
            made.jobs = {name: made.study(name, plan(name)) for name in PLANS}
            made.start()
            made.wait_until_connected(timeout=200)
            yield made
    finally:
        if home is not None:
            os.environ["HOME"] = home
