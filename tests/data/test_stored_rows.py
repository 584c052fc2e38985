"""Inputs that stay in their files: every reader gives what the loader into memory gives."""

import io
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from cupola.data import Dataset, Rows, load, partition
from cupola.data.dataset import joined
from cupola.data.loaders.array_files import ArrayFile
from cupola.data.loaders.folders import ImageFiles
from cupola.errors import DataError

DRAWN = np.random.default_rng(0)


class Noted:
    """A reader of numbers that notes what it is asked for."""

    def __init__(self, n: int = 100) -> None:
        self.shape, self.dtype, self.asked = (n, 2), torch.float32, []

    def read(self, places: np.ndarray) -> torch.Tensor:
        self.asked.append(places.tolist())
        return torch.from_numpy(np.stack([places, -places], 1)).float()


def unpacked(folder: Path, **arrays: np.ndarray) -> tuple[Path, Path]:
    """The same arrays as an npz and as a folder of npy files."""
    np.savez(folder / "all.npz", **arrays)
    (folder / "all").mkdir()
    for name, array in arrays.items():
        np.save(folder / "all" / f"{name}.npy", array)
    return folder / "all.npz", folder / "all"


def alike(a: Dataset, b: Dataset) -> None:
    """The same inputs and targets, read in any order."""
    assert len(a) == len(b)
    assert a.x.shape == b.x.shape
    assert a.x.dtype == b.x.dtype
    assert torch.equal(a.y, b.y)
    order = np.random.default_rng(1).permutation(len(a))
    for index in (None, slice(1, 3), order, torch.from_numpy(order) % 2 == 0, [0, 0]):
        assert torch.equal(a.inputs(index), b.inputs(index))
        assert torch.equal(a.subset(index).inputs(), b.subset(index).inputs())


@pytest.mark.parametrize(
    "x",
    [
        DRAWN.integers(0, 256, (40, 6, 5), np.uint8),
        DRAWN.integers(0, 256, (40, 6, 5, 3), np.uint8),
        DRAWN.standard_normal((40, 7)),
        DRAWN.standard_normal((40, 7)).astype(np.float16),
        DRAWN.integers(0, 50, (40, 4)),
    ],
    ids=["grey", "channels last", "float64", "float16", "tokens"],
)
def test_npy_is_an_unpacked_npz(tmp_path: Path, x: np.ndarray) -> None:
    y = DRAWN.integers(0, 3, 40)
    packed, folder = unpacked(tmp_path, x=x, y=y, site=np.arange(40) % 4)
    memory, files = load("npz", path=packed), load("npy", folder=folder)
    assert memory.train.in_memory
    assert not files.train.in_memory
    assert (files.kind, files.classes, files.vocabulary) == (
        memory.kind,
        memory.classes,
        memory.vocabulary,
    )
    for part in ("train", "test"):
        alike(getattr(memory, part), getattr(files, part))
    ours, theirs = (partition(s, "natural", seed=0) for s in (files, memory))
    alike(ours.site(2).train, theirs.site(2).train)


def test_a_site_is_a_view_and_reads_nothing() -> None:
    reader = Noted()
    data = Dataset(Rows(reader), torch.zeros(100, dtype=torch.int64))
    some = data.subset(np.arange(10, 20)).subset([1, 3]).plain()
    assert len(some) == 2
    assert reader.asked == []
    assert some.inputs().tolist() == [[11, -11], [13, -13]]
    assert reader.asked == [[11, 13]]


def test_the_next_batch_is_read_while_one_is_used() -> None:
    reader = Noted()
    data = Dataset(Rows(reader)[50:], torch.zeros(50, dtype=torch.int64))
    data.soon([[0, 1], [2, 3], [4, 5]])
    assert data.inputs([0, 1])[:, 0].tolist() == [50, 51]
    assert data.inputs([7])[:, 0].tolist() == [57]  # not what was said: read all the same
    for index in ([2, 3], [4, 5], [0, 1]):
        assert data.inputs(index)[:, 0].tolist() == [50 + i for i in index]
    asked = [places for places in reader.asked if places != [57]]
    assert asked == [[50, 51], [52, 53], [54, 55], [50, 51]]  # each once


def test_what_fails_ahead_fails_where_it_is_wanted() -> None:
    class Broken(Noted):
        def read(self, places: np.ndarray) -> torch.Tensor:
            if 3 in places:
                raise DataError("row 3 is damaged")
            return super().read(places)

    data = Dataset(Rows(Broken()), torch.zeros(100, dtype=torch.int64))
    data.soon([[0], [3], [4]])
    data.inputs([0])
    with pytest.raises(DataError, match="row 3"):
        data.inputs([3])
    assert data.inputs([4]).tolist() == [[4, -4]]


def test_files_and_memory_are_joined() -> None:
    y = torch.zeros(4, dtype=torch.int64)
    tensor = Dataset(torch.arange(8.0).view(4, 2), y)
    both = joined([tensor, Dataset(Rows(Noted())[:4], y), tensor])
    assert both.inputs([0, 4, 7, 11, 5])[:, 0].tolist() == [0, 0, 3, 6, 1]
    with pytest.raises(DataError, match="do not go together"):
        joined([Dataset(torch.zeros(4, 3), y), Dataset(Rows(Noted())[:4], y)])


