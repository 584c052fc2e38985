"""Parties that die, sleep, run out of disk, or send nonsense: a study ends right, or stops with the
reason and goes on later; nothing is lost and nothing is told twice in two ways.

A kill is played by an exception that nothing catches, at every point where something is made
durable; the party is then opened anew from its folder. Real processes are
killed at every phase of a round in `test_kill_phases`.
"""

import os
from dataclasses import dataclass, field

import numpy as np
import pytest

from cupola.errors import FederationError
from cupola.federation import drive
from cupola.federation.message import Contribution, encode_contribution
from cupola.secure import Masked
from cupola.site import read_ledger, spent


class Killed(BaseException):
    """kill -9."""


@dataclass
class Disk:
    """Counts what is made durable, and does something at one point of it."""

    fails: dict = field(default_factory=dict)  # number -> what is raised
    count: int = 0

    def fsync(self, _):
        self.count += 1
        if self.count in self.fails:
            raise self.fails[self.count]


@dataclass
class Coordinator:
    """Drives a study from its last complete step; parties that were killed are opened anew."""

    trial: object
    states: list = field(default_factory=list)
    tries: int = 0

    def __post_init__(self):
        self.program = self.trial.training()

    def go(self, prepare=None):
        sites, third = self.trial.open()
        if prepare is not None:
            prepare(sites, third)
        reach = Masked(sites, third, self.trial.roster)
        reach.quorum = 1.0
        start = self.states[-1] if self.states else self.program.start()

        def after(state):
            self.states.append(state)
            reach.confirm(state.step - 1)

        return drive(self.program, reach, start, after)

    def until_done(self, *failures, most=6):
        """Go on after each failure."""
        while True:
            self.tries += 1
            try:
                return self.go()
            except failures:
                assert self.tries < most


def same(one, two):
    names = [name for name in one.arrays if name.startswith("model/")]
    return all((one.arrays[name] == two.arrays[name]).all() for name in names)


@pytest.fixture(scope="session")
def expected(_joined, tmp_path_factory):
    """The model without faults, and how many points there are at which something is durable."""
    import consortium as made

    disk = Disk()
    copy = made.copied(_joined, tmp_path_factory.mktemp("undisturbed") / "all")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", disk.fsync)
        state = Coordinator(copy).go()
    copy.close()
    return state, disk.count


def killed_at(trial, monkeypatch, points, error):
    """A study in which the n-th durable write is a party's last, for each of these points."""
    disk = Disk(dict.fromkeys(points, error))
    monkeypatch.setattr("os.fsync", disk.fsync)
    coordinator = Coordinator(trial)
    return coordinator.until_done(Killed, FederationError, most=len(points) + 3)


@pytest.mark.parametrize("share", [0.1, 0.35, 0.6, 0.95])
def test_a_party_killed_at_any_moment_comes_back(trial, expected, monkeypatch, share):
    state, points = expected
    found = killed_at(trial, monkeypatch, [max(1, int(share * points))], Killed())
    assert same(found, state)


def test_a_site_killed_again_and_again_is_charged_once(private, monkeypatch):
    disk = Disk({n: Killed() for n in range(2, 40, 8)})
    monkeypatch.setattr("os.fsync", disk.fsync)
    Coordinator(private).until_done(Killed, FederationError, most=40)
    costs = [spent(private.site(i), private.study)["epsilon"] for i in range(3)]
    (book,) = (private.site(0) / "spent").glob("patients*.jsonl")
    lines = book.read_text().splitlines()
    assert len(lines) == 1 + private.plan.rounds  # a line that says whose it is, one for each round
    assert len({round(cost, 9) for cost in costs}) == 1


@pytest.mark.parametrize("share", [0.15, 0.5, 0.85])
def test_a_full_disk_stops_an_answer_and_not_the_study(trial, expected, monkeypatch, share):
    state, points = expected
    full = OSError(28, "No space left on device")
    found = killed_at(trial, monkeypatch, [int(share * points), int(share * points) + 1], full)
    assert same(found, state)


