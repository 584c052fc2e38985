"""Recording a forward pass: which layer saw what, and where its output's gradient will be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional as F

from cupola.privacy.persample.rules import Dense, Kept, Rule, rule_of, wanted

#: (layer, tape, *args, **kwargs) -> output: the layer's forward pass, written so that a tape sees
#: its parameters at work and `vmap` can follow it.
Cell = Callable[..., Any]

_CELLS: dict[type, Cell] = {}


class NotCoveredError(Exception):
    """What was asked of a layer has no rule; the module is computed by `vmap` instead."""


class Use(NamedTuple):
    """One use of a layer; `point` is where the output's gradient is taken."""

    layer: Any
    rule: Rule
    kept: Kept  # (rows, ...)
    versions: tuple[int, ...]  # of the kept tensors, which must not change afterwards
    point: GradientEdge


@dataclass
class Tape:
    """The uses of a forward pass, in order. A silent tape records nothing."""

    silent: bool = False
    uses: list[Use] = field(default_factory=list)

    def record(self, layer: Any, rule: Rule, kept: Kept, output: Tensor) -> None:
        """Remember a use; the edge stays right when `output` is changed in place later."""
        if self.silent or not output.requires_grad or not wanted(layer):
            return
        versions = tuple([t._version for t in kept])
        self.uses.append(Use(layer, rule, kept, versions, get_gradient_edge(output)))

    def dense(self, x: Tensor, weight: Any, bias: Any) -> Tensor:
        """A recorded linear map of x (rows, ..., d)."""
        output = F.linear(x, weight, bias)
        self.note(x, output, weight, bias)
        return output

    def note(self, x: Tensor, output: Tensor, weight: Any, bias: Any) -> None:
        """Record that `output` got weight x + bias added, x and output (rows, ..., features)."""
        layer = Dense(weight, bias)
        found = rule_of(layer)
        assert found is not None
        self.record(layer, found, (x,), output)


def cell(*types: type) -> Callable[[Cell], Cell]:
    """Decorator: registers an equivalent forward pass for layers of these types."""

    def register(function: Cell) -> Cell:
        for kind in types:
            _CELLS[kind] = function
        return function

    return register


def cell_of(layer: nn.Module) -> Cell | None:
    """The equivalent forward pass of a layer, by its exact type."""
    return _CELLS.get(type(layer))


@dataclass(frozen=True)
class Layout:
    """The layers of a module that a tape can see, found once; `missing` names one it cannot.

    trained: all trainable parameters, in the order of `module.parameters()`.
    channels_last: whether images are to come with their channels next to each other in memory,
        which wide convolutions are faster with; most layers hand it on.
    """

    trained: list[nn.Parameter]
    rules: list[tuple[nn.Module, Rule]]
    cells: list[tuple[nn.Module, Cell]]
    missing: str | None
    channels_last: bool = False


def layout(module: nn.Module) -> Layout:
    """Layers with trainable parameters by rule; layers with a cell, trainable or not."""
    trained = [p for p in module.parameters() if p.requires_grad]
    rules, cells, missing = [], [], None
    for name, layer in module.named_modules():
        cell, rule = cell_of(layer), rule_of(layer)
        if cell is not None:
            cells.append((layer, cell))
        elif rule is not None:
            if wanted(layer):
                rules.append((layer, rule))
        elif wanted(layer):
            missing = missing or f"{name or 'model'} ({type(layer).__name__})"
    return Layout(trained, rules, cells, missing)


@contextmanager
def recording(found: Layout, tape: Tape) -> Iterator[None]:
    """Layers record their calls on the tape, or on a silent one only run their cells.

    Their forward passes are replaced meanwhile, which is cheaper than hooks and also leaves the
    module's own hooks in their place; afterwards the module is as it was.
    """
    changed: list[tuple[dict[str, Any], Any]] = []
    try:
        for layer, cell in found.cells:
            changed.append((layer.__dict__, layer.__dict__.get("forward")))
            layer.__dict__["forward"] = partial(cell, layer, tape)
        for layer, rule in () if tape.silent else found.rules:
            changed.append((layer.__dict__, layer.__dict__.get("forward")))
            layer.__dict__["forward"] = partial(_recorded, layer, rule, tape, layer.forward)
        yield
    finally:
        for attributes, own in changed:
            if own is None:
                del attributes["forward"]
            else:
                attributes["forward"] = own


def _recorded(
    layer: nn.Module, rule: Rule, tape: Tape, forward: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    output = forward(*args, **kwargs)
    if output.requires_grad:
        tape.record(layer, rule, rule.keep(layer, args, kwargs, output), output)
    return output
