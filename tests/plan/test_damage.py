"""Run folders that are damaged, disks that are full, and runs that are replaced."""

from __future__ import annotations

import itertools
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from samples import SMALL
from test_run import go, same, stop_after

import cupola
from cupola.analysis.folder_lock import Aside, drop, locked
from cupola.analysis.plan_file import load
from cupola.analysis.run_folder import contents
from cupola.base.chain import read_result
from cupola.errors import CupolaError, DataError, PlanError

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "benchmarks" / "damage"), str(ROOT / "tests" / "association")]
EVERY = ["checkpoint_seconds=0"]


@pytest.mark.slow
def test_twenty_damaged_folders_are_as_they_were_or_refused(tmp_path: Path) -> None:
    import runs

    found = runs.measure(20, tmp_path, ["masked", "private", "study"])
    assert found["bad"] == []
    assert found["outcomes"]["refused"] > 10


@pytest.mark.slow
def test_twenty_damaged_folders_of_parties_are_as_they_were_or_refused(tmp_path: Path) -> None:
    import sites

    found = sites.measure(20, tmp_path)
    assert found["bad"] == []
    assert found["outcomes"]["refused"] > 10


@pytest.mark.long
def test_kills_at_random_moments_change_nothing(tmp_path: Path) -> None:
    import kills

    found = kills.measure(10, tmp_path)
    assert [found[name]["different"] for name in ("training", "study")] == [0, 0]


