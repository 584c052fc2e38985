"""Loaders on tiny files of each official layout."""

import gzip
import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cupola.data import describe, load, names, options, partition
from cupola.data.loaders.leaf import ALPHABET
from cupola.errors import DataError

pytestmark = pytest.mark.usefixtures("nowhere")
rng = np.random.default_rng(0)


def write_idx(path: Path, array: np.ndarray) -> None:
    head = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(head + array.tobytes()))


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def jpeg(level: int, size: tuple[int, int] = (20, 12)) -> bytes:
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.new("RGB", size, (level, 0, 255 - level)).save(out, "png")
    return out.getvalue()


def test_bundled() -> None:
    digits = load("digits")
    assert (len(digits.train), digits.input_shape, digits.classes) == (1438, (1, 8, 8), 10)
    assert digits.test is not None
    assert digits.train.inputs().max() == 1.0
    share = np.bincount(digits.test.y) / np.bincount(torch.cat([digits.train.y, digits.test.y]))
    assert share == pytest.approx(0.2, abs=0.01)
    assert torch.equal(load("digits").train.x, digits.train.x)
    assert load("digits", test=0.0).test is None
    for name in ("breast_cancer", "diabetes"):
        source = load(name)
        assert source.train.x.dtype == torch.float32
        assert source.train.x.mean(0).abs().max() < 1e-5
        assert source.train.x.std(0) == pytest.approx(1.0, abs=1e-4)
    assert load("diabetes").kind == "regression"
    assert load("breast_cancer").class_names == ("malignant", "benign")


