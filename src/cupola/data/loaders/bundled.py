"""Sets that come with scikit-learn: no file, no download."""

from __future__ import annotations

import numpy as np
import torch

from cupola.data.dataset import Dataset, Source
from cupola.data.loaders._common import classes, public_split
from cupola.data.loading import dataset


@dataset("digits")
def digits(test: float = 0.2) -> Source:
    """1,797 grey images of digits, 1 x 8 x 8, 10 classes; `test` is the public share, stratified.

    Pixels of 0..16 are kept as 0..255 (uint8), so inputs are in 0..1 to within 1/500.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)
    data = Dataset(torch.from_numpy(pixels[:, None]), classes(bunch.target))
    train, held, _ = public_split(data, test, bunch.target)
    names = tuple(str(d) for d in range(10))
    return Source("digits", "classification", train, held, classes=10, class_names=names)


@dataset("breast_cancer")
def breast_cancer(test: float = 0.2) -> Source:
    """569 tumours, 30 features, malignant or benign; features standardised by the training part."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    data = Dataset(torch.from_numpy(bunch.data), classes(bunch.target))
    train, held, _ = public_split(data, test, bunch.target)
    train, held = standardised(train, held)
    names = tuple(str(n) for n in bunch.target_names)
    return Source("breast_cancer", "classification", train, held, classes=2, class_names=names)


@dataset("diabetes")
def diabetes(test: float = 0.2) -> Source:
    """442 patients, 10 features, disease progression after a year (regression).

    Features and target are standardised by the training part: a squared error of 1 is the mean's.
    """
    from sklearn.datasets import load_diabetes

    bunch = load_diabetes()
    data = Dataset(torch.from_numpy(bunch.data), torch.from_numpy(bunch.target))
    train, held, _ = public_split(data, test)
    mean, std = train.y.mean(), train.y.std()
    train = Dataset(train.x, ((train.y - mean) / std).float())
    held = None if held is None else Dataset(held.x, ((held.y - mean) / std).float())
    train, held = standardised(train, held)
    return Source("diabetes", "regression", train, held)


def standardised(train: Dataset, test: Dataset | None) -> tuple[Dataset, Dataset | None]:
    """Float32 features with mean 0 and deviation 1 in `train`; constant features become 0."""
    x = train.inputs().double()
    mean, std = x.mean(0), x.std(0)
    std = torch.where(std > 0, std, torch.ones_like(std))

    def scaled(data: Dataset) -> Dataset:
        return Dataset(((data.inputs().double() - mean) / std).float(), data.y)

    return scaled(train), None if test is None else scaled(test)
