"""The user's own task, by module:name, in this process and at separate sites."""

import os

import pytest
import torch

import cupola
from cupola.errors import PlanError

CODE = """
from dataclasses import replace

from cupola.federation import task
from cupola.training.local import train


@task("half-hearted training")
def half(site, question):
    answer = train(site, question)
    return replace(answer, arrays={n: a / 2 for n, a in answer.arrays.items()})


not_a_task = 3
"""
PLAN = {
    "name": "own-task",
    "rounds": 2,
    "task": "my_own_task:half",
    "data": {
        "name": "digits",
        "partition": {"kind": "iid", "sites": 2, "samples_per_site": 20},
    },
    "model": {"name": "linear"},
}


@pytest.fixture
def code(tmp_path, monkeypatch):
    (tmp_path / "my_own_task.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)  # for separate sites
    return tmp_path


def weights(plan, folder):
    return cupola.run(plan, folder, report=False).model().state_dict()


def test_own_task_takes_the_place_of_train(code):
    own = weights(PLAN, code / "own")
    separate = weights({**PLAN, "engine": {"kind": "processes"}}, code / "separate")
    half_rate = weights({**PLAN, "task": "train", "server": {"lr": 0.5}}, code / "half")
    for name, array in own.items():
        assert torch.equal(array, separate[name])
        assert torch.allclose(array, half_rate[name], atol=1e-7)


@pytest.mark.usefixtures("code")
def test_check_names_it():
    found = cupola.check(PLAN)
    assert found["task"] == "my_own_task:half"
    assert "own-task: my_own_task:half (settings of fedavg), 2 rounds" in str(found)


def test_what_is_no_task_is_refused(code):
    with pytest.raises(PlanError, match="is a int; decorate it"):
        cupola.run({**PLAN, "task": "my_own_task:not_a_task"}, code / "run", report=False)
    with pytest.raises(PlanError, match="has no missing"):
        cupola.run({**PLAN, "task": "my_own_task:missing"}, code / "other", report=False)
