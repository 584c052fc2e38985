"""The parts of output and objective perturbation, tested on the run's own code.

output: an answer less the same answer with a thousandth of the noise is the noise; two answers on
neighbouring data with the same seed differ by the solution alone.
objective: the released model solves a problem with a random linear term, which is read off the
gradient at it: its length is the promised one, and it does not depend on the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from cupola.audit import judging
from cupola.audit.judging import NUMBERS, VECTORS, Test
from cupola.audit.replayed_run import ReplayedSite, Subject, unit
from cupola.base.randomness import generator
from cupola.data.dataset import Dataset, SiteData
from cupola.federation.message import Arrays, Question
from cupola.privacy.events import Approximate, Gaussian
from cupola.privacy.perturbation import Logistic, objective_noise, to_start
from cupola.training.local import train
from cupola.training.mechanisms.convex import CONSTANT

FAINT = 1e-3  # of the noise, where nearly none is wanted
RELEASES = 400  # at most
MARGIN = 6.0  # of a row that pulls with all its weight, in logits


class Solver(ReplayedSite):
    """A site of the run, and its problem as it is promised."""

    def __init__(self, subject: Subject, seed: int) -> None:
        super().__init__(subject, seed)
        self.question = subject.question(1)
        self.names = [n for n in self.question.arrays if n.startswith("model/")]
        privacy, arrays = subject.privacy, self.question.arrays
        biased = len(self.names) > 1
        self.bound, self.mu = privacy.feature_norm, subject.program.local.proximal
        self.problem = Logistic(
            mu=self.mu,
            bound=self.bound,
            constant=CONSTANT * self.bound if biased else 0.0,
            classes=max(2, len(arrays[self.names[0]])),
        )
        self.start = self.weights(arrays)
        (self.promise,) = {
            e for e in subject.events(self.index) if isinstance(e, Gaussian | Approximate)
        }

    def weights(self, arrays: Arrays) -> np.ndarray:
        """A model as the problems' weights, (problems, p)."""
        parts = [np.asarray(arrays[n], np.float64) for n in self.names]
        return to_start(self.problem, parts[0], parts[1] if len(parts) > 1 else None)

    def answer(self, seed: int, round: int = 1, *, site: int | None = None, real: bool = False,
               data: Dataset | None = None, question: Question | None = None,
               **privacy: float) -> np.ndarray:  # fmt: skip
        """The released weights, (problems, p)."""
        asked = replace(self.question if question is None else question, round=round)
        options = {**asked.options, "privacy": {**asked.options["privacy"], **privacy}}
        held = None if data is None else SiteData(data)
        context = self.context(seed, site=site, data=held, real=real)
        answer = train(context, replace(asked, options=options)).arrays
        moved = {n: np.asarray(asked.arrays[n], np.float64) - answer[n] for n in self.names}
        return self.weights(moved)

    def rows(self, data: Dataset) -> tuple[np.ndarray, np.ndarray]:
        """Features within the norm bound and signs: the audit's own arithmetic."""
        x, y = self.subject.space.batch(data, slice(None))
        flat = x.double().cpu().numpy().reshape(len(x), -1)
        constant = self.problem.constant
        room = math.sqrt(self.bound**2 - constant**2)
        norms = np.maximum(np.linalg.norm(flat, axis=1), 1e-300)
        flat = flat * np.minimum(1, room / norms)[:, None]
        if constant:
            flat = np.hstack([flat, np.full((len(flat), 1), constant)])
        labels = y.reshape(-1).long().cpu().numpy()
        kinds = [1] if self.problem.classes == 2 else range(self.problem.classes)
        return flat, np.stack([np.where(labels == k, 1.0, -1.0) for k in kinds])

    def neighbours(self, question: Question) -> list[Dataset]:
        """Data that differ in one row, far beyond the norm bound and on opposite sides; the model
        of the question is wrong about both."""
        held = self.data.train
        x, _ = self.subject.space.batch(held, slice(0, 1))
        weight = np.asarray(question.arrays[self.names[0]], np.float64)
        label = min(1, len(weight) - 1)
        toward = weight[label] - weight[0] if len(weight) == 2 else weight[label]
        toward = unit(toward)
        across = generator(self.seed, "across").standard_normal(x.numel())
        across = unit(across - (across @ toward) * toward)
        made = []
        for sign in (1, -1):
            row = (sign * math.cos(0.2) * across - math.sin(0.2) * toward) * 10 * self.bound
            inputs, labels = held.inputs().clone(), held.y.clone()
            inputs[:1] = torch.from_numpy(row).reshape(x.shape).to(inputs)
            labels[:1] = torch.full_like(labels[:1], label)
            made.append(Dataset(inputs, labels))
        return made

    def wrong(self) -> Question:
        """A question whose model is so wrong about those rows that they pull with all weight."""
        random = generator(self.seed, "wrong")
        arrays = dict(self.question.arrays)
        weight = arrays[self.names[0]]
        direction = random.standard_normal(weight[0].shape)
        direction /= np.linalg.norm(direction)
        side = np.where(np.arange(len(weight)) == min(1, len(weight) - 1), 1.0, -1.0)
        far = (MARGIN + self.bound**2 / self.mu) / (self.bound * math.sin(0.2) * 0.8)
        arrays[self.names[0]] = (far * side[:, None] * direction).astype(weight.dtype)
        return replace(self.question, arrays=arrays)


# output


