"""What is sent of an update: the plan's transforms in their order, at the site and back again.

All parameters that the same sites train make up one vector, so that a rotation spreads all of them
and one range serves all. In an answer 'packed/0' (and on, where sites train different parts) stands
in place of 'model/...'. What is packed has its weight in it already, and so has all that goes
along: with weights by samples the sum of weights is one more number ('weight').

The range that sites share comes from what all know. Where updates are clipped, from the clip.
Elsewhere sites tell how many numbers were beyond it, summed over sites: as rotated numbers are
nearly Gaussian, their deviation follows from that share, and the next range from the deviation. The
first one is a guess, on the small side: what is cut off makes a round slower, coarse levels make it
wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri

from cupola.base.randomness import derive
from cupola.errors import FederationError, PlanError
from cupola.federation.federation import Total
from cupola.federation.message import Arrays, Contribution, Declined, Question, Spec, blank
from cupola.training.frozen import frozen_names
from cupola.training.mechanisms import mechanism_for
from cupola.training.transforms import transform
from cupola.training.transforms.base import Transform, Vector, Way
from cupola.training.transforms.quantise import coarse, coarse_words, refined, room_of
from cupola.training.turn import Turn

if TYPE_CHECKING:
    from cupola.federation.program import State
    from cupola.training.loop import Training
    from cupola.training.workspace import Problem, Workspace

PACKED, WEIGHT, BEYOND = "packed/", "weight", "beyond"
RANGE, DOWN, STEP = "packed/range", "packed/model", "packed/step"  # of a question
_FIRST = 0.1  # of the parameters' own size: the first range
_LEAST = 2.0**-10  # where that is zero
_FASTEST, _SLOWEST = 2.0**12, 0.5  # what a range may be multiplied by in a round
_NARROWER = 0.8  # the same, at most, where nothing was beyond it


@dataclass(frozen=True)
class Packing:
    """The transforms of one training, as both sides know them.

    parts: names of parameters that the same sites train. sizes: numbers in each. room: see `Way`.
    seed: of this round.
    """

    transforms: tuple[Transform, ...]
    parts: tuple[tuple[str, ...], ...]
    sizes: tuple[int, ...]
    room: int | None
    seed: int

    @property
    def ranged(self) -> bool:
        return any(step.ranged for step in self.transforms)

    @property
    def down(self) -> int | None:
        return next((step.down for step in self.transforms if step.down is not None), None)

    @property
    def spread(self) -> float:
        return next((s.spread(self.room) for s in self.transforms if s.ranged), 1.0)

    def specs(self, part: int, like: Spec) -> list[Spec]:
        """Of a part's vector before, between and after the transforms. like: of its tensors."""
        found = [replace(like, shape=(self.sizes[part],))]
        for step in self.transforms:
            found.append(step.spec(found[-1], self.room))
        return found

    def ways(self, part: int, range: float, limit: float | None) -> Iterator[tuple[Transform, Way]]:
        """The transforms of a part, each with what it may know. limit: of all parts together."""
        if limit is not None:  # each part has its share, so that all together are within
            limit *= math.sqrt(self.sizes[part] / sum(self.sizes))
        for place, step in enumerate(self.transforms):
            seed = derive(self.seed, "transform", place, part)
            yield step, Way(seed, self.room, range, limit)


def _parts(space: Workspace) -> tuple[tuple[tuple[str, ...], ...], tuple[int, ...]]:
    """Parameters by who trains them, in the model's order, and how many numbers they have."""
    if "parts" not in space.cache:
        space.cache["parts"] = parts_of(space.problem)
    found: tuple[tuple[tuple[str, ...], ...], tuple[int, ...]] = space.cache["parts"]
    return found


def parts_of(problem: Problem) -> tuple[tuple[tuple[str, ...], ...], tuple[int, ...]]:
    """The same, found anew."""
    module = problem.build()
    trained = {n: p.numel() for n, p in module.named_parameters() if p.requires_grad}
    frozen = [frozenset(frozen_names(level, module)) for level in problem.trainable.level]
    found: dict[tuple[bool, ...], list[str]] = {}
    for name in trained:
        found.setdefault(tuple(name in names for names in frozen), []).append(name)
    parts = tuple(tuple(names) for names in found.values())
    return parts, tuple(sum(trained[n] for n in names) for names in parts)


# At the coordinator


