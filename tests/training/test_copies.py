"""Augmentation multiplicity: what each copy of an example is, and that their mean is clipped."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from small import CROSS_ENTROPY, digits, seeded
from torch import nn

import cupola
from cupola.analysis.plan_file import load
from cupola.data.transform import Crop, Flip
from cupola.errors import CupolaError
from cupola.federation import SiteContext, StateStore
from cupola.nn import KNConv2d
from cupola.training import Evaluation, Local, Privacy, Problem, Training, TrainingHost
from cupola.training.build import federated_data
from cupola.training.local import train
from cupola.training.mechanisms.dp_sgd import copies_of
from cupola.training.plan import changed as with_settings

RECIPE = ("original", {"flip": 1}, {"crop": 2})
CLIP = 0.05


def private(augmentations=RECIPE):
    return Privacy(mechanism="dp-sgd", noise_multiplier=0.0, clip=CLIP, augmentations=augmentations)


def test_the_copies_are_the_original_the_mirrored_and_the_cropped():
    held = digits((30,), public=False).site(0).train
    generator = torch.Generator().manual_seed(5)
    x = held.inputs()
    made = [
        c.inputs() if c.transform is None else c.transform(c.inputs(), generator)
        for c in copies_of(held, private())
    ]
    assert len(made) == 3
    assert torch.equal(made[0], x)
    assert torch.equal(made[1], x.flip(-1))
    padded = nn.functional.pad(x, [2] * 4)
    places = {
        next(
            (top, left)
            for top, left in product(range(5), repeat=2)
            if torch.equal(padded[i, :, top : top + 8, left : left + 8], made[2][i])
        )
        for i in range(30)
    }
    assert len(places) > 10  # every image is cut at a place of its own


def answer(dropout):
    """What a site of 12 images sends after one noiseless step, and what it was made from."""
    model = seeded(
        lambda: nn.Sequential(
            KNConv2d(1, 4, 3, padding=1, dropout=dropout),
            nn.Tanh(),
            nn.Conv2d(4, 2, 3),
            nn.Flatten(),
            nn.Linear(72, 10),
        )
    )
    data = digits((12,), public=False)
    problem = Problem(model, CROSS_ENTROPY, "classification", 10, (1, 8, 8), "cpu", torch.float64)
    program = Training(
        problem,
        1,
        1,
        seed=3,
        privacy=private(),
        local=Local(work="gradient", lr=1.0),
        evaluation=Evaluation(every=1000),
    )
    host = TrainingHost(problem, data)
    site = SiteContext(0, data.site(0), host.workspace(), StateStore(), 3)
    question = program.ask(program.start()).question
    return train(site, question).arrays, site, problem


def test_the_mean_over_the_copies_is_clipped_not_the_copies():
    got, site, problem = answer(dropout=0.0)
    x, y = site.data.train.inputs().double(), site.data.train.y
    generator = torch.Generator().manual_seed(int(site.generator("augment", 1).integers(2**62)))
    Flip(1.0)(x, generator)  # the mirrored copy draws, too, though nothing hangs on it
    cropped = Crop(2)(x, generator)
    module = problem.module()
    parameters = list(module.parameters())
    wanted = [torch.zeros_like(p) for p in parameters]
    too_long = 0
    for i in range(12):
        each = [
            torch.autograd.grad(CROSS_ENTROPY(module(c[None]), y[i : i + 1]).sum(), parameters)
            for c in (x[i], x[i].flip(-1), cropped[i])
        ]
        mean = [sum(g) / 3 for g in zip(*each)]
        norm = torch.stack([g.norm() for g in mean]).norm()
        longest = max(torch.stack([g.norm() for g in e]).norm() for e in each)
        too_long += int(longest > 1.01 * norm > 1.01 * CLIP)
        for sum_, g in zip(wanted, mean):
            sum_ += g * (CLIP / norm).clamp_max(1) / 12
    assert too_long == 12  # clipping every copy would give something else
    for (name, _), w in zip(module.named_parameters(), wanted):
        assert np.allclose(got[f"model/{name}"], w.numpy(), rtol=1e-5, atol=1e-9)


def test_with_dropout_no_example_counts_more_than_the_clip():
    got, *_ = answer(dropout=0.1)
    length = math.sqrt(sum(float((a**2).sum()) for a in got.values()))
    assert 0.1 * CLIP < length <= CLIP * (1 + 1e-6)


PLAN = {
    "name": "copies",
    "rounds": 2,
    "data": {"name": "digits", "partition": {"kind": "iid", "sites": 2}},
    "model": {"name": "linear"},
    "local": {"work": "batches", "batches": 1, "batch_size": 50, "lr": 0.5},
    "privacy": {"mechanism": "dp-sgd", "noise_multiplier": 1.0, "augmentations": list(RECIPE)},
}


def changed(**settings):
    return cupola.Plan.model_validate(PLAN).change(settings)


def test_a_plan_lists_the_copies_and_its_accounting_stays(tmp_path):
    plan = changed()
    assert cupola.Plan.model_validate(plan.to_dict()) == plan
    with_copies = cupola.run(plan, tmp_path / "copies")
    alone = cupola.run(changed(**{"privacy.augmentations": 1}), tmp_path / "alone")
    assert with_copies.result["status"] == alone.result["status"] == "finished"
    assert with_copies.result["privacy"]["epsilon"] == alone.result["privacy"]["epsilon"]
    assert with_copies.history[-1]["test"]["loss"] != alone.history[-1]["test"]["loss"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"privacy.augmentations": 3}, "copies would be the same"),
        ({"data.augment": ["flip"]}, "cannot have random steps, too"),
        ({"privacy.augmentations": ["original", {"flop": 1}]}, "did you mean 'flip'"),
        ({"privacy.augmentations": ["original", {"resize": 4}]}, "takes flip, crop or cutout"),
        ({"privacy.augmentations": ["original", {}]}, "takes flip, crop or cutout"),
        ({"privacy.augmentations": [{"crop": {"size": 4}}]}, "keeps the size"),
        ({"privacy.augmentations": []}, "privacy.augmentations"),
        ({"privacy.augmentations": 0}, "privacy.augmentations"),
        ({"privacy.mechanism": "central"}, "belongs to mechanism 'dp-sgd'"),
    ],
)
def test_copies_that_cannot_be_are_refused(settings, words):
    with pytest.raises(CupolaError, match=words):
        load(with_settings(PLAN, settings))


def test_copies_are_of_images():
    with pytest.raises(CupolaError, match="transforms are for images"):
        federated_data(
            changed(**{"data.name": "breast_cancer", "privacy.augmentations": ["original"]})
        )
