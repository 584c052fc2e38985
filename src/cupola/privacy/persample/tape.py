"""Recording a forward pass: which layer saw what, and where its output's gradient will be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

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


@dataclass(frozen=True)
class Use:
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
        versions = tuple(t._version for t in kept)
        kept = tuple(t.detach() for t in kept)
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


def uncovered(module: nn.Module) -> str | None:
    """The first layer with trainable parameters that has neither rule nor cell."""
    for name, layer in module.named_modules():
        if wanted(layer) and rule_of(layer) is None and cell_of(layer) is None:
            return f"{name or 'model'} ({type(layer).__name__})"
    return None


@contextmanager
def recording(module: nn.Module, tape: Tape) -> Iterator[None]:
    """Record calls of the module's layers on the tape; afterwards the module is as it was."""

    def hook(rule: Rule, layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        tape.record(layer, rule, rule.keep(layer, args, kwargs, output), output)

    handles = []
    try:
        with replaced(module, tape):
            for layer in module.modules():
                if cell_of(layer) is None and wanted(layer):
                    found = rule_of(layer)
                    if found is not None:
                        handles.append(
                            layer.register_forward_hook(partial(hook, found), with_kwargs=True)
                        )
            yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def replaced(module: nn.Module, tape: Tape) -> Iterator[None]:
    """Layers that have a cell compute by it; afterwards by their own forward pass again."""
    changed: list[tuple[nn.Module, Any]] = []
    try:
        for layer in module.modules():
            found = cell_of(layer)
            if found is not None:
                changed.append((layer, layer.__dict__.get("forward")))
                layer.forward = partial(found, layer, tape)
        yield
    finally:
        for layer, own in changed:
            if own is None:
                del layer.forward
            else:
                layer.forward = own
