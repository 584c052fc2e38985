"""Examples in docstrings of public entry points run, each in a folder of its own."""

from __future__ import annotations

import doctest
import importlib
import os
import sys
from pathlib import Path

import pytest

from cupola.federation.site import _TASKS

ENTRY_POINTS = [
    "cupola.analysis.checked:check",
    "cupola.analysis.plan_file:load",
    "cupola.analysis.protocol:Analysis",
    "cupola.analysis.run_folder:Run",
    "cupola.analysis.session:iterate",
    "cupola.analysis.session:resume",
    "cupola.analysis.session:run",
    "cupola.data.indices:partition_indices",
    "cupola.engines.in_process:InProcess",
    "cupola.engines.one_sum:masked_sum",
    "cupola.engines.secure_sums:masked_sums",
    "cupola.federation.program:drive",
    "cupola.nn:KNConv2d",
    "cupola.nn:kernel_normalise",
    "cupola.privacy.accounting:epsilon",
    "cupola.privacy.dp_sgd_budget:epsilon",
    "cupola.privacy.dp_sgd_budget:noise_multiplier",
    "cupola.privacy.plain_loop:make_private",
    "cupola.report:table",
    "cupola.testing:check_analysis",
]


def forget_tasks() -> None:
    """Other tests of this process must not meet the tasks of examples."""
    made = [n for n, t in _TASKS.items() if t.plain.__code__.co_filename.startswith("<doctest")]
    for name in made:
        del _TASKS[name]


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_examples(entry_point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))  # for children
    module_name, _, name = entry_point.partition(":")
    module = importlib.import_module(module_name)
    docstring = getattr(module, name).__doc__
    examples = doctest.DocTestParser().get_doctest(docstring, vars(module).copy(), name, None, 0)
    assert examples.examples
    said: list[str] = []
    found = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples, out=said.append)
    forget_tasks()
    assert not found.failed, "".join(said)
