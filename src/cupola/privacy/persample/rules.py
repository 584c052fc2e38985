"""How a layer's per-sample gradients follow from its input and its output's gradient.

A rule belongs to a type of layer and is registered by a decorator:

    @rule(MyLayer)
    class MyRule(Rule):
        def remember(self, layer, x, output):
            return (x,)

        def gradients(self, layer, kept, g):
            (x,) = kept
            return {"weight": ...}  # (n, *layer.weight.shape)

`gradients` is all that is needed. A layer with a cheaper way to the norms, or to the weighted sum,
also overrides `contribution`. Only parameters in `wanted(layer)` are asked for.

`room` is the memory that per-sample gradients may still take in this micro-batch: a rule that can
do without them asks it first.

Shapes: n samples with k rows each (the copies of an augmented sample, or several uses of the layer
in one forward pass); k is nearly always 1. Kept tensors are (n, k, ...), g is (n, k, ...), and a
sample's gradient is the sum over its rows.

What a contribution owes, so that the clip holds for the sum that is released, whatever the weights
and the data (docs/privacy.md, "The clip, proven"): its `squared` is an upper bound in the reals.

- Where the numbers of the gradients exist (`Materialised`), norm and sum use the same numbers.
- Where only factors exist (`Factored`), norm and sum are computed apart, in float64, and the norm
  counts the size A = sum_t |g_t||x_t| of the terms too (`guarded`): A bounds the rounding of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

Kept = tuple[Tensor, ...]
Gradients = dict[str, Tensor]
Parameters = Mapping[str, nn.Parameter]

_RULES: dict[type, Rule] = {}
_NAMED: dict[str, Rule] = {}  # of types that are not imported for it
R = TypeVar("R", bound="type[Rule]")

#: What one sample may add beyond the clip, as a share of it, by rounding: the theorem's.
ROUNDING = 1e-3
#: A product of Gram matrices in float64 costs about this many times its count of operations.
GRAM = 3
BLOCK = 128  # float32 numbers under one float32 norm
GUARD = 2.0**-20  # how much of A^2 a squared norm counts: so A <= 1024 |G|
LARGEST = 1e260  # squares beyond are as good as infinite: products with tiny ones would vanish
COLUMNS = 8192  # of per-sample gradients that are float64 at a time: 16 rows stay in the cache
FEWEST_TERMS, MOST_TERMS, PENDING = 256, 4096, 2**22  # rows, and numbers, of one outer product


def squares(rows: Tensor) -> Tensor:
    """Upper bounds (n,), float64, of the squared norms of rows (n, ...); inf where one overflows.

    A float32 norm of 128 numbers errs by less than 2^-17 of itself, and by what underflows.
    """
    flat = rows.flatten(1)
    size = flat.shape[1]
    if flat.dtype == torch.float64:
        return bounded(torch.linalg.vector_norm(flat, dim=1).square_().mul_(1 + size * 2.0**-51))
    edge = size - size % BLOCK
    found = flat[:, edge:].double().square_().sum(1)
    if edge:
        blocks = flat[:, :edge].unflatten(1, (-1, BLOCK))
        found += torch.linalg.vector_norm(blocks, dim=2).double().square_().sum(1)
    return found.mul_(1 + 2.0**-16).add_(size * 2.0**-126)


def guarded(
    squared: Tensor, terms: Tensor, additions: int, computed: Tensor | None = None
) -> Tensor:
    """Squared norms (n,) computed in float64 from factors, as upper bounds that count the terms.

    terms: A (n,), of the terms that the sum will add up. additions: of the float64 sums on the way
    to `squared`, whose error is at most additions 2^-52 A^2; computed: the A of these, if it is
    another.
    """
    lost = additions * 2.0**-51 * (terms if computed is None else computed).square()
    return bounded(squared.clamp_min(0) + GUARD * terms.square() + lost)


def bounded(squared: Tensor) -> Tensor:
    """Squares, inf where they are too large to be trusted beside tiny ones, or NaN."""
    return torch.where(squared < LARGEST, squared, math.inf)


def sizes(rows: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """Norms over `dim` in float64; inf as in `bounded`."""
    return bounded(torch.linalg.vector_norm(rows, dim=dim, dtype=torch.float64).square_()).sqrt_()


def live(rows: Tensor, weights: Tensor) -> Tensor:
    """rows (n, ...) with zeros for samples of weight 0, whose numbers may be infinite or NaN."""
    if bool(weights.all()):
        return rows
    return torch.where(weights.view(-1, *[1] * (rows.dim() - 1)) != 0, rows, 0)


class Sums:
    """Sums over samples by parameter, float64, zero where nothing was added."""

    def __init__(self) -> None:
        self._totals: dict[nn.Parameter, Tensor] = {}
        self._pending: dict[nn.Parameter, list[tuple[Tensor, Tensor]]] = {}

    def total(self, parameter: nn.Parameter, make: Callable[[], Tensor] | None = None) -> Tensor:
        """The sum of a parameter, to add to. make: zeros of its shape in another memory order."""
        if parameter not in self._totals:
            zeros = torch.zeros(parameter.shape, dtype=torch.float64, device=parameter.device)
            self._totals[parameter] = zeros if make is None else make()
        return self._totals[parameter]

    def rows(self, parameter: nn.Parameter, weights: Tensor, rows: Tensor) -> None:
        """Add sum_i weights_i rows_i, rows (n, *shape)."""
        combine(self.total(parameter).view(-1), weights, rows)

    def outer(self, parameter: nn.Parameter, g: Tensor, x: Tensor) -> None:
        """Add sum_r g_r x_r' for g (rows, p) and x (rows, d), float64.

        A total is large and its terms are many: they wait until there are enough of them.
        """
        waiting = self._pending.setdefault(parameter, [])
        waiting.append((g, x))
        rows = sum(len(a) for a, _ in waiting)
        if rows >= FEWEST_TERMS or rows * (g.shape[1] + x.shape[1]) >= PENDING:
            self._settle(parameter)

    def _settle(self, parameter: nn.Parameter) -> None:
        g, x = (torch.cat(column) for column in zip(*self._pending.pop(parameter)))
        for a, b in zip(g.split(MOST_TERMS), x.split(MOST_TERMS)):
            product = a.mT @ b  # apart from the total: so its rounding does not grow with it
            if parameter in self._totals:
                self._totals[parameter] += product
            else:
                self._totals[parameter] = product

    def all(self, parameters: list[nn.Parameter]) -> list[Tensor]:
        """The sums of these parameters; nothing is added afterwards."""
        for parameter in list(self._pending):
            self._settle(parameter)
        return [self.total(p).contiguous() for p in parameters]


def combine(total: Tensor, weights: Tensor, rows: Tensor) -> None:
    """total += sum_i weights_i rows_i in float64, for rows (n, ...) and total flat.

    A slice of columns at a time: a float64 copy of all rows would not stay in the cache.
    """
    flat = rows.flatten(1)
    size = flat.shape[1]
    wide = weights.new_empty(len(flat), min(size, COLUMNS))
    absent = weights == 0
    some = bool(absent.any())
    for start in range(0, size, COLUMNS):
        part = flat[:, start : start + COLUMNS]
        held = wide[:, : part.shape[1]].copy_(part)
        if some:
            held[absent] = 0  # as `live`
        total[start : start + COLUMNS].addmv_(held.mT, weights)


class Contribution(Protocol):
    """What one layer adds to the samples' gradients."""

    @property
    def squared(self) -> Tensor:
        """Upper bounds (n,), float64, of the squared norms over the layer's wanted parameters."""

    @property
    def numbers(self) -> Sequence[Tensor]:
        """Gradients of samples (n, ...) as far as they are there."""

    def add(self, sums: Sums, parameters: Parameters, weights: Tensor) -> None:
        """Add sum_i weights_i g_i; weights (n,), float64, are 0 for samples to leave out, whose
        numbers may be infinite or NaN."""


