"""The user's csv and npz files."""

from pathlib import Path

import numpy as np
import pytest

from cupola.data import load, partition
from cupola.errors import DataError


def table(tmp_path: Path, text: str) -> str:
    path = tmp_path / "table.csv"
    path.write_text(text)
    return str(path)


def test_csv_classes_and_sites(tmp_path: Path) -> None:
    rows = "\n".join(
        f"{i},{i % 3}.5,{'yes' if i % 2 else 'no'},clinic {i % 4},x" for i in range(40)
    )
    path = table(tmp_path, "age,dose,answer,where,note\n" + rows + "\n")
    source = load("csv", path=path, target="answer", site="where", drop=["note"], test=0.25)
    assert (source.kind, source.classes, source.class_names) == ("classification", 2, ("no", "yes"))
    assert source.input_shape == (2,)
    assert source.test is not None
    assert (len(source.train), len(source.test)) == (30, 10)
    data = partition(source, "natural", seed=0)
    assert [data.site_name(i) for i in range(4)] == [f"clinic {i}" for i in range(4)]
    for i in range(4):
        assert set((data.site(i).train.x[:, 0] % 4).tolist()) == {float(i)}
    scaled = load("csv", path=path, target="answer", drop=["note", "where"], standardise=True)
    assert scaled.train.x.mean().abs() < 1e-5


def test_csv_kinds(tmp_path: Path) -> None:
    path = table(tmp_path, "a,y\n1,10\n2,9\n3,10\n")
    assert load("csv", path=path, target="y", test=0).class_names == ("9", "10")
    forced = load("csv", path=path, target="y", test=0, kind="regression")
    assert forced.train.y.tolist() == [10.0, 9.0, 10.0]
    path = table(tmp_path, "a,y\n1,0.5\n2,2\n")
    assert load("csv", path=path, target="y", test=0).kind == "regression"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,b,y\n1,2,0\n1,x,1\n", r"table\.csv, line 3, column 'b': 'x' is not a finite number"),
        ("a,b,y\n1,nan,0\n", "line 2, column 'b'"),
        ('a,b,y\n"1",,0\n', "line 2, column 'b': ''"),
        ("a,b,y\n1,2,\n", "line 2, column 'y': no target"),
        ("a,b,y\n1,2\n", "line 2: 2 cells, but 3 columns"),
        ("a,b,yy\n1,2,0\n", "no column 'y'"),
        ("y\n1\n", "no column is left"),
        ("a,y\n", "at least one row"),
    ],
)
def test_csv_errors_name_file_line_and_column(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        load("csv", path=table(tmp_path, text), target="y")


def test_csv_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        load("csv", path=str(tmp_path / "none.csv"), target="y")


def test_npz(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    y = np.arange(20) % 2
    np.savez(path, x=np.zeros((20, 5, 5, 3), np.uint8), y=y, site=np.arange(20) // 5)
    source = load("npz", path=str(path))
    assert source.input_shape == (3, 5, 5)
    assert source.test is not None
    assert (len(source.train), len(source.test), source.classes) == (16, 4, 2)
    assert len(partition(source, "natural", seed=0)) == 4
    line = {"x_train": np.ones((4, 2)), "y_train": np.ones(4)}
    np.savez(path, **line, x_test=np.ones((1, 2)), y_test=np.ones(1))
    assert load("npz", path=str(path)).kind == "regression"
    np.savez(path, x=np.ones((4, 7), int), y=np.ones((4, 7), int))
    text = load("npz", path=str(path), test=0.0)
    assert (text.kind, text.vocabulary, text.classes) == ("language", 2, 2)
    np.savez(path, x=np.ones((4, 1, 3, 3), np.uint8), y=np.zeros((4, 3, 3), np.uint8))
    assert load("npz", path=str(path)).kind == "segmentation"


def test_npz_errors(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, x=np.ones((4, 2)))
    with pytest.raises(DataError, match="no array 'y' in it; it has x"):
        load("npz", path=str(path))
    np.savez(path, x=np.array([[1.0], [np.nan]]), y=np.array([0, 1]))
    with pytest.raises(DataError, match="NaN or infinity, first in row 1"):
        load("npz", path=str(path), test=0.0)
    np.savez(path, x=np.array([{}, {}], dtype=object), y=np.array([0, 1]))
    with pytest.raises(DataError, match="plain arrays"):  # never unpickled
        load("npz", path=str(path))
    path.write_bytes(b"PK\x03\x04 damaged")
    with pytest.raises(DataError, match=r"mine\.npz"):
        load("npz", path=str(path))
    np.savez(path, x=np.ones((4, 2)), y=np.array(list("abcd")))
    with pytest.raises(DataError, match="targets must be numbers"):
        load("npz", path=str(path))
    np.savez(path, x=np.full((4, 2), -1), y=np.zeros(4, int))
    with pytest.raises(DataError, match="floats"):
        load("npz", path=str(path))
