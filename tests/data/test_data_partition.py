"""Partitions: no row twice, sizes as stated, the same for the same seed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cupola.data import Dataset, FederatedData, Source, load, partition, pool
from cupola.errors import DataError

few = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def make_source(
    rows: int = 120, classes: int = 4, groups: int | None = None, test: int = 20, seed: int = 0
) -> Source:
    """A source whose inputs are the row numbers, so that tests can tell rows apart."""
    rng = np.random.default_rng(seed)
    x = torch.arange(rows, dtype=torch.float32)[:, None]
    y = torch.from_numpy(rng.integers(0, classes, rows))
    held = Dataset(torch.arange(test, dtype=torch.float32)[:, None], torch.zeros(test).long())
    return Source(
        "small",
        "classification",
        Dataset(x, y),
        held if test else None,
        classes=classes,
        class_names=tuple("abcdefghijklmnop"[:classes]),
        groups=None if groups is None else rng.integers(0, groups, rows),
    )


def rows_of(data: FederatedData) -> list[dict[str, list[int]]]:
    """Row numbers of each part of each site."""
    return [
        {
            p: getattr(data.site(i), p).x[:, 0].long().tolist()
            for p in ("train", "validation", "test")
        }
        for i in range(len(data))
    ]


def flat(data: FederatedData) -> list[int]:
    return [row for site in rows_of(data) for part in site.values() for row in part]


def labels(data: FederatedData, i: int) -> list[int]:
    return data.site(i).train.y.tolist()


SPECS: list[dict[str, Any]] = [
    {"kind": "iid", "sites": 7},
    {"kind": "iid", "sites": 3, "samples_per_site": [5, 0, 9]},
    {"kind": "dirichlet", "alpha": 0.1, "sites": 7},
    {"kind": "dirichlet", "alpha": 100.0, "sites": 4, "samples_per_site": 11},
    {"kind": "classes", "k": 2, "sites": 6},
    {"kind": "classes", "k": 2, "sites": 6, "sigma": 1.0},
    {"kind": "classes", "k": 2, "sites": 4, "only": ["d", 0, 1]},
    {"kind": "quantity", "ratios": [45, 9, 1]},
    {"kind": "quantity", "sigma": 1.5, "sites": 9},
    {"kind": "natural", "min_samples": 2},
    {"kind": "natural", "parts": 3},
    {"kind": "natural", "merge": 3, "k": 2},
    {"kind": "natural", "merge": 2, "sigma": 1.0, "k": 3, "parts": 2},
    {"kind": "types", "types": [[0, 1], ["c"]], "sites_per_type": 2, "samples_per_site": 5,
     "test_per_site": 3},
    {"kind": "pooled"},
]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: "-".join(map(str, s.values()))[:40])
@pytest.mark.parametrize("extra", [{}, {"validation": 0.2, "max_samples": 8}])
def test_no_row_twice_and_the_same_again(spec: dict[str, Any], extra: dict[str, Any]) -> None:
    source = make_source(groups=6)
    one = partition(source, {**spec, **extra}, seed=3)
    rows = flat(one)
    assert len(rows) == len(set(rows))
    assert rows
    again = partition(source, {**spec, **extra}, seed=3)
    # Sites asked for in another order hold the same.
    assert list(reversed(rows_of(again))) == [
        {
            p: getattr(again.site(i), p).x[:, 0].long().tolist()
            for p in ("train", "validation", "test")
        }
        for i in reversed(range(len(one)))
    ]
    assert rows_of(one) == rows_of(again)
    assert one.sizes().tolist() == [len(s["train"]) for s in rows_of(one)]
    assert one.sizes([1 % len(one), 0]).tolist() == one.sizes()[[1 % len(one), 0]].tolist()
    if spec["kind"] not in ("pooled", "natural") or extra or "parts" in spec:
        assert rows_of(partition(source, {**spec, **extra}, seed=4)) != rows_of(one)


@few
@given(rows=st.integers(1, 90), sites=st.integers(1, 120), seed=st.integers(0, 2**40))
def test_iid_uses_every_row_evenly(rows: int, sites: int, seed: int) -> None:
    data = partition(make_source(rows), {"kind": "iid", "sites": sites}, seed)
    assert sorted(flat(data)) == list(range(rows))
    assert data.sizes().max() - data.sizes().min() <= 1


@few
@given(
    alpha=st.sampled_from([1e-3, 0.1, 1.0, 1e3]),
    sites=st.integers(1, 40),
    classes=st.integers(2, 8),
    seed=st.integers(0, 2**40),
)
def test_dirichlet_keeps_site_sizes(alpha: float, sites: int, classes: int, seed: int) -> None:
    source = make_source(100, classes)
    data = partition(source, {"kind": "dirichlet", "alpha": alpha, "sites": sites}, seed)
    assert sorted(flat(data)) == list(range(100))
    assert data.sizes().max() - data.sizes().min() <= 1


def test_dirichlet_alpha_sets_the_skew() -> None:
    source = make_source(4000, 8)

    def classes_held(alpha: float) -> float:
        spec = {"kind": "dirichlet", "alpha": alpha, "sites": 40, "samples_per_site": 40}
        data = partition(source, spec, seed=0)
        return float(np.mean([len(set(labels(data, i))) for i in range(40)]))

    assert classes_held(0.01) < 2.0 < 4.0 < classes_held(1.0) < 7.9 <= classes_held(1000.0)


def test_dirichlet_shares_match_the_distribution() -> None:
    """Variance of a class share at a site is that of Dirichlet-multinomial (plenty of rows)."""
    source = make_source(40_000, 4)
    spec = {"kind": "dirichlet", "alpha": 0.5, "sites": 400, "samples_per_site": 50}
    data = partition(source, spec, seed=1)
    shares = np.array([np.bincount(labels(data, i), minlength=4) / 50 for i in range(400)])
    p, total = 0.25, 4 * 0.5
    expected = p * (1 - p) / 50 * (50 + total) / (1 + total)
    assert shares.var(0) == pytest.approx(expected, rel=0.2)


@few
@given(
    k=st.integers(1, 5), sites=st.integers(1, 30), seed=st.integers(0, 2**40),
    size=st.none() | st.integers(1, 8),
)  # fmt: skip
def test_k_classes_at_every_site(k: int, sites: int, seed: int, size: int | None) -> None:
    source = make_source(1000, 5)
    spec = {"kind": "classes", "k": k, "sites": sites, "samples_per_site": size}
    data = partition(source, spec, seed)
    held = [set(labels(data, i)) for i in range(sites)]
    assert {len(h) for h in held} == {k if size is None else min(k, size)}
    assert len(set(data.sizes().tolist())) == 1
    assert size is None or data.sizes()[0] == size
    if size is None or size >= k:
        shared = [sum(c in h for h in held) for c in range(5)]
        assert max(shared) - min(shared) <= 1


def test_classes_with_more_places_than_rows() -> None:
    data = partition(make_source(12, 3), {"kind": "classes", "k": 2, "sites": 40}, seed=0)
    assert sorted(flat(data)) == list(range(12))
    assert (data.sizes() == 0).any()


def test_quantity() -> None:
    data = partition(make_source(110), {"kind": "quantity", "ratios": [45, 9, 1]}, seed=0)
    assert data.sizes().tolist() == [90, 18, 2]
    sizes = partition(make_source(500), {"kind": "quantity", "sigma": 2, "sites": 50}, 0).sizes()
    assert sizes.sum() == 500
    assert sizes.min() >= 1
    assert sizes.max() > 3 * np.median(sizes)


def test_natural_keeps_owners_and_what_they_hold_out() -> None:
    source = make_source(200, groups=9)
    local = np.arange(200) % 4 == 0
    source = Source(
        "small", "classification", source.train, None, 4, groups=source.groups, local_test=local
    )
    data = partition(source, "natural", seed=0)
    assert len(data) == 9
    assert data.public == {}
    for i, site in enumerate(rows_of(data)):
        assert set(source.groups[site["train"] + site["test"]]) == {i}
        assert local[site["test"]].all()
        assert not local[site["train"]].any()
    fewer = partition(source, {"kind": "natural", "max_sites": 3, "max_samples": 4}, seed=0)
    assert len(fewer) == 3
    assert fewer.sizes().max() == 4
    own = partition(source, {"kind": "natural", "test": 0.5}, seed=0)
    assert len(own.site(0).test) == round((source.groups == 0).sum() / 2)
    dissolved = partition(source, {"kind": "iid", "sites": 4}, seed=0)
    assert sorted(flat(dissolved)) == np.flatnonzero(~local).tolist()
    assert dissolved.public["test"].x[:, 0].long().tolist() == np.flatnonzero(local).tolist()


def test_natural_in_parts() -> None:
    source = make_source(200, groups=4)
    data = partition(source, {"kind": "natural", "parts": 5, "test": 0.2}, seed=0)
    assert len(data) == 20
    assert data.site_types is not None
    assert data.site_types.tolist() == np.repeat(np.arange(4), 5).tolist()
    assert data.site_name(6) == "1 2"
    for i, site in enumerate(rows_of(data)):
        assert set(source.groups[site["train"] + site["test"]]) == {i // 5}


def test_only_some_classes() -> None:
    """Kept classes are numbered as they are named, in training and public data alike."""
    source = make_source(200, 5, groups=9)
    held = Dataset(torch.arange(5.0)[:, None], torch.arange(5))
    local = np.arange(200) % 3 == 0
    source = replace(source, test=held, validation=held, local_test=local)
    data = partition(source, {"kind": "natural", "only": ["d", 1, "a"]}, seed=0)
    assert (data.classes, data.class_names) == (3, ("d", "b", "a"))
    wanted = {0: 3, 1: 1, 2: 0}
    rows = flat(data)
    assert sorted(rows) == [i for i, c in enumerate(source.train.y.tolist()) if c in (0, 1, 3)]
    for i in range(len(data)):
        for part, out in ((data.site(i).train, False), (data.site(i).test, True)):
            for row, label in zip(part.x[:, 0].long().tolist(), part.y.tolist()):
                assert source.train.y[row] == wanted[label]
                assert source.groups is not None
                assert (int(source.groups[row]), bool(local[row])) == (i, out)
    for public in data.public.values():
        assert public.y.tolist() == [2, 1, 0]
        assert public.x[:, 0].tolist() == [0, 1, 3]
    same = partition(source, {"kind": "iid", "only": list(range(5))}, seed=0)
    assert rows_of(same) == rows_of(partition(source, "iid", seed=0))


def test_owners_merged_into_sites() -> None:
    source = make_source(600, 6, groups=20)
    assert source.groups is not None
    data = partition(source, {"kind": "natural", "merge": 6}, seed=0)
    assert sorted(flat(data)) == list(range(600))
    owners = [set(source.groups[site["train"]]) for site in rows_of(data)]
    assert sorted(len(o) for o in owners) == [3, 3, 3, 3, 4, 4]  # nobody at two sites: 20 in all
    assert all(data.site_name(i).split()[0] == str(min(o)) for i, o in enumerate(owners))
    assert data.site_name(0).endswith(f" and {len(owners[0]) - 1} more")
    uneven = partition(source, {"kind": "natural", "merge": 6, "sigma": 2.0}, seed=0)
    counts = [len(set(source.groups[site["train"]])) for site in rows_of(uneven)]
    assert sum(counts) == 20
    assert min(counts) >= 1
    assert max(counts) > 5
    alone = partition(source, {"kind": "natural", "merge": 20}, seed=0)
    assert all(len(set(source.groups[site["train"]])) == 1 for site in rows_of(alone))


def test_few_classes_at_merged_sites() -> None:
    """The arrangement of FedProx and Upcycled-FL: 5 of 10 classes at each of 50 devices."""
    source = make_source(20_000, 10, groups=400)
    data = partition(source, {"kind": "natural", "merge": 50, "k": 5, "test": 0.1}, seed=0)
    held = [set(labels(data, i)) for i in range(50)]
    assert {len(h) for h in held} == {5}
    assert {sum(c in h for h in held) for c in range(10)} == {25}
    assert all(set(data.site(i).test.y.tolist()) <= held[i] for i in range(50))
    # All a site loses are the rows of the other classes.
    everything = partition(source, {"kind": "natural", "merge": 50, "test": 0.1}, seed=0)
    for few, all_ in zip(rows_of(data), rows_of(everything)):
        kept = set(all_["train"] + all_["test"])
        assert set(few["train"] + few["test"]) <= kept
    total = sum(len(r["train"]) + len(r["test"]) for r in rows_of(data))
    assert total == pytest.approx(10_000, rel=0.05)


def test_classes_at_unequal_sites() -> None:
    source = make_source(30_000, 10)
    spec = {"kind": "classes", "k": 5, "sites": 50, "sigma": 0.7}
    data = partition(source, spec, seed=0)
    counts = np.array([np.bincount(labels(data, i), minlength=10) for i in range(50)])
    assert ((counts > 0).sum(1) == 5).all()
    assert (counts.max(1) == counts.sum(1) // 5).all()  # as many of each class
    logs = np.log(data.sizes())
    assert logs.std() == pytest.approx(0.7, abs=4 * 0.7 / np.sqrt(2 * 50))
    # As many as there are: the scarcest class is nearly used up.
    left = np.bincount(source.train.y.numpy()) - counts.sum(0)
    assert 0 <= left.min() <= 25
    by_mean = partition(source, {**spec, "samples_per_site": 100}, seed=0)
    assert by_mean.sizes().mean() == pytest.approx(100, abs=5)
    one_each = partition(make_source(40, 10), spec, seed=0)
    assert len(set(flat(one_each))) == len(flat(one_each))


def test_types_as_in_pfa() -> None:
    source = make_source(2000, 10)
    pairs = [[2 * t, 2 * t + 1] for t in range(5)]
    spec = {"kind": "types", "types": pairs, "samples_per_site": 30, "test_per_site": 20}
    data = partition(source, spec, seed=0)
    assert len(data) == 25
    for i in range(25):
        site = data.site(i)
        assert np.bincount(site.train.y, minlength=10)[pairs[i // 5]].tolist() == [15, 15]
        assert np.bincount(site.test.y, minlength=10)[pairs[i // 5]].tolist() == [10, 10]


def test_holdouts_and_public_validation() -> None:
    spec = {"kind": "iid", "sites": 4, "test": 0.2, "validation": 0.1, "public_validation": 0.25}
    data = partition(make_source(), spec, seed=0)
    site = data.site(2)
    assert (len(site.train), len(site.validation), len(site.test)) == (21, 3, 6)
    public = {key: set(d.x[:, 0].tolist()) for key, d in data.public.items()}
    assert (len(public["test"]), len(public["validation"])) == (15, 5)
    assert not public["test"] & public["validation"]
    tiny = partition(make_source(3), {"kind": "iid", "sites": 3, "test": 0.9}, seed=0)
    assert tiny.sizes().tolist() == [1, 1, 1]


def test_pool_is_the_same_rows() -> None:
    data = partition(make_source(), {"kind": "iid", "sites": 5, "test": 0.2}, seed=0)
    twin = pool(data)
    assert len(twin) == 1
    assert sorted(twin.site(0).train.x[:, 0].tolist()) == sorted(
        x for i in range(5) for x in data.site(i).train.x[:, 0].tolist()
    )
    assert len(twin.site(0).test) == sum(len(data.site(i).test) for i in range(5))
    assert len(partition(make_source(), "pooled", seed=0).site(0).train) == 120


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"kind": "classes", "k": 5}, "k = 5"),
        ({"kind": "classes", "k": 2, "samples_per_site": 999}, "samples_per_site = 999"),
        ({"kind": "natural"}, "does not say who owns"),
        ({"kind": "quantity", "ratios": [1, 2], "sites": 3}, "2 ratios for sites = 3"),
        ({"kind": "quantity"}, "either ratios or sigma"),
        ({"kind": "quantity", "ratios": [1, -2]}, "ratios"),
        ({"kind": "iid", "samples_per_site": 13}, "samples_per_site asks for 130"),
        ({"kind": "iid", "samples_per_site": [1, 2]}, "2 numbers for sites = 10"),
        ({"kind": "dirichlet"}, "alpha"),
        ({"kind": "dirichlet", "alpha": 0}, "alpha"),
        ({"kind": "dirichlet", "alpha": 1, "site": 3}, "site"),
        ({"kind": "types", "types": [[0, 7]]}, "class 7"),
        ({"kind": "types", "types": [["z"]]}, "no class 'z'"),
        ({"kind": "types", "types": [[1, 1]]}, r"types\[0\]"),
        ({"kind": "types", "types": [[0]], "test": 0.5}, "test_per_site"),
        ({"kind": "iid", "test": 0.6, "validation": 0.4}, "below 1"),
        ({"kind": "idd"}, "kind"),
        ({"kind": "iid", "only": ["z"]}, "only: small has no class 'z'"),
        ({"kind": "iid", "only": [9]}, "only: class 9"),
        ({"kind": "iid", "only": [1, 1]}, "only: must name different classes"),
        ({"kind": "iid", "only": []}, "only"),
        ({"kind": "natural", "sigma": 1.0}, "give merge, too"),
        ({"kind": "classes", "k": 2, "samples_per_site": 999, "sigma": 1}, "samples_per_site"),
    ],
)
def test_impossible_asks_name_the_field(spec: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        partition(make_source(), spec, seed=0)


def test_impossible_merges() -> None:
    source = make_source(groups=5)
    with pytest.raises(DataError, match="merge = 9, but there are 5 owners"):
        partition(source, {"kind": "natural", "merge": 9}, seed=0)
    with pytest.raises(DataError, match="k = 9"):
        partition(source, {"kind": "natural", "k": 9}, seed=0)
    with pytest.raises(DataError, match="only: diabetes is regression"):
        partition(load("diabetes"), {"kind": "iid", "only": [1]}, seed=0)


def test_no_public_test_set_to_validate_on() -> None:
    with pytest.raises(DataError, match="public_validation"):
        partition(make_source(test=0), {"kind": "iid", "public_validation": 0.5}, seed=0)


def test_labels_need_classes() -> None:
    with pytest.raises(DataError, match="regression"):
        partition(load("diabetes"), {"kind": "dirichlet", "alpha": 1.0}, seed=0)
    assert len(partition(load("diabetes"), {"kind": "iid", "sites": 3}, seed=0)) == 3


def test_a_million_sites_cost_almost_nothing() -> None:
    source = Source(
        "s", "classification", Dataset(torch.zeros(50, 2), torch.zeros(50).long()), None, 2
    )
    data = partition(source, {"kind": "iid", "sites": 1_000_000}, seed=0)
    assert data.sizes().sum() == 50
    assert len(data.site(999_999).train) == 0
    assert data.site(999_999).train.inputs().shape == (0, 2)
