"""The task 'evaluate': metrics as sums, so that nobody's own numbers are seen.

A site answers counts (samples, loss, correct, confusion, score histograms); the coordinator turns
totals into metrics. AUROC from histograms with b bins errs by at most half the share of pairs
that fall into one bin, which is reported beside it. With several targets per sample, r2 is taken
over all numbers as one column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cupola.data.dataset import Dataset
from cupola.errors import CupolaError, PlanError
from cupola.federation.message import Arrays, Contribution, Declined, Question, Spec, blank
from cupola.federation.site import Partial, SiteContext, task
from cupola.training.choices import Evaluation
from cupola.training.methods import own_of
from cupola.training.methods.own_parts import HANDED, MISSED, judged
from cupola.training.workspace import Problem, Workspace, workspace_of

if TYPE_CHECKING:
    from cupola.training.loop import Training

SHOWN_CLASSES = 200  # a confusion matrix beyond this is nothing to look at
COUNTED_CLASSES = 1000  # beyond this it is not counted, nor are histograms of scores
SCORES = 2**24  # numbers that a batch of next words may give at a time


@task("evaluate")
def evaluate(site: SiteContext, question: Question) -> Contribution:
    """Counts of the received model on this site's held-out data; of its own, where a method makes
    one (options: 'split', 'method')."""
    data = getattr(site.data, question.options["split"])
    if not len(data):
        raise Declined("no samples")
    space = workspace_of(site)
    space.load(judged(site, question, own_of(question)))
    return Contribution(count(space, [data], question.options))


@evaluate.rehearses
def _rehearsed(sites: Sequence[SiteContext], question: Question) -> list[Arrays | str]:
    counts: Arrays = {name: blank(spec) for name, spec in question.expects.items()}
    split, handed = question.options["split"], question.options.get(HANDED)
    return [
        "no samples"
        if not len(getattr(site.data, split))
        else MISSED
        if handed and not len(site.data.train)
        else counts
        for site in sites
    ]


@evaluate.many
def evaluate_together(sites: Sequence[SiteContext], question: Question) -> list[Partial] | None:
    """All sites share one model here: their samples go through it in common batches. Where each has
    its own, they are computed one by one."""
    if "method" in question.options:
        return [_alone(site, question) for site in sites]
    space = workspace_of(sites[0])
    held = [getattr(site.data, question.options["split"]) for site in sites]
    answered = [site.index for site, data in zip(sites, held) if len(data)]
    failed = {site.index: "no samples" for site, data in zip(sites, held) if not len(data)}
    if not answered:
        return [Partial({}, 0.0, [], failed, {})]
    space.load(question.arrays)
    counts = count(space, [data for data in held if len(data)], question.options)
    sums = {name: np.asarray(array, np.float64) for name, array in counts.items()}
    return [Partial(sums, float(len(answered)), answered, failed, counts)]


def _alone(site: SiteContext, question: Question) -> Partial:
    try:
        counts = evaluate(site, question).arrays
    except Declined as declined:
        return Partial({}, 0.0, [], {site.index: declined.code}, {})
    sums = {name: np.asarray(array, np.float64) for name, array in counts.items()}
    return Partial(sums, 1.0, [site.index], {}, counts)


def count(space: Workspace, data: Sequence[Dataset], options: Mapping) -> Arrays:
    """The sums that metrics are made of, over all samples of these data sets."""
    problem = space.problem
    sums = {name: torch.zeros(s.shape, dtype=torch.float64) for name, s in _specs(problem, options)}
    space.module.eval()
    try:
        for x, y in _batches(space, data, _rows(problem, options.get("batch_size", 512))):
            with torch.inference_mode():  # batches are made outside: what is kept is trained on
                _count_batch(problem, space.module(x), y, sums)
    finally:
        space.module.train()
    return {
        name: sums[name].numpy().astype(np.int64 if s.kind == "int" else np.float64)
        for name, s in _specs(problem, options)
    }


def _rows(problem: Problem, size: int) -> int:
    """Samples at a time; fewer where each gives thousands of scores for every word."""
    if problem.kind != "language":
        return size
    each = math.prod(problem.input_shape) * (problem.classes or 1)
    return max(1, min(size, SCORES // each))


def _batches(
    space: Workspace, data: Sequence[Dataset], size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches that may span data sets: a thousand tiny sites cost a few passes."""
    parts: list[tuple[Tensor, Tensor]] = []
    held = 0
    for dataset in data:
        slices = [slice(start, start + size) for start in range(0, len(dataset), size)]
        space.soon(dataset, slices)
        for part in slices:
            parts.append(space.batch(dataset, part))
            held += len(parts[-1][0])
            if held >= size:
                yield torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
                parts, held = [], 0
    if parts:
        yield torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def expected(problem: Problem, options: Mapping) -> dict[str, Spec]:
    """Names and shapes of an 'evaluate' answer."""
    return dict(_specs(problem, options))


