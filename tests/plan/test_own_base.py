"""Models of the user's own code that freeze a part themselves, as an adapter does with its base."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from samples import SMALL, of_an_earlier_version
from test_run import checked, go, same, stop_after

import cupola
from cupola.analysis.plan_file import load
from cupola.errors import CupolaError, FederationError
from cupola.training.forecast import foresee

CODE = """
    from pathlib import Path

    import torch
    from torch import nn

    class Adapter(nn.Module):
        '''A frozen base, made of a file beside this one, and two small factors that are trained.'''

        def __init__(self, input_shape, classes):
            super().__init__()
            rows, scale = Path(__file__).with_name("base.txt").read_text().split()
            self.base = nn.Linear(64, int(rows)).requires_grad_(False)
            with torch.no_grad():
                self.base.weight.copy_(float(scale) * torch.eye(int(rows), 64))
                self.base.bias.zero_()
            self.down = nn.Linear(64, 2, bias=False)
            self.up = nn.Linear(2, int(rows), bias=False)
            self.head = nn.Linear(int(rows), classes)
            self.register_buffer("shift", torch.zeros(()), persistent=False)
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            x = x.flatten(1)
            hidden = self.base(x) + self.up(self.down(x)) + self.shift
            return self.scale * self.head(torch.relu(hidden))
"""
PLAN: dict[str, Any] = {**SMALL, "rounds": 2, "model": {"name": "my_adapter:Adapter"}}
BASE = 64 * 8 + 8  # parameters


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the base is made of; its module can be imported, here and at separate sites."""
    (tmp_path / "my_adapter.py").write_text(textwrap.dedent(CODE))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_adapter", raising=False)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    path = tmp_path / "base.txt"
    path.write_text("8 1.0")
    return path


def test_the_base_is_saved_with_the_model(base: Path, tmp_path: Path) -> None:
    run = go(tmp_path / "run", plan=PLAN)
    before = run.model()
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert np.array_equal(saved["base.weight"], np.eye(8, 64, dtype=np.float32))
    base.write_text("8 2.0")
    after = cupola.Run.open(tmp_path / "run").model()
    assert all((a == b).all() for a, b in zip(before.parameters(), after.parameters(), strict=True))
    assert not any(p.requires_grad for p in after.base.parameters())


@pytest.mark.usefixtures("base")
def test_a_model_saved_without_its_base_is_refused(tmp_path: Path) -> None:
    """As earlier versions did."""
    run, path = go(tmp_path / "run", plan=PLAN), tmp_path / "run" / "model.safetensors"
    of_an_earlier_version(run.folder)
    save_file({n: a for n, a in load_file(path).items() if n != "base.weight"}, path)
    with pytest.raises(CupolaError, match=r"'base\.weight', which 'my_adapter:Adapter' freezes"):
        run.model()


def test_a_base_of_another_size_is_named(base: Path, tmp_path: Path) -> None:
    run = go(tmp_path / "run", plan=PLAN)
    base.write_text("9 1.0")
    with pytest.raises(CupolaError, match=r"'base\.bias' is \[8\] there, \[9\] here"):
        run.model()


def test_resumed_with_another_base_is_refused(base: Path, tmp_path: Path) -> None:
    saving = "checkpoint_seconds=0"
    go(tmp_path / "whole", saving, plan=PLAN)
    for name in ("same", "other"):
        with pytest.raises(SystemExit):
            go(tmp_path / name, saving, plan=PLAN, progress=stop_after(1))
    cupola.resume(tmp_path / "same", report=False)
    same(tmp_path / "whole", tmp_path / "same")
    base.write_text("8 2.0")
    with pytest.raises(FederationError, match=r"freezes itself \('base\.bias' and 1 more\)"):
        cupola.resume(tmp_path / "other", report=False)


@pytest.mark.slow
@pytest.mark.usefixtures("base")
def test_separate_sites_make_the_same_base(tmp_path: Path) -> None:
    here = go(tmp_path / "here", "engine.mode=one-by-one", plan=PLAN)
    there = go(tmp_path / "there", "engine.kind=processes", "engine.timeout=900", plan=PLAN)
    for name, array in load_file(here.folder / "model.safetensors").items():
        assert np.array_equal(array, load_file(there.folder / "model.safetensors")[name])


@pytest.mark.usefixtures("base")
def test_bytes_are_those_that_were_predicted(tmp_path: Path) -> None:
    result = go(tmp_path / "run", plan=PLAN).result
    cost = foresee(load(PLAN))
    assert (result["bytes_down"], result["bytes_up"]) == (cost.down, cost.up)
    assert cost.per_site_up < 4 * BASE  # the base is not sent


@pytest.mark.usefixtures("base")
def test_check_says_what_the_model_freezes_itself(tmp_path: Path) -> None:
    said = checked(PLAN, tmp_path)
    assert f"{BASE:,} are frozen by the model's own code: each site makes them, none are" in said
    assert "a seed" not in said
    part = {**PLAN, "trainable": {"freeze": ["down"]}}
    said = checked(part, tmp_path)
    assert "128 are frozen and come from a seed" in said
    assert f"{BASE:,} are frozen by the model's own code" in said
    facts = json.loads(checked(part, tmp_path, "--json"))
    assert facts["model"]["frozen"] == {"seed": 128, "source": 0, "own": BASE}
    assert len(facts["model"]["checksum"]) == 32
