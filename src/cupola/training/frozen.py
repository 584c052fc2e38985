"""FedPT: federated learning of partly trainable networks (001, Sidahmed et al.).

    x = (y, z): y is trained, the rest of the model is what a generator makes of the seed z.
    Every round the coordinator sends (y, z); a site reconstructs x, trains y, and answers its
    change of y. Nothing else of the model ever travels (Algorithm 1).

Frozen tensors come from (seed, name) (see cupola.nn.regenerate), from Gaussian initialisers;
normalisation layers are trained unless a plan says otherwise. With the seed goes a checksum over
all frozen bits: a site that made others says so before it trains.

A trained source model that another is built on (Reprogrammable-FL, 000) is frozen as well, but
comes from a file at every site: only the checksum travels. The same holds for what a model freezes
itself (`requires_grad_(False)`: the base of an adapter, word vectors). Nobody else can make that
again, so it is saved with the trained model.

Levels, which the paper left open: some sites train less than others. They receive all that is
trained anywhere, since their forward pass needs it as it is now, and answer for their own part; a
tensor moves by the mean over the sites that train it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from cupola.base.randomness import derive, uniforms
from cupola.base.suggest import suggest
from cupola.errors import FederationError, PlanError
from cupola.federation.message import Arrays
from cupola.nn.adapters import MADE, ORTHONORMAL, RESTING
from cupola.nn.memory_saving import make_lean
from cupola.nn.regenerate import checksum, constant, deviation, orthonormal, values
from cupola.nn.reprogram import INSTALLED, Adapted
from cupola.training.choices import Subset, Trainable

if TYPE_CHECKING:
    from cupola.training.loop import Training
    from cupola.training.workspace import Problem

SEED, CHECKSUM = "frozen/seed", "frozen/checksum"


# Which parameters


def frozen_names(choice: Subset, module: nn.Module, key: str = "trainable") -> list[str]:
    """Parameters of a module that are not trained, in its order; those that it has frozen itself
    (pre-trained word vectors, say) are left out: they are no choice."""
    if not choice.on:
        return []
    aliases: dict[int, list[str]] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        aliases.setdefault(id(p), []).append(name)
    known = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    word, patterns = ("freeze", choice.freeze) if choice.freeze else ("only", choice.only)
    hit = {name for name, p in known if any(_named(a, patterns) for a in aliases[id(p)])}
    for pattern in patterns:
        if not any(_named(a, (pattern,)) for name, p in known for a in aliases[id(p)]):
            places = [name for name, _ in module.named_modules() if name]
            places += [name for name, _ in known]
            raise PlanError(
                f"{key}.{word}: '{pattern}' names no trainable parameter or module of the model; "
                f"{suggest(pattern, places)}"
            )
    frozen = [name for name, _ in known if (name in hit) == (word == "freeze")]
    found = [name for name in frozen if choice.norms or not is_norm(module, name)]
    if not found and choice.freeze:
        raise PlanError(
            f"{key}.freeze names normalisation layers only, which are trained by default; "
            f"{key}.norms = true freezes them, too"
        )
    if len(found) == len(known):
        raise PlanError(f"{key}: nothing is left to train; freeze less")
    return found


def _named(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a pattern fits the parameter, or a module that holds it."""
    parts = name.split(".")
    places = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return any(fnmatchcase(place, pattern) for pattern in patterns for place in places)


def is_norm(module: nn.Module, name: str) -> bool:
    """Whether a parameter or buffer is of a normalisation layer."""
    parts = name.split(".")[:-1]
    holders = (module.get_submodule(".".join(parts[:n])) for n in range(1, len(parts) + 1))
    return any("Norm" in type(holder).__name__ for holder in holders)


@dataclass(frozen=True)
class PartlyFrozen:
    """Makes a module of which only a part asks for gradients. Its frozen values are those of
    `make` until a workspace regenerates them."""

    make: Callable[[], nn.Module]
    choice: Trainable

    def __call__(self) -> nn.Module:
        module = self.make()
        names = frozen_names(self.choice, module)
        for name in names:
            module.get_parameter(name).requires_grad_(False)
        setattr(module, MADE, tuple(names))
        make_lean(module)
        return module


def partly(problem: Problem, choice: Trainable, seed: int) -> Problem:
    """The same problem with only a part of its model trained. seed: of the run."""
    from dataclasses import replace

    if not (choice.on or choice.level):
        return problem
    own = derive(seed, "frozen part") if choice.seed is None else choice.seed
    build: Callable[[], nn.Module] = PartlyFrozen(problem.build, choice)
    if choice.adapter is not None:
        from cupola.training.adapters import WithAdapter

        build = WithAdapter(problem.build, choice.adapter, seed)
    return replace(problem, build=build, trainable=choice, frozen_seed=own)


# The frozen part in place


