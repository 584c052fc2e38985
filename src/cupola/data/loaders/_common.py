"""Small things loaders share."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from cupola.base.randomness import generator
from cupola.data.dataset import Dataset
from cupola.errors import DataError

SPLIT_SEED = 0  # public test sets that Cupola cuts itself are the same for everybody


def images(array: np.ndarray) -> Tensor:
    """uint8 NCHW of grey (n, H, W), NHWC or NCHW images."""
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        raise DataError(f"images must be uint8 with 3 or 4 axes, not {array.dtype} {array.shape}")
    if array.ndim == 3:
        array = array[:, None]
    elif array.shape[-1] in (1, 3, 4) and array.shape[1] not in (1, 3, 4):
        array = array.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.array(array, order="C"))


def classes(array: np.ndarray) -> Tensor:
    """int64 labels (n,)."""
    return torch.from_numpy(np.asarray(array).reshape(-1).astype(np.int64))


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an npz file; never unpickles."""
    try:
        # Opened here, since numpy leaves a damaged file open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}
    except (OSError, ValueError, EOFError, AttributeError, BadZipFile, zlib.error) as error:
        raise DataError(f"{path}: not a readable npz file of plain arrays ({error})") from None


def read_image(path: Any, mode: str, where: str = "") -> Any:
    """An image file (or its bytes) as Pillow has it, converted to this mode; "" keeps its own.
    where: what is said of it in errors, if not its path."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise DataError("reading image files needs Pillow: pip install 'cupola[images]'") from None
    try:
        with Image.open(path) as image:
            return image.convert(mode) if mode else image.copy()
    except FileNotFoundError:
        raise DataError(f"{where or path} is missing") from None
    except (OSError, UnidentifiedImageError) as error:
        raise DataError(f"{where or path}: not a readable image ({error})") from None


def need(stored: Mapping[str, Any], keys: list[str], path: Path, each: str = "array") -> None:
    """Refuse an npz that lacks an array (or a folder that lacks such a file)."""
    missing = [key for key in keys if key not in stored]
    if missing:
        has = ", ".join(sorted(stored)) or "nothing"
        raise DataError(f"{path}: no {each} {missing[0]!r} in it; it has {has}")


def split(data: Dataset, share: float, labels: np.ndarray | None = None) -> np.ndarray:
    """Mask of a test share, drawn with a fixed seed, the same share of each label if given."""
    if not 0 <= share < 1:
        raise DataError(f"test = {share}: must be a share, 0 or more and below 1")
    mask = np.zeros(len(data), bool)
    rng = generator(SPLIT_SEED, "public split")
    labels = np.zeros(len(data), np.int64) if labels is None else labels
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        mask[rows[: round(len(rows) * share)]] = True
    return mask


def public_split(
    data: Dataset, share: float, labels: np.ndarray | None = None
) -> tuple[Dataset, Dataset | None, np.ndarray]:
    """Training part, public test part (None if the share is 0), and which rows are training."""
    mask = split(data, share, labels)
    test = data.subset(np.flatnonzero(mask)) if mask.any() else None
    return data.subset(np.flatnonzero(~mask)), test, ~mask


def numbered(owners: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Owners as 0..k-1 with their names, in sorted order."""
    found, groups = np.unique(owners, return_inverse=True)
    return groups.reshape(-1).astype(np.int64), tuple(str(o) for o in found)
