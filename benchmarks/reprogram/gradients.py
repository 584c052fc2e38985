"""Why one way of adapting stands noise better than another: norms and signal of its gradients.

    python benchmarks/reprogram/gradients.py [--size 96] [--images 256] [--steps 10]

For every way of adapting, at its start and after private steps, on real images of CIFAR-10:
quartiles of the per-sample gradients' norms, the share that clipping cuts, what share of the
clipped sum's squared length lies in which part, and the signal of one private step: the norm of
the mean clipped gradient over that of the noise in it, `noise x clip x sqrt(parameters) / batch`.
`along` counts only the noise in the gradient's own direction, which the number of parameters does
not change. One JSON document on stdout.
"""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

import torch

from cupola import data
from cupola.nn import build, find_loss
from cupola.privacy.persample import PerSample

WAYS: dict[str, dict[str, Any]] = {
    "reprogram": {"adapt": "reprogram"},
    "map": {"adapt": "map"},
    "head": {"adapt": "head"},
    "head, as published": {"adapt": "head", "norms": "fresh"},
    "full": {"adapt": "full"},
    "full, as published": {"adapt": "full", "norms": "fresh"},
    "scratch": {"adapt": "scratch"},
}


def signal(
    module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, noise: float, clip: float
) -> dict[str, Any]:
    found = PerSample(module, find_loss("cross_entropy")).clipped_sum(x, y, clip)
    flat = torch.cat([s.reshape(-1) for s in found.sums])
    strength, each = float(flat.norm()), noise * clip
    quartiles = torch.quantile(found.norms, torch.tensor([0.25, 0.5, 0.75]))
    named = [n for n, p in module.named_parameters() if p.requires_grad]
    parts: dict[str, float] = {}
    for name, total in zip(named, found.sums):
        part = name.split(".")[0]
        parts[part] = math.hypot(parts.get(part, 0.0), float(total.norm()))
    return {
        "parameters": len(flat),
        "norms": [round(float(q), 4) for q in quartiles],
        "clipped": round(float((found.norms > clip).float().mean()), 3),
        "mean": strength / len(x),
        "shares": {part: round((norm / strength) ** 2, 4) for part, norm in parts.items()},
        "signal to noise": strength / (each * math.sqrt(len(flat))),
        "along": strength / each,
    }


def train(module: torch.nn.Module, rows: data.Dataset, options: argparse.Namespace) -> None:
    """Private steps of one site, each on as many images, drawn anew."""
    engine = PerSample(module, find_loss("cross_entropy"))
    trained = [p for p in module.parameters() if p.requires_grad]
    chance = torch.Generator().manual_seed(2)
    for _ in range(options.steps):
        drawn = torch.randperm(len(rows), generator=chance)[: options.images]
        sums = engine.clipped_sum(rows.inputs(drawn), rows.y[drawn], options.clip).sums
        with torch.no_grad():
            for p, total in zip(trained, sums):
                noise = torch.randn(p.shape, generator=chance) * options.noise * options.clip
                p.sub_(options.rate / options.images * (total + noise))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", default="efficientnet-lite0")
    parser.add_argument("--size", type=int)
    parser.add_argument("--shrink", type=int, help="pixels of the images, for a small source")
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--noise", type=float, default=1.1)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=0, help="private steps before a second look")
    parser.add_argument("--rate", type=float, default=1.5, help="of these steps")
    parser.add_argument("--ways", default=";".join(WAYS), help="a;b;...")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = data.load("cifar10", variant="10k").train
    if options.shrink:
        rows = data.transforms([{"resize": options.shrink}]).evaluation(rows)
    x, y = rows.inputs(slice(0, options.images)), rows.y[: options.images]
    found: dict[str, Any] = {}
    for way in options.ways.split(";"):
        given = {"source": options.source, "size": options.size, **WAYS[way.strip()]}
        module = build("pretrained", tuple(x.shape[1:]), 10, 1, **given)
        found[way.strip()] = {"start": signal(module, x, y, options.noise, options.clip)}
        if options.steps:
            train(module, rows, options)
            after = signal(module, x, y, options.noise, options.clip)
            found[way.strip()][f"after {options.steps} steps"] = after
    settings = {k: v for k, v in vars(options).items() if k != "ways"}
    print(json.dumps({"settings": settings, "ways": found}, indent=1))


if __name__ == "__main__":
    main()