def require_judged(training: Training) -> None:
    """Refuse an evaluation without its data."""
    judge, held = training.evaluation, "test" in training.site_splits
    _require_measured(training.problem, judge)
    if (judge.best or judge.patience) and not training.validation:
        raise PlanError(
            "evaluation.best and evaluation.patience need validation data: set "
            "data.partition.public_validation or .validation (test data select nothing)"
        )
    if judge.on in ("sites", "both") and not held:
        raise PlanError(
            f"evaluation.on = '{judge.on}' needs held-out data at the sites: set a test share in "
            "the partition (test = 0.2)"
        )
    if judge.per_site and not held:
        raise PlanError("evaluation.per_site needs held-out data at the sites (test = 0.2)")


def _require_measured(problem: Problem, judge: Evaluation) -> None:
    """Refuse a metric that nobody will measure, where a model is chosen by it."""
    if not (judge.best or judge.patience):
        return
    known = {"regression": ["loss", "rmse", "r2"], "language": ["loss", "accuracy"]}.get(
        problem.kind, ["loss", "accuracy", "class_accuracy", "miou"]
    )
    known += ["auroc"] if judge.auroc and problem.kind != "regression" else []
    known += problem.metrics
    if judge.metric not in known:
        raise PlanError(
            f"evaluation.metric = '{judge.metric}' is not measured here; measured: "
            f"{', '.join(sorted(known))}"
        )


def _specs(problem: Problem, options: Mapping) -> Iterator[tuple[str, Spec]]:
    yield "samples", Spec((), "int")
    yield "loss", Spec(())
    yield from ((f"metric/{name}", Spec(())) for name in problem.metrics)
    if problem.kind == "regression":
        yield "squared_error", Spec(())
        yield "targets", Spec((2,))
        return
    classes = problem.classes or 0
    yield "counted", Spec((), "int")
    yield "correct", Spec((), "int")
    if problem.kind != "language" and classes <= COUNTED_CLASSES:
        yield "confusion", Spec((classes, classes), "int")
    if options.get("auroc"):
        if classes > COUNTED_CLASSES:
            raise PlanError(
                f"evaluation.auroc: histograms of {classes:,} classes are too much to count; "
                f"take auroc = 0 (beyond {COUNTED_CLASSES:,} classes)"
            )
        yield "scores", Spec((classes, 2, options["auroc"]), "int")


def _count_batch(problem: Problem, output: Tensor, y: Tensor, sums: dict[str, Tensor]) -> None:
    sums["samples"] += len(y)
    loss = problem.loss(output, y).cpu().double()  # in this order: some devices have no float64
    sums["loss"] += loss.sum() if loss.dim() else loss * len(y)
    for name, metric in problem.metrics.items():
        sums[f"metric/{name}"] += measured(name, metric, output, y).cpu().double().sum()
    if problem.kind == "regression":
        target = y.reshape(len(y), -1).cpu().double()
        error = output.reshape(len(y), -1).cpu().double() - target
        sums["squared_error"] += error.square().mean(1).sum()
        sums["targets"] += torch.stack([target.mean(1).sum(), target.square().mean(1).sum()])
        return
    scores = output.unsqueeze(1) if output.dim() == 1 else output
    if problem.kind == "language":  # (n, T, V): classes last
        scores = scores.movedim(-1, 1)
    if problem.classes == 2 and scores.shape[1] == 1:  # one logit for two classes
        scores = torch.cat([torch.zeros_like(scores), scores], 1)
    if scores.shape[1] != problem.classes:
        raise PlanError(
            f"the model gives {scores.shape[1]} scores, the data have {problem.classes} classes"
        )
    guess = scores.argmax(1)
    valid = (y >= 0) & (y < (problem.classes or 0))
    for token in problem.ignore:
        valid &= y != token
    guess, truth = guess[valid], y[valid]
    sums["counted"] += len(truth)
    sums["correct"] += (guess == truth).sum().cpu()
    if "confusion" in sums:
        classes = problem.classes or 0
        cells = torch.bincount(truth * classes + guess, minlength=classes * classes)
        sums["confusion"] += cells.view(classes, classes).cpu()
    if "scores" in sums:
        bins = sums["scores"].shape[2]
        chance = torch.softmax(scores.float(), 1).movedim(1, -1)[valid]
        place = (chance * bins).long().clamp_(0, bins - 1)
        for c in range(chance.shape[1]):
            for side, rows in enumerate((truth != c, truth == c)):
                sums["scores"][c, side] += torch.bincount(place[rows, c], minlength=bins).cpu()