class FrozenPart:
    """The tensors of one module that do not travel: made of a seed, installed from a file (or the
    base of an adapter), or frozen by the model itself."""

    def __init__(self, module: nn.Module) -> None:
        names = getattr(module, MADE, ())
        self._installed = {name: _tensor(module, name) for name in getattr(module, INSTALLED, ())}
        self._made = {name: (module.get_parameter(name), _maker(module, name)) for name in names}
        self._all = {n: p for n, p in module.named_parameters() if not p.requires_grad}
        self._own = sorted(self._all.keys() - set(names) - self._installed.keys())
        self._based = hasattr(module, RESTING)  # it has an adapter
        #: Buffers that stay as they are and do not travel.
        self.resting = frozenset(getattr(module, RESTING, ()))
        self._seed: int | None = None
        self._checksum = b""

    def __bool__(self) -> bool:
        return bool(self._all or self._installed)

    @cached_property
    def installed(self) -> str | None:
        """Checksum of what comes from a file, or is an adapter's base, if anything is."""
        return checksum(self._installed.items()).hex() if self._installed else None

    @property
    def parameters(self) -> dict[str, int]:
        """How many parameters come from a 'seed', from a 'source' (a file, or an adapter's base),
        and are the model's 'own': what it freezes itself."""
        sizes = {name: p.numel() for name, p in self._all.items()}
        own, seed = sum(sizes[n] for n in self._own), sum(sizes[n] for n in self._made)
        return {"seed": seed, "source": sum(sizes.values()) - own - seed, "own": own}

    def regenerate(self, seed: int) -> bytes:
        """Fill the tensors from this seed, if they are not; the checksum of all."""
        if self and (not self._checksum or (self._made and seed != self._seed)):
            self._seed = None
            for name, (tensor, make) in self._made.items():
                made = torch.from_numpy(make(seed, name, tensor.shape))
                tensor.data.copy_(made.to(tensor.dtype))  # rounded here, not on the device
            self._checksum, self._seed = checksum({**self._all, **self._installed}.items()), seed
        return self._checksum

    def broadcast(self, seed: int) -> Arrays:
        """What travels in place of the frozen tensors."""
        if not self:
            return {}
        found = np.frombuffer(self.regenerate(seed), np.uint8)
        made = {SEED: np.array(seed, np.int64)} if self._made else {}
        return {**made, CHECKSUM: found.copy()}

    def receive(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Reconstruct the frozen part from what came; refuse a part that is not the same."""
        seed, told = arrays.get(SEED), arrays.get(CHECKSUM)
        if (seed is None and told is None) and not self:
            return
        if not self or (seed is None) == bool(self._made) or told is None:
            where = "the coordinator" if self else "this site's plan"
            raise FederationError(
                f"{where} freezes nothing or another kind of part, the other side does: the "
                "sections [trainable] and [model] must be the same for all"
            )
        shaped = seed is None or (seed.shape == () and seed.dtype == np.int64 and int(seed) >= 0)
        if not shaped or told.dtype != np.uint8 or told.shape != (16,):
            raise FederationError("the seed or the checksum of the frozen part is ill-formed")
        if self.regenerate(0 if seed is None else int(seed)) != told.tobytes():
            what, why = self._about()  # both in 200 letters: a site's codes are not longer
            raise FederationError(
                f"{what} not the coordinator's (checksum {self._checksum.hex()[:8]}, not "
                f"{told.tobytes().hex()[:8]}): {why}"
            )

    def _about(self) -> tuple[str, str]:
        """What differs where checksums do, and why it may."""
        if self._based:
            return (
                "the adapter's base here is",
                "other weights, another section [model] or [trainable], or another version",
            )
        if self._installed:
            return (
                "the source model here is",
                "another file of weights, another section [model], or another version of cupola",
            )
        if not self._own:
            return (
                "the frozen part made here is",
                "another seed, another section [trainable] or model, or another version of cupola",
            )
        more = f" and {len(self._own) - 1} more" if len(self._own) > 1 else ""
        return (
            f"what the model freezes itself ('{self._own[0]}'{more}) is",
            "its code must give the same weights everywhere"
            + (", and [trainable] must be the same" if self._made else ""),
        )

    def arrays(self, seed: int) -> Arrays:
        """The frozen tensors for the finished model; files, and bases, need not be copied."""
        self.regenerate(seed)
        kept = {name: p for name, p in self._all.items() if name not in self._installed}
        return {name: p.detach().cpu().numpy().copy() for name, p in kept.items()}


def _maker(module: nn.Module, name: str) -> Callable[[int, str, tuple[int, ...]], np.ndarray]:
    """(seed, name, shape) -> values of a parameter that comes from the seed."""
    if getattr(module.get_submodule(name.rpartition(".")[0]), ORTHONORMAL, False):
        return orthonormal
    return partial(values, scale=deviation(module, name), fill=constant(module, name))


def _tensor(module: nn.Module, name: str) -> torch.Tensor:
    place, _, own = name.rpartition(".")
    return getattr(module.get_submodule(place), own)


# Sites that train less


def level_of(choice: Trainable, seed: int, site: int) -> int | None:
    """The number of a site's level; None: it trains all that is trained."""
    (found,) = levels_of(choice, seed, np.array([site]))
    return None if found < 0 else int(found)


def levels_of(choice: Trainable, seed: int, sites: np.ndarray) -> np.ndarray:
    """Of each of these sites, -1 for none. Lists come first; a share is drawn site by site."""
    found = np.full(len(sites), -1)
    if any(level.share is not None for level in choice.level):
        edge, lots = 0.0, uniforms(seed, "level", 0, sites.tolist())[:, 0]
        for number, level in enumerate(choice.level):
            if level.share is not None:
                found[(lots >= edge) & (lots < edge + level.share)] = number
                edge += level.share
    for number, level in reversed(list(enumerate(choice.level))):
        found[np.isin(sites, level.sites)] = number
    return found


@dataclass(frozen=True)
class Levels:
    """Who trains what, over all sites of a training. counts: sites of each level, and of none."""

    frozen: tuple[frozenset[str], ...]
    counts: tuple[int, ...]
    rest: int

    @property
    def sites(self) -> int:
        return sum(self.counts) + self.rest

    def trainers(self, name: str) -> int:
        """Sites that train this parameter."""
        more = (n for frozen, n in zip(self.frozen, self.counts) if name not in frozen)
        return self.rest + sum(more)

    def alone(self, names: list[str], minimum: int) -> int:
        """The fewest sites that train the same of these parameters, of those that are told: with a
        model made for it, two layers' gradients are the same numbers, and differ by these sites."""
        told = [name for name in names if self.trainers(name) >= minimum]
        found: dict[frozenset[str], int] = {}
        for frozen, count in zip((*self.frozen, frozenset()), (*self.counts, self.rest)):
            own = frozen.intersection(told)
            found[own] = found.get(own, 0) + count
        return min(count for count in found.values() if count)


def levels(training: Training) -> Levels | None:
    """The levels of a training; None if all its sites train the same."""
    problem = training.problem
    if not problem.trainable.level:
        return None
    module = problem.build()
    frozen = tuple(
        frozenset(frozen_names(level, module, f"trainable.level[{i}]"))
        for i, level in enumerate(problem.trainable.level)
    )
    beyond = [s for level in problem.trainable.level for s in level.sites if s >= training.sites]
    if beyond and training.members is None:
        raise PlanError(
            f"trainable.level: there is no site {beyond[0]}; sites are 0 to {training.sites - 1}"
        )
    own = training.members if training.members is not None else range(training.sites)
    where = levels_of(problem.trainable, problem.frozen_seed, np.array(own))
    counts = tuple(int((where == i).sum()) for i in range(len(frozen)))
    return Levels(frozen, counts, int((where < 0).sum()))


def require_trainable(training: Training) -> None:
    """Refuse what cannot be bounded or hidden, with the way out."""
    choice, found = training.problem.trainable, training.levels
    # Patterns that fit nothing are found by building, before the first round.
    built = training.problem.build() if choice.on and choice.adapter is None else None
    if isinstance(built, Adapted) and built.from_file:
        raise PlanError(
            "[trainable] makes what it freezes from a seed, which would overwrite the source "
            "model's weights; say in model.adapt what is trained ('head', 'map', 'reprogram')"
        )
    if found is None:
        return
    names = [n for n, p in training.problem.build().named_parameters() if p.requires_grad]
    idle = [name for name in names if not found.trainers(name)]
    if idle and training.members is None:  # in a part of a federation such a tensor just stays
        raise PlanError(
            f"trainable.level: no site trains '{idle[0]}'; put it into trainable.freeze, so that "
            "it need not travel"
        )
    if training.sum.masked and training.local.weighting == "samples":
        raise PlanError(
            "trainable.level with masked sums tells the weight of every tensor, and differences of "
            "these tell the samples of few sites; set local.weighting = 'uniform'"
        )
    least, noised = training.sum.minimum, training.mechanism.noised_at_site
    whole = training.members is None  # groups that train apart are agreed to change
    if training.sum.masked and whole and not noised and found.alone(names, least) < least:
        raise PlanError(
            f"trainable.level with masked sums: fewer than sum.minimum = {least} "
            "sites train the same tensors, and differences of tensors tell of them; put more sites "
            "into that level, or into another one"
        )
    if training.task != "train":
        raise PlanError(f"trainable.level needs task = 'train'; '{training.task}' is asked")


@dataclass(frozen=True)
class Share:
    """How much of a model is trained. parameters: of all; trained: of those at some site."""

    parameters: int
    trained: int

    @cached_property
    def trainable(self) -> float:
        return self.trained / max(1, self.parameters)


def share(module: nn.Module) -> Share:
    """Counted on a module as `PartlyFrozen` makes it; a tied weight counts once."""
    sizes = [(math.prod(p.shape), p.requires_grad) for p in module.parameters()]
    return Share(sum(n for n, _ in sizes), sum(n for n, asked in sizes if asked))
