"""EMNIST and Stack Overflow in the files of TensorFlow Federated, read owner by owner."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from cupola import data as datasets
from cupola.data.loaders import tff as published
from cupola.errors import DataError


def write(path, owners):
    """{owner: {field: array}} as examples/<owner>/<field>."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(path, "w") as file:
        examples = file.create_group("examples")
        for owner, fields in owners.items():
            group = examples.create_group(owner)
            for field, values in fields.items():
                if values.dtype.kind in "SUO":
                    group.create_dataset(field, data=values, dtype=h5py.string_dtype())
                else:
                    group.create_dataset(field, data=values)


def drawings(n, seed, classes=62):
    rng = np.random.default_rng(seed)
    return {
        "pixels": rng.random((n, 28, 28), np.float32),
        "label": rng.integers(0, classes, n).astype(np.int32),
    }


@pytest.fixture
def emnist(nowhere, tmp_path):  # noqa: ARG001 (no other folder, no old cache)
    sizes = {"f0000_14": (5, 2), "f0001_41": (3, 1), "f0002_07": (1, 0)}
    train = {w: drawings(many, i) for i, (w, (many, _)) in enumerate(sizes.items())}
    test = {w: drawings(many, 9 + i) for i, (w, (_, many)) in enumerate(sizes.items()) if many}
    write(tmp_path / "fed_emnist_train.h5", train)
    write(tmp_path / "fed_emnist_test.h5", test)
    return tmp_path


def test_writers_are_sites_with_their_own_test_part(emnist):
    source = datasets.load("emnist", folder=emnist)
    data = datasets.partition(source, "natural", 1)
    assert (len(data), data.classes, data.input_shape) == (3, 62, (1, 28, 28))
    assert data.sizes().tolist() == [5, 3, 1]
    assert data.site_name(1) == "f0001_41"
    assert [len(data.site(i).test) for i in range(3)] == [2, 1, 0]
    wanted = drawings(3, 1)
    site = data.site(1).train
    assert site.y.tolist() == wanted["label"].tolist()
    np.testing.assert_allclose(site.inputs()[:, 0].numpy(), wanted["pixels"], atol=0.5 / 255 + 1e-6)
    assert len(data.public["test"]) == 3
    assert data.class_names[10] == "A"


def test_the_coordinator_may_hold_fewer_rows_or_none(emnist):
    few = datasets.load("emnist", folder=emnist, public_test=2)
    assert len(few.public["test"]) == 2
    again = datasets.load("emnist", folder=emnist, public_test=2)
    assert few.public["test"].y.tolist() == again.public["test"].y.tolist()
    assert not datasets.load("emnist", folder=emnist, public_test=0).public


def test_digits_have_their_own_files(emnist):
    for part in ("train", "test"):
        write(emnist / f"fed_emnist_digitsonly_{part}.h5", {"f1": drawings(4, 1, 10)})
    assert datasets.load("emnist", folder=emnist, only_digits=True).classes == 10


WORDS = "the\t90\nof\t70\na\t70\nrust\t5\nzig\t1\n"


def sentences(*texts):
    return {"tokens": np.array(texts, object), "score": np.arange(len(texts))}


@pytest.fixture
def stackoverflow(nowhere, tmp_path):  # noqa: ARG001
    users = {
        "0001": sentences("the rust of a king", "zig", "of the a of the of"),
        "0002": sentences("a"),
        "0003": sentences("of", "the café"),
    }
    write(tmp_path / "stackoverflow_train.h5", users)
    write(tmp_path / "stackoverflow_test.h5", {f"t{i}": sentences("the a", "of") for i in range(4)})
    write(tmp_path / "stackoverflow_held_out.h5", {"h": sentences("a the")})
    (tmp_path / "stackoverflow.word_count").write_text(WORDS)
    return tmp_path


def test_users_are_sites_and_sentences_rows(stackoverflow):
    source = datasets.load(
        "stackoverflow", folder=stackoverflow, words=4, length=4, min_sentences=2
    )
    assert source.facts["words"][1:5] == ("the", "a", "of", "rust")
    data = datasets.partition(source, "natural", 1)
    assert (len(data), data.kind, data.classes) == (2, "language", 8)
    assert [data.site_name(i) for i in range(2)] == ["0001", "0003"]
    assert data.sizes().tolist() == [3, 2]
    assert (data.vocabulary, data.padding, data.uncounted) == (8, 0, (5, 7))
    site = data.site(0).train  # begin 6, end 7, unknown 5
    assert site.x.tolist() == [[6, 1, 4, 3], [6, 5, 7, 0], [6, 3, 1, 2]]
    assert site.y.tolist() == [[1, 4, 3, 2], [5, 7, 0, 0], [3, 1, 2, 3]]
    assert len(data.public["test"]) == 8
    assert data.public["validation"].x.tolist() == [[6, 2, 1, 7]]


