"""Features of a pretrained ResNet-50 as a data set: what the plans pfa-cifar and pfa-pacs train on.

    python experiments/pfa-features/extract.py cifar10 features/cifar10.npz
    python experiments/pfa-features/extract.py pacs features/pacs.npz

Reads resnet50_imagenet_keras_fp16.safetensors and the images from the folder CUPOLA_DATA. The
network is version 1 (stride in the first 1x1 convolution of a block); inputs are RGB 0 to 255 less
the channel means. Writes x (n, 2048) float16 and y, and for PACS the domain of each row as `site`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from cupola.data import load

WEIGHTS = "resnet50_imagenet_keras_fp16.safetensors"
MEANS = (123.68, 116.779, 103.939)
BLOCKS = (3, 4, 6, 3)
SIDE = {"cifar10": 96, "pacs": 128}  # pixels that images are scaled to
EPS, BATCH = 1e-3, 64


class ResNet50:
    """Pooled features (n, 2048) of images (n, 3, H, W), uint8."""

    def __init__(self, path: Path) -> None:
        self.w = {name: array.float() for name, array in load_file(path).items()}

    def _conv(self, x: Tensor, conv: str, norm: str, stride: int = 1, padding: int = 0) -> Tensor:
        x = F.conv2d(x, self.w[f"{conv}.weight"], self.w.get(f"{conv}.bias"), stride, padding)
        parts = [self.w[f"{norm}.{p}"] for p in ("running_mean", "running_var", "weight", "bias")]
        return F.batch_norm(x, *parts, eps=EPS)

    def _block(self, x: Tensor, name: str, stride: int) -> Tensor:
        y = F.relu(self._conv(x, f"{name}.conv1", f"{name}.bn1", stride))
        y = F.relu(self._conv(y, f"{name}.conv2", f"{name}.bn2", padding=1))
        y = self._conv(y, f"{name}.conv3", f"{name}.bn3")
        if f"{name}.downsample.0.weight" in self.w:
            x = self._conv(x, f"{name}.downsample.0", f"{name}.downsample.1", stride)
        return F.relu(x + y)

    def __call__(self, images: Tensor, side: int) -> Tensor:
        x = images.float() - torch.tensor(MEANS)[:, None, None]
        if x.shape[-1] != side:
            x = F.interpolate(x, size=(side, side), mode="bilinear", align_corners=False)
        x = F.max_pool2d(F.relu(self._conv(x, "conv1", "bn1", 2, 3)), 3, 2, 1)
        for stage, blocks in enumerate(BLOCKS, 1):
            for i in range(blocks):
                x = self._block(x, f"layer{stage}.{i}", 2 if stage > 1 and i == 0 else 1)
        return x.mean((2, 3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", choices=sorted(SIDE))
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, help="only so many, evenly spaced, for a trial")
    given = parser.parse_args()
    source = load("pacs", size=128) if given.data == "pacs" else load("cifar10", variant="10k")
    whole = len(source.train)
    rows = np.linspace(0, whole - 1, given.rows or whole).astype(np.int64)
    x, y = source.train.x[rows], source.train.y[rows]
    network = ResNet50(Path(os.environ["CUPOLA_DATA"]) / WEIGHTS)
    with torch.inference_mode():
        parts = [network(part, SIDE[given.data]) for part in x.split(BATCH)]
    found = {"x": torch.cat(parts).numpy().astype(np.float16), "y": y.numpy()}
    found["class_names"] = np.array(source.class_names)
    if source.groups is not None:
        found["site"] = np.array(source.group_names)[source.groups[rows]]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(given.out, **found)


if __name__ == "__main__":
    main()
