"""What a million numbers of privacy noise cost, by where they come from.

    python benchmarks/dpsgd/noise.py

Prints JSON: milliseconds of processor time for a million numbers added on the grid (medians of
seven). system: a real site's (AES-256 in counter mode, exactly rounded). simulated: by counter, on
one thread of the CPU. torch: what `device_noise` draws, on every device that is here.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from cupola.privacy.device_noise import add_noise_on, device_generator
from cupola.privacy.noise import add_noise, source

MANY = 1_000_000


def main() -> None:
    torch.set_num_threads(1)
    value = np.random.default_rng(0).standard_normal(MANY)
    ways: dict[str, Callable[[], object]] = {
        "system": lambda: add_noise(value, 1.0, 1.0, source(None, "noise", 0)),
        "simulated": lambda: add_noise(value, 1.0, 1.0, source(1, "noise", 0)),
    }
    for device in (torch.device("cpu"), torch.device("cuda")):
        if device.type == "cpu" or torch.cuda.is_available():
            ways[f"torch on {device}"] = _there(torch.from_numpy(value).to(device))
    print(json.dumps({name: round(_milliseconds(way), 1) for name, way in ways.items()}, indent=2))


def _there(value: torch.Tensor) -> Callable[[], object]:
    def once() -> object:
        made = add_noise_on(value, 1.0, 1.0, device_generator(value.device, 1, "noise", 0))
        if value.device.type == "cuda":
            torch.cuda.synchronize()
        return made

    return once


def _milliseconds(way: Callable[[], object]) -> float:
    clock = time.process_time if not torch.cuda.is_available() else time.perf_counter
    way()
    taken = []
    for _ in range(7):
        start = clock()
        way()
        taken.append(1000 * (clock() - start))
    return statistics.median(taken)


if __name__ == "__main__":
    main()