def test_of_a_user_the_first_sentences_count(stackoverflow):
    options = {"min_sentences": 1, "max_sentences": 2, "public_test": 3, "public_validation": 0}
    source = datasets.load("stackoverflow", folder=stackoverflow, words=4, **options)
    data = datasets.partition(source, "natural", 1)
    assert data.sizes().tolist() == [2, 1, 2] == [len(data.site(i).train) for i in range(3)]
    assert data.input_shape == (20,)
    assert {key: len(rows) for key, rows in data.public.items()} == {"test": 3}
    with pytest.raises(DataError, match="min_sentences = 9 leaves no user"):
        datasets.load("stackoverflow", folder=stackoverflow, min_sentences=9)


def test_word_counts_may_be_json(stackoverflow):
    (stackoverflow / "stackoverflow.word_count").write_text('{"a": 3, "the": 9}')
    source = datasets.load("stackoverflow", folder=stackoverflow, words=2, min_sentences=1)
    assert source.facts["words"][1:3] == ("the", "a")
    (stackoverflow / "stackoverflow.word_count").write_text("a b c\n")
    with pytest.raises(DataError, match="not lines of a word and its count"):
        datasets.load("stackoverflow", folder=stackoverflow)


def test_only_the_sites_that_are_asked_for_are_read(stackoverflow, monkeypatch):
    options = {"min_sentences": 1, "public_test": 0, "public_validation": 0}
    source = datasets.load("stackoverflow", folder=stackoverflow, **options)
    read = []
    plain = published._File.read
    monkeypatch.setattr(
        published._File, "read", lambda self, i, *a: (read.append(i), plain(self, i, *a))[1]
    )
    data = datasets.partition(source, "natural", 1)
    data.sizes()
    assert not read
    data.site(2)
    assert read == [2]


def test_sizes_of_many_owners_are_remembered(stackoverflow, nowhere, monkeypatch):
    monkeypatch.setattr(published, "MANY_OWNERS", 2)
    options = {"min_sentences": 1, "public_test": 0, "public_validation": 0}
    first = datasets.load("stackoverflow", folder=stackoverflow, **options)
    assert len(list((nowhere / "owners").iterdir())) == 1
    monkeypatch.setattr(published._File, "_look", None)
    second = datasets.load("stackoverflow", folder=stackoverflow, **options)
    assert list(second.owners) == list(first.owners)
    assert second.sizes.tolist() == first.sizes.tolist()


def test_of_partitions_the_natural_one_is_possible(stackoverflow):
    options = {"min_sentences": 1, "public_test": 0, "public_validation": 0}
    source = datasets.load("stackoverflow", folder=stackoverflow, **options)
    with pytest.raises(DataError, match="its sites are its owners: write partition"):
        datasets.partition(source, "iid", 1)
    with pytest.raises(DataError, match="but not merge"):
        datasets.partition(source, {"kind": "natural", "merge": 2}, 1)
    some = {"kind": "natural", "max_sites": 2, "min_samples": 2, "max_samples": 2}
    data = datasets.partition(source, {**some, "validation": 0.5}, 1)
    assert data.sizes().tolist() == [1, 1]
    for i in range(2):
        site = data.site(i)
        assert (len(site.train), len(site.validation)) == (1, 1)
        assert site.train.x.tolist() != site.validation.x.tolist()


def test_what_is_missing_is_said(stackoverflow, monkeypatch):
    with pytest.raises(DataError, match=r"fed_emnist_train\.h5 is not in"):
        datasets.load("emnist", folder=stackoverflow)
    (stackoverflow / "fed_emnist_train.h5").write_text("nothing")
    with pytest.raises(DataError, match="not a file of examples/<owner>"):
        datasets.load("emnist", folder=stackoverflow)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"need h5py: pip install 'cupola\[hdf5\]'"):
        datasets.load("stackoverflow", folder=stackoverflow)