class Factored(NamedTuple):
    """Norms found without per-sample gradients, and how the weighted sum is made."""

    squared: Tensor
    add: Callable[[Sums, Parameters, Tensor], None]
    numbers: Sequence[Tensor] = ()


@dataclass(frozen=True)
class Materialised:
    """Per-sample gradients as they are, by parameter name: (n, *shape)."""

    gradients: Gradients

    @property
    def squared(self) -> Tensor:
        return torch.stack([squares(g) for g in self.gradients.values()]).sum(0)

    @property
    def numbers(self) -> Sequence[Tensor]:
        return list(self.gradients.values())

    def add(self, sums: Sums, parameters: Parameters, weights: Tensor) -> None:
        for name, rows in self.gradients.items():
            sums.rows(parameters[name], weights, rows)


@dataclass
class Room:
    """Memory for per-sample gradients while a micro-batch is at work, lent again to the next.

    left: bytes that may still be taken. Memory from the system comes a page at a time, which costs
    more than filling it; so tensors are kept for the same requests of the next micro-batch.
    """

    left: int
    _held: list[Tensor] = field(default_factory=list)
    _taken: list[int] = field(default_factory=list)

    def take(self, n: int, like: Tensor) -> bool:
        """Reserve n tensors like this one, if they fit."""
        size = n * like.numel() * like.element_size()
        if size > self.left:
            return False
        self.left -= size
        self._taken.append(size)
        return True

    def lend(self, shape: tuple[int, ...], like: Tensor) -> Tensor | None:
        """An uninitialised tensor of like's kind, if it fits; the room's again after `clear`."""
        place, size = len(self._taken), math.prod(shape)
        if not self.take(size, like.new_empty(())):
            return None
        self._held += [like.new_empty(0)] * (place + 1 - len(self._held))
        held = self._held[place]
        if held.numel() < size or (held.dtype, held.device) != (like.dtype, like.device):
            held = self._held[place] = like.new_empty(size)
        return held[:size].view(shape)

    def clear(self) -> None:
        """What was taken is free again."""
        self.left += sum(self._taken)
        self._taken.clear()


