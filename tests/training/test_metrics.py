"""Metrics from sums against scikit-learn, and sums over sites against pooled data."""

import math

import numpy as np
import pytest
import small
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk
from torch import nn

from cupola.data import SiteData
from cupola.errors import PlanError
from cupola.federation import Question
from cupola.nn import find_loss
from cupola.training import Evaluation, Problem, Workspace
from cupola.training.metrics import auroc, confusion, count, expected, metrics


class Echo(nn.Module):
    """Gives its inputs as outputs, so that a test can choose them."""

    def __init__(self):
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.one


def space(kind="classification", classes=4, shape=(4,), loss="cross_entropy", **more):
    chosen = find_loss(loss) if isinstance(loss, str) else loss
    return Workspace(Problem(Echo, chosen, kind, classes, shape, "cpu", torch.float64, **more))


def measured(where, output, y, **options):
    sums = count(where, [small.rows(output, y)], options)
    assert sums.keys() == expected(where.problem, options).keys()
    return metrics(sums), sums


def scored(n=200, classes=4, seed=0, *shape):
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, (n, *shape))
    output = random.normal(size=(n, classes, *shape))
    output += 1.2 * np.moveaxis(np.eye(classes)[y], -1, 1)  # somewhat right
    return output, y


def test_classification():
    output, y = scored()
    got, sums = measured(space(), output, y, batch_size=32)
    guess = output.argmax(1)
    assert got["accuracy"] == pytest.approx(sk.accuracy_score(y, guess), rel=1e-12)
    assert got["class_accuracy"] == pytest.approx(sk.balanced_accuracy_score(y, guess), rel=1e-12)
    assert got["miou"] == pytest.approx(sk.jaccard_score(y, guess, average="macro"), rel=1e-12)
    assert confusion(sums) == sk.confusion_matrix(y, guess).tolist()
    chance = np.exp(output) / np.exp(output).sum(1, keepdims=True)
    assert got["loss"] == pytest.approx(sk.log_loss(y, chance), rel=1e-12)
    assert got["samples"] == 200


def test_a_class_that_nobody_has_does_not_count():
    output, y = scored(classes=3)
    output = np.concatenate([output, np.full((200, 1), -9.0)], 1)
    got, _ = measured(space(), output, y)
    guess = output.argmax(1)
    assert got["class_accuracy"] == pytest.approx(sk.balanced_accuracy_score(y, guess))
    assert got["miou"] == pytest.approx(sk.jaccard_score(y, guess, average="macro"))


@pytest.mark.parametrize("shape", [(), (1,)])
def test_one_logit_for_two_classes(shape):
    output, y = scored(classes=2)
    logit = output[:, 1] - output[:, 0]
    where = space(classes=2, shape=shape or (1,), loss="log")
    got, sums = measured(where, logit.reshape(200, *shape), y, auroc=1000)
    assert got["accuracy"] == pytest.approx(sk.accuracy_score(y, logit > 0))
    assert confusion(sums) == sk.confusion_matrix(y, logit > 0).tolist()
    assert abs(got["auroc"] - sk.roc_auc_score(y, logit)) <= got["auroc_error"] + 1e-9


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(2, 120),
    classes=st.integers(2, 4),
    bins=st.integers(1, 300),
    sharp=st.floats(0.0, 8.0),
    seed=st.integers(0, 10**6),
)
def test_auroc_is_within_its_stated_error(n, classes, bins, sharp, seed):
    output, y = scored(n, classes, seed)
    got, _ = measured(space(classes=classes), sharp * output, y, auroc=bins)
    chance = torch.softmax(torch.from_numpy(sharp * output).float(), 1).numpy()
    sides = [c for c in range(classes) if 0 < (y == c).sum() < n]
    if not sides:
        assert "auroc" not in got
        return
    exact = np.mean([sk.roc_auc_score(y == c, chance[:, c]) for c in sides])
    assert abs(got["auroc"] - exact) <= got["auroc_error"] + 1e-9
    assert 0 <= got["auroc_error"] <= 0.5


def test_auroc_of_exact_bins():
    # Scores fall on bins one to one, so only true ties are left, which count one half.
    own, rest = np.array([0, 1, 2, 3.0]), np.array([3, 2, 1, 0.0])
    y = np.repeat([1, 0], [6, 6])
    score = np.concatenate(
        [np.repeat(range(4), own.astype(int)), np.repeat(range(4), [3, 2, 1, 0])]
    )
    area, error = auroc(np.array([[rest, own]]))
    assert area == pytest.approx(sk.roc_auc_score(y, score), rel=1e-12)
    assert error > 0
    assert np.isnan(auroc(np.zeros((2, 2, 4)))[0])


@pytest.mark.parametrize("shape", [(), (3,)])
def test_regression(shape):
    random = np.random.default_rng(0)
    y = random.normal(50, 3, (80, *shape))
    guess = y + random.normal(size=y.shape)
    where = space("regression", None, shape or (1,), "squared_error")
    got, _ = measured(where, guess, y, batch_size=7)
    assert got["rmse"] == pytest.approx(sk.root_mean_squared_error(y.ravel(), guess.ravel()))
    assert got["r2"] == pytest.approx(sk.r2_score(y.ravel(), guess.ravel()), rel=1e-9)
    assert got["loss"] == pytest.approx(got["rmse"] ** 2, rel=1e-12)


