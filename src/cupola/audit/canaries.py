"""Canaries: contributions made to be seen, each with the mechanism that should hide them.

An experiment repeats some rounds of the run's own mechanism with a canary or without it (or, where
neighbours are replaced, with one of two) and gives what an attacker looks at: the projections of
the released vectors on the canary's directions, round by round. The canary changes from round to
round, so that noise which is used again cancels and shows it.

- gradient (dp-sgd): an example with a gradient a hundred times the clip, in a fixed direction with
  alternating sign; the site draws it into its batches like any other example.
- row (dp-sgd, output, objective): a crafted example, through everything the site does. Texts cannot
  be made large: there it is a rare token at every place, and the model that the site receives is
  made loud instead, as a coordinator could.
- site (central, dp-ftrl): a site of crafted examples, through the site's training and clipping
  and the coordinator's noise.
- update (distributed): a site's update far longer than the clip, through the site's clipping,
  rounding and noise; of the others in the total, the shares that the promise counts on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import torch

from cupola.audit.replayed_run import Subject, as_tensor, direction, flat, state_of, unit
from cupola.base.randomness import derive
from cupola.data.dataset import Dataset, SiteData
from cupola.data.stored_rows import blocks
from cupola.errors import CupolaError, FederationError
from cupola.federation.federation import Total
from cupola.federation.message import Contribution, Question
from cupola.federation.site import SiteContext
from cupola.privacy.persample.clipping import PerSample
from cupola.secure.wrapped_question import layout_of
from cupola.training.local import train, turn_of
from cupola.training.mechanisms.distributed import DistributedCoordinator
from cupola.training.mechanisms.dp_sgd import Canary
from cupola.training.mechanisms.site_level import ServerNoise
from cupola.training.participation import draw

LOUD = 100.0  # norm of a gradient canary, in clips
LARGE = (1e4, 1e3, 1e2, 10.0, 1.0)  # norms of crafted inputs, in norms of ordinary ones
LOUDER = (1.0, 3.0, 10.0, 30.0, 100.0)  # times the weights, where inputs are tokens
ENOUGH = 10.0  # a crafted contribution should be so many clips long
CRAFTED_ROWS = 64  # at most so many examples at a crafted site
NO_CLIP = 1e30


@dataclass(frozen=True)
class Experiment:
    """A mechanism ready to be repeated.

    canary: its kind. about: in words. strength: norm of the contribution before clipping, in
    clips; None where it is not known.
    trial(included, seed): one repetition with fresh randomness -> what is looked at, (d,).
    """

    canary: str
    about: str
    strength: float | None
    trial: Callable[[bool, int], np.ndarray]


# dp-sgd


def of_examples(subject: Subject, site: int, seed: int) -> list[Experiment]:
    found = [gradient_canary(subject, site, seed)]
    if _craftable(subject):
        found.append(row_canary(subject, site, seed))
    return found


def gradient_canary(subject: Subject, site: int, seed: int) -> Experiment:
    questions = subject.questions()
    data, space = subject.host.data(site), subject.space
    across = direction(seed, "canary", space.flat.numel())
    signs = {q.round: 1.0 if i % 2 == 0 else -1.0 for i, q in enumerate(questions)}
    loud = as_tensor(LOUD * subject.privacy.clip * across, space)
    there = Canary(0, {round: sign * loud for round, sign in signs.items()})
    other = Canary(0, {})
    if subject.privacy.neighbours == "replace-one":
        other = Canary(0, {round: -sign * loud for round, sign in signs.items()})

    def trial(included: bool, seed: int) -> np.ndarray:
        context = subject.context(site, data, seed, there if included else other)
        return np.array([flat(train(context, q).arrays) @ across for q in questions])

    about = "an example whose gradient is far longer than the clip, with alternating sign"
    return Experiment("gradient", about, LOUD, trial)


def row_canary(subject: Subject, site: int, seed: int) -> Experiment:
    """A crafted example of two kinds in turn; the attacker looks along the gradients of both."""
    held = subject.host.data(site)
    size, pair, questions = _loud_rows(subject, held.train, subject.questions(), seed)
    datas = [SiteData(_with_row(held.train, row)) for row in pair]
    directions = np.stack(
        [_gradient(subject, q, pair[i])[1] for i, q in enumerate((questions * 2)[:2])]
    )
    about = "a crafted example, one of two in turn, through per-sample gradients and clipping"
    return Experiment("row", about, size, _in_turn(subject, site, questions, datas, directions))


# output, objective


def of_solutions(subject: Subject, site: int, seed: int) -> list[Experiment]:
    """One row, exchanged for the same label with opposite features: every problem notices.

    The features point to where the first model is wrong about them, so that without a norm bound
    the row's pull would grow with its norm.
    """
    questions, held = subject.questions(), subject.host.data(site)
    x, y = subject.space.batch(held.train, slice(0, 1))
    weight = next(a for a in questions[0].arrays.values() if a.ndim == 2)  # (outputs, features)
    label = min(1, len(weight) - 1)
    sides = np.where(np.arange(len(weight)) == label, 1.0, -1.0)
    across = unit(-sides @ weight + 1e-6 * direction(seed, "canary", x.numel()))
    features = torch.from_numpy(ENOUGH * subject.privacy.feature_norm * across)
    pair = [(sign * features.reshape(x.shape).to(x), torch.ones_like(y)) for sign in (1, -1)]
    datas = [SiteData(_with_row(held.train, row)) for row in pair]
    looked = np.zeros(subject.space.flat.numel())
    looked[: weight.size] = np.outer(sides, across).reshape(-1)
    trial = _in_turn(subject, site, questions, datas, unit(looked)[None])
    about = "an example of opposite features in turn, beyond the norm bound"
    return [Experiment("row", about, ENOUGH, trial)]


# central, dp-ftrl


def of_sites(subject: Subject, site: int, seed: int) -> list[Experiment]:
    mechanism = subject.mechanism
    assert isinstance(mechanism, ServerNoise)
    program, privacy, coordinator = subject.program, subject.privacy, subject.program.coordinator
    strength, answers, questions = _loud_answers(subject, site, subject.questions(), seed)
    directions = np.stack([unit(flat(answer.arrays)) for answer in answers])
    choice, replaced = program.participation, privacy.neighbours == "replace-one"
    secret = mechanism.samples_in_secret(choice)
    kinds = mechanism.canary_order(len(questions))
    rounds = [(state_of(q), q.round) for q in questions]
    schedule = [draw(choice, program.sites, program.seed, round) for _, round in rounds]

    def total(included: bool, asked: list[int], kind: int) -> Total:
        found = Total()
        if site in asked and (included or replaced):
            found.add(site, answers[kind if included else 1 - kind])
        return found

    def trial(included: bool, seed: int) -> np.ndarray:
        asked = schedule
        if secret:
            asked = [draw(choice, program.sites, seed, round) for _, round in rounds]
        totals = [total(included, who, kind) for who, kind in zip(asked, kinds)]
        seen = []
        for released, clip in replace(coordinator, seed=seed).watched(program, rounds, totals):
            seen.append(directions @ released)
            if clip is not None:
                seen.append(np.array([np.log(clip / privacy.clip)]))
        return np.concatenate(seen)

    about = "a site of crafted examples, one of two in turn, with an update longer than the clip"
    return [Experiment("site", about, strength, trial)]


# distributed


def of_updates(subject: Subject, site: int, seed: int) -> list[Experiment]:
    """The smallest total that can be told, seen by somebody who knows the colluders' shares."""
    program, space = subject.program, subject.space
    assert isinstance(program.coordinator, DistributedCoordinator)
    shares, questions = program.coordinator.shares, subject.questions()
    across = direction(seed, "canary", shares.dimension)
    loud = space.split(as_tensor(LOUD * shares.clip * across, space))
    none = [torch.zeros_like(part) for part in loud]
    opposite = [-part for part in loud]
    replaced = subject.privacy.neighbours == "replace-one"
    cohort = [site, *(s for s in range(program.sites) if s != site)][: shares.honest]
    held = subject.host.data(site)
    party = SimpleNamespace(roster=SimpleNamespace(minimum=program.sum.minimum))
    layouts = [layout_of(question, program.sites) for question in questions]

    def answer(i: int, number: int, seed: int, update: list[torch.Tensor]) -> np.ndarray:
        context = subject.context(number, held, seed)  # whose data are not looked at
        context.party, context.hidden = party, layouts[i]
        return flat(subject.mechanism.at_site(turn_of(context, questions[i]), update))

    def trial(included: bool, seed: int) -> np.ndarray:
        seen = []
        for i in range(len(questions)):
            there, other = (loud, opposite) if i % 2 == 0 else (opposite, loud)
            own = there if included else other if replaced else none
            total = answer(i, site, seed, own)
            for number in cohort[1:]:
                total = total + answer(i, number, seed, none)
            seen.append(float(total @ across))
        return np.array(seen)

    about = "a site's update far longer than the clip, with alternating sign, in the least total"
    return [Experiment("update", about, LOUD, trial)]


