"""The picture of who holds what."""

import numpy as np
import pytest
import torch

from cupola.data import Dataset, FederatedData, SiteData, holdings, load, partition, picture
from cupola.data.site_picture import summary


def test_holdings_count_every_sample() -> None:
    data = partition(load("digits"), {"kind": "classes", "k": 2, "sites": 10}, seed=0)
    table = holdings(data)
    assert table.shape == (10, 10)
    assert ((table > 0).sum(0) == 2).all()
    assert table.sum(0).tolist() == data.sizes().tolist()


@pytest.mark.parametrize("sites", [1, 5, 300])
def test_png_and_svg(sites: int) -> None:
    data = partition(load("digits"), {"kind": "dirichlet", "alpha": 0.3, "sites": sites}, seed=0)
    assert picture(data).startswith(b"\x89PNG")
    svg = picture(data, "svg")
    assert b"<svg" in svg
    assert svg == picture(data, "svg")


def test_regression_many_classes_and_empty_sites() -> None:
    assert picture(partition(load("diabetes"), {"kind": "iid", "sites": 3}, seed=0))
    many = Dataset(torch.zeros(200, 1), torch.arange(200) % 50)
    assert picture(FederatedData.from_arrays([SiteData(many), SiteData(many.subset([]))]))
    assert picture(FederatedData.from_arrays([SiteData(many.subset([]))], classes=3))


def test_the_rest_in_a_line() -> None:
    data = partition(load("digits"), {"kind": "iid", "sites": 2000}, seed=0)
    assert (
        summary(data, 60) == "and 1,940 more sites with 0 to 1 samples, median 1; 562 of them empty"
    )
    assert summary(data, 2000) == ""

    def refuse(_: int) -> SiteData:
        raise AssertionError("made a site for nothing")

    unknown = FederatedData.lazy(100, refuse, input_shape=(1,), classes=2)
    assert summary(unknown, 60) == "and 40 more sites"
    assert np.array_equal(holdings(data, 3).shape, (10, 3))