def test_numbers_that_are_not_finite_are_refused_when_loaded(tmp_path: Path) -> None:
    x = np.zeros((20, 2), np.float32)
    x[13, 1] = np.nan
    _, folder = unpacked(tmp_path, x=x, y=np.arange(20) % 2)
    with pytest.raises(DataError, match=r"x\.npy holds NaN or infinity, first in row 13"):
        load("npy", folder=folder)
    assert len(load("npy", folder=folder, check=False, test=0).train) == 20


def test_files_of_objects_and_of_one_axis_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.arange(3))
    with pytest.raises(DataError, match="no file 'x'"):
        load("npy", folder=tmp_path)
    np.save(tmp_path / "x.npy", np.arange(3))
    with pytest.raises(DataError, match="one axis"):
        load("npy", folder=tmp_path)
    np.save(tmp_path / "x.npy", np.asfortranarray(np.zeros((3, 2))))
    with pytest.raises(DataError, match="Fortran order"):
        load("npy", folder=tmp_path)
    np.save(tmp_path / "x.npy", np.array([[{}]]), allow_pickle=True)
    with pytest.raises(DataError, match="plain numbers"):
        load("npy", folder=tmp_path)


def test_readers_are_pickled_by_path(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", DRAWN.standard_normal((10_000, 20)))
    rows = Rows(ArrayFile(tmp_path / "x.npy"))[5000:]
    packed = pickle.dumps(rows)
    assert len(packed) < 8 * 5000 + 2000  # its index, not its contents
    assert torch.equal(pickle.loads(packed).read([7]), rows.read([7]))
    np.save(tmp_path / "x.npy", np.zeros((3, 20)))
    with pytest.raises(DataError, match="3 rows here, 10000 there"):
        pickle.loads(packed)
    with pytest.raises(DataError, match="has become shorter"):  # and does not end the process
        rows.read([7])


def pictures(folder: Path, n: int = 6) -> Path:
    for i in range(n):
        path = folder / f"class {i % 2}" / f"{i}.png"
        path.parent.mkdir(exist_ok=True, parents=True)
        pixels = np.random.default_rng(i).integers(0, 256, (9 + i, 12, 3), np.uint8)
        Image.fromarray(pixels).save(path)
    return folder


@pytest.mark.parametrize("grey", [False, True])
@pytest.mark.parametrize("cache", [0, 1])
def test_image_folders_are_decoded_when_asked_for(tmp_path: Path, grey: bool, cache: int) -> None:
    root = pictures(tmp_path / "images")
    memory = load("image_folder", folder=root, size=8, grey=grey)
    files = load("image_folder", folder=root, size=8, grey=grey, in_memory=False, cache=cache)
    assert files.class_names == memory.class_names
    alike(memory.train, files.train)
    alike(memory.train, pickle.loads(pickle.dumps(files.train)))


def test_the_cache_of_images_keeps_what_it_may(tmp_path: Path) -> None:
    paths = sorted(pictures(tmp_path / "images").rglob("*.png"))
    reader = ImageFiles(paths, 8, grey=True, cache=3 * 64 + 10)
    first = reader.read(np.arange(6))
    for path in paths:
        path.unlink()
    kept = sorted(reader._kept)
    assert len(kept) == 3
    assert torch.equal(reader.read(np.array(kept)), first[kept])
    with pytest.raises(DataError, match="is missing"):
        reader.read(np.arange(6))


def test_damaged_images_are_refused_when_loaded(tmp_path: Path) -> None:
    root = pictures(tmp_path / "images")
    damaged = root / "class 1" / "3.png"
    damaged.write_bytes(damaged.read_bytes()[:200])
    with pytest.raises(DataError, match=r"3\.png: not a readable image"):
        load("image_folder", folder=root, size=8, in_memory=False)
    source = load("image_folder", folder=root, size=8, in_memory=False, check=False)
    assert source.train.inputs([0]).shape == (1, 3, 8, 8)
    with pytest.raises(DataError, match="not a readable image"):
        source.train.inputs()
    with pytest.raises(DataError, match="for in_memory = false"):
        load("image_folder", folder=root, cache=5)


def written(path: Path, table: pa.Table) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=7)
    else:
        with pa.ipc.new_file(str(path), table.schema) as file:
            file.write_table(table, max_chunksize=7)
    return path