# Parts


def _in_turn(
    subject: Subject,
    site: int,
    questions: list[Question],
    datas: list[SiteData],
    directions: np.ndarray,
) -> Callable[[bool, int], np.ndarray]:
    """Trials of a site with one of two data sets in turn; without the canary it has the other one,
    or none of its own in the canary's place."""
    replaced = subject.privacy.neighbours == "replace-one"

    def trial(included: bool, seed: int) -> np.ndarray:
        seen = []
        for i, q in enumerate(questions):
            kind = i % 2 if included or not replaced else 1 - i % 2
            absent = None if included or replaced else Canary(0, {})
            context = subject.context(site, datas[kind], seed, absent)
            seen.append(directions @ flat(train(context, q).arrays))
        return np.concatenate(seen)

    return trial


Row = tuple[torch.Tensor, torch.Tensor]


def _craftable(subject: Subject) -> bool:
    """Whether inputs are tokens, or numbers that can be made large, with one target each."""
    problem = subject.space.problem
    return problem.tokens is not None or problem.kind in ("classification", "regression")


def _with_row(data: Dataset, row: Row) -> Dataset:
    """A copy of a data set with this model-ready example in place of its first."""
    x, y = data.inputs().clone(), data.y.clone()
    x[:1], y[:1] = row[0].to(x), row[1].to(y)
    return Dataset(x, y, data.transform)