def output_tests(subject: Subject, seed: int) -> Iterator[Test]:
    site = Solver(subject, seed)
    privacy, promise = site.subject.privacy, site.promise
    assert isinstance(promise, Gaussian)
    promised = min(2 * site.bound / (site.n * site.mu), 2 * privacy.clip)
    noise = privacy.noise_multiplier or 0.0
    deviation = promise.noise * promised
    exact = site.answer(site.seed, noise=FAINT * noise)
    d = exact.size
    many = min(RELEASES, max(VECTORS, -(-NUMBERS // d)))

    def drawn(seed: int, round: int, number: int = site.index, real: bool = False) -> np.ndarray:
        return (site.answer(seed, round, site=number, real=real) - exact).reshape(-1) / deviation

    z = np.stack([drawn(site.seed, r + 1) for r in range(many)])
    about = f"answers of site {site.index}"
    yield judging.variance_test(z, "noise variance", about)
    problems = [
        (f"problem {k}", slice(k * d // len(site.start), (k + 1) * d // len(site.start)))
        for k in range(len(site.start))
    ]
    yield judging.blocks_test(z, problems, about)
    yield judging.freshness_test(*_fresh(z, drawn(site.seed, 1, site.index + 1), site.index + 1))
    z = np.stack([drawn(0, 1, real=True) for _ in range(many)])
    yield from judging.real_noise_tests(z, "real site", "answers", VECTORS)
    question = site.wrong()
    beside = site.neighbours(question)
    pair = [site.answer(site.seed, data=data, question=question) for data in beside]
    moved = float(np.linalg.norm(pair[0] - pair[1], axis=1).max())
    # Answers are cast to the model's type, beside the accounted noise: post-processing.
    cast = 2.0**-22 * float(np.linalg.norm(site.weights(question.arrays)))
    yield judging.bound_test(
        moved / promised, 1 + cast / promised, "sensitivity",
        "solutions on data that differ in one row, ten times beyond the norm bound",
        judging.DOUBLED, f"{moved / promised:.4g} of the promised", could=2 * moved / promised,
    )  # fmt: skip
    if privacy.clip < site.bound / site.mu:
        faint = site.answer(site.seed, data=_alike(site, question), question=question,
                            noise=FAINT * noise)  # fmt: skip
        change = float(np.linalg.norm(faint - site.weights(question.arrays), axis=1).max())
        room = FAINT * deviation * (math.sqrt(faint.shape[1]) + 9)
        yield judging.bound_test(
            change, privacy.clip + room, "clip", "the change of a solution", judging.DOUBLED,
            f"at most {change / privacy.clip:.4g} clips", could=2 * change,
        )  # fmt: skip


def _alike(site: Solver, question: Question) -> Dataset:
    """A site whose rows all pull the same way."""
    one = site.neighbours(question)[0].subset(slice(0, 1))
    return one.subset(np.zeros(site.n, np.int64))


def _fresh(z: np.ndarray, other: np.ndarray, number: int) -> tuple[np.ndarray, list[str]]:
    labels = [*(f"round {i + 1}" for i in range(VECTORS)), f"round 1 of site {number}"]
    return np.stack([*z[:VECTORS], other]), labels


# objective


def objective_tests(subject: Subject, seed: int) -> Iterator[Test]:
    site = Solver(subject, seed)
    promise = site.promise
    assert isinstance(promise, Approximate)
    each = promise.epsilon
    mu, _ = objective_noise(site.problem, site.n, each)
    # exp(-alpha |b|) and the Jacobian: 2 alpha G / n + log(1 + G^2 / (4 n mu)) <= epsilon.
    jacobian = math.log1p(site.bound**2 / (4 * site.n * mu))
    alpha = (each - jacobian) * site.n / (2 * site.bound)

    def linear(released: np.ndarray, data: Dataset, start: np.ndarray = site.start) -> np.ndarray:
        rows, signs = site.rows(data)
        margins = signs * (released @ rows.T)
        pull = -(signs / (1 + np.exp(np.clip(margins, -700, 700)))) @ rows / site.n
        return -(pull + mu * (released - start)) * alpha

    p = site.start.shape[1]
    many = min(RELEASES, max(VECTORS, -(-NUMBERS // site.start.size)))
    own = site.data.train
    for real in (False, True):
        # A real site draws anew whatever it is asked: the same round, every time.
        b = np.stack([
            linear(site.answer(site.seed, 1 if real else r + 1, real=real), own)
            for r in range(many)
        ])  # fmt: skip
        more = ", real site" if real else ""
        about = f"linear terms of {many} answers" + real * " with the operating system's randomness"
        total = float(np.linalg.norm(b, axis=2).sum())
        test = judging.gamma_test(total, p * many * len(site.start), about)
        yield replace(test, part=test.part + more)
        # One problem's directions: those of several have lengths of their own.
        other = linear(site.answer(site.seed, 1, site=site.index + 1, real=real), own)
        vectors, labels = _fresh(b[:, 0], other[0], site.index + 1)
        yield judging.freshness_test(vectors, labels, "freshness of noise" + more)
    question = site.wrong()
    start = site.weights(question.arrays)
    pair = [
        linear(site.answer(site.seed, data=data, question=question), data, start)
        for data in site.neighbours(question)
    ]
    worst = float(np.linalg.norm(pair[0] - pair[1], axis=1).max()) / p
    row = alpha * site.bound / site.n / p
    yield judging.bound_test(
        worst, 0.1 * row, "norm bound", "the linear term on data that differ in one "
        "row, ten times beyond the norm bound, must be the same",
        judging.DOUBLED, f"differs by {worst / row:.2g} of a row's pull", could=row,
    )  # fmt: skip