def require_packable(training: Training) -> None:
    """Refuse transforms that do not serve this training, naming both and the way out."""
    steps, mechanism = training.transforms, training.mechanism
    if not steps:
        return
    if training.task != "train":
        raise PlanError(f"transforms need task = 'train'; '{training.task}' sends what it likes")
    for step in steps[:-1]:
        if step.last:
            raise PlanError(
                f"transforms: '{step.kind}' must be the last one: what it makes are no numbers "
                "that another could take"
            )
    if training.sum.masked and mechanism.noised_at_site and mechanism.of_sites:
        raise PlanError(
            f"transforms with {mechanism.key}: its shares of the noise are on a grid of their own; "
            "use sum.bits = 16 for fewer bytes, or another mechanism"
        )
    if mechanism.of_sites:
        for step in steps:
            if step.remembers:
                raise PlanError(
                    f"transforms: '{step.kind}' with feedback and {mechanism.key}: what a site "
                    "adds later is beyond the clip of that round; set feedback = false"
                )
            if not step.keeps_clip:
                raise PlanError(
                    f"transforms: '{step.kind}' with {mechanism.key}: it does not promise that it "
                    "makes no update longer than its clip; if it is so, say keeps_clip = True in "
                    "the class"
                )
    for step in steps:
        step.check(training)


def _packing(training: Training, round: int) -> Packing:
    seed = derive(training.seed, "transforms", round)
    parts, sizes = _parts(training.space)
    return Packing(training.transforms, parts, sizes, room_of(training), seed)


def packed_question(question: Question, training: Training, state: State, round: int) -> Question:
    """The question for answers that went through the plan's transforms; last of all."""
    if not training.transforms:
        return question
    packing = _packing(training, round)
    arrays, expects = dict(question.arrays), dict(question.expects)
    like = next(spec for name, spec in expects.items() if name.startswith("model/"))
    expects = {n: spec for n, spec in expects.items() if not n.startswith("model/")}
    by_samples = training.local.weighting == "samples"
    weight = Spec((), "float", question.heaviest if training.sum.masked else None)
    for part in range(len(packing.parts)):
        expects[f"{PACKED}{part}"] = packing.specs(part, like)[-1]
        if by_samples and len(packing.parts) > 1:
            expects[f"{WEIGHT}/{part}"] = weight
    if by_samples:
        expects[WEIGHT] = weight
    if packing.ranged:
        arrays[RANGE] = _ranges(packing, training, state)
        if not training.mechanism.of_sites:
            bound = float(max(packing.sizes)) if training.sum.masked else None
            expects[BEYOND] = Spec((len(packing.parts),), "int", bound)
    if packing.down is not None:
        names = [n for n in arrays if n.startswith("model/")]
        whole = np.concatenate([arrays.pop(n).reshape(-1) for n in names])
        seed = derive(packing.seed, "download")
        arrays[DOWN], step = coarse(whole.astype(np.float64), packing.down, seed)
        arrays[STEP] = np.array(step)
    told: dict[str, Any] = {
        "list": [step.model_dump(mode="json") for step in packing.transforms],
        "seed": packing.seed,
    }
    if packing.room is not None:
        told["room"] = packing.room
    how = ", then ".join(step.describe() for step in packing.transforms)
    how += "; how many were beyond their range" * (BEYOND in expects)
    return replace(
        question,
        arrays=arrays,
        options={**question.options, "transforms": told},
        expects=expects,
        heaviest=1.0,
        reveals=f"{question.reveals}; {how}",
    )


def _ranges(packing: Packing, training: Training, state: State) -> np.ndarray:
    """The range of each part in the round to come."""
    if training.mechanism.of_sites:  # all know how long an update is at most
        each = training.coordinator.clip(state) / math.sqrt(sum(packing.sizes))
        return np.full(len(packing.parts), packing.spread * each)
    if RANGE in state.arrays:
        return state.arrays[RANGE]
    sizes = []
    for names in packing.parts:
        own = np.concatenate([state.arrays[f"model/{n}"].reshape(-1) for n in names])
        sizes.append(_FIRST * float(np.sqrt(np.mean(own.astype(np.float64) ** 2))))
    return np.array([size or _LEAST for size in sizes])


