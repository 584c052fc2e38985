"""Folders of association studies that the first edition left: their plan is `study.toml`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import cupola
from cupola.analysis.checkpoint import write_sealed
from cupola.analysis.run_folder import likeness
from cupola.base.chain import marks, read_json
from cupola.base.jsonl import json_line

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))

from cases import cohorts_in


class Killed(BaseException):
    pass


def as_before(folder: Path) -> None:
    """As the first edition wrote it: another name, workers and timeout beside the engine."""
    plan = cupola.load(folder / "plan.toml").to_dict()
    engine = plan.pop("engine")
    del plan["kind"]
    import tomli_w

    given = {**plan, "workers": engine["workers"], "timeout": engine["timeout"]}
    (folder / "plan.toml").unlink()
    write_sealed(folder / "study.toml", tomli_w.dumps(given))
    path = folder / "result.json"
    if path.exists():
        told = {k: v for k, v in read_json(path).items() if k not in ("kind", "seed")}
        kept = [name for name in told["checksums"] if name != "plan.toml"]
        told["checksums"] = marks(folder, ["study.toml", *kept])
        write_sealed(path, json_line(told, indent=2))


@pytest.fixture
def study(tmp_path):
    given = cohorts_in(tmp_path)(test="chi-square", sum="masked")
    return {**given, "checkpoint_seconds": 0, "chunk": 8}


def test_a_finished_study_is_read_reported_and_not_done_again(tmp_path, study):
    folder = tmp_path / "old"
    cupola.run(study, folder)
    as_before(folder)
    run = cupola.Run.open(folder)
    assert run.status == "finished"
    assert run.result.tested > 0
    (folder / "report.html").unlink()
    from cupola import report

    assert report.write(folder).read_text().count("association study")
    table = (folder / "study.assoc").stat().st_mtime_ns
    assert cupola.resume(folder)[0].status == "finished"
    assert (folder / "study.assoc").stat().st_mtime_ns == table


def test_a_killed_study_is_resumed(tmp_path, study):
    whole, folder = tmp_path / "whole", tmp_path / "old"
    cupola.run(study, whole, report=False)

    def kill(now):
        if now.part == "counts" and now.done:
            raise Killed

    with pytest.raises(Killed):
        cupola.run(study, folder, progress=kill, report=False)
    as_before(folder)
    cupola.resume(folder, report=False)
    assert (folder / "study.assoc").read_bytes() == (whole / "study.assoc").read_bytes()


def test_checkpoints_of_trainings_know_their_plan():
    """The mark of a plan is the one that the first edition made, so that its runs are resumed."""
    plan = {
        "name": "t", "rounds": 6, "recipe": "scaffold", "checkpoint_seconds": 0, "sum": "masked",
        "data": {"name": "digits", "partition": {"kind": "iid", "sites": 4}},
        "model": {"name": "mlp", "hidden": [8]},
    }  # fmt: skip
    assert likeness(cupola.load(plan)) == "3f337c327b7c6989824fdb76f8098334"
