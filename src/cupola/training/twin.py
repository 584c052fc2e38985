"""The centralised twin of a run: the same training on the pooled data, in the folder 'twin'."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save as to_safetensors

from cupola.analysis.checkpoint import Log, json_line, write_sealed
from cupola.base.files import write_atomically
from cupola.federation.message import Arrays
from cupola.training.centralised import centralised
from cupola.training.loop import Training
from cupola.training.metrics import without_matrices
from cupola.training.plan import Plan
from cupola.training.summary import result
from cupola.training.workspace import MODEL, TrainingHost


def run_twin(
    plan: Plan,
    folder: Path,
    program: Training,
    host: TrainingHost,
    rounds: int,
    federated: Arrays,
    between: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Fill `folder` with so many rounds of the twin; the largest difference of any weight to the
    federated model (relative to the largest weight) and the last record.

    Always from the start: it is not resumed. between: called with the record of every round.
    """
    folder.mkdir(exist_ok=True)
    alone = plan.change({"twin": False})
    write_sealed(folder / "plan.toml", alone.to_toml())
    history = Log(folder / "history.jsonl")
    began = time.monotonic()
    record: dict[str, Any] = {}
    arrays: Arrays = {}
    try:
        for record, model in islice(centralised(program, host.sites), rounds):
            arrays = model
            seconds = round(time.monotonic() - began, 6)
            record |= {"bytes_down": 0, "bytes_up": 0, "seconds": seconds}
            history.write(without_matrices(record))
            between(record)
    finally:
        history.close()
    trained = {n: a for n, a in arrays.items() if n.startswith(MODEL)}
    plain = program.space.frozen.arrays(program.problem.frozen_seed)
    plain |= {name.split("/", 1)[1]: array for name, array in trained.items()}
    write_atomically(folder / "model.safetensors", to_safetensors(plain))
    summary = {
        "status": "finished", "reason": None, "name": alone.name, "kind": alone.kind,
        "seed": alone.seed, "simulated": True,
        **result(alone, folder, record, host, program, private=False),
        "recipe": "centralised", "sites": 1, "source": None,
    }  # fmt: skip
    write_sealed(folder / "result.json", json_line(summary, indent=2))
    names = [n.removeprefix("model/") for n in arrays if n.startswith("model/")]
    scale = max(float(np.abs(plain[n]).max()) for n in names) or 1.0
    apart = max(float(np.abs(plain[n] - federated[n]).max()) for n in names)
    return {
        "weight_difference": apart / scale,
        "seconds": record["seconds"],
        "final": without_matrices(record),
    }
