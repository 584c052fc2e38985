"""Cityscapes in its official folders. Needs Pillow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from pydantic import PositiveInt

from cupola.data.dataset import NO_LABEL, Dataset, Source
from cupola.data.download import Files
from cupola.data.loaders._common import numbered, read_image
from cupola.data.loading import dataset
from cupola.errors import DataError

#: The 19 classes that are evaluated, by their number in the files of label ids.
_CLASSES = {
    7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole",
    19: "traffic light", 20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky",
    24: "person", 25: "rider", 26: "car", 27: "truck", 28: "bus", 31: "train", 32: "motorcycle",
    33: "bicycle",
}  # fmt: skip
_IMAGE, _LABELS = "_leftImg8bit.png", "_gtFine_labelIds.png"


@dataset("cityscapes")
def cityscapes(files: Files, height: PositiveInt = 256, width: PositiveInt = 512) -> Source:
    """Cityscapes (Cordts et al. 2016): street scenes, 2,975 / 500 images with 19 classes of pixels;
    natural owners are the cities. Images and labels are scaled to height x width.

    Reads the folders leftImg8bit and gtFine of the official archives (labelIds.png), below `folder`
    or in a folder cityscapes. The validation images, whose labels are public, are the test set.
    Pixels of other classes have no label. All of it is held in memory: 5 GB at 256 x 512.
    """
    root = files.folder if files.folder is not None else files.look("cityscapes")
    if root is None or not (root / "leftImg8bit").is_dir():
        raise files.missing("leftImg8bit" if root is not None else "cityscapes")
    train, cities = _part(root, "train", height, width)
    test, _ = _part(root, "val", height, width)
    groups, names = numbered(np.array(cities))
    return Source(
        "cityscapes", "segmentation", train, test, len(_CLASSES), tuple(_CLASSES.values()),
        groups=groups, group_names=names,
    )  # fmt: skip


def _part(root: Path, part: str, height: int, width: int) -> tuple[Dataset, list[str]]:
    """Images with their labels, in the order of their names, and the city of each."""
    paths = sorted((root / "leftImg8bit" / part).glob(f"*/*{_IMAGE}"))
    if not paths:
        raise DataError(f"{root / 'leftImg8bit' / part}: no city/*{_IMAGE} in it")
    x = torch.empty((len(paths), 3, height, width), dtype=torch.uint8)
    y = torch.empty((len(paths), height, width), dtype=torch.int64)
    classes = np.full(256, NO_LABEL)
    classes[list(_CLASSES)] = np.arange(len(_CLASSES))
    for i, path in enumerate(paths):
        labels = root / "gtFine" / part / path.parent.name / path.name.replace(_IMAGE, _LABELS)
        x[i] = torch.from_numpy(_read(path, "RGB", height, width).transpose(2, 0, 1).copy())
        y[i] = torch.from_numpy(classes[_read(labels, "L", height, width)])
    return Dataset(x, y), [path.parent.name for path in paths]


def _read(path: Path, mode: str, height: int, width: int) -> np.ndarray:
    """Pixels of an image (bilinear), or labels (mode L; nearest)."""
    image = read_image(path, "" if mode == "L" else mode)
    if mode == "L" and image.mode not in ("L", "P"):
        raise DataError(f"{path}: not an image of label ids (mode {image.mode})")
    from PIL.Image import Resampling

    how = Resampling.NEAREST if mode == "L" else Resampling.BILINEAR
    return np.asarray(image.resize((width, height), how))
