"""Regression, segmentation, language and binary tasks train: a few rounds, a lower loss."""

import pytest
import small
import torch

from cupola.data import SiteData, load, partition
from cupola.nn import build, default_loss, find_loss
from cupola.training import Evaluation, Local, Problem, Training


def trained(data, name, rounds, local, loss=None, **options):
    what = Problem(
        lambda: build(name, data.input_shape, data.classes, 1, **options),
        loss or default_loss(data.kind),
        data.kind,
        data.classes,
        data.input_shape,
        "cpu",
        tokens=data.vocabulary,
    )
    judge = Evaluation(every=rounds)
    program = Training(
        what, len(data), rounds, local=local, evaluation=judge, public=data.public, seed=1
    )
    before = program.judge(program.start().arrays, data.public["test"])
    after = small.run(program, data, "auto").values["last"]["test"]
    return before, after


def test_regression():
    data = partition(load("diabetes"), {"kind": "iid", "sites": 4}, seed=1)
    before, after = trained(data, "mlp", 6, Local(lr=0.05, batch_size=20), hidden=[8])
    assert after["loss"] < 0.8 * before["loss"]
    assert after["rmse"] < before["rmse"]
    assert after["r2"] > 0.2


@pytest.mark.parametrize("send", ["change", "gradients"])
def test_binary_with_log_loss(send):
    data = partition(load("breast_cancer"), {"kind": "iid", "sites": 4}, seed=1)
    local = Local(lr=0.1, batch_size=20, send=send)
    before, after = trained(data, "mlp", 4, local, find_loss("log"), hidden=[])
    assert after["loss"] < 0.5 * before["loss"]
    assert after["accuracy"] > 0.9


def test_segmentation():
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (26, 2, 2), generator=generator)
    y = y.repeat_interleave(4, 1).repeat_interleave(4, 2)  # squares
    noise = torch.rand(26, 1, 8, 8, generator=generator)
    x = (y[:, None] * 150 + 100 * noise).to(torch.uint8)
    y[:, 0, 0] = 255  # a pixel without label
    sites = [SiteData(small.rows(x[i : i + 6], y[i : i + 6])) for i in (0, 6, 12)]
    test = {"test": small.rows(x[18:], y[18:])}
    data = small.federation(sites, "segmentation", 2, (1, 8, 8), test)
    before, after = trained(data, "fcn", 6, Local(lr=0.1, batch_size=3), width=4, group_size=2)
    assert after["loss"] < 0.7 * before["loss"]
    assert after["miou"] > before["miou"]
    assert after["miou"] > 0.8


def test_language():
    start = torch.arange(40)[:, None] % 5
    text = (start + torch.arange(8)) % 5  # the next token is the one after
    sites = [SiteData(small.rows(text[i : i + 8, :-1], text[i : i + 8, 1:])) for i in (0, 8, 16)]
    test = {"test": small.rows(text[24:, :-1], text[24:, 1:])}
    data = small.federation(sites, "language", 5, (7,), test)
    data.vocabulary = 5
    local = Local(lr=0.05, batch_size=4, optimizer="adam", epochs=2)
    before, after = trained(data, "char_lstm", 5, local, hidden=12, layers=1)
    assert after["loss"] < 0.7 * before["loss"]
    assert after["accuracy"] > 0.8
