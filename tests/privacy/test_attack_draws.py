"""Masks and augmentations of a real site must not follow from the plan's seed, which all know."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cupola.federation import SiteContext, StateStore
from cupola.training.choices import Privacy
from cupola.training.local import augmentation, own_randomness


@pytest.fixture
def site():
    """As `cupola.site.open` opens it: real, with the seed of the plan."""
    data = SimpleNamespace(train=SimpleNamespace(transform=object()))
    return SiteContext(0, data, None, StateStore(), 3, real=True)


QUESTION = SimpleNamespace(round=1)


def test_dropout_masks_of_a_real_site_do_not_follow_from_the_plan(site):
    masks = []
    for _ in range(2):
        with own_randomness(site, QUESTION, SimpleNamespace(serial=True)):
            masks.append(torch.nn.functional.dropout(torch.ones(100)))
    assert not torch.equal(*masks)


def test_augmentations_of_a_real_site_do_not_follow_from_the_plan(site):
    draws = [
        torch.rand(
            8,
            generator=augmentation(site, QUESTION, Privacy(mechanism="dp-sgd", noise_multiplier=1)),
        )
        for _ in range(2)
    ]
    assert not np.array_equal(*draws)