def test_fashion_mnist(tmp_path: Path) -> None:
    x = rng.integers(0, 256, (5, 28, 28), np.uint8)
    for part in ("train", "t10k"):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", x)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", np.array([0, 9, 1, 2, 3], np.uint8))
    source = load("fashion_mnist", folder=tmp_path)
    assert np.array_equal(source.train.x[:, 0], x)
    assert source.train.y.tolist() == [0, 9, 1, 2, 3]
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\x01\0\0\0\x09a"))
    with pytest.raises(DataError, match="cut short"):
        load("fashion_mnist", folder=tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").write_bytes(b"no gzip")
    with pytest.raises(DataError, match="gzip"):
        load("fashion_mnist", folder=tmp_path)


@pytest.mark.parametrize(("name", "labels", "classes"), [("cifar10", 1, 10), ("cifar100", 2, 100)])
def test_cifar(tmp_path: Path, name: str, labels: int, classes: int) -> None:
    records = rng.integers(0, 256, (4, labels + 3072), np.uint8)
    records[:, :labels] = 1
    records[:, labels - 1] = [3, 9, 0, 5]
    raw = records.tobytes()
    members = {"d/data_batch_2.bin": raw[::-1], "d/data_batch_1.bin": raw, "d/test_batch.bin": raw}
    if name == "cifar100":
        fine = "\n".join(f"class{c}" for c in range(100))
        members = {"d/train.bin": raw, "d/test.bin": raw, "d/fine_label_names.txt": fine.encode()}
    else:
        members["d/data_batch_2.bin"] = raw
    archive = {"cifar10": "cifar-10-binary.tar.gz", "cifar100": "cifar-100-binary.tar.gz"}[name]
    write_tar(tmp_path / archive, members)
    source = load(name, folder=str(tmp_path))
    assert source.classes == classes
    assert source.test is not None
    assert source.test.y.tolist() == [3, 9, 0, 5]
    assert np.array_equal(source.test.x.reshape(4, -1), records[:, labels:])
    assert len(source.train) == (8 if name == "cifar10" else 4)
    (tmp_path / archive).write_bytes(b"broken")
    with pytest.raises(DataError, match="damaged"):
        load(name, folder=tmp_path)


def test_cifar10_as_npz(tmp_path: Path) -> None:
    x = rng.integers(0, 256, (3, 32, 32, 3), np.uint8)
    y = np.array([0, 1, 9], np.uint8)
    np.savez(tmp_path / "cifar10_10k.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    source = load("cifar10", folder=tmp_path)
    assert source.name == "cifar10_10k"
    assert np.array_equal(source.train.x, x.transpose(0, 3, 1, 2))
    with pytest.raises(DataError, match="cupola data get cifar10"):
        load("cifar10", folder=tmp_path, variant="full")


def test_medmnist(tmp_path: Path) -> None:
    def arrays(x: Any, y: Any) -> dict[str, Any]:
        parts = ("train", "val", "test")
        return {f"{p}_images": x for p in parts} | {f"{p}_labels": y for p in parts}

    x, y = rng.integers(0, 256, (4, 28, 28, 3), np.uint8), np.array([[0], [2], [1], [2]], np.uint8)
    np.savez(tmp_path / "bloodmnist.npz", **arrays(x, y))
    source = load("medmnist", set="bloodmnist", folder=tmp_path)
    assert (source.name, source.classes, source.input_shape) == ("bloodmnist", 3, (3, 28, 28))
    assert "validation" in partition(source, "pooled", seed=0).public
    np.savez(tmp_path / "chestmnist.npz", **arrays(x[..., 0], np.zeros((4, 14), np.uint8)))
    with pytest.raises(DataError, match="14 labels"):
        load("medmnist", set="chestmnist", folder=tmp_path)
    np.savez(tmp_path / "organmnist3d.npz", **arrays(np.zeros((4, 8, 8, 8), np.uint8), y))
    with pytest.raises(DataError, match="volumes"):
        load("medmnist", set="organmnist3d", folder=tmp_path)


def test_mnist_by_writer(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "mnist_by_writer.npz",
        x=np.zeros((6, 28, 28), np.uint8),
        y=np.arange(6),
        writer=np.array([7, 7, 9, 9, 4, 4]),
        official_test=np.array([0, 0, 0, 0, 1, 1], bool),
        local_test=np.array([0, 1, 0, 0, 0, 1], bool),
    )
    data = partition(load("mnist_by_writer", folder=tmp_path), "natural", seed=0)
    assert [data.site_name(i) for i in range(2)] == ["writer 7", "writer 9"]
    assert (len(data.site(0).train), len(data.site(0).test)) == (1, 1)
    assert data.public["test"].y.tolist() == [4, 5]


def leaf(folder: Path, part: str, users: dict[str, tuple[list[Any], list[Any]]]) -> None:
    (folder / part).mkdir(parents=True)
    stored = {
        "users": list(users),
        "num_samples": [len(x) for x, _ in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    (folder / part / "all_data_0.json").write_text(json.dumps(stored))


def test_femnist(tmp_path: Path) -> None:
    leaf(
        tmp_path, "train", {"f1": ([[0.5] * 784, [1.0] * 784], [0, 61]), "f2": ([[0.0] * 784], [9])}
    )
    leaf(tmp_path, "test", {"f1": ([[1.0] * 784], [3]), "f9": ([[1.0] * 784], [4])})
    source = load("femnist", folder=tmp_path)
    assert (source.classes, source.input_shape) == (62, (1, 28, 28))
    assert source.group_names == ("f1", "f2")
    assert source.test is not None
    assert source.test.y.tolist() == [4]  # a writer who never trains
    data = partition(source, "natural", seed=0)
    assert data.site(0).train.y.tolist() == [0, 61]
    assert data.site(0).test.y.tolist() == [3]
    assert data.site(0).train.x[0, 0, 0, 0] == 128


def test_femnist_as_in_upcycled_fl(tmp_path: Path) -> None:
    """Ten lower-case letters, five at each of the devices, writers dissolved or merged."""
    rng = np.random.default_rng(0)

    def writer(rows: int) -> tuple[list[list[float]], list[int]]:
        y = rng.integers(0, 62, rows).tolist()
        return [[label / 255] * 784 for label in y], y

    leaf(tmp_path, "train", {f"f{i}": writer(100) for i in range(60)})
    leaf(tmp_path, "test", {f"f{i}": writer(20) for i in range(60)} | {"g": writer(200)})
    source = load("femnist", folder=tmp_path)
    letters = {"only": [*"abcdefghij"], "k": 5}
    ways: list[dict[str, Any]] = [
        {"kind": "classes", "sites": 10, "sigma": 0.7, "test": 0.1},
        {"kind": "natural", "merge": 10},
    ]
    for way in ways:
        data = partition(source, {**letters, **way}, seed=0)
        assert (len(data), data.classes, data.class_names) == (10, 10, (*"abcdefghij",))
        for i in range(10):
            site = data.site(i)
            assert len(set(site.train.y.tolist())) == 5
            assert len(site.test)
            # the pixels say the class as it was: 'a' is 36
            assert (site.train.x[:, 0, 0, 0] - 36 == site.train.y).all()
        assert (data.public["test"].x[:, 0, 0, 0] - 36 == data.public["test"].y).all()


def test_sent140(tmp_path: Path) -> None:
    def tweet(text: str) -> list[str]:
        return ["1", "Mon", "NO_QUERY", "user", text, "training"]

    leaf(tmp_path, "all_data", {"ann": ([tweet("Good good day!"), tweet("bad")], ["4", "0"])})
    source = load("sent140", folder=tmp_path, length=4, words=2)
    assert source.train.x.tolist() == [[2, 2, 1, 3], [1, 0, 0, 0]]  # good, !; the others unknown
    assert source.train.y.tolist() == [1, 0]
    assert source.vocabulary == 4
    assert source.words == ("<pad>", "<unk>", "good", "!")
    assert partition(source, "natural", seed=0).words == source.words
    (tmp_path / "words.txt").write_text("day 0.1 0.2\nbad 0.3 0.4\n\nday\n")
    given = load("sent140", folder=tmp_path, length=4, vocabulary=str(tmp_path / "words.txt"))
    assert given.train.x.tolist() == [[1, 1, 2, 1], [3, 0, 0, 0]]


def test_shakespeare(tmp_path: Path) -> None:
    leaf(tmp_path / "data", "train", {"HAMLET": (["To be, or not"], [" "])})
    source = load("shakespeare", folder=tmp_path, length=13)
    spelt = ["".join(ALPHABET[i] for i in ids) for ids in (source.train.x[0], source.train.y[0])]
    assert spelt == ["To be, or not", "o be, or not "]
    assert (source.kind, source.classes, source.vocabulary) == ("language", 80, 80)
    with pytest.raises(DataError, match="length = 80"):
        load("shakespeare", folder=tmp_path)
    (tmp_path / "data/train/all_data_0.json").write_text('{"users": ["x"]}')
    with pytest.raises(DataError, match="not a LEAF file"):
        load("shakespeare", folder=tmp_path)


def test_shakespeare_roles(tmp_path: Path) -> None:
    lines = ["abcdé", "xyz", "short", "held out"]
    np.savez(
        tmp_path / "shakespeare_roles.npz",
        text=np.frombuffer("\n".join(lines).encode(), np.uint8),
        role=np.array([0, 0, 1, 0]),
        local_test=np.array([0, 0, 0, 1], bool),
        role_names=np.array(["A", "B"]),
    )
    source = load("shakespeare", folder=tmp_path, length=7)
    assert source.group_names == ("A",)
    spelt = ["".join(ALPHABET[i] for i in row) for row in source.train.x]
    assert spelt == ["abcd \nx", "held ou"]
    assert source.local_test is not None
    assert source.local_test.tolist() == [False, True]


def test_image_folders(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for level, name in enumerate(("cat", "dog")):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(2):
                (tmp_path / part / name / f"{i}.png").write_bytes(jpeg(level * 200 + i))
    source = load("image_folder", folder=tmp_path, size=8)
    assert (source.class_names, source.input_shape) == (("cat", "dog"), (3, 8, 8))
    assert source.test is not None
    assert source.train.x[:, 0, 0, 0].tolist() == [0, 1, 200, 201]
    half = load("image_folder", folder=tmp_path / "train", size=8, grey=True, test=0.5)
    assert half.train.x.shape == (2, 1, 8, 8)
    (tmp_path / "train/cat/bad.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"bad\.png"):
        load("image_folder", folder=tmp_path)
    with pytest.raises(DataError, match="needs the option 'folder'"):
        load("image_folder")


def test_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat/1.png").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"cupola\[images\]"):
        load("image_folder", folder=tmp_path)


def test_imagenette(tmp_path: Path) -> None:
    picture = {
        f"imagenette2-160/{part}/{wnid}/{i}.JPEG": jpeg(i)
        for part in ("val", "train") for wnid in ("n03888257", "n01440764") for i in (9, 1)
    }  # fmt: skip
    write_tar(tmp_path / "imagenette2-160.tgz", picture)
    packed = load("imagenette", folder=tmp_path, size=16)
    for name, content in picture.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    unpacked = load("imagenette", folder=tmp_path, size=16)
    assert packed.train.y.tolist() == [0, 0, 9, 9]
    assert torch.equal(packed.train.x, unpacked.train.x)
    assert torch.equal(packed.train.y, unpacked.train.y)


def test_office_home(tmp_path: Path) -> None:
    for domain in ("Art", "Clipart"):
        for name in ("Alarm", "Bed"):
            (tmp_path / domain / name).mkdir(parents=True)
            for i in range(5):
                (tmp_path / domain / name / f"{i:05}.jpg").write_bytes(jpeg(i))
    source = load("office_home", folder=tmp_path, size=4, test=0.2)
    assert source.group_names == ("Art", "Clipart")
    assert source.test is not None
    assert (len(source.train), len(source.test)) == (16, 4)
    data = partition(source, {"kind": "natural", "parts": 2}, seed=0)
    assert data.sizes().tolist() == [4, 4, 4, 4]


def test_pacs(tmp_path: Path) -> None:
    blobs = [jpeg(i) for i in range(4)]
    np.savez(
        tmp_path / "pacs.npz",
        jpeg=np.frombuffer(b"".join(blobs), np.uint8),
        offset=np.cumsum([0, *map(len, blobs)]),
        domain=np.array([1, 0, 1, 0]),
        y=np.array([0, 1, 1, 0]),
        domain_names=np.array(["photo", "sketch"]),
        class_names=np.array(["dog", "horse"]),
    )
    source = load("pacs", folder=tmp_path, size=4)
    assert source.groups is not None
    assert source.groups.tolist() == [0, 0, 1, 1]
    assert source.train.x[:, 0, 0, 0].tolist() == [1, 3, 0, 2]


def test_missing_files_say_where_and_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUPOLA_DATA", str(tmp_path))
    ready = {
        "csv",
        "npz",
        "npy",
        "parquet",
        "image_folder",
        "digits",
        "breast_cancer",
        "diabetes",
        "synthetic",
    }
    ready.add("elsewhere")  # it has no files
    for name in set(names()) - ready:
        if name == "fashion_mnist" and Path("/usr/share/datasets/fashion-mnist").exists():
            continue
        with pytest.raises(DataError, match=r"cupola data get|put it at") as caught:
            load(name)
        assert str(tmp_path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_every_loader_says_what_it_is() -> None:
    for name in names():
        assert len(describe(name)) > 40
        assert isinstance(options(name), dict)
    assert set(options("cifar10")) == {"variant", "folder", "download", "progress"}


def test_names_and_options_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="did you mean 'digits'"):
        load("digit")
    with pytest.raises(DataError, match="there are: breast_cancer"):
        load("zzz")
    with pytest.raises(DataError, match="no option 'tset'; did you mean 'test'"):
        load("digits", tset=0.1)
    with pytest.raises(DataError, match="needs the option 'path'"):
        load("npz")
    with pytest.raises(DataError, match=r"test = 1\.5"):
        load("digits", test=1.5)
    for name, wrong in (
        ("synthetic", {"sites": 0}),
        ("synthetic", {"alpha": "x"}),
        ("cifar10", {"variant": "9k"}),
        ("sent140", {"length": -1}),
        ("csv", {"path": "a.csv", "target": "y", "kind": "ranking"}),
    ):
        with pytest.raises(DataError, match=f"{name}: {list(wrong)[-1]} = "):
            load(name, **wrong)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_own_sets.py").write_text(
        "import cupola.data as d\n"
        "def mine(n=3):\n    s = d.load('digits')\n"
        "    return d.Source('mine', s.kind, s.train.subset(range(n)), None, 10)\n"
        "def wrong():\n    return 7\n"
    )
    assert len(load("my_own_sets:mine", n=5).train) == 5
    with pytest.raises(DataError, match="no option 'm'"):
        load("my_own_sets:mine", m=5)
    with pytest.raises(DataError, match="gave a int"):
        load("my_own_sets:wrong")
    with pytest.raises(DataError, match="has no ours"):
        load("my_own_sets:ours")
    with pytest.raises(DataError, match="cannot import"):
        load("no_such_module_here:f")
