"""Augmentation: exact small cases, vectorised against the obvious loop."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from cupola.data import Dataset, load, partition, transforms
from cupola.data.transform import Crop, Cutout, Flip, Resize
from cupola.errors import DataError


def gen(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(n: int = 50, size: int = 6) -> torch.Tensor:
    return torch.rand(n, 3, size, size, generator=gen(9))


def test_flip() -> None:
    x = batch()
    assert torch.equal(Flip(1.0)(x, gen()), x.flip(-1))
    assert torch.equal(Flip(0.0)(x, gen()), x)
    out = Flip()(x, gen())
    flipped = [torch.equal(o, i.flip(-1)) for o, i in zip(out, x)]
    assert 10 < sum(flipped) < 40
    assert all(f or torch.equal(o, i) for f, o, i in zip(flipped, out, x))


@pytest.mark.parametrize(("padding", "size"), [(2, None), (0, 4), (1, 5)])
def test_crop_equals_the_loop(padding: int, size: int | None) -> None:
    x, out_size = batch(), size or 6
    out = Crop(padding, size)(x, gen(3))
    draws = gen(3)
    span = 6 + 2 * padding - out_size + 1
    top = torch.randint(span, (50,), generator=draws)
    left = torch.randint(span, (50,), generator=draws)
    padded = F.pad(x, [padding] * 4)
    for i in range(50):
        rows, columns = slice(top[i], top[i] + out_size), slice(left[i], left[i] + out_size)
        assert torch.equal(out[i], padded[i, :, rows, columns])
    assert len(set(top.tolist())) > 1


def test_crop_larger_than_the_image() -> None:
    with pytest.raises(DataError, match="size = 9"):
        Crop(size=9)(batch(), gen())


def test_cutout() -> None:
    out = Cutout(2)(torch.ones(200, 3, 6, 6), gen())
    holes = (out == 0).sum((2, 3))
    assert torch.equal(holes[:, 0], holes[:, 1])
    assert holes.max() == 4
    assert (out[holes[:, 0] == 4] == 1).any()


def test_the_same_generator_gives_the_same() -> None:
    made = transforms(["flip", {"crop": 2}, {"cutout": 3}]).augment
    assert made is not None
    assert torch.equal(made(batch(), gen(1)), made(batch(), gen(1)))
    assert not torch.equal(made(batch(), gen(1)), made(batch(), gen(2)))
    assert len(made(batch(0), gen(1))) == 0


def test_normalise_and_resize_are_for_every_input() -> None:
    parsed = transforms(
        [{"normalise": {"mean": [0.5, 0.0, 0.0], "std": 0.25}}, {"resize": 3}, "flip"]
    )
    data = Dataset((batch() * 255).byte(), torch.zeros(50))
    for seen in (parsed.training(data), parsed.evaluation(data)):
        by_hand = Resize(3)((data.inputs() - torch.tensor([0.5, 0, 0])[:, None, None]) / 0.25)
        assert torch.equal(seen.inputs(), by_hand)
    assert parsed.evaluation(data).transform is None


def test_apply_is_lazy_and_crops_centrally_in_evaluation() -> None:
    data = partition(load("digits"), {"kind": "iid", "sites": 4, "test": 0.2}, seed=0)
    cropped = transforms([{"crop": {"size": 6}}, "flip"]).apply(data)
    assert cropped.input_shape == (1, 6, 6)
    assert cropped.sizes().tolist() == data.sizes().tolist()
    site, raw = cropped.site(1), data.site(1)
    assert site.train.transform is not None
    assert site.train.transform(site.train.inputs([0, 1]), gen()).shape == (2, 1, 6, 6)
    for seen, before in ((site.test, raw.test), (site.train.plain(), raw.train)):
        assert torch.equal(seen.inputs(), before.inputs()[..., 1:7, 1:7])
    assert cropped.public["test"].inputs().shape[1:] == (1, 6, 6)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (["filp"], "did you mean 'flip'"),
        (["os:system"], "there is no transform 'os:system'"),  # plans of others import nothing
        ([{"crop": {"pad": 3}}], "no setting 'pad'"),
        ([{"crop": "four"}], "not a number"),
        ([{"normalise": 0.5}], "needs mean and std"),
    ],
)
def test_misspelt(spec: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        transforms(spec)


def test_only_images() -> None:
    data = partition(load("breast_cancer"), "pooled", seed=0)
    with pytest.raises(DataError, match="for images"):
        transforms(["flip"]).apply(data)
