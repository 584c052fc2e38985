"""Features of a pretrained ResNet-50 as a data set: what the plans pfa-cifar and pfa-pacs train on.

    python experiments/pfa-features/extract.py cifar10 features/cifar10.npz
    python experiments/pfa-features/extract.py pacs features/pacs.npz

Reads the weights of the source 'resnet50' (see `cupola sources`) and the images from the folder
CUPOLA_DATA. Writes x (n, 2048) float16 and y, and for PACS the domain of each row as `site`.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from cupola.data import load
from cupola.nn import build
from cupola.training.features import features

SIDE = {"cifar10": 96, "pacs": 128}  # pixels that images are scaled to


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", choices=sorted(SIDE))
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, help="only so many, evenly spaced, for a trial")
    given = parser.parse_args()
    side = SIDE[given.data]
    source = load("pacs", size=128) if given.data == "pacs" else load("cifar10", variant="10k")
    whole = len(source.train)
    rows = np.linspace(0, whole - 1, given.rows or whole).astype(np.int64)
    train = replace(source.train, x=source.train.x[rows], y=source.train.y[rows])
    shape = train.inputs(slice(0, 1)).shape[1:]
    network = build("pretrained", shape, 1, 0, source="resnet50", adapt="head", size=side)
    x = features(network, train, torch.device("cpu"), torch.float32)
    found = {"x": x.numpy().astype(np.float16), "y": train.y.numpy()}
    found["class_names"] = np.array(source.class_names)
    if source.groups is not None:
        found["site"] = np.array(source.group_names)[source.groups[rows]]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(given.out, **found)


if __name__ == "__main__":
    main()
