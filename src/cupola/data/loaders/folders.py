"""Sets of image files: any folder of classes, Imagenette, Office-Home, PACS. Needs Pillow."""

from __future__ import annotations

import io
import itertools
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from cupola.data.dataset import Dataset, Source, joined
from cupola.data.download import Files, Remote
from cupola.data.loaders._common import classes, images, need, public_split, read_image, read_npz
from cupola.data.loading import dataset
from cupola.data.stored_rows import Rows, first_unusable, threads
from cupola.errors import DataError

_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
_IMAGENETTE = "https://s3.amazonaws.com/fast-ai-imageclas/"
_IMAGENETTE_MD5 = {
    "imagenette2-160.tgz": "e793b78cc4c9e9a4ccc0c1155377a412",
    "imagenette2-320.tgz": "3df6f0d01a2c9592104656642f5e78a3",
    "imagenette2.tgz": "fe2fc210e6bb7c5664d602c3cd71e612",
}
_WORDNET = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}


@dataset("image_folder")
def image_folder(
    files: Files,
    size: PositiveInt = 64,
    grey: bool = False,
    test: float = 0.0,
    in_memory: bool = True,
    cache: NonNegativeInt = 0,
    check: bool = True,
) -> Source:
    """Your own images, a folder per class: folder/class/file, or folder/train/class/file with test/
    (or val/) beside it. Images are scaled and cut centrally to size x size.

    test: public share to take from the training images if there is no test folder. in_memory: false
    decodes images when their batch is asked for, by some threads, the next batch meanwhile. cache:
    MB of decoded images to keep then. check: decode every image once when the set is loaded, so
    that a damaged one is refused before a run and not in it.
    """
    if in_memory and (cache or not check):
        raise DataError("image_folder: cache and check are for in_memory = false")
    on_demand = None if in_memory else OnDemand(cache << 20, check)
    if files.folder is None:
        raise DataError("image_folder needs the option 'folder'")
    root = files.folder
    if not root.is_dir():
        raise DataError(f"image_folder: {root} is not a folder")
    base = root / "train" if (root / "train").is_dir() else root
    names = tuple(sorted(p.name for p in base.iterdir() if p.is_dir()))
    if not names:
        raise DataError(f"image_folder: no class folders in {base}")
    held_root = next((root / n for n in ("test", "val") if (root / n).is_dir()), None)
    data = _folder(base, names, size, grey, on_demand)
    if base is root or held_root is None:
        train, held, _ = public_split(data, test, data.y.numpy())
    else:
        train, held = data, _folder(held_root, names, size, grey, on_demand)
    return Source(root.name, "classification", train, held, len(names), names)


@dataset("imagenette")
def imagenette(files: Files, version: str = "160", size: PositiveInt = 128) -> Source:
    """Ten easy classes of ImageNet (fastai): 9,469 / 3,925 images, scaled and cut to size x size.

    version: "160", "320" or "full". Reads the official archive, or the folder it unpacks to.
    """
    stem = "imagenette2" if version == "full" else f"imagenette2-{version}"
    if f"{stem}.tgz" not in _IMAGENETTE_MD5:
        raise DataError(f"imagenette: version = {version!r}; there are: 160, 320, full")
    wnids = tuple(_WORDNET)
    root = files.look(stem)
    if root is not None:
        parts = [_folder(root / part, wnids, size, grey=False) for part in ("train", "val")]
    else:
        name = f"{stem}.tgz"
        remote = Remote(_IMAGENETTE + name, "md5:" + _IMAGENETTE_MD5[name])
        parts = _archive(files.get(name, remote), wnids, size)
    names = tuple(_WORDNET.values())
    return Source("imagenette", "classification", parts[0], parts[1], len(names), names)


@dataset("office_home")
def office_home(files: Files, size: PositiveInt = 64, test: float = 0.0) -> Source:
    """Office-Home (Venkateswara et al. 2017): 15,500 images, 65 classes; natural owners are the
    four domains. Reads the folder of the official archive, domain/class/file.

    test: public share of each domain and class.
    """
    root = files.folder
    if root is None:
        root = files.look("OfficeHomeDataset_10072016") or files.look("OfficeHome")
    if root is None or not root.is_dir():
        raise files.missing("OfficeHomeDataset_10072016")
    domains = tuple(sorted(p.name for p in root.iterdir() if p.is_dir()))
    if not domains:
        raise DataError(f"office_home: no domain folders in {root}")
    names = tuple(sorted({c.name for d in domains for c in (root / d).iterdir() if c.is_dir()}))
    parts = [_folder(root / d, names, size, grey=False) for d in domains]
    return _by_domain("office_home", parts, domains, names, test)


@dataset("pacs")
def pacs(files: Files, size: PositiveInt = 64, test: float = 0.0) -> Source:
    """PACS (Li et al. 2017): photo, art, cartoon and sketch as natural owners, 7 classes.

    Reads pacs.npz or pacs_128px.npz: jpeg (all files in a row), offset, domain, y, domain_names,
    class_names. test: public share of each domain and class.
    """
    path = files.look("pacs.npz") or files.get("pacs_128px.npz")
    stored = read_npz(path)
    need(stored, ["jpeg", "offset", "domain", "y", "domain_names", "class_names"], path)
    jpeg, offset = stored["jpeg"], stored["offset"]
    blobs = (io.BytesIO(jpeg[a:b].tobytes()) for a, b in itertools.pairwise(offset))
    data = Dataset(_pixels(blobs, size, grey=False, where=str(path)), classes(stored["y"]))
    domains = tuple(str(d) for d in stored["domain_names"])
    parts = [data.subset(np.flatnonzero(stored["domain"] == d)) for d in range(len(domains))]
    return _by_domain("pacs", parts, domains, tuple(str(c) for c in stored["class_names"]), test)