def unpacked_total(total: Total, training: Training, state: State, round: int) -> Total:
    """A total as if updates had been sent as they are; 'beyond' stays for `next_ranges`."""
    if not training.transforms:
        return total
    packing = _packing(training, round)
    limit = training.coordinator.clip(state) if training.mechanism.of_sites else None
    ranges = _ranges(packing, training, state) if packing.ranged else np.ones(len(packing.parts))
    arrays = {n: a for n, a in total.arrays.items() if not n.startswith((PACKED, WEIGHT))}
    whole = float(total.arrays.get(WEIGHT, total.weight))
    weights = {n: whole if WEIGHT in total.arrays else total.weights[n] for n in arrays}
    weights |= {n: w for n, w in total.weights.items() if n.startswith((PACKED, BEYOND))}
    for part, names in enumerate(packing.parts):
        key = f"{PACKED}{part}"
        if not total.weights.get(key):
            continue
        found = total.arrays[key].reshape(-1)
        steps = list(packing.ways(part, float(ranges[part]), limit))
        sizes = [math.prod(spec.shape) for spec in packing.specs(part, Spec(()))]
        for (step, way), size in zip(reversed(steps), reversed(sizes[:-1])):
            found = step.at_coordinator(found, size, way)
        weight = float(total.arrays.get(f"{WEIGHT}/{part}", whole))
        if WEIGHT not in total.arrays:
            weight = total.weights[key]
        for name, piece in _split(found, names, state.arrays):
            arrays[name], weights[name] = piece, weight
    return replace(total, arrays=arrays, weights=weights, weight=whole)


def next_ranges(total: Total, training: Training, state: State, round: int) -> Arrays:
    """The ranges of the next round, from how many numbers were beyond those of this one."""
    if BEYOND not in total.arrays or not training.transforms:
        return {}
    packing = _packing(training, round)
    after = _ranges(packing, training, state).copy()
    for part, beyond in enumerate(total.arrays[BEYOND]):
        specs = packing.specs(part, Spec(()))
        ranged = next(i for i, step in enumerate(packing.transforms) if step.ranged)
        sites = total.weights.get(f"{PACKED}{part}", total.weights[BEYOND])
        asked = math.prod(specs[ranged].shape) * sites
        if not asked:
            continue
        share = min(max(float(beyond), 0.5), asked - 0.5) / asked
        now = -float(ndtri(share / 2))  # the range, in deviations
        factor = packing.spread / now
        if not beyond:  # how much too large it is, nobody can tell
            factor = min(factor, _NARROWER)
        after[part] *= min(max(factor, _SLOWEST), _FASTEST)
    return {RANGE: after}