def test_constant_targets_have_no_r2():
    where = space("regression", None, (1,), "squared_error")
    got, _ = measured(where, np.full(30, 0.2), np.full(30, 0.1))
    assert got["rmse"] == pytest.approx(0.1)
    assert "r2" not in got


def test_segmentation_leaves_pixels_without_label_out():
    output, y = scored(6, 3, 0, 5, 4)
    y[0], y[1, :2] = 255, 255
    loss = find_loss("cross_entropy", ignore_index=255)
    got, sums = measured(space("segmentation", 3, (3, 5, 4), loss), output, y)
    guess, valid = output.argmax(1), y != 255
    assert got["accuracy"] == pytest.approx(sk.accuracy_score(y[valid], guess[valid]))
    assert got["miou"] == pytest.approx(sk.jaccard_score(y[valid], guess[valid], average="macro"))
    assert confusion(sums) == sk.confusion_matrix(y[valid], guess[valid]).tolist()
    assert got["samples"] == 6


def test_language_accuracy_ignores_tokens():
    random = np.random.default_rng(0)
    y = random.integers(0, 7, (20, 9))
    output = random.normal(size=(20, 9, 7)) + np.eye(7)[y]
    guess, valid = output.argmax(-1), (y != 0) & (y != 6)
    got, sums = measured(space("language", 7, (9, 7), ignore=(0, 6)), output, y)
    assert got["accuracy"] == pytest.approx(sk.accuracy_score(y[valid], guess[valid]))
    assert "confusion" not in sums  # vocabularies are large
    assert confusion(sums) is None
    everything, _ = measured(space("language", 7, (9, 7)), output, y)
    assert everything["accuracy"] == pytest.approx(sk.accuracy_score(y.ravel(), guess.ravel()))


def test_as_many_scores_as_classes():
    output, y = scored(classes=4)
    with pytest.raises(PlanError, match="gives 4 scores, the data have 5 classes"):
        measured(space(classes=5), output, y)


def test_no_samples_no_metrics():
    got, _ = measured(space(), np.zeros((0, 4)), np.zeros(0, np.int64))
    assert got == {}


@pytest.mark.parametrize("mode", ["one-by-one", "auto"])
@pytest.mark.parametrize("batch_size", [7, 512])
def test_sums_over_sites_are_the_pooled_counts(mode, batch_size):
    sizes = (11, 1, 23, 0, 5)
    data = small.digits(sizes)
    sites = [SiteData(site.train, test=site.train) for site in map(data.site, range(5))]
    data = small.federation(sites)
    judge = Evaluation(on="sites", auroc=20, batch_size=batch_size)
    program = small.training(data, 1, evaluation=judge, site_splits=frozenset({"test"}))
    arrays = program.start().arrays
    options = program._options("test")
    question = Question("evaluate", arrays, options, expected(program.problem, options))
    with small.engine(program, data, mode) as reach:
        total = reach.sum(question, range(5))
    assert total.failed == {3: "no samples"}
    pooled = small.rows(
        torch.cat([s.train.x for s in sites]), torch.cat([s.train.y for s in sites])
    )
    program.space.load(arrays)
    whole = count(program.space, [pooled], options)
    for name, array in whole.items():
        assert np.abs(total.arrays[name] - array).max() <= 1e-9, name
    assert metrics(total.arrays)["samples"] == sum(sizes)


def test_tokens_that_do_not_count_are_in_the_loss_unless_they_pad():
    random = np.random.default_rng(3)
    output, y = random.normal(size=(9, 6, 5)), random.integers(0, 5, (9, 6))
    y[:, -1] = 0
    loss = find_loss("cross_entropy", ignore_index=0)
    where = space("language", 5, (6,), loss, ignore=(0, 3, 4))
    got, sums = measured(where, output, y)
    counted = (y == 1) | (y == 2)
    assert sums["counted"] == counted.sum()
    assert got["accuracy"] == pytest.approx((output.argmax(-1) == y)[counted].mean())
    each = np.log(np.exp(output).sum(-1)) - np.take_along_axis(output, y[..., None], -1)[..., 0]
    own = (each * (y > 0)).sum(1) / np.maximum((y > 0).sum(1), 1)
    assert got["loss"] == pytest.approx(own.mean())


def test_thousands_of_words_are_counted_in_few_numbers_and_small_batches(monkeypatch):
    where = space("language", 10_004, (20,))
    assert sum(math.prod(s.shape) for s in expected(where.problem, {}).values()) == 4
    with pytest.raises(PlanError, match="10,004 classes are too much"):
        expected(where.problem, {"auroc": 10})
    assert "confusion" not in expected(space(classes=1001).problem, {})
    assert "confusion" in expected(space(classes=1000).problem, {})
    random = np.random.default_rng(3)
    output, y = random.normal(size=(30, 6, 5)), random.integers(0, 5, (30, 6))
    where = space("language", 5, (6,))
    whole, _ = measured(where, output, y)
    monkeypatch.setattr("cupola.training.metrics.SCORES", 100)  # three samples at a time
    parts, _ = measured(where, output, y)
    assert parts == pytest.approx(whole)
