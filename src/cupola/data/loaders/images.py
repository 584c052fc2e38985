"""Image sets in their official files: Fashion-MNIST, MNIST by writer, CIFAR, MedMNIST."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from cupola.data.dataset import Dataset, Source
from cupola.data.download import Files, Remote
from cupola.data.loaders._common import classes, images, need, numbered, read_npz
from cupola.data.loading import dataset
from cupola.errors import DataError

_DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # package dataset-fashion-mnist
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
_FASHION_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
_FASHION_NAMES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_CIFAR = "https://www.cs.toronto.edu/~kriz/"
_CIFAR10 = Remote(_CIFAR + "cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530")
_CIFAR100 = Remote(_CIFAR + "cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8")
_CIFAR10_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
_MEDMNIST = "https://zenodo.org/record/6496656/files/{}.npz?download=1"
_MEDMNIST_MD5 = {  # the flat sets at 28 pixels with one label an image
    "pathmnist": "a8b06965200029087d5bd730944a56c1",
    "dermamnist": "0744692d530f8e62ec473284d019b0c7",
    "octmnist": "c68d92d5b585d8d81f7112f81e2d0842",
    "pneumoniamnist": "28209eda62fecd6e6a2d98b1501bb15f",
    "retinamnist": "bd4c0672f1bba3e3a89f0e4e876791e4",
    "breastmnist": "750601b1f35ba3300ea97c75c52ff8f6",
    "bloodmnist": "7053d0359d879ad8a5505303e11de1dc",
    "tissuemnist": "ebe78ee8b05294063de985d821c1c34b",
    "organamnist": "866b832ed4eeba67bfb9edee1d5544e6",
    "organcmnist": "0afa5834fb105f7705a7d93372119a21",
    "organsmnist": "e5c39f1af030238290b9557d9503af9d",
}


@dataset("fashion_mnist")
def fashion_mnist(files: Files) -> Source:
    """60,000 / 10,000 grey images of clothes, 1 x 28 x 28, 10 classes (Xiao et al. 2017)."""

    def read(name: str) -> np.ndarray:
        remote = Remote(_FASHION + name, "md5:" + _FASHION_MD5[name])
        return read_idx(files.get(name, remote, extra=[_DEBIAN]))

    def part(prefix: str) -> Dataset:
        x, y = read(f"{prefix}-images-idx3-ubyte.gz"), read(f"{prefix}-labels-idx1-ubyte.gz")
        return Dataset(images(x), classes(y))

    return Source(
        "fashion_mnist", "classification", part("train"), part("t10k"), 10, _FASHION_NAMES
    )


def read_idx(path: Path) -> np.ndarray:
    """A gzipped idx file of bytes (the layout of MNIST)."""
    try:
        raw = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: not a readable gzip file ({error})") from None
    axes = raw[3] if len(raw) > 3 else 0
    shape = np.frombuffer(raw[4 : 4 + 4 * axes], ">u4").astype(int)
    if raw[:3] != b"\x00\x00\x08" or len(raw) != 4 + 4 * axes + np.prod(shape):
        raise DataError(f"{path}: not an idx file of bytes, or cut short")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


@dataset("mnist_by_writer")
def mnist_by_writer(files: Files) -> Source:
    """MNIST with the writer of each image as natural owner: 60,000 training images by 539 writers,
    of which each holds out 20 %; the 10,000 official test images are by other writers.

    Reads mnist_by_writer.npz: x (n, 28, 28), y, writer, official_test, local_test.
    """
    path = files.get("mnist_by_writer.npz")
    stored = read_npz(path)
    need(stored, ["x", "y", "writer", "official_test", "local_test"], path)
    data = Dataset(images(stored["x"]), classes(stored["y"]))
    public = stored["official_test"].astype(bool)
    groups, names = numbered(stored["writer"][~public])
    return Source(
        "mnist_by_writer",
        "classification",
        data.subset(np.flatnonzero(~public)),
        data.subset(np.flatnonzero(public)),
        classes=10,
        class_names=tuple(str(d) for d in range(10)),
        groups=groups,
        group_names=tuple(f"writer {n}" for n in names),
        local_test=stored["local_test"][~public].astype(bool),
    )


@dataset("cifar10")
def cifar10(files: Files, variant: Literal["auto", "full", "10k"] = "auto") -> Source:
    """CIFAR-10 (Krizhevsky 2009), 3 x 32 x 32, 10 classes: all 50,000 / 10,000 images, or a
    balanced 10,000 / 2,000.

    Reads cifar-10-binary.tar.gz (the official binary version: no pickles), or cifar10.npz, or
    cifar10_10k.npz (x_train, y_train, x_test, y_test). `variant` auto takes the first there is; the
    source's name says which it was.
    """
    if variant != "10k":
        tar, npz = files.look("cifar-10-binary.tar.gz"), files.look("cifar10.npz")
        if tar is None and npz is None and files.download:
            tar = files.get("cifar-10-binary.tar.gz", _CIFAR10)
        if tar is not None:
            return _cifar_tar("cifar10", tar, label_bytes=1, names=_CIFAR10_NAMES)
        if npz is not None:
            return _cifar_npz("cifar10", npz)
    small = files.look("cifar10_10k.npz")
    if variant != "full" and small is not None:
        return _cifar_npz("cifar10_10k", small)
    if variant == "10k":
        raise files.missing("cifar10_10k.npz")
    raise files.missing("cifar-10-binary.tar.gz", _CIFAR10)


@dataset("cifar100")
def cifar100(files: Files) -> Source:
    """CIFAR-100 (Krizhevsky 2009), 3 x 32 x 32, 50,000 / 10,000 images, 100 fine classes, from the
    official binary version cifar-100-binary.tar.gz."""
    return _cifar_tar("cifar100", files.get("cifar-100-binary.tar.gz", _CIFAR100), label_bytes=2)


def _cifar_tar(
    name: str, path: Path, label_bytes: int, names: tuple[str, ...] | None = None
) -> Source:
    """Records of label bytes (the last is the class) and 3 x 32 x 32 pixels."""
    parts: dict[str, dict[str, np.ndarray]] = {"train": {}, "test": {}}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:  # in the archive's order: going back would unpack it again
                file, base = archive.extractfile(member), Path(member.name).name
                if file is None:
                    continue
                if base == "fine_label_names.txt":
                    names = tuple(file.read().decode().split())
                elif base.endswith(".bin"):
                    records = np.frombuffer(file.read(), np.uint8)
                    part = parts["test" if "test" in base else "train"]
                    part[base] = records.reshape(-1, label_bytes + 3072)
    except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error) as error:
        raise DataError(f"{path}: not the official binary archive, or damaged ({error})") from None
    if not parts["train"] or not parts["test"] or names is None:
        raise DataError(f"{path}: not the official binary archive: batches or class names missing")

    def made(key: str) -> Dataset:
        records = np.concatenate([parts[key][base] for base in sorted(parts[key])])
        x = np.ascontiguousarray(records[:, label_bytes:]).reshape(-1, 3, 32, 32)
        return Dataset(torch.from_numpy(x), classes(records[:, label_bytes - 1]))

    return Source(name, "classification", made("train"), made("test"), len(names), names)


def _cifar_npz(name: str, path: Path) -> Source:
    stored = read_npz(path)
    need(stored, ["x_train", "y_train", "x_test", "y_test"], path)
    train, test = (
        Dataset(images(stored[f"x_{part}"]), classes(stored[f"y_{part}"]))
        for part in ("train", "test")
    )
    return Source(name, "classification", train, test, 10, _CIFAR10_NAMES)


@dataset("medmnist")
def medmnist(files: Files, set: str = "bloodmnist") -> Source:
    """Any flat MedMNIST set (Yang et al. 2023) with one label an image, e.g. set = "bloodmnist",
    from its official npz (train_images, train_labels, val_..., test_...). The official validation
    part becomes the public validation set."""
    md5 = _MEDMNIST_MD5.get(set)
    remote = None if md5 is None else Remote(_MEDMNIST.format(set), "md5:" + md5)
    path = files.get(f"{set}.npz", remote)
    stored = read_npz(path)
    parts = {}
    for part in ("train", "val", "test"):
        need(stored, [f"{part}_images", f"{part}_labels"], path)
        x, y = stored[f"{part}_images"], stored[f"{part}_labels"]
        if y.ndim == 2 and y.shape[1] > 1:
            raise DataError(f"{path}: has {y.shape[1]} labels an image; only one is supported")
        if x.ndim == 4 and x.shape[-1] not in (1, 3):
            raise DataError(f"{path}: holds volumes {x.shape[1:]}; only flat images are supported")
        parts[part] = Dataset(images(x), classes(y))
    highest = max(int(d.y.max()) for d in parts.values() if len(d))
    return Source(
        set,
        "classification",
        parts["train"],
        parts["test"],
        classes=highest + 1,
        class_names=tuple(str(c) for c in range(highest + 1)),
        validation=parts["val"],
    )