def _split(
    flat: Vector, names: Sequence[str], like: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    start = 0
    for name in names:
        key = f"model/{name}"
        yield key, flat[start : start + like[key].size].reshape(like[key].shape)
        start += like[key].size


# At the site


def _told(space: Workspace, question: Question) -> Packing | None:
    """What a question says of transforms; None if nothing. Declined where it makes no sense."""
    told = question.options.get("transforms")
    if told is None:
        return None
    parts, sizes = _parts(space)
    try:
        steps, seed, room = tuple(map(transform, told["list"])), told["seed"], told.get("room")
        if not steps:
            raise ValueError("no transforms")
        if type(seed) is not int or not (room is None or (type(room) is int and 0 < room < 2**31)):
            raise ValueError("whole numbers")
        packing = Packing(steps, parts, sizes, room, seed)
        packing.specs(0, Spec(()))  # which fails where there is no room
        return packing
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Declined("the transforms that were asked for are not possible") from None


def unpacked_question(question: Question, space: Workspace) -> Question:
    """The question with its model as it is."""
    if DOWN not in question.arrays:
        return question
    packing, arrays = _told(space, question), dict(question.arrays)
    words, step = arrays.pop(DOWN), arrays.pop(STEP)
    known, before = space.cache.get("received", (None, {}))
    if known is words:  # the next simulated site, which is asked the same
        return replace(question, arrays={**arrays, **before})
    tensors = {
        n: p for n, p in space.module.named_parameters() if p.requires_grad or n in space.received
    }
    size = sum(p.numel() for p in tensors.values())
    if packing is None or packing.down is None or words.ndim != 1 or step.shape != ():
        raise FederationError("question is not well formed")
    if words.dtype != np.int64 or words.size != coarse_words(size, packing.down):
        raise FederationError("question is not well formed")
    whole = refined(words, size, packing.down, float(step), derive(packing.seed, "download"))
    dtype, start, found = _dtype(space), 0, Arrays()
    for name, parameter in tensors.items():
        piece = whole[start : start + parameter.numel()]
        found[f"model/{name}"] = piece.reshape(tuple(parameter.shape)).astype(dtype)
        start += parameter.numel()
    space.cache["received"] = (words, found)
    return replace(question, arrays={**arrays, **found})


def packed_answer(turn: Turn, answer: Contribution) -> tuple[Contribution, Arrays]:
    """A site's answer as it is sent, and what the site keeps for the next one."""
    packing = _told(turn.space, turn.question)
    if packing is None:
        return answer, {}
    site, mechanism = turn.site, mechanism_for(turn.question)
    limit = mechanism.privacy.clip if mechanism.of_sites else None
    if limit is not None and mechanism.noised_at_site:
        raise Declined("what was noised in shares is sent as it is")
    if limit is not None and not all(s.keeps_clip and not s.remembers for s in packing.transforms):
        raise Declined("the transforms that were asked for do not keep to the clip")
    by_samples = turn.local.weighting == "samples"
    weight = answer.weight if by_samples else 1.0
    arrays = {
        n: a * np.asarray(weight, a.dtype) if weight != 1 else a
        for n, a in answer.arrays.items()
        if not n.startswith("model/")
    }
    ranges = _shared_ranges(packing, turn.question)
    beyond = np.zeros(len(packing.parts), np.int64)
    own, before, kept = set(turn.space.names), site.recall(turn.question), Arrays()
    random = site.generator("rounding", turn.question.round, secret=True)
    for part, names in enumerate(packing.parts):
        if not own.issuperset(names):
            continue
        flat = [answer.arrays[f"model/{n}"].reshape(-1) for n in names]
        found: np.ndarray = np.concatenate(flat).astype(np.float64) * weight
        for place, (step, way) in enumerate(packing.ways(part, ranges[part], limit)):
            if place == 0 and way.limit is not None:
                found *= min(1.0, way.limit / max(float(np.linalg.norm(found)), 1e-300))
            key = f"unsent/{place}/{part}"
            way.random, way.memory = random, before.get(key)
            found = step.at_site(found, way)
            beyond[part] += way.beyond
            if way.memory is not None:
                kept[key] = way.memory
        if found.dtype == np.float64:
            found = found.astype(flat[0].dtype)
        arrays[f"{PACKED}{part}"] = found
        if by_samples and len(packing.parts) > 1:
            arrays[f"{WEIGHT}/{part}"] = np.array(weight)
    if by_samples:
        arrays[WEIGHT] = np.array(weight)
    if packing.ranged and not mechanism.of_sites:  # under a clip nothing is told beside the update
        arrays[BEYOND] = beyond
    return Contribution(arrays), kept


def _dtype(space: Workspace) -> np.dtype:
    return np.dtype(str(space.problem.dtype).removeprefix("torch."))


def _shared_ranges(packing: Packing, question: Question) -> list[float]:
    if not packing.ranged:
        return [1.0] * len(packing.parts)
    found = question.arrays.get(RANGE)
    if found is None or found.shape != (len(packing.parts),) or found.dtype != np.float64:
        raise Declined("the transforms that were asked for are not possible")
    if not (np.isfinite(found).all() and (found > 2.0**-500).all()):
        raise Declined("the transforms that were asked for are not possible")
    return [float(number) for number in found]


def packed_layout(space: Workspace, question: Question, layout: Arrays) -> Arrays:
    """Arrays like those of an answer by a site that trains in this workspace. layout: of the
    others."""
    packing = _told(space, question)
    if packing is None:
        return layout
    own = set(space.names)
    absent = {str(i) for i, names in enumerate(packing.parts) if not own.issuperset(names)}
    found = {}
    for name, spec in question.expects.items():
        group, _, part = name.partition("/")
        if f"{group}/" in (PACKED, f"{WEIGHT}/") and part in absent:
            continue
        if f"{group}/" == PACKED and spec.kind == "float" and spec.code is None:
            found[name] = blank(spec, np.zeros((), _dtype(space)))
        elif group in (PACKED[:-1], WEIGHT, BEYOND):
            found[name] = blank(spec)
        elif name in layout:
            found[name] = layout[name]
    return found