def test_a_coordinator_killed_between_answers_and_unmasking(trial, expected):
    coordinator = Coordinator(trial)

    def dies_after(sites, number):
        def change(_, answer):
            if len(sites.seen) == number:
                raise Killed
            return answer

        sites.change = change

    for number in (1, 3):
        with pytest.raises(Killed):
            coordinator.go(lambda sites, _, number=number: dies_after(sites, number))
        with pytest.raises(Killed):  # settled, but not unmasked; unmasked, but not written down
            coordinator.go(lambda _, third, number=number: dies_after(third, (number + 1) // 2))
    assert same(coordinator.go(), expected[0])


def test_a_clock_that_is_set_back_does_not_stop_a_study(trial, expected, monkeypatch):
    coordinator = Coordinator(trial)

    def prepare(_, third):
        def change(_, answer):
            if len(third.seen) == 2:  # it was told, and the coordinator dies
                raise Killed
            return answer

        third.change = change

    with pytest.raises(Killed):
        coordinator.go(prepare)
    monkeypatch.setattr("time.time_ns", lambda: 10**15)  # 1970
    monkeypatch.setattr("time.time", lambda: 10.0**6)
    assert same(coordinator.go(), expected[0])


def nonsense(kind, answer):
    """A site's answer, broken in one way. The right one is at hand."""
    from cupola.base.frames import RECEIPT_SIZE
    from cupola.federation.message import decode_contribution

    answer = answer[RECEIPT_SIZE:]  # behind its receipt
    told = decode_contribution(answer[1:])
    name = next(name for name in told.arrays if name.startswith("masked/model"))
    array = told.arrays[name]
    if kind == "garbage":
        return b"A" + os.urandom(500)
    if kind == "empty":
        return b""
    if kind == "cut off":
        return answer[:-7]
    changed = {
        "wrong shape": array[:-1],
        "oversized": np.zeros(10**6, array.dtype),
        "floats with NaN": np.full(array.shape, np.nan),
        "wide": array.astype(np.int8),
    }.get(kind)
    arrays = {**told.arrays, name: array if changed is None else changed}
    if kind == "extra":
        arrays["more"] = array
    weight = float("nan") if kind == "weight" else told.weight
    return b"A" + encode_contribution(Contribution(arrays, weight))


KINDS = ["garbage", "empty", "cut off", "wrong shape", "oversized", "floats with NaN", "wide",
         "extra", "weight"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_nonsense_stops_the_step_with_the_reason_and_the_study_goes_on(trial, expected, kind):
    coordinator = Coordinator(trial)

    def prepare(sites, _):
        sites.change = lambda site, answer: nonsense(kind, answer) if site == 1 else answer

    with pytest.raises(FederationError, match=r"site 1: \w+"):
        coordinator.go(prepare)
    assert same(coordinator.go(), expected[0])


def test_changed_numbers_are_found_out(trial, expected):
    coordinator = Coordinator(trial)

    def prepare(sites, _):
        def change(site, answer):
            return answer[:-3] + bytes([answer[-3] ^ 1]) + answer[-2:] if site == 1 else answer

        sites.change = change

    with pytest.raises(FederationError, match=r"envelope|checksum"):
        coordinator.go(prepare)
    assert same(coordinator.go(), expected[0])


def test_a_late_site_comes_back(trial, expected):
    coordinator = Coordinator(trial)
    with pytest.raises(FederationError, match="site 2: late"):
        coordinator.go(lambda sites, _: sites.away.add(2))
    assert same(coordinator.go(), expected[0])


def test_data_that_are_broken_stay_in_the_sites_own_log(trial, expected):
    path = trial.site(1) / "rows.npz"
    good = path.read_bytes()
    stored = dict(np.load(path))
    stored["x"][3, 2] = np.nan
    np.savez(path, **stored)
    coordinator = Coordinator(trial)
    with pytest.raises(FederationError, match="site 1: data or files are not usable") as error:
        coordinator.go()
    assert "row" not in str(error.value)
    log = next((trial.site(1) / "studies").iterdir()) / "log.txt"
    assert "NaN or infinity, first in row 3" in log.read_text()
    path.write_bytes(good)
    assert same(coordinator.go(), expected[0])


def test_two_processes_do_not_answer_for_one_site(trial, monkeypatch):
    monkeypatch.setattr("cupola.site.open.SingleWriterLock.__init__.__defaults__", (0.0,))
    coordinator = Coordinator(trial)
    coordinator.go()
    held = trial.opened
    trial.opened = []
    with pytest.raises(FederationError, match="data or files are not usable"):
        Coordinator(trial).go()
    for party in held:
        party.close()


def test_the_ledger_of_a_site_survives_its_crashes(trial, monkeypatch):
    disk = Disk({n: Killed() for n in (5, 11, 17)})
    monkeypatch.setattr("os.fsync", disk.fsync)
    Coordinator(trial).until_done(Killed, FederationError, most=10)
    trial.close()
    lines = read_ledger(trial.site(0), trial.study)
    assert {line["step"] for line in lines if "bytes" in line} == {0, 1}
