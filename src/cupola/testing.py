"""Tests that every analysis must pass, for kinds of one's own: as scikit-learn's `check_estimator`.

from cupola.testing import check_analysis

def test_my_analysis(tmp_path):
    check_analysis({"kind": "mypackage:Cox", "name": "cox", ...}, tmp_path)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cupola.analysis.folder_lock import read_lines
from cupola.analysis.header import PlanHeader
from cupola.analysis.kinds import analysis_of
from cupola.analysis.plan_file import Source, load
from cupola.analysis.run_folder import Run
from cupola.analysis.session import resume, run
from cupola.analysis.simulated import federation
from cupola.federation.message import digest
from cupola.federation.program import Ask, State
from cupola.federation.replay import Once, Replay

_CLOCKS = {"seconds", "cpu_seconds", "checksums", "versions"}


class _Killed(BaseException):
    """What a process does not survive."""


def check_analysis(
    plan: Source, folder: Path, *, masked: bool = True, tolerance: float = 1e-6
) -> list[str]:
    """Run a small plan in every way that must not matter; AssertionError says what did. Gives what
    was checked. masked: whether sums may be masked; tolerance: how far masked results may be off.

    >>> from pathlib import Path
    >>> plan = {"kind": "pooled_regression:PooledRegression", "name": "check", "hospitals": 3}
    >>> checked = check_analysis(plan, Path("checks"))
    >>> checked[5:7]
    ['killed after any step and resumed is equal', 'masked sums give the same results']
    """
    whole: PlanHeader = load(plan)
    return [name for name, _ in _checks(whole, folder, masked, tolerance)]


def _checks(
    plan: PlanHeader, folder: Path, masked: bool, tolerance: float
) -> Iterator[tuple[str, None]]:
    assert load(plan.to_toml()) == plan, "a plan written as TOML loads to another plan"
    yield "a plan loads from its own TOML", None
    _is_pure(plan)
    yield "the program is pure: the same state gives the same question", None
    first = run(plan, folder / "first", report=True)
    assert (folder / "first/report.html").stat().st_size, "there is no report"
    _same(first, run(plan, folder / "again", report=False), 0.0, "another run")
    yield "two runs are equal", None
    _keeps_promises(plan, first)
    yield "check promises what the run asks and sends", None
    one_by_one = run(plan.change({"engine.mode": "one-by-one"}), folder / "single", report=False)
    apart = plan.change({"engine.kind": "processes"})
    _same(one_by_one, run(apart, folder / "apart", report=False), 0.0, "sites in processes")
    yield "sites in processes of their own, as bytes, are equal", None
    _resumes(plan, folder / "killed", first)
    yield "killed after any step and resumed is equal", None
    if masked:
        hidden = plan.change({"sum.kind": "masked"})
        _same(first, run(hidden, folder / "masked", report=False), tolerance, "masked sums")
        yield "masked sums give the same results", None
    if analysis_of(plan).replayable:
        _is_replayable(plan, folder / "replayed")
        yield "a site that follows the program asks itself the same", None


def _is_pure(plan: PlanHeader) -> None:
    analysis = analysis_of(plan)
    program = analysis.program(analysis.host())
    state = program.start()
    one, two = program.ask(state), program.ask(state)
    assert (one is None) == (two is None), "`ask` gives another question for the same state"
    if one is not None and two is not None:
        same = digest(one.question) == digest(two.question) and list(one.sites) == list(two.sites)
        assert same, "`ask` gives another question for the same state"
    json.dumps(state.values)  # a checkpoint holds them


def _keeps_promises(plan: PlanHeader, done: Run) -> None:
    """Bytes, and which tasks are asked how."""
    analysis = analysis_of(plan)
    told, sent = analysis.check()["bytes"], done.result
    if not told["at_most"]:
        real = sent.bytes_down + sent.bytes_up
        assert told["total"] == real, f"check promises {told['total']} bytes, the run sent {real}"
    asked = {(e["task"], e["kind"]) for e in read_lines(done.folder / "ledger.jsonl")}
    promised = {(row["task"], row["kind"]) for row in told["rows"]}
    assert asked <= promised, f"the run asks what check does not promise: {asked - promised}"
    for task, _ in asked:
        assert analysis.asks(task), f"'{task}' is asked, but is not among the analysis' `tasks`"


def _resumes(plan: PlanHeader, folder: Path, first: Run) -> None:
    saved = plan.change({"checkpoint_seconds": 0})
    steps = 0

    def counting(_: Any) -> None:
        nonlocal steps
        steps += 1

    run(saved, folder / "whole", progress=counting, report=False)
    for last in sorted({1, (steps + 1) // 2, steps} - {0}):
        seen = 0

        def killing(_: Any, last: int = last) -> None:
            nonlocal seen
            seen += 1
            if seen == last:
                raise _Killed

        place = folder / str(last)
        try:
            run(saved, place, progress=killing, report=False)
        except _Killed:
            resume(place, report=False)
        _same(first, Run.open(place), 0.0, f"a run killed after {last} of {steps} steps")


def _is_replayable(plan: PlanHeader, folder: Path) -> None:
    """A second copy of the program, fed with totals, must ask what the first one asks."""
    folder.mkdir()
    analysis, copy = analysis_of(plan), analysis_of(plan)
    host = analysis.host()
    program, follower = Once(analysis.program(host)), Replay(copy.program(copy.host()))
    state: State = program.start()
    with federation(analysis, host, folder=folder) as reach:
        while (ask := program.ask(state)) is not None:
            reply: Any = None
            if ask.kind != "alone":
                follower.check(ask.question)
                reply = _asked(reach, ask)
            if ask.kind != "alone" or ask.question.task:
                follower.hear(ask.question.step, reply)
            state = program.answer(state, reply)
    assert follower.due() is None, "the copy goes on where the program has ended"


def _asked(reach: Any, ask: Ask) -> Any:
    return (reach.sum if ask.kind == "sum" else reach.gather)(ask.question, ask.sites)


def _same(one: Run, two: Run, tolerance: float, how: str) -> None:
    """Results, and files if nothing may differ."""
    assert two.status == one.status, f"{how}: {two.status} ({two.result.reason})"
    masked = tolerance > 0  # which costs more bytes
    facts = [_facts(r.result.to_dict(), masked) for r in (one, two)]
    for key, value in facts[0].items():
        _equal(value, facts[1].get(key), tolerance, f"{how}: result.json: {key}")
    for name in type(one.analysis).files_of(one.plan.name) if not masked else ():
        if (one.folder / name).is_file():
            same = (one.folder / name).read_bytes() == (two.folder / name).read_bytes()
            assert same or name.endswith(".json"), f"{how}: {name} is not the same"


def _facts(result: Mapping[str, Any], masked: bool) -> dict[str, Any]:
    left_out = _CLOCKS | ({"bytes_down", "bytes_up"} if masked else set())
    return {key: value for key, value in result.items() if key not in left_out}


def _equal(one: Any, two: Any, tolerance: float, where: str) -> None:
    if isinstance(one, dict) and isinstance(two, dict):
        left_out = _CLOCKS | ({"bytes_down", "bytes_up"} if tolerance else set())
        for key in one.keys() - left_out:
            _equal(one[key], two.get(key), tolerance, f"{where}.{key}")
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        for i, (a, b) in enumerate(zip(one, two)):
            _equal(a, b, tolerance, f"{where}[{i}]")
    elif isinstance(one, float) and isinstance(two, float | int):
        close = one == two or np.isclose(one, two, rtol=tolerance, atol=tolerance)
        assert close, f"{where}: {one} and {two}"
    else:
        assert one == two, f"{where}: {one!r} and {two!r}"
