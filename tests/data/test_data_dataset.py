"""Data sets, sites and federations made by hand."""

import numpy as np
import pytest
import torch

from cupola.data import NO_LABEL, Dataset, FederatedData, SiteData, Source, synthetic_population
from cupola.errors import DataError


def pixels(n: int = 6) -> Dataset:
    x = torch.arange(n * 12, dtype=torch.uint8).reshape(n, 3, 2, 2)
    return Dataset(x, torch.arange(n) % 2)


def test_images_are_bytes_until_a_model_needs_them() -> None:
    data = pixels()
    assert data.x.dtype == torch.uint8
    assert torch.equal(data.inputs(), data.x.float() / 255)
    index = [3, 1]
    for form in (index, np.array(index), torch.tensor(index)):
        assert torch.equal(data.inputs(form), data.x[index].float() / 255)
        assert torch.equal(data.subset(form).y, data.y[index])
    assert len(data.subset(slice(0, 0))) == 0
    assert len(data.subset(np.array([True, False] * 3))) == 3
    assert len(data.subset([])) == 0
    assert torch.equal(pixels().x, data.x)  # inputs() did not touch the bytes


def test_floats_and_tokens_stay_as_they_are() -> None:
    for x in (torch.rand(3, 2, dtype=torch.float64), torch.ones(3, 5, dtype=torch.int64)):
        assert torch.equal(Dataset(x, torch.zeros(3)).inputs([0]), x[:1])
        assert Dataset(x, torch.zeros(3)).inputs().dtype == x.dtype


def test_sources_are_checked() -> None:
    def source(x: torch.Tensor, y: torch.Tensor, classes: int | None = 2) -> Source:
        kind = "regression" if classes is None else "classification"
        return Source("mine", kind, Dataset(x, y), classes=classes)  # type: ignore[arg-type]

    good = torch.rand(3, 2)
    with pytest.raises(DataError, match="row 1"):
        source(torch.tensor([[0.0], [torch.nan], [0.0]]), torch.zeros(3).long())
    with pytest.raises(DataError, match="targets hold NaN"):
        source(good, torch.tensor([0.0, torch.inf, 0.0]), None)
    with pytest.raises(DataError, match=r"0\.\.1"):
        source(good, torch.tensor([0, 1, 2]))
    with pytest.raises(DataError, match="integer targets"):
        source(good, torch.zeros(3))
    with pytest.raises(DataError, match="3 inputs but 2"):
        Dataset(good, torch.zeros(2))
    with pytest.raises(DataError, match="groups has 2"):
        Source("m", "regression", Dataset(good, torch.zeros(3)), groups=np.zeros(2))
    assert source(good, torch.tensor([0, 1, 1])).input_shape == (2,)


def test_federations_by_hand() -> None:
    data = FederatedData.from_arrays([SiteData(pixels()), SiteData(pixels(0))])
    assert (data.kind, data.classes, data.input_shape) == ("classification", 2, (3, 2, 2))
    assert data.sizes().tolist() == [6, 0]
    assert len(data.site(0).test) == 0
    with pytest.raises(DataError, match="site 2 does not exist"):
        data.site(2)
    with pytest.raises(DataError, match="at least one"):
        FederatedData.from_arrays([])
    marks = torch.tensor([[[0, 1], [NO_LABEL, 2]]])
    seen = FederatedData.from_arrays([SiteData(Dataset(torch.rand(1, 1, 2, 2), marks))])
    assert (seen.kind, seen.classes) == ("segmentation", 3)
    line = FederatedData.from_arrays([SiteData(Dataset(torch.rand(2, 1), torch.rand(2)))])
    assert (line.kind, line.classes) == ("regression", None)
    text = torch.tensor([[1, 4]])
    words = FederatedData.from_arrays([SiteData(Dataset(text, text))])
    assert (words.kind, words.classes) == ("language", 5)


def test_lazy_sites_are_made_when_asked_for() -> None:
    made = []

    def site(i: int) -> SiteData:
        made.append(i)
        return SiteData(Dataset(torch.full((2, 1), float(i)), torch.zeros(2)))

    data = FederatedData.lazy(1_000_000, site, input_shape=(1,), classes=None)
    assert data.kind == "regression"
    assert made == []
    assert data.site(123_456).train.x[0, 0] == 123_456
    assert data.sizes([7, 8]).tolist() == [2, 2]
    assert made == [123_456, 7, 8]
    assert data.site_name(3) == "site 3"


def test_a_million_synthetic_devices() -> None:
    data = synthetic_population(1_000_000, max_samples=500)
    site = data.site(999_999)
    assert len(site.train) == data.sizes([999_999])[0]
    assert torch.equal(site.train.x, data.site(999_999).train.x)
    assert not torch.equal(site.train.x[:5], data.site(5).train.x[:5])
