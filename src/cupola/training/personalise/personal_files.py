"""What personalisation leaves in a run folder: personal.json, and the groups' models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.numpy import save as to_safetensors

from cupola.analysis.checkpoint import json_line, write_sealed
from cupola.analysis.folder_lock import read_lines
from cupola.base.files import write_atomically
from cupola.federation.program import State
from cupola.training.personalise.costs import costs
from cupola.training.personalise.outcome import digest, outcome
from cupola.training.personalise.personal_program import Personalisation
from cupola.training.workspace import TrainingHost

NAMED = 1000  # sites whose names are written down


def write_personal(
    program: Personalisation, state: State, host: TrainingHost, folder: Path
) -> dict[str, Any]:
    """Write personal.json; the part of it that goes into result.json."""
    data = host.sites
    names = [data.site_name(i) for i in range(min(len(data), NAMED))]
    found = outcome(program, state, data.sizes(), data.site_types, names)
    ledger = folder / "ledger.jsonl"
    told = costs(program, state, read_lines(ledger) if ledger.exists() else ())
    for method, facts in told.items():
        found["methods"][method] |= facts
    write_sealed(folder / "personal.json", json_line(found))
    return digest(found)


def write_group_models(state: State, folder: Path) -> None:
    """The models of PFA's groups, named 'group/parameter'."""
    models = {}
    for name, array in state.arrays.items():
        if name.startswith("personal/"):
            _, group, _, parameter = name.split("/", 3)
            models[f"{group}/{parameter}"] = array
    if models:
        write_atomically(folder / "personal.safetensors", to_safetensors(models))