@pytest.mark.parametrize(
    "name", ["plan.toml", "partition.json", "history.jsonl", "ledger.jsonl", "checkpoint"]
)
def test_a_changed_byte_is_refused_by_name_and_nothing_is_touched(
    tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "r"
    with pytest.raises(SystemExit):
        go(folder, *EVERY, progress=stop_after(3))
    path = folder / name if name != "checkpoint" else folder / "checkpoint/state.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}
    with pytest.raises(CupolaError, match=rf"{path.name} is damaged .*; "):
        cupola.resume(folder)
    assert before == {p: p.read_bytes() for p in before}


@pytest.mark.parametrize(
    "name", [".lock", ".reserve", "history.jsonl", "compensator/compensator.jsonl", "checkpoint"]
)
def test_a_folder_that_holds_links_writes_nothing_elsewhere(tmp_path: Path, name: str) -> None:
    """Somebody else's folder, say: what lies behind its links is not its own."""
    folder, mine = tmp_path / "sent", tmp_path / "mine"
    (folder / name).parent.mkdir(parents=True)
    (folder / "plan.toml").write_text(load(SMALL).to_toml())
    mine.write_text("precious")
    (folder / name).symlink_to(mine)
    with pytest.raises(PlanError, match=f"{name} is a link"):
        cupola.resume(folder)
    with pytest.raises(PlanError, match=f"{name} is a link"):
        go(folder, overwrite=True)
    assert mine.read_text() == "precious"


@pytest.mark.parametrize("label", ["..", "a/..", ".", ""])
def test_a_list_of_runs_leads_to_none_but_the_folders_own(tmp_path: Path, label: str) -> None:
    folder = tmp_path / "sent"
    folder.mkdir()
    for place in (folder, tmp_path):
        (place / "plan.toml").write_text(load(SMALL).to_toml())
    (folder / "runs.json").write_text(json.dumps([{"folder": label}]))
    (folder / ".replaced").mkdir()  # its earlier contents go
    (folder / "theirs").touch()
    go(folder, overwrite=True)
    assert (tmp_path / "plan.toml").exists()
    assert (folder / "theirs").exists()


def test_what_is_lost_of_a_finished_run_is_written_again(tmp_path: Path) -> None:
    go(tmp_path / "whole", *EVERY)
    go(tmp_path / "r", *EVERY)
    (tmp_path / "r/model.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match="cupola resume"):
        cupola.Run.open(tmp_path / "r").model()
    cupola.resume(tmp_path / "r")
    same(tmp_path / "whole", tmp_path / "r")


def test_a_folder_of_an_earlier_version_is_read_and_gone_on_with(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with pytest.raises(SystemExit):
        go(folder, *EVERY, progress=stop_after(3))
    for name in ("history", "ledger"):  # as it was written before there were checksums
        path = folder / f"{name}.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        text = "".join(
            json.dumps({k: v for k, v in x.items() if k != "chain"}) + "\n" for x in lines
        )
        path.write_text(text)
    plan = (folder / "plan.toml").read_text()
    (folder / "plan.toml").write_text(plan.split("\n", 1)[1])
    assert len(cupola.Run.open(folder).history) == 3


class Odd(Exception):
    """Nothing of ours."""


def break_at(count: int, error: BaseException) -> Any:
    seen: list[Any] = []

    def watch(*facts: Any) -> None:
        seen.append(facts)
        if len(seen) == count:
            raise error

    return watch


def study_plan(folder: Path) -> dict[str, Any]:
    import runs

    return runs.study_plan("masked study", folder)


def test_any_exception_leaves_its_reason_and_a_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with pytest.raises(Odd):
        go(folder, progress=break_at(3, Odd("broke")))
    assert (folder / "checkpoint/state.safetensors").exists()
    told = cupola.Run.open(folder).result
    assert (told["status"], told["reason"], told["rounds"]) == ("failed", "Odd: broke", 3)
    cupola.resume(folder)
    go(tmp_path / "whole")
    same(tmp_path / "whole", folder)


def test_any_exception_in_a_study_leaves_its_reason_and_a_checkpoint(tmp_path: Path) -> None:
    plan, folder = study_plan(tmp_path / "data"), tmp_path / "s"
    with pytest.raises(Odd):
        cupola.run(plan | {"checkpoint_seconds": 60}, folder, progress=break_at(4, Odd("broke")))
    assert (folder / "checkpoint/state.safetensors").exists()
    told = read_result(folder)
    assert (told["status"], told["reason"]) == ("failed", "Odd: broke")
    whole = cupola.run(plan | {"checkpoint_seconds": 60}, tmp_path / "whole").result
    assert cupola.resume(folder)[0].result["tested"] == whole["tested"]
    name = "small.assoc.logistic"
    assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def full_disk(work: Any, most: int) -> int:
    """Work in a child that may write no file beyond so many bytes; its exit code."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        try:
            work()
        except DataError as error:
            os._exit(7 if "disk is full" in str(error) and "resume with" in str(error) else 8)
        except BaseException:
            os._exit(9)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("kind", ["training", "study"])
def test_a_full_disk_leaves_its_reason_and_the_last_checkpoint(tmp_path: Path, kind: str) -> None:
    folder, whole = tmp_path / "r", tmp_path / "whole"
    if kind == "training":
        wide = {**SMALL, "checkpoint_seconds": 0, "rounds": 40}
        cupola.run(wide, whole, report=False)
        largest = (whole / "ledger.jsonl").stat().st_size
        assert full_disk(lambda: cupola.run(wide, folder, report=False), largest // 2) == 7
    else:
        plan = study_plan(tmp_path / "data")
        cupola.run(plan, whole, report=False)
        largest = (whole / "ledger.jsonl").stat().st_size
        assert full_disk(lambda: cupola.run(plan, folder, report=False).result, largest // 2) == 7
    told = read_result(folder)
    assert told["status"] == "failed"
    assert "OSError" in told["reason"]
    assert (folder / "checkpoint/state.safetensors").exists()
    cupola.resume(folder, report=False)
    name = "model.safetensors" if kind == "training" else "small.assoc.logistic"
    assert (folder / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root mounts disks")
def test_a_small_disk_that_is_really_full(tmp_path: Path) -> None:
    import subprocess

    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        plan = study_plan(tmp_path / "data")
        whole = cupola.run(plan, tmp_path / "whole", report=False).result

        def fill(*_: Any) -> None:
            if (disk / "s/checkpoint/state.safetensors").exists() and not (disk / "x").exists():
                with pytest.raises(OSError, match="space"):
                    (disk / "x").write_bytes(bytes(1 << 20))

        with pytest.raises(DataError, match="the disk is full"):
            cupola.run(plan, disk / "s", progress=fill, report=False)
        assert "No space" in read_result(disk / "s")["reason"]
        assert (disk / "s/checkpoint/state.safetensors").exists()
        (disk / "x").unlink()
        assert cupola.resume(disk / "s", report=False)[0].result["tested"] == whole["tested"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


MASKED = {**SMALL, "sum": "masked", "rounds": 3}


def test_a_masked_run_is_replaced_by_another_plan(tmp_path: Path) -> None:
    cupola.run(MASKED, tmp_path / "r", report=False)
    run = cupola.run({**MASKED, "local": {"lr": 0.05}}, tmp_path / "r", overwrite=True)
    cupola.run({**MASKED, "local": {"lr": 0.05}}, tmp_path / "whole")
    assert run.status == "finished"
    same(tmp_path / "whole", tmp_path / "r")
    assert not (tmp_path / "r/.replaced").exists()


def test_a_plan_that_cannot_begin_leaves_the_old_run_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    cupola.run(MASKED, folder)
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}
    bad = {**MASKED, "sum": {"kind": "masked", "minimum": 9}}
    with pytest.raises(PlanError):
        cupola.run(bad, folder, overwrite=True)
    assert before == {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p in before}
    assert cupola.Run.open(folder).status == "finished"


def test_a_study_is_replaced_only_by_one_that_begins(tmp_path: Path) -> None:
    plan, folder = study_plan(tmp_path / "data"), tmp_path / "s"
    cupola.run(plan, folder, report=False)
    table = (folder / "small.assoc.logistic").read_bytes()
    with pytest.raises(CupolaError):
        cupola.run(plan | {"variants": "nowhere.bim"}, folder, overwrite=True)
    assert (folder / "small.assoc.logistic").read_bytes() == table
    cupola.run(plan | {"covariates": []}, folder, overwrite=True, report=False)
    assert (folder / "small.assoc.logistic").read_bytes() != table


PARTS = ("plan.toml", "checkpoint", "model.safetensors", "result.json")


def _killed(work: Callable[[], None], at: int) -> bool:
    """Whether a process that does this work is killed at its n-th change of a name."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    count, real = itertools.count(1), os.rename

    def rename(*names: Any) -> None:
        if next(count) == at:
            os._exit(9)
        real(*names)

    os.rename = rename
    try:
        work()
    finally:
        os._exit(0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX only")
@pytest.mark.parametrize("end", ["begins", "cannot begin"])
def test_a_replacement_killed_at_any_moment_loses_no_part_of_the_old_run(
    tmp_path: Path, end: str
) -> None:
    def replace() -> None:
        with locked(folder), Aside(folder, PARTS):
            (folder / "plan.toml").write_text("new")
            if end == "cannot begin":
                raise PlanError
            drop(folder)

    for at in itertools.count(1):
        folder = tmp_path / str(at)
        (folder / "checkpoint").mkdir(parents=True)
        for name in PARTS:
            path = folder / name
            (path / "state" if path.is_dir() else path).write_text("old")
        if not _killed(replace, at):
            break
        with locked(folder):  # whoever comes next
            new = Aside(folder, PARTS)
            assert not any((folder / name).exists() for name in PARTS)
            new.back()
        assert {name for name in PARTS if (folder / name).exists()} == set(PARTS)
        assert (folder / "plan.toml").read_text() == "old"
    assert at > len(PARTS)


def test_a_damaged_list_of_runs_does_not_keep_them_from_being_replaced(tmp_path: Path) -> None:
    several = {**SMALL, "rounds": 1, "seeds": [1, 2]}
    cupola.run_all(several, tmp_path / "r", report=False)
    path = tmp_path / "r/runs.json"
    path.write_text(path.read_text().replace("seed", "sead", 1))
    with pytest.raises(PlanError):
        cupola.run_all(several, tmp_path / "r", report=False)
    runs = cupola.run_all(several, tmp_path / "r", overwrite=True, report=False)
    assert [run.status for run in runs] == ["finished"] * 2


def test_what_was_replaced_does_not_come_back_over_a_run_that_was_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    cupola.run(SMALL, folder, report=False)
    with locked(folder):  # killed before the new run has begun
        Aside(folder, contents(load(SMALL)))
    cupola.run({**SMALL, "rounds": 1}, folder, report=False)
    with pytest.raises(PlanError):
        cupola.run({**MASKED, "sum": {"kind": "masked", "minimum": 9}}, folder, overwrite=True)
    assert len(cupola.Run.open(folder).history) == 1
