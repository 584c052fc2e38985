"""What one sample can change of a released sum, over the clip: a search for violations.

    python benchmarks/dpsgd/bound.py [--tries 200] [--threads 1,2] [--models cnn,lstm] [--out FILE]

For every rule and path (as the engine chooses, no room for per-sample gradients, numbers alone, two
copies of a sample, one by one) and for whole models: crafted weights and data, batches of 1 to
70 samples, the largest |sum with - sum without one sample| / clip. And the switch: two dense layers
that make every sample's gradient of one rounding error, at all batch sizes. Prints a table on
stderr and one JSON document on stdout; `worst` must not exceed 1 + ROUNDING.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "privacy"))
import persample_attacks as attacks

from cupola.nn import build, find_loss
from cupola.privacy.persample import ROUNDING, PerSample

MODELS: dict[str, dict[str, Any]] = {
    "cnn": {"name": "cnn", "input_shape": (1, 28, 28), "classes": 10},
    "resnet8-gn": {"name": "resnet8", "input_shape": (3, 16, 16), "classes": 10, "norm": "group"},
    "resnet8-kn": {"name": "resnet8", "input_shape": (3, 16, 16), "classes": 10, "norm": "kernel"},
    "transformer": {"name": "transformer", "input_shape": (20,), "classes": 100, "dropout": 0.0},
    "lstm": {"name": "text_lstm", "input_shape": (12,), "classes": 2, "vocabulary": 100},
}


def of_model(name: str, tries: int, seed: int = 0) -> float:
    """Crafted weights of a whole model: layers of many sizes; inputs ordinary and extreme."""
    chance = np.random.default_rng([seed, *name.encode()])
    options = MODELS[name]
    module = build(seed=0, **options)
    for part in module.modules():
        if hasattr(part, "dropout") and isinstance(part.dropout, float):
            part.dropout = 0.0  # masks are secret draws: see docs/privacy.md
    engine = PerSample(module, find_loss("cross_entropy"))
    vocabulary = options.get("vocabulary", options["classes"])
    tokens = any(isinstance(m, torch.nn.Embedding) for m in module.modules())
    worst = 0.0
    for number in range(tries):
        n = int(chance.integers(1, 71))
        with torch.no_grad():
            for p in module.parameters():
                p.copy_(torch.from_numpy(chance.standard_normal(p.shape)))
                p.mul_(10.0 ** chance.uniform(-4, 8 if number % 2 else 1))
        if tokens:
            x = torch.from_numpy(chance.integers(0, vocabulary, (n, *options["input_shape"])))
            x[::2] = x[::2, :1]
        else:
            kind = attacks.KINDS[number % len(attacks.KINDS)]
            x = attacks.crafted(kind, (n, *options["input_shape"]), -1, chance)
        with torch.no_grad():
            shape = (n, *module(x[:1]).shape[1:-1])
        y = torch.from_numpy(chance.integers(0, options["classes"], shape))
        worst = max(worst, attacks.difference(engine, x, y, int(chance.integers(n))))
    return worst


def of_switch() -> float:
    module, x, y = attacks.switch()
    engine = PerSample(module, attacks.linear_loss)
    return max(attacks.difference(engine, x[:n], y[:n], 0) for n in range(1, 71))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tries", type=int, default=200, help="of every rule and path")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--out", type=Path, help="write the document there, too")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    found: dict[str, dict[str, float]] = {}

    def note(row: str, column: str, value: float) -> None:
        found.setdefault(row, {})[column] = value
        print(f"{row:28s} {column:28s} {value:.6f}", file=sys.stderr, flush=True)

    sizes = [int(n) for n in np.random.default_rng(0).permutation(np.arange(1, 71))]
    for threads in map(int, options.threads.split(",")):
        torch.set_num_threads(threads)
        for name in attacks.CASES:
            for path, how in attacks.PATHS.items():
                note(name, f"{path}, {threads}", attacks.worst(name, options.tries, sizes, **how))
        for name in filter(None, options.models.split(",")):
            note(name, f"as it chooses, {threads}", of_model(name, max(10, options.tries // 10)))
        note("switch", f"as it chooses, {threads}", of_switch())
    worst = max(value for row in found.values() for value in row.values())
    document = {
        "tries": options.tries,
        "torch": torch.__version__,
        "limit": 1 + ROUNDING,
        "worst": worst,
        "found": found,
    }
    text = json.dumps(document, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    print(text)
    sys.exit(0 if worst <= 1 + ROUNDING else 1)


if __name__ == "__main__":
    main()