class Rule:
    """Base of all rules; see the module's documentation for what to override."""

    def keep(
        self, layer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Tensor
    ) -> Kept:
        """What to remember of a call: tensors with one entry per row, (rows, ...)."""
        return self.remember(layer, args[0] if args else next(iter(kwargs.values())), output)

    def remember(self, layer: Any, x: Any, output: Tensor) -> Kept:  # noqa: ARG002
        """The same for a layer with one input. output: the layer's, with its `grad_fn`, which knows
        what the forward pass saved."""
        return (x,)

    def arrange(self, kept: Kept, g: Tensor) -> tuple[Kept, Tensor]:
        """Bring (n, k, ...) into a form in which several uses can be joined along dimension 1."""
        return kept, g

    def gradients(self, layer: Any, kept: Kept, g: Tensor) -> Gradients:
        """Per-sample gradients of the wanted parameters, (n, *shape) by name."""
        raise NotImplementedError

    def contribution(
        self,
        layer: Any,
        kept: Kept,
        g: Tensor,
        room: Room,  # noqa: ARG002
    ) -> Contribution:
        """Norms and weighted sums of the same gradients."""
        return Materialised(self.gradients(layer, kept, g))


@dataclass(frozen=True)
class Dense:
    """Parameters that act as a linear layer's inside something larger (a gate, a projection)."""

    weight: nn.Parameter
    bias: nn.Parameter | None = None


def rule(*types: type) -> Callable[[R], R]:
    """Class decorator: registers a rule for layers of these types."""

    def register(cls: R) -> R:
        for kind in types:
            if kind in _RULES:
                raise ValueError(f"{kind.__name__} has a rule already")
            _RULES[kind] = cls()
        return cls

    return register


def rule_named(name: str) -> Callable[[R], R]:
    """The same for layers of a type by its name, "module.Class", of a package that need not be
    there."""

    def register(cls: R) -> R:
        _NAMED[name] = cls()
        return cls

    return register


def rule_of(layer: Any) -> Rule | None:
    """The rule of a layer; a subclass has its base's only if it computes the same."""
    for kind in type(layer).__mro__:
        found = _RULES.get(kind) or _NAMED.get(f"{kind.__module__}.{kind.__qualname__}")
        if found is not None:
            own, base = getattr(type(layer), "forward", None), getattr(kind, "forward", None)
            same = kind is type(layer) or own is base
            return found if same else None
    return None


def wanted(layer: Any) -> dict[str, nn.Parameter]:
    """The trainable parameters of a layer itself, without its children's."""
    named = layer._parameters if isinstance(layer, nn.Module) else vars(layer)
    return {name: p for name, p in named.items() if p is not None and p.requires_grad}
