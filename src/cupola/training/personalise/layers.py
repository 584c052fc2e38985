"""Layers whose sparsity can be told: activations in the order in which the model computes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cupola.errors import PlanError

ACTIVATIONS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.RReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU,
    nn.SiLU, nn.Mish, nn.Softplus, nn.Tanh, nn.Sigmoid, nn.Hardswish, nn.Hardtanh, nn.Hardsigmoid,
    nn.Softsign,
)  # fmt: skip
_UNITS_LAST = (nn.Linear, nn.LayerNorm, nn.Embedding, nn.RNNBase, nn.MultiheadAttention,
               nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)  # fmt: skip
_CHANNELS_FIRST = (nn.Conv1d, nn.BatchNorm1d, nn.InstanceNorm1d, nn.GroupNorm, nn.MaxPool1d)
_BLOCKS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)

See = Callable[[str, Tensor], None]  # (layer, values with channels last)


@dataclass(frozen=True)
class Layer:
    """A layer by its name in the module, and how many channels (or hidden units) it has."""

    name: str
    channels: int


class _Enough(Exception):
    """All layers were seen: the rest of the network need not run."""


def activations(module: nn.Module, inputs: Tensor) -> list[Layer]:
    """Activations in the order of their first use, with recurrent layers and the hidden layers of
    Transformer blocks, whose activations are no modules of their own."""
    found: dict[str, Layer] = {}

    def see(name: str, values: Tensor) -> None:
        found[name] = Layer(name, values.shape[-1])

    named = dict(module.named_modules())
    inner = [f"{name}.linear1".lstrip(".") for name, m in named.items() if isinstance(m, _BLOCKS)]
    names = [n for n, m in named.items() if isinstance(m, (*ACTIVATIONS, nn.RNNBase)) or n in inner]
    _run(module, inputs, names, see, early=False)
    return list(found.values())


def find_layers(
    module: nn.Module, inputs: Tensor, wanted: Sequence[int | str]
) -> tuple[Layer, ...]:
    """Layers by name, or by place among the activations."""
    known = activations(module, inputs)
    made = []
    for which in wanted:
        if isinstance(which, int):
            if not -len(known) <= which < len(known):
                raise PlanError(
                    f"personalise.layers: {which}, but the model has {len(known)} activations "
                    "that are modules; name a layer instead (the sign of its output counts)"
                )
            made.append(known[which])
            continue
        if which not in dict(module.named_modules()) or not which:
            names = ", ".join(layer.name for layer in known) or "none"
            raise PlanError(
                f"personalise.layers: no layer is named '{which}'; activations: {names}"
            )
        seen = watch(module, inputs, [which])
        if not seen:
            raise PlanError(f"personalise.layers: the model never uses '{which}'")
        made.append(Layer(which, seen[which].shape[-1]))
    return tuple(made)


def watch(module: nn.Module, inputs: Tensor, names: Sequence[str]) -> dict[str, Tensor]:
    """What decides sparsity at these layers, with channels last: the input of an activation, the
    output of any other layer. In evaluation mode."""
    seen: dict[str, Tensor] = {}
    _run(module, inputs, names, seen.__setitem__, early=True)
    return seen


def _run(module: nn.Module, inputs: Tensor, names: Sequence[str], see: See, *, early: bool) -> None:
    was = module.training
    module.eval()
    try:
        with torch.no_grad(), watching(module, names, see, early=early):
            module(inputs)
    finally:
        module.train(was)


@contextmanager
def watching(module: nn.Module, names: Sequence[str], see: See, *, early: bool) -> Iterator[None]:
    """Show the first use of these layers in a forward pass; `early` ends it after the last."""
    parts, done, handles = dict(module.named_modules()), set[str](), []

    def told(name: str, part: nn.Module, values: object) -> None:
        if name in done:
            return
        done.add(name)
        value = values[0] if isinstance(values, tuple) else values
        assert isinstance(value, Tensor)
        see(name, value.movedim(_axis(part, value), -1))
        if early and len(done) == len(set(names)):
            raise _Enough

    for name in names:
        part = parts[name]
        if isinstance(part, ACTIVATIONS):  # before it: some overwrite their input
            handles.append(
                part.register_forward_pre_hook(lambda m, given, name=name: told(name, m, given))
            )
        else:
            handles.append(
                part.register_forward_hook(lambda m, _, made, name=name: told(name, m, made))
            )
    try:
        yield
    except _Enough:
        pass
    finally:
        for handle in handles:
            handle.remove()


def _axis(part: nn.Module, value: Tensor) -> int:
    """Where the channels are: last in vectors and sequences of vectors, else second."""
    if isinstance(part, _CHANNELS_FIRST):
        return 1
    return -1 if value.dim() <= 3 or isinstance(part, _UNITS_LAST) else 1