NUMBERS = {
    "age": DRAWN.integers(20, 90, 40),
    "dose": DRAWN.standard_normal(40),
    "note": ["x"] * 40,
    "clinic": [f"clinic {i % 3}" for i in range(40)],
    "answer": ["yes" if i % 2 else "no" for i in range(40)],
}


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_tables_are_read_by_row_group(tmp_path: Path, suffix: str) -> None:
    path = written(tmp_path / f"table{suffix}", pa.table(NUMBERS))
    source = load("parquet", path=path, target="answer", site="clinic", drop=["note"], test=0.25)
    assert (source.classes, source.class_names) == (2, ("no", "yes"))
    assert (len(source.train), source.input_shape) == (30, (2,))
    memory = load("parquet", path=path, target="answer", drop=["note", "clinic"], test=0).train
    expected = np.stack([NUMBERS["age"], NUMBERS["dose"]], 1).astype(np.float32)
    alike(memory, Dataset(torch.from_numpy(expected), memory.y))
    alike(pickle.loads(pickle.dumps(memory)), memory)
    data = partition(source, "natural", seed=0)
    assert [data.site_name(i) for i in range(3)] == ["clinic 0", "clinic 1", "clinic 2"]
    assert data.sizes().sum() == 30
    data.site(1).train.inputs()


def test_a_folder_of_tables_is_one_table(tmp_path: Path) -> None:
    table = pa.table(NUMBERS).drop_columns(["note", "clinic"])
    whole = load("parquet", path=written(tmp_path / "whole.parquet", table), target="answer")
    (tmp_path / "parts").mkdir()
    for i, start in enumerate((0, 9, 25)):
        part = table.slice(start, (9, 16, 15)[i])
        written(tmp_path / "parts" / f"{i}{('.parquet', '.arrow', '.parquet')[i]}", part)
    parts = load("parquet", path=tmp_path / "parts", target="answer")
    alike(whole.train, parts.train)
    alike(whole.test, parts.test)


def test_columns_of_lists_and_images(tmp_path: Path) -> None:
    tokens = DRAWN.integers(0, 9, (20, 5))
    floats = DRAWN.standard_normal((20, 5))
    blobs = []
    for i in range(20):
        made = io.BytesIO()
        pixels = np.full((10, 10, 3), 10 * i, np.uint8)
        Image.fromarray(pixels).save(made, "PNG")
        blobs.append({"bytes": made.getvalue(), "path": f"{i}.png"})
    table = {
        "tokens": list(tokens),
        "floats": pa.FixedSizeListArray.from_arrays(pa.array(floats.reshape(-1)), 5),
        "image": blobs,
        "blob": [blob["bytes"] for blob in blobs],
        "label": np.arange(20) % 3 + 5,
        "level": np.arange(20) / 2,
    }
    path = written(tmp_path / "table.parquet", pa.table(table))
    text = load("parquet", path=path, target="label", inputs="tokens", test=0)
    assert (text.vocabulary, text.class_names) == (int(tokens.max()) + 1, ("5", "6", "7"))
    alike(text.train, Dataset(torch.from_numpy(tokens), text.train.y))
    made = load("parquet", path=path, target="level", inputs="floats", test=0)
    assert (made.kind, made.train.y.tolist()) == ("regression", [i / 2 for i in range(20)])
    alike(made.train, Dataset(torch.from_numpy(floats).float(), made.train.y))
    for column in ("image", "blob"):
        seen = load("parquet", path=path, target="label", inputs=column, size=4, test=0).train
        assert seen.x.shape == (20, 3, 4, 4)
        assert (seen.inputs([3, 19])[:, 1, 2, 2] * 255).round().tolist() == [30, 190]


def test_tables_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    path = written(tmp_path / "table.parquet", pa.table(NUMBERS))
    with pytest.raises(DataError, match="no column 'anser'; did you mean 'answer'"):
        load("parquet", path=path, target="anser")
    with pytest.raises(DataError, match="column 'note' is string, not a number; leave it out"):
        load("parquet", path=path, target="answer")
    holes = pa.table({"a": [1.0, None, 3.0], "y": [0, 1, 1]})
    with pytest.raises(DataError, match="empty cell in the inputs of row 1"):
        load("parquet", path=written(tmp_path / "holes.parquet", holes), target="y")
    uneven = pa.table({"a": [[1], [1, 2]], "y": [0, 1]})
    with pytest.raises(DataError, match="lists of different lengths"):
        load("parquet", path=written(tmp_path / "u.parquet", uneven), target="y", inputs="a")
    hole = pa.table({"a": [[1, 2], [None, 3]], "y": [0, 1]})  # a token of -2^63, once
    with pytest.raises(DataError, match="an empty cell in a list"):
        load("parquet", path=written(tmp_path / "h.parquet", hole), target="y", inputs="a")
    twice = pa.Table.from_arrays([pa.array([1.0, 2.0])] * 2 + [pa.array([0, 1])], ["a", "a", "y"])
    with pytest.raises(DataError, match="two columns are called 'a'"):
        load("parquet", path=written(tmp_path / "d.parquet", twice), target="y")
    empty = written(tmp_path / "t.arrow", pa.table({"a": [1, 2], "y": ["b", None]}))
    with pytest.raises(DataError, match="an empty cell in the target"):
        load("parquet", path=empty, target="y")
    (tmp_path / "no.parquet").write_text("no table")
    with pytest.raises(DataError, match="not a readable table"):
        load("parquet", path=tmp_path / "no.parquet", target="y")
    with pytest.raises(DataError, match=r"is no \.parquet"):
        load("parquet", path=tmp_path / "table.txt", target="y")
