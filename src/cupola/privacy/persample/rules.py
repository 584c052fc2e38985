"""How a layer's per-sample gradients follow from its input and its output's gradient.

A rule belongs to a type of layer and is registered by a decorator:

    @rule(MyLayer)
    class MyRule(Rule):
        def keep(self, layer, args, kwargs, output):
            return (args[0],)

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
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

Kept = tuple[Tensor, ...]
Gradients = dict[str, Tensor]

_RULES: dict[type, Rule] = {}
R = TypeVar("R", bound="type[Rule]")


class Contribution(Protocol):
    """What one layer adds to the samples' gradients."""

    @property
    def squared(self) -> Tensor:
        """Squared norms (n,) over the layer's wanted parameters."""

    def weighted(self, weights: Tensor) -> Gradients:
        """sum_i weights_i g_i by parameter name; weights (n,) are finite."""


class Factored(NamedTuple):
    """Norms found without per-sample gradients; the weighted sum is computed when asked for."""

    squared: Tensor
    weighted: Callable[[Tensor], Gradients]


@dataclass(frozen=True)
class Materialised:
    """Per-sample gradients as they are, by parameter name: (n, *shape)."""

    gradients: Gradients

    @property
    def squared(self) -> Tensor:
        # One pass without a squared copy; a product over rows is slower than this on the CPU.
        parts = [torch.linalg.vector_norm(g.flatten(1), dim=1) for g in self.gradients.values()]
        return torch.stack([part.square() for part in parts]).sum(0)

    def rows(self, chosen: Tensor) -> Materialised:
        """The same for some of the samples."""
        return Materialised({name: g[chosen] for name, g in self.gradients.items()})

    def weighted(self, weights: Tensor) -> Gradients:
        return {
            name: (weights @ g.flatten(1)).view(g.shape[1:]) for name, g in self.gradients.items()
        }


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
        self,
        layer: Any,  # noqa: ARG002
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: Tensor,  # noqa: ARG002
    ) -> Kept:
        """What to remember of a call: tensors with one entry per row, (rows, ...).

        output: the layer's, with its `grad_fn`, which knows what the forward pass saved.
        """
        return (args[0] if args else next(iter(kwargs.values())),)

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


def rule_of(layer: Any) -> Rule | None:
    """The rule of a layer; a subclass has its base's only if it computes the same."""
    for kind in type(layer).__mro__:
        found = _RULES.get(kind)
        if found is not None:
            own, base = getattr(type(layer), "forward", None), getattr(kind, "forward", None)
            same = kind is type(layer) or own is base
            return found if same else None
    return None


def wanted(layer: Any) -> dict[str, nn.Parameter]:
    """The trainable parameters of a layer itself, without its children's."""
    named = layer._parameters if isinstance(layer, nn.Module) else vars(layer)
    return {name: p for name, p in named.items() if p is not None and p.requires_grad}