def _by_domain(
    name: str, parts: list[Dataset], domains: tuple[str, ...], names: tuple[str, ...], test: float
) -> Source:
    data = joined(parts)
    groups = np.repeat(np.arange(len(parts)), [len(p) for p in parts])
    train, held, kept = public_split(data, test, groups * len(names) + data.y.numpy())
    return Source(
        name, "classification", train, held, len(names), names,
        groups=groups[kept], group_names=domains,
    )  # fmt: skip


class OnDemand(NamedTuple):
    """Images are decoded when they are asked for; see `image_folder`. cache: in bytes."""

    cache: int
    check: bool


def _folder(
    root: Path, names: tuple[str, ...], size: int, grey: bool, on_demand: OnDemand | None = None
) -> Dataset:
    """Images of root/class/**, in the order of their names; a class may be absent."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder")
    unknown = {p.name for p in root.iterdir() if p.is_dir()} - set(names)
    if unknown:
        raise DataError(f"{root}: class {min(unknown)!r} is not among the training classes")
    paths, labels = [], []
    for label, name in enumerate(names):
        found = sorted(p for p in (root / name).rglob("*") if p.suffix.lower() in _SUFFIXES)
        paths += found
        labels += [label] * len(found)
    if not paths:
        raise DataError(f"{root}: no images in its class folders")
    y = classes(np.array(labels))
    if on_demand is None:
        return Dataset(_pixels(paths, size, grey), y)
    if on_demand.check:
        first_unusable(Rows(ImageFiles(paths, size, grey)))  # keeps nothing: the cache is for runs
    return Dataset(Rows(ImageFiles(paths, size, grey, on_demand.cache)), y)


class ImageFiles:
    """Reader of image files: decoded by some threads, scaled and cut centrally to size x size.

    cache: bytes of decoded images to keep. The first ones stay: rounds go over a site's images
    again and again, where forgetting those not used for longest would forget each before its turn.
    """

    def __init__(self, paths: Sequence[Path], size: int, grey: bool, cache: int = 0) -> None:
        self._paths, self._size, self._mode = [str(p) for p in paths], size, "L" if grey else "RGB"
        self._left, self._kept, self._lock = cache, dict[int, np.ndarray](), Lock()
        self.dtype = torch.uint8
        self.shape = (len(paths), 1 if grey else 3, size, size)

    def read(self, places: np.ndarray) -> Tensor:
        made = np.empty((len(places), *self.shape[1:]), np.uint8)
        for at, pixels in enumerate(threads("decode").map(self._image, places.tolist())):
            made[at] = pixels
        return torch.from_numpy(made)

    def _image(self, place: int) -> np.ndarray:
        kept = self._kept.get(place)
        if kept is not None:
            return kept
        pixels = fitted_image(self._paths[place], self._size, mode=self._mode)
        with self._lock:
            if pixels.nbytes <= self._left:
                self._left -= pixels.nbytes
                self._kept[place] = np.ascontiguousarray(pixels)
        return pixels

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept": {}, "_lock": None, "_left": self._left + self._held()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())

    def _held(self) -> int:
        return sum(pixels.nbytes for pixels in self._kept.values())


def _archive(path: Path, names: tuple[str, ...], size: int) -> list[Dataset]:
    """Train and val images of an archive .../train/class/file, read without unpacking."""
    with tarfile.open(path, "r:gz") as archive:
        members: dict[str, list[tuple[str, Any, int]]] = {"train": [], "val": []}
        for member in archive:
            steps = PurePosixPath(member.name).parts
            if member.isfile() and len(steps) >= 3 and steps[-2] in names and steps[-3] in members:
                file = archive.extractfile(member)
                if file is not None:
                    label = names.index(steps[-2])
                    pixels = _pixels([io.BytesIO(file.read())], size, False, where=member.name)
                    members[steps[-3]].append((member.name, pixels, label))
    for part, found in members.items():
        if not found:
            raise DataError(f"{path}: no {part} images in it")
        found.sort(key=lambda entry: entry[0])
    return [
        Dataset(torch.cat([e[1] for e in found]), classes(np.array([e[2] for e in found])))
        for found in members.values()
    ]


def _pixels(paths: Iterable[Any], size: int, grey: bool, where: str = "") -> Any:
    """Images of any size as one uint8 tensor (n, 1 or 3, size, size)."""
    mode = "L" if grey else "RGB"
    stacked = np.stack([_fitted(read_image(path, mode, where), size) for path in paths])
    return images(stacked if grey else np.ascontiguousarray(stacked.transpose(0, 3, 1, 2)))


def fitted_image(path: Any, size: int, where: str = "", mode: str = "RGB") -> np.ndarray:
    """An image file (or its bytes) as uint8 pixels (1 or 3, size, size)."""
    pixels = _fitted(read_image(path, mode, where), size)
    return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)


def _fitted(image: Any, size: int) -> np.ndarray:
    """Scaled, and cut centrally to size x size."""
    from PIL import Image, ImageOps

    return np.asarray(ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR))
