"""Golden results: what plans and studies leave behind, as hashes and as a few numbers.

    python tests/golden/record.py            # write golden.json anew, after a wanted change
    python tests/golden/record.py --only recipe

Bits of floating-point results depend on the processor and on libraries. So the file also holds what
a small computation gave where it was recorded (`probe`). Where the probe gives the same, hashes
must be equal; elsewhere a few numbers of every result, to a tolerance. Times, versions and
sentences are left out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from cases import BASE, STUDIES, cohorts_in, plans  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

import cupola  # noqa: E402
from cupola.analysis.folder_lock import read_lines  # noqa: E402
from cupola.analysis.plan_file import load  # noqa: E402

FILE = HERE / "golden.json"
CHANGING = {"seconds", "cpu_seconds", "reveals", "protection"}


def probe() -> str:
    """What floating-point arithmetic gives here."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 3, 16, 16, generator=generator)
    w = torch.randn(4, 3, 3, 3, generator=generator)
    found = torch.nn.functional.conv2d(x, w).flatten(1)
    found = torch.softmax(found @ found.T, 1) + torch.nn.functional.mish(found[:, :8])
    wide = found.double() @ found.double().T
    solved = np.linalg.solve(wide.numpy() + np.eye(8), np.exp(found.numpy()))
    return hashlib.sha256(found.numpy().tobytes() + solved.tobytes()).hexdigest()[:16]


def of_plan(given: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """What a plan's run leaves behind."""
    run = cupola.run(load(BASE, given), folder, report=False)
    found: dict[str, Any] = {"status": run.status}
    for name in ("model", "personal"):
        path = folder / f"{name}.safetensors"
        if path.exists():
            arrays = load_file(path)
            parts = [n.encode() + a.tobytes() for n, a in sorted(arrays.items())]
            found[name] = _digest(b"".join(parts))
            found[f"{name} size"] = float(
                sum(np.square(a.astype(float)).sum() for a in arrays.values())
            )
    history = [_steady(line) for line in run.history]
    found["history"] = _digest(history)
    last = (history[-1].get("test") or {}) if history else {}
    found["test loss"] = last.get("loss")
    found |= _books(folder)
    spent = run.result.get("privacy")
    found["epsilon"] = None if spent is None else spent["epsilon"]
    return found


def of_study(study: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What a study leaves behind."""
    told = cupola.run(study, folder, report=False).result
    found: dict[str, Any] = {"status": told["status"]}
    for name in sorted(told["files"]):
        if name.endswith("-meta.yaml"):  # says on which day it was written
            continue
        found[name] = _digest((folder / name).read_bytes())
    return found | _books(folder)


def _books(folder: Path) -> dict[str, Any]:
    """Ledger and charges; bytes in all."""
    found: dict[str, Any] = {}
    for name in ("ledger", "privacy"):
        path = folder / f"{name}.jsonl"
        if path.exists():
            found[name] = _digest([_steady(line) for line in read_lines(path)])
    told = json.loads((folder / "result.json").read_text())
    found["bytes"] = float(told["bytes_down"] + told["bytes_up"])
    return found


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _steady(v) for k, v in value.items() if k not in CHANGING}
    return [_steady(v) for v in value] if isinstance(value, list) else value


def _digest(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()[:24]


def cases() -> dict[str, Any]:
    """Name -> a function of an empty folder."""
    found: dict[str, Any] = {}
    for name, given in plans().items():
        found[f"plan: {name}"] = lambda folder, given=given: of_plan(given, folder / "run")
    for name, options in STUDIES.items():
        found[f"study: {name}"] = lambda folder, options=options: of_study(
            cohorts_in(folder)(**options), folder / "run"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names that contain this")
    only = parser.parse_args().only
    torch.set_num_threads(1)
    held = json.loads(FILE.read_text()) if FILE.exists() else {}
    same = held.get("probe") == probe()
    found = dict(held.get("cases", {})) if same and only else {}
    for name, make in cases().items():
        if only in name:
            with tempfile.TemporaryDirectory() as folder:
                found[name] = make(Path(folder))
            print(name, found[name]["status"], flush=True)
    FILE.write_text(json.dumps({"probe": probe(), "cases": found}, indent=1, default=float) + "\n")


if __name__ == "__main__":
    main()