def _crafted(
    subject: Subject, data: Dataset, questions: list[Question], norm: float, seed: int
) -> tuple[Row, Row]:
    """Two examples of this norm with inputs across each other, and targets that the model which
    each meets does not give.

    Opposite inputs would not do: a linear model is wrong about them in opposite ways, so that they
    have one and the same gradient, behind which noise that is used again hides.
    """
    space = subject.space
    x, y = space.batch(data, slice(0, 1))
    pair = []
    for across, question in zip(_across(seed, x.numel()), questions * 2):
        example = norm * torch.from_numpy(across).reshape(x.shape).to(x)
        if space.problem.kind == "regression":
            target = torch.full_like(y, -norm)
        else:
            space.load(question.arrays)
            space.module.eval()
            with torch.no_grad():
                scores = space.module(example).reshape(-1)
            least = int(scores.argmin()) if len(scores) > 1 else int(scores[0] < 0)
            target = torch.full_like(y, least)
        pair.append((example.cpu(), target.cpu()))
    space.module.train()
    return pair[0], pair[1]


def _across(seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Two directions at a right angle; opposite ones of a single number."""
    one = direction(seed, "canary", size)
    if size == 1:
        return one, -one
    other = direction(derive(seed, "across"), "canary", size)
    return one, unit(other - (other @ one) * one)


def _ordinary(subject: Subject, data: Dataset) -> float:
    """Norm of this site's largest inputs."""
    x, _ = subject.space.batch(data, slice(0, 256))
    return max(float(x.flatten(1).norm(dim=1).max()), 1.0)


def _gradient(subject: Subject, question: Question, row: Row) -> tuple[float, np.ndarray]:
    """Norm and direction of an example's gradient at the model of a question."""
    space = subject.space
    space.load(question.arrays)
    x, y = space.batch(Dataset(*row), slice(0, 1))
    found = PerSample(space.module, space.problem.loss).clipped_sum(x, y, NO_CLIP)
    vector = torch.cat([s.reshape(-1) for s in found.sums]).double().cpu().numpy()
    return float(found.norms[0]), unit(vector)


def _rare_rows(subject: Subject, data: Dataset) -> tuple[Row, Row]:
    """Two texts of one token each, the rarest of this site's, and targets as rare."""
    problem, (x, y) = subject.space.problem, subject.space.batch(data, slice(0, 1))
    tokens = problem.tokens or 0
    seen = sum(np.bincount(b.reshape(-1).numpy(), minlength=tokens) for b in blocks(data.x))
    targets = np.bincount(data.y.reshape(-1).long().numpy(), minlength=problem.classes or 2)
    targets[list(problem.ignore)] = len(data) * y.numel() + 1  # they count in no loss
    rare, wrong = np.argsort(seen, kind="stable"), np.argsort(targets, kind="stable")
    return tuple(  # type: ignore[return-value]
        (torch.full_like(x, int(rare[i])).cpu(), torch.full_like(y, int(wrong[i])).cpu())
        for i in (0, 1)
    )


Loud = tuple[tuple[Row, Row], list[Question]]


def _candidates(
    subject: Subject, data: Dataset, questions: list[Question], seed: int
) -> Iterator[Loud]:
    """Pairs of crafted examples, and the questions that they meet, loudest inputs first."""
    if subject.space.problem.tokens is not None:
        pair = _rare_rows(subject, data)
        yield from ((pair, [_louder(q, factor) for q in questions]) for factor in LOUDER)
        return
    for scale in LARGE:
        norm = scale * _ordinary(subject, data)
        yield _crafted(subject, data, questions, norm, seed), questions


def _louder(question: Question, factor: float) -> Question:
    """The same question with larger weights."""
    made = {n: a * a.dtype.type(factor) if n.startswith("model/") else a
            for n, a in question.arrays.items()}  # fmt: skip
    return replace(question, arrays=made)


def _loud_rows(
    subject: Subject, data: Dataset, questions: list[Question], seed: int
) -> tuple[float, tuple[Row, Row], list[Question]]:
    """Crafted examples whose gradients are finite and as long as can be, in clips."""
    best: tuple[float, tuple[Row, Row], list[Question]] | None = None
    for pair, asked in _candidates(subject, data, questions, seed):
        norms = [_gradient(subject, q, pair[i])[0] for i, q in enumerate((asked * 2)[:2])]
        size = min(norms) / subject.privacy.clip
        if np.isfinite(size) and (best is None or size > best[0]):
            best = (size, pair, asked)
        if best is not None and best[0] >= ENOUGH:
            return best
    if best is None:
        raise CupolaError("no crafted example has a finite gradient; the audit cannot go on")
    return best


def _loud_answers(
    subject: Subject, site: int, questions: list[Question], seed: int
) -> tuple[float, list[Contribution], list[Question]]:
    """A crafted site's two answers through its own task, their norms before clipping, and the
    questions that they answer."""
    held = subject.host.data(site).train
    if not len(held):
        raise CupolaError(f"site {site} has no samples; the audit cannot go on")
    best: tuple[float, list[Contribution], list[Question]] | None = None
    for datas, asked in _sites(subject, held, questions, seed):
        pairs = (asked * 2)[:2]
        contexts = [subject.context(site, SiteData(d), subject.program.seed) for d in datas]
        try:
            free = [_answer(c, q, NO_CLIP) for c, q in zip(contexts, pairs)]
        except FederationError:
            continue  # the crafted inputs were too large
        size = min(float(np.linalg.norm(flat(a.arrays))) for a in free) / subject.privacy.clip
        if best is None or size > best[0]:
            best = (size, [train(c, q) for c, q in zip(contexts, pairs)], asked)
        if best[0] >= ENOUGH:
            return best
    if best is None:
        raise CupolaError("no crafted site has a finite update; the audit cannot go on")
    return best


def _sites(
    subject: Subject, held: Dataset, questions: list[Question], seed: int
) -> Iterator[tuple[list[Dataset], list[Question]]]:
    """Sites of crafted examples; ordinary ones where examples cannot be crafted."""
    if not _craftable(subject):
        yield [held, held], questions
        return
    many = min(len(held), CRAFTED_ROWS)
    for rows, asked in _candidates(subject, held, questions, seed):
        yield [Dataset(x.expand(many, *x.shape[1:]), y.expand(many, *y.shape[1:]))
               for x, y in rows], asked  # fmt: skip


def _answer(context: SiteContext, question: Question, clip: float) -> Contribution:
    privacy = {**question.options["privacy"], "clip": clip}
    return train(context, replace(question, options={**question.options, "privacy": privacy}))
