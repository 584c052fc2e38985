"""The Ray engine: without processes for what it computes, with real ones for what can go wrong."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace

import hosts
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loopback_ray import Loopback
from ports import free_ports
from safetensors.numpy import load_file
from test_federation import BROKEN, X

from cupola.engines import InProcess, RayCluster, ray_cluster
from cupola.engines.ray_cluster import shares
from cupola.engines.ray_connection import connect
from cupola.engines.ray_worker import Came
from cupola.errors import FederationError
from cupola.federation import Question, Spec

NUMBERS = Question("test numbers", expects=X)
N = {"n": Spec(())}


@pytest.fixture
def loopback(monkeypatch):
    def use(**facts):
        made = Loopback(**facts)
        monkeypatch.setattr(ray_cluster, "library", lambda: made)
        return made

    return use


@given(
    work=st.lists(st.floats(0, 1e6), min_size=0, max_size=40),
    count=st.integers(1, 9),
)
def test_every_site_is_dealt_once_and_in_order(work, count):
    sites = list(range(5, 5 + len(work)))
    found = shares(sites, np.array(work), count)
    assert len(found) == count
    assert [site for share in found for site in share] == sites
    if work:  # no worker has more than its share and a site at either end
        loads = [sum(work[s - 5] for s in share) for share in found]
        assert max(loads) <= sum(work) / count + max(work) * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("workers", [1, 3])
def test_sums_ledger_and_failures_are_those_of_one_process(loopback, workers):
    loopback()
    options = {str(i): what for i, what in enumerate(BROKEN)}
    bad = Question("test misbehave", options=options, expects=X, step=1)
    host = hosts.Numbers(sites=9)
    with InProcess(host) as one, RayCluster(host, workers=workers) as other:
        for question in (NUMBERS, bad):
            mine, theirs = (engine.sum(question, range(9)) for engine in (one, other))
            assert mine.arrays["x"].tolist() == theirs.arrays["x"].tolist()
            assert (mine.sites, mine.weight) == (theirs.sites, theirs.weight)
            assert mine.failed == theirs.failed
        answers = [engine.gather(bad, range(9)) for engine in (one, other)]
        assert answers[0].keys() == answers[1].keys()
        assert one.ledger.export() == other.ledger.export()


def test_a_worker_sends_one_sum(loopback):
    ray = loopback()
    with RayCluster(hosts.Numbers(sites=200, length=1000), workers=2) as federation:
        question = Question("test numbers", expects={"x": Spec((1000,))})
        federation.sum(question, range(200))
        assert ray.calls.count("add") == 2
        assert max(ray.sent) < 2 * 8 * 1000
        federation.gather(question, range(200))
        federation.sum(question, [0])  # nobody else is asked
        assert ray.calls.count("add") == 3


def test_sites_that_leave_arrays_out_are_summed_apart(loopback):
    loopback()
    question = Question("test halves", expects={"x": Spec((2,)), "y": Spec(())}, partial=True)
    with InProcess(hosts.Numbers()) as one, RayCluster(hosts.Numbers(), workers=2) as other:
        mine, theirs = one.sum(question, range(4)), other.sum(question, range(4))
        assert mine.weights == theirs.weights == {"x": 10.0, "y": 6.0}
        assert one.ledger.up == other.ledger.up


def test_state_travels_and_survives_workers(loopback):
    ray = loopback(deaths=(3, 6))
    with RayCluster(hosts.Numbers(), workers=1) as federation:

        def ask(step):
            question = Question("test count", expects=N, step=step)
            return federation.sum(question, [0, 2]).arrays["n"]

        assert [ask(0), ask(1), ask(1), ask(2)] == [0, 2, 2, 4]
        assert ray.started == 3
        saved = federation.export(2)
    with RayCluster(hosts.Numbers(), workers=3) as federation:
        federation.restore(2, saved)
        assert ask(3) == 6
        gathered = federation.gather(Question("test count", expects=N, step=4), [0, 1, 2])
        assert [float(a.arrays["n"]) for a in gathered.values()] == [4, 0, 4]
        assert federation.export(4)["1/n"].flags.writeable


def test_a_worker_that_dies_again_takes_its_sites_along(loopback):
    loopback(deaths=(3, 6))
    with RayCluster(hosts.Numbers(), workers=2) as federation:
        total = federation.sum(NUMBERS, range(4))
        assert total.failed == dict.fromkeys([0, 1], "its worker died")
        assert federation.sum(NUMBERS, range(4)).sites == [0, 1, 2, 3]
    loopback(deaths=(2, 4))
    with (
        RayCluster(hosts.Numbers(), workers=1) as federation,
        pytest.raises(FederationError, match=r"0 of 4 sites answered.*site 0: its worker died"),
    ):
        federation.sum(NUMBERS, range(4))


class Slow(Loopback):
    """What workers compute is ready after so many looks."""

    def __init__(self, looks):
        super().__init__()
        self.looks = looks

    def wait(self, references, num_returns=1, timeout=0):
        if isinstance(references[0].value(), Came) and self.looks:
            self.looks -= 1
            time.sleep(timeout)
            return [], references
        return super().wait(references, num_returns, timeout)


@pytest.mark.parametrize("moves", [True, False])
def test_a_worker_is_late_when_it_finishes_no_site_for_too_long(monkeypatch, moves):
    monkeypatch.setattr(ray_cluster, "PULSE", 0.01)
    monkeypatch.setattr(ray_cluster, "library", lambda: Slow(looks=40))
    with RayCluster(hosts.Numbers(), workers=1) as federation:
        federation.timeout = 0.2  # 40 looks take twice as long
        if moves:
            done = itertools.count()
            monkeypatch.setattr(federation, "_progress", lambda _: next(done))
            assert federation.sum(NUMBERS, range(4)).sites == [0, 1, 2, 3]
        else:
            with pytest.raises(FederationError, match="site 0: late"):
                federation.sum(NUMBERS, range(4))


def test_errors_are_told_in_a_line(loopback):
    loopback(cpus=2)
    with RayCluster(hosts.Numbers()) as federation:
        bug = Question("test misbehave", options={"1": "bug"}, expects=X)
        with pytest.raises(FederationError, match="Ray worker: ZeroDivisionError: secret value"):
            federation.sum(bug, range(4))
        with pytest.raises(FederationError, match="no task is named 'sing'"):
            federation.sum(Question("sing", expects=X), [0])
    with pytest.raises(FederationError, match=r"engine.workers = 3, .* has 2 CPUs"):
        RayCluster(hosts.Numbers(), workers=3)


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(FederationError, match=r"pip install 'cupola\[ray\]'"):
        RayCluster(hosts.Numbers())


def test_no_cluster_at_an_address():
    def init(**_):
        raise ConnectionError("nobody there\nand more")

    with pytest.raises(FederationError, match=r"engine.address = 'ray://a:1': .*\(nobody there\)"):
        connect(SimpleNamespace(init=init), "ray://a:1", 1)


@pytest.mark.slow
def test_dead_and_frozen_workers(cluster):  # noqa: ARG001
    """On real processes; a worker that was killed between questions is not even missed."""
    with RayCluster(hosts.Numbers(), workers=2, quorum=0.5) as federation:
        pids = [int(a.arrays["n"]) for a in federation.gather(PID, range(2)).values()]
        assert len({*pids, os.getpid()}) == 3
        os.kill(pids[0], signal.SIGKILL)
        assert federation.sum(NUMBERS, range(4)).sites == [0, 1, 2, 3]
        os.kill(pids[1], signal.SIGSTOP)
        federation.timeout = 3.0
        assert federation.sum(NUMBERS, range(4)).failed == {2: "late", 3: "late"}
        federation.timeout = 120.0
        assert federation.sum(NUMBERS, range(4)).sites == [0, 1, 2, 3]


PID = Question("test process", expects=N)


@pytest.fixture
def head(tmp_path, monkeypatch):
    """A cluster that somebody else started, with tokens; the address for its clients."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")  # else Ray's own server fails at times
    place = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # sockets need short paths
    port, clients = free_ports(2)
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
        *("--num-cpus=2", "--include-dashboard=false", "--node-ip-address=127.0.0.1"),
        *(f"--port={port}", f"--ray-client-server-port={clients}", f"--temp-dir={place}"),
    ]
    with (tmp_path / "head.txt").open("wb") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log)
    yield f"ray://127.0.0.1:{clients}"
    running.terminate()
    running.wait(60)
    shutil.rmtree(place, ignore_errors=True)


@pytest.mark.slow
def test_a_plan_over_a_cluster_that_was_there(head, tmp_path):
    """As docs/engine.md says: by a `ray://` address, from a process that only talks to the head."""
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'name = "over"\nrounds = 3\nmodel = "mlp"\n'
        'data = { name = "digits", partition = { kind = "iid", sites = 20 } }\n'
    )
    runs = []
    for kind, more in (("in-process", []), ("ray", [f"--set=engine.address={head}"])):
        call = [sys.executable, "-m", "cupola", "run", str(plan), f"--set=engine.kind={kind}"]
        runs.append(tmp_path / kind)
        done = subprocess.run(
            [*call, *more, "--out", str(runs[-1])], capture_output=True, text=True, timeout=180
        )
        assert done.returncode == 0, done.stderr + (tmp_path / "head.txt").read_text()
    here, there = (load_file(run / "model.safetensors") for run in runs)
    for name, tensor in here.items():
        np.testing.assert_allclose(tensor, there[name], atol=1e-6)