def measured(name: str, metric: Callable[..., Any], output: Tensor, y: Tensor) -> Tensor:
    """A user's metric on a batch, (n,): a value for each sample, so that sums stay sums."""
    try:
        values = torch.as_tensor(metric(output, y))
    except CupolaError:
        raise
    except Exception as error:
        raise PlanError(
            f"metrics['{name}'] does not take outputs {tuple(output.shape)} and targets "
            f"{tuple(y.shape)}: {type(error).__name__}: {error}"
        ) from error
    if values.shape != (len(y),):
        raise PlanError(
            f"metrics['{name}'] gives the shape {tuple(values.shape)} for {len(y)} samples; it "
            "must give one value per sample, whose mean over all sites is the metric"
        )
    return values


def metrics(sums: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Metrics from total counts."""
    samples = float(sums["samples"])
    if not samples:
        return {}
    result = {"loss": float(sums["loss"]) / samples, "samples": samples}
    own = (name for name in sums if name.startswith("metric/"))
    result |= {name.removeprefix("metric/"): float(sums[name]) / samples for name in own}
    if "squared_error" in sums:
        mean, square = sums["targets"] / samples
        result["rmse"] = float(np.sqrt(sums["squared_error"] / samples))
        spread = float(square - mean**2)
        if spread > 1e-12 * float(square):
            result["r2"] = 1 - float(sums["squared_error"]) / samples / spread
        return result
    if counted := float(sums["counted"]):
        result["accuracy"] = float(sums["correct"]) / counted
    if "confusion" in sums:
        result |= _from_confusion(np.asarray(sums["confusion"], np.float64))
    if "scores" in sums:
        area, error = auroc(np.asarray(sums["scores"], np.float64))
        if not np.isnan(area):
            result |= {"auroc": area, "auroc_error": error}
    return result


def confusion(sums: Mapping[str, np.ndarray]) -> list[list[int]] | None:
    """Counts by (true class, predicted class), as plain numbers; None where there are none."""
    if "confusion" not in sums or len(sums["confusion"]) > SHOWN_CLASSES:
        return None
    return np.asarray(sums["confusion"], np.int64).tolist()


def with_matrix(sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Metrics and the confusion matrix, which only the last record of a run keeps."""
    table = confusion(sums)
    return metrics(sums) | ({} if table is None else {"confusion": table})


def without_matrices(record: Mapping[str, Any]) -> dict[str, Any]:
    """A round's record without its confusion matrices, which are long."""
    return {
        name: {n: v for n, v in value.items() if n != "confusion"}
        if isinstance(value, dict)
        else value
        for name, value in record.items()
    }


def _from_confusion(confusion: np.ndarray) -> dict[str, float]:
    """Mean over classes of recall (class accuracy) and of intersection over union."""
    hit, truth, guess = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    seen, union = truth > 0, truth + guess - hit
    if not seen.any():
        return {}
    return {
        "class_accuracy": float(np.mean(hit[seen] / truth[seen])),
        "miou": float(np.mean(hit[union > 0] / union[union > 0])),
    }


def auroc(scores: np.ndarray) -> tuple[float, float]:
    """Mean one-against-rest AUROC from histograms (classes, [rest, class], bins), and its bound.

    Pairs in one bin count one half; they could be anything, so the error is at most half of them.
    NaN if no class has both sides.
    """
    areas, errors = [], []
    for rest, own in scores:
        pairs = rest.sum() * own.sum()
        if pairs:
            below = np.cumsum(rest) - rest
            tied = float(own @ rest) / pairs
            areas.append(float(own @ below) / pairs + tied / 2)
            errors.append(tied / 2)
    if not areas:
        return float("nan"), 0.0
    return float(np.mean(areas)), float(np.mean(errors))
