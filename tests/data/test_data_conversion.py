"""Data as people have them in Python become data sets, or a DataError that says the way out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset as TorchData
from torch.utils.data import IterableDataset, TensorDataset

from cupola.data import Dataset, FederatedData, SiteData, Source, converted, partition_indices
from cupola.data.fingerprint import fingerprint
from cupola.data.partition import partition
from cupola.errors import DataError

X = np.random.default_rng(0).random((12, 3))
Y = np.arange(12) % 3


class Pairs(TorchData):
    def __len__(self):
        return len(X)

    def __getitem__(self, i):
        return torch.from_numpy(X[i]), int(Y[i])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X, Y))


class HuggingFace:
    """What a `datasets.Dataset` offers, as far as it is used."""

    column_names = ("x", "label")
    features = None

    def __len__(self):
        return len(X)

    def with_format(self, kind):
        assert kind == "numpy"
        return self

    def __getitem__(self, index):
        assert index == slice(None)
        return {"x": X, "label": Y}


@pytest.mark.parametrize(
    "given",
    [
        (X, Y),
        (X.tolist(), Y.tolist()),
        (torch.from_numpy(X), torch.from_numpy(Y)),
        TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
        Pairs(),
        HuggingFace(),
        (HuggingFace(), "label"),
        (X, Y[:, None]),
        {"train": (X, Y)},
    ],
    ids=lambda given: type(given).__name__,
)
def test_one_data_set_in_many_forms(given) -> None:
    made = converted(given)
    assert isinstance(made, Source)
    assert made.kind == "classification"
    assert made.classes == 3
    assert torch.equal(made.train.x, torch.from_numpy(X.astype(np.float32)))
    assert torch.equal(made.train.y, torch.from_numpy(Y))
    assert fingerprint(made)[0] == fingerprint(converted((X, Y)))[0]


IDS = np.array([[5, 6, 0], [7, 0, 0], [2, 3, 4], [9, 1, 0]])
MASK = (IDS > 0).astype(np.int64)
TEXTS = ["a b", "c", "d e f", "g h"]
ROWS = [{"input_ids": i, "attention_mask": m, "labels": k % 2}
        for k, (i, m) in enumerate(zip(IDS.tolist(), MASK.tolist()))]  # fmt: skip


class Tokenised(HuggingFace):
    """A data set that went through a tokeniser; its text is still there."""

    def __init__(self, **columns):
        self.columns = {"text": TEXTS, "input_ids": IDS, "attention_mask": MASK} | columns
        self.column_names = list(self.columns)

    def __getitem__(self, index):
        assert index == slice(None)
        return {name: np.asarray(column) for name, column in self.columns.items()}


class Items(TorchData):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def ragged(*rows):
    """As `datasets` gives them: an array of arrays."""
    made = np.empty(len(rows), object)
    made[:] = [np.array(row) for row in rows]
    return made


FIELDS = {"input_ids": IDS, "attention_mask": MASK}


@pytest.mark.parametrize(
    "given",
    [
        (FIELDS, [0, 1, 0, 1]),
        ({"input_ids": IDS.tolist(), "attention_mask": torch.from_numpy(MASK)}, [0, 1, 0, 1]),
        {**FIELDS, "label": [0, 1, 0, 1]},
        Items(ROWS),
        Items([{n: torch.tensor(v) for n, v in row.items()} for row in ROWS]),
        Items([({n: row[n] for n in FIELDS}, row["labels"]) for row in ROWS]),
        Tokenised(label=[0, 1, 0, 1]),
        Tokenised(labels=np.array([0, 1, 0, 1]), idx=range(4)),
        Tokenised(input_ids=ragged(*IDS), attention_mask=ragged(*MASK), label=[0, 1, 0, 1]),
    ],
    ids=lambda given: type(given).__name__,
)
def test_tokenised_data_in_many_forms(given) -> None:
    made = converted(given)
    expected = Dataset(FIELDS, torch.tensor([0, 1, 0, 1]))  # type: ignore[arg-type]
    assert isinstance(made, Source)
    assert torch.equal(made.train.x, expected.x)
    assert made.input_shape == (2, 3)
    assert (made.kind, made.classes, made.vocabulary) == ("classification", 2, 10)
    assert fingerprint(made)[0] == fingerprint(converted((expected.x, [0, 1, 0, 1])))[0]


def test_tokenised_sites_and_parts() -> None:
    both = converted({"Bern": (FIELDS, [0, 1, 0, 1]), "Rome": Items(ROWS)})
    assert [both.site_name(i) for i in range(2)] == ["Bern", "Rome"]
    assert torch.equal(both.site(0).train.x, both.site(1).train.x)
    made = converted({"train": Items(ROWS), "test": Tokenised(label=[0, 1, 0, 1])})
    assert isinstance(made, Source)
    assert made.test is not None
    assert torch.equal(made.train.x, made.test.x)
    alone = converted(({"input_ids": IDS}, [0, 1, 0, 1]))
    assert torch.equal(alone.train.x, torch.from_numpy(IDS))
    named = converted(Items([{"a": 1.5, "b": 2, "y": "ill"}, {"a": 1.0, "b": 3, "y": "well"}]))
    assert named.train.x.tolist() == [[1.5, 2.0], [1.0, 3.0]]
    assert named.class_names == ("ill", "well")


LONGER = [[5, 6], [7], [2, 3, 4], [9, 1]]
PAD = "(padding='max_length')"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (({"input_ids": LONGER}, [0, 1, 0, 1]), ("column 'input_ids'", "(1,) and (2,)", PAD)),
        (Tokenised(input_ids=ragged(*LONGER), label=Y[:4]), ("column 'input_ids'", PAD)),
        (Tokenised(token_type_ids=ragged(*LONGER), label=Y[:4]), ("column 'token_type_ids'", PAD)),
        (Items([{"input_ids": r, "label": 0} for r in LONGER]), ("column 'input_ids'", PAD)),
        (Items([({"input_ids": r}, 0) for r in LONGER]), ("column 'input_ids'", PAD)),
        (Items([(r, 0) for r in LONGER]), ("inputs", "(1,) and (2,)")),
        (({"input_ids": IDS, "attention_mask": MASK[:, :2]}, Y[:4]), ("'attention_mask'", PAD)),
        (({"input_ids": IDS / 2}, Y[:4]), ("column 'input_ids' holds float64",)),
        (({"input_ids": TEXTS}, Y[:4]), ("column 'input_ids' holds", "not a tokeniser's")),
        (({**FIELDS, "length": Y[:4]}, Y[:4]), ("have the fields", "length")),
        ((FIELDS, Y), ("4 inputs but 12 targets",)),
        (Items([ROWS[0], {"input_ids": [1]}]), ("item 1 is a dict", "attention_mask")),
        (Items([ROWS[0], 3]), ("its items must be",)),
        (FIELDS, ("say which column", "attention_mask")),
        (Tokenised(), ("say which column is to be predicted",)),
        (Tokenised(label=Y[:4], labels=Y[:4]), ("say which column is to be predicted",)),
    ],
)
def test_tokenised_data_that_do_not_fit_are_refused_by_column(given, said) -> None:
    with pytest.raises(DataError) as caught:
        converted(given)
    assert all(part in str(caught.value) for part in said), caught.value


def test_frames_name_their_target_and_words_become_classes() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": [30, 40, 50], "bmi": [20.5, 25.0, 31.0]})
    frame["outcome"] = ["ill", "well", "ill"]
    for made in (
        converted((frame, "outcome")),
        converted((frame[["age", "bmi"]], frame["outcome"])),
    ):
        assert made.class_names == ("ill", "well")
        assert made.train.y.tolist() == [0, 1, 0]
        assert made.train.x[0].tolist() == [30.0, 20.5]
    with pytest.raises(DataError, match="say which column"):
        converted(frame)
    with pytest.raises(DataError, match="no column 'outcom'"):
        converted((frame, "outcom"))
    with pytest.raises(DataError, match="column 'outcome' holds no numbers"):
        converted((frame, "age"))


def test_hugging_face_data_sets() -> None:
    datasets = pytest.importorskip("datasets")
    held = datasets.Dataset.from_dict({"x": X.tolist(), "label": Y.tolist()})
    held = held.cast_column("label", datasets.ClassLabel(names=["a", "b", "c"]))
    made = converted(held)
    assert made.class_names == ("a", "b", "c")
    assert np.allclose(made.train.x, X)
    both = converted(datasets.DatasetDict({"train": held, "test": held}))
    assert both.test is not None
    assert len(both.test) == 12


def test_regression_tokens_images_and_public_parts() -> None:
    assert converted((X, X[:, 0])).kind == "regression"
    tokens = converted((np.array([[1, 2], [3, 0]]), [0, 1]))
    assert (tokens.kind, tokens.vocabulary) == ("classification", 4)
    words = converted((np.array([[1, 2], [3, 0]]), np.array([[2, 3], [0, 0]])))
    assert (words.kind, words.classes) == ("language", 4)
    images = converted((np.zeros((4, 8, 8), np.uint8), [0, 1, 0, 1]))
    assert images.input_shape == (1, 8, 8)
    assert converted((X > 0.5, Y)).train.x.dtype == torch.float32
    assert converted((X, Y > 0)).classes == 2


def test_sites_as_given() -> None:
    made = converted({"Bern": (X[:8], Y[:8]), "Rome": {"train": (X[8:], Y[8:]), "test": (X, Y)}})
    assert isinstance(made, FederatedData)
    assert [made.site_name(i) for i in range(2)] == ["Bern", "Rome"]
    assert made.sizes().tolist() == [8, 4]
    assert len(made.site(1).test) == 12
    same = converted([(X[:8], Y[:8]), (X[8:], Y[8:])])
    assert same.classes == made.classes == 3
    data = Dataset(torch.from_numpy(X), torch.from_numpy(Y))
    assert len(converted([data, SiteData(data)])) == 2
    assert converted(made) is made
    named = converted([(X[:2], ["b", "a"]), (X[:2], ["c", "a"])])
    assert named.class_names == ("a", "b", "c")
    assert named.site(1).train.y.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "is None"),
        (3, "an int"),
        ("digits and more", "a str"),
        (X, "pass (x, y)"),
        ((X, None), "y is None"),
        ((X, Y[:5]), "12 inputs but 5 targets"),
        ((X[:0], Y[:0]), "holds no rows"),
        ((np.where(X > 0.9, np.nan, X), Y), "NaN"),
        ((X.astype(object).astype(str), Y), "not numbers"),
        ((X, Y - 1), "must lie in 0.."),
        ((X, [None] * 12), "missing in some rows"),
        ((X + 1j, Y), "complex128"),
        ((X[0, 0], Y), "a row for each sample"),
        ([], "no sites"),
        ({}, "no sites"),
        ([X, Y], "pass (x, y)"),
        ([(X, Y), (X[:, :2], Y)], "all sites need the same"),
        ([(X, Y), (X, X[:, 0])], "floats in some parts"),
        ([(X, Y), (X, Y - 1)], "counted from 0"),
        (Stream(), "without a length"),
        (TensorDataset(torch.zeros(2)), "1 tensors"),
        ((np.zeros((2, 8, 8, 3), np.uint8), [0, 1]), "channels last"),
        (((X, Y), (X, Y), 3), "an int"),
        ((X, "outcome"), "this is no frame"),
    ],
)
def test_what_is_no_data_is_refused_with_a_way_out(given, said: str) -> None:
    with pytest.raises(DataError) as caught:
        converted(given)
    assert said in str(caught.value)


def test_other_rows_have_another_fingerprint() -> None:
    marks = [
        fingerprint(converted(given))[0]
        for given in ((X, Y), (X + 1e-6, Y), (X, (Y + 1) % 3), (X[:, :2], Y), [(X, Y)])
    ]
    assert len(set(marks)) == len(marks)


def test_indices_are_those_of_the_partition() -> None:
    labels = np.arange(200) % 5
    x = torch.arange(200, dtype=torch.float32)[:, None]
    source = converted((x, labels))
    for kind, options in (
        ("iid", {"sites": 4}),
        ("dirichlet", {"alpha": 0.3, "sites": 4}),
        ("classes", {"k": 2, "sites": 5}),
        ("quantity", {"ratios": [4, 1]}),
    ):
        found = partition_indices(labels, kind, seed=3, **options)
        cut = partition(source, {"kind": kind, **options}, 3)
        assert [rows.tolist() for rows in found] == [
            cut.site(i).train.x[:, 0].long().tolist() for i in range(len(cut))
        ]
    owners = partition_indices(labels, "natural", groups=["a", "b"] * 100)
    assert [len(rows) for rows in owners] == [100, 100]
    words = partition_indices(["x", "y"] * 10, "classes", k=1, sites=2)
    assert sorted(np.concatenate(words).tolist()) == list(range(20))
    with pytest.raises(DataError, match=r"test = 0\.2 would hold some out"):
        partition_indices(labels, "iid", sites=2, test=0.2)
    with pytest.raises(DataError, match="alpha"):
        partition_indices(labels, "iid", alpha=1)
