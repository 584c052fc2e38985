"""Adapters: a frozen model with a small trained part, put into any torch module in place.

    lora       W + s B A     A (r, d) and B (p, r) trained; Hu et al. 2021
    ffa-lora   W + s B A     A drawn from a seed, B trained; Sun et al. 2024
    lora-sb    W + s B R A   B and A orthonormal from a seed, R (r, r) trained; Ponkshe et al. 2024,
                             who take B and A from a first gradient, which is not public
    prompt     trained vectors before the embedded tokens; Lester et al. 2021
    bitfit     the biases alone; Zaken et al. 2021
    head       the last layer alone

s = alpha / r. B (of lora-sb: R) starts at zero, so the model starts as it was. A convolution's A is
one to r channels, B one of 1 x 1, which is the same product of the flattened weights.

A mean over sites of B alone, or R alone, is the mean of the models, which are linear in them. Means
of A and of B are not: mean(B) mean(A) is not mean(B A).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cupola.base.suggest import suggest
from cupola.errors import PlanError
from cupola.nn.memory_saving import make_lean
from cupola.nn.quantised import QuantisedLinear, unpack
from cupola.nn.reprogram import INSTALLED

Kind = Literal["lora", "ffa-lora", "lora-sb", "prompt", "bitfit", "head"]
LOW_RANK = ("lora", "ffa-lora", "lora-sb")
#: Kinds whose model is linear in what is trained: a mean of them is the mean of the models.
EXACT = ("ffa-lora", "lora-sb", "bitfit", "head")

FACTORS = ("lora_A", "lora_R", "lora_B")  # in the order in which an input passes
MADE = "_cupola_regenerated"  # names of a module's parameters that come from a seed
ORTHONORMAL = "_cupola_orthonormal"  # on a factor: rows, or columns if it is tall, orthonormal
RESTING = "_cupola_resting"  # buffers of the base, which stay as they are and never travel
NARROW = "_cupola_base_dtype"


class LowRank(nn.Module):
    """A frozen layer plus s B A x, or s B R A x. The factors compute in their own precision."""

    scaling: float

    def change(self, x: Tensor) -> Tensor:
        x = x.to(self.lora_A.weight.dtype)  # type: ignore[union-attr, arg-type]
        for name in FACTORS:
            if name in self._modules:
                x = self._modules[name](x)  # type: ignore[misc]
        return self.scaling * x

    def forward(self, x: Tensor) -> Tensor:
        output = super().forward(x)
        return output + self.change(x).to(output.dtype)


class Fixed(nn.Module):
    """A frozen batch normalisation: in evaluation mode for good, since its statistics are the
    base's."""

    def train(self, mode: bool = True) -> Fixed:  # noqa: ARG002
        return super().train(False)


_MADE: dict[tuple[type, type], type] = {}


def _with(mixin: type, kind: type) -> type:
    """The same layer with a mixin before it: names, weights and hooks stay where they are."""
    if (mixin, kind) not in _MADE:
        _MADE[mixin, kind] = _mixed(mixin, kind)
    return _MADE[mixin, kind]


def _mixed(mixin: type, kind: type) -> type:
    return type(f"{mixin.__name__}{kind.__name__}", (mixin, kind), {})


# What is adapted


def is_dense(layer: nn.Module) -> bool:
    """A dense layer: torch's, one in 8 bits, or transformers' `Conv1D`."""
    return isinstance(layer, nn.Linear | QuantisedLinear) or is_transposed(layer)


def is_transposed(layer: nn.Module) -> bool:
    """transformers' `Conv1D`, whose weight is (inputs, outputs)."""
    return any(f"{c.__module__}.{c.__name__}" == _CONV1D for c in type(layer).__mro__)


_CONV1D = "transformers.pytorch_utils.Conv1D"


def sizes(layer: Any) -> tuple[int, int]:
    """Inputs and outputs of a dense or convolutional layer."""
    if isinstance(layer, nn.Conv2d):
        return layer.in_channels * math.prod(layer.kernel_size), layer.out_channels
    if is_transposed(layer):
        return tuple(layer.weight.shape)
    return layer.in_features, layer.out_features


def _adaptable(module: nn.Module) -> dict[str, nn.Module]:
    """Layers that can take factors, by name, in the module's order."""
    hidden = {
        id(part)
        for holder in module.modules()
        if isinstance(holder, nn.MultiheadAttention)  # it takes their weights, not their outputs
        for part in holder.modules()
    }
    return {
        name: layer
        for name, layer in module.named_modules()
        if name
        and id(layer) not in hidden
        and (is_dense(layer) or (isinstance(layer, nn.Conv2d) and layer.groups == 1))
    }


def named(name: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern fits a layer: its whole name, that of a module around it, or its last
    parts ('query', 'attention.query')."""
    parts = name.split(".")
    around = [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
    last = [".".join(parts[n:]) for n in range(1, len(parts))]
    return any(fnmatchcase(place, pattern) for pattern in patterns for place in (*around, *last))


def last_layer(module: nn.Module) -> str:
    """The last module that holds parameters of its own."""
    found = [name for name, part in module.named_modules() if _holds(part, recurse=False)]
    return found[-1] if found else ""


def _holds(part: nn.Module, recurse: bool = True) -> bool:
    return next(part.parameters(recurse), None) is not None


def _require_fitting(patterns: Sequence[str], names: Sequence[str], key: str) -> None:
    for pattern in patterns:
        if not any(named(name, (pattern,)) for name in names):
            raise PlanError(
                f"trainable.adapter.{key}: '{pattern}' names no layer that can be adapted; "
                f"{suggest(pattern, list(names))}"
            )


def targets(module: nn.Module, patterns: Sequence[str], kept: Sequence[str]) -> list[str]:
    """Layers that get factors. By default every dense layer, or without any every convolution, but
    what is trained in full (`kept`) and the last layer."""
    known = {n: layer for n, layer in _adaptable(module).items() if not named(n, kept)}
    if patterns:
        _require_fitting(patterns, list(known), "targets")
        return [name for name in known if named(name, patterns)]
    last = last_layer(module)
    tied = _tied(module)
    usual = [n for n, layer in known.items() if n != last and not tied & _ids(layer)]
    dense = [name for name in usual if is_dense(known[name])]
    found = dense or usual
    if not found:
        raise PlanError(
            "trainable.adapter: the model has no dense or convolutional layer before its last one; "
            "take kind = 'bitfit' or 'head'"
        )
    return found


def _ids(layer: nn.Module) -> set[int]:
    return {id(p) for p in layer.parameters()}


def _tied(module: nn.Module) -> set[int]:
    """Parameters that several layers share."""
    seen: set[int] = set()
    twice = set()
    for part in module.modules():
        own = {id(p) for p in part.parameters(recurse=False)}
        twice |= seen & own
        seen |= own
    return twice


# Putting it in


def adapt(
    module: nn.Module,
    kind: Kind,
    *,
    rank: int = 8,
    alpha: float | None = None,
    patterns: Sequence[str] = (),
    modules_to_save: Sequence[str] = (),
    length: int = 20,
) -> nn.Module:
    """Freeze a module and put an adapter into it, in place; afterwards nothing else asks for
    gradients. Draws come from torch's generator; fixed factors are filled later, from a seed.

    modules_to_save: modules that are trained in full beside the adapter (peft's word).

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> [name for name, p in adapt(net, "lora", rank=2).named_parameters() if p.requires_grad]
    ['0.lora_A.weight', '0.lora_B.weight']
    """
    unpack(module)
    places = [name for name, part in module.named_modules() if name and _holds(part)]
    _require_fitting(modules_to_save, places, "modules_to_save")
    for p in module.parameters():
        p.requires_grad_(False)
    for layer in module.modules():
        if isinstance(layer, _BatchNorm) and layer.running_mean is not None:
            layer.__class__ = _with(Fixed, type(layer))
            layer.eval()
        if isinstance(layer, nn.TransformerEncoderLayer):
            layer.activation_relu_or_gelu = 0  # its shortcut in evaluation goes round the factors
    made: list[str] = []
    if kind in LOW_RANK:
        for name in targets(module, patterns, modules_to_save):
            made += _factorise(module.get_submodule(name), name, kind, rank, alpha)
    elif kind == "prompt":
        _prompted(module, length)
    elif kind == "bitfit":
        _train_biases(module, patterns)
    else:
        _train(module, patterns or [_head(module)])
    _train(module, modules_to_save)
    trained = {n for n, p in module.named_parameters() if p.requires_grad}
    base = [n for n, _ in module.named_parameters() if n not in trained and n not in made]
    kept = [n for n in module.state_dict() if n in dict(module.named_buffers())]
    setattr(module, MADE, tuple(made))
    setattr(module, INSTALLED, (*base, *kept))
    setattr(module, RESTING, tuple(n for n, _ in module.named_buffers()))
    make_lean(module)
    return module


def _train(module: nn.Module, patterns: Sequence[str]) -> None:
    for name, part in module.named_modules():
        if name and patterns and named(name, patterns):
            if isinstance(part, QuantisedLinear):
                raise PlanError(
                    f"trainable.adapter: '{name}' is quantised to 8 bits and cannot be trained in "
                    "full; leave it out when the base is quantised, or name other layers"
                )
            for p in part.parameters(recurse=False):
                if p.is_floating_point():
                    p.requires_grad_(True)


def _head(module: nn.Module) -> str:
    name = last_layer(module)
    if _tied(module) & _ids(module.get_submodule(name)):
        raise PlanError(
            f"trainable.adapter.kind = 'head': the last layer, '{name}', shares its weight with "
            "another one; name the layers to train in trainable.adapter.targets"
        )
    return name


def _train_biases(module: nn.Module, patterns: Sequence[str]) -> None:
    own = {n: p for n, p in module.named_parameters() if n.rpartition(".")[2].endswith("bias")}
    if not own:
        raise PlanError("trainable.adapter.kind = 'bitfit': the model has no biases")
    _require_fitting(patterns, [n.rpartition(".")[0] for n in own], "targets")
    for name, p in own.items():
        if not patterns or named(name.rpartition(".")[0], patterns):
            p.requires_grad_(True)


def _factorise(layer: Any, name: str, kind: Kind, rank: int, alpha: float | None) -> list[str]:
    """Factors into a layer; the names of those that are not trained."""
    inputs, outputs = sizes(layer)
    if rank > min(inputs, outputs):
        raise PlanError(
            f"trainable.adapter.rank = {rank}: '{name}' is {outputs} x {inputs}; a factor of lower "
            f"rank than {min(inputs, outputs) + 1} is needed, or other targets"
        )
    layer.scaling = (rank if alpha is None else alpha) / rank
    square = kind == "lora-sb"
    convolves = isinstance(layer, nn.Conv2d)  # apart: `Any` stays what it is
    if convolves:
        layer.lora_A = nn.Conv2d(
            layer.in_channels, rank, layer.kernel_size, layer.stride, layer.padding, layer.dilation,
            bias=False, padding_mode=layer.padding_mode,
        )  # fmt: skip
        if square:
            layer.lora_R = nn.Conv2d(rank, rank, 1, bias=False)
        layer.lora_B = nn.Conv2d(rank, outputs, 1, bias=False)
    else:
        layer.lora_A = nn.Linear(inputs, rank, bias=False)
        if square:
            layer.lora_R = nn.Linear(rank, rank, bias=False)
        layer.lora_B = nn.Linear(rank, outputs, bias=False)
    nn.init.normal_(layer.lora_A.weight, std=inputs**-0.5)
    nn.init.zeros_((layer.lora_R if square else layer.lora_B).weight)
    layer.__class__ = _with(LowRank, type(layer))
    still = {"lora": (), "ffa-lora": ("lora_A",), "lora-sb": ("lora_A", "lora_B")}[kind]
    for factor in still:
        getattr(layer, factor).weight.requires_grad_(False)
        setattr(getattr(layer, factor), ORTHONORMAL, square)
    return [f"{name}.{factor}.weight" for factor in still]


def low_rank(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Layers with factors, by name."""
    return ((name, part) for name, part in module.named_modules() if isinstance(part, LowRank))


def product(layer: Any) -> Tensor:
    """s B A, or s B R A, as (outputs, inputs)."""
    found: Tensor | None = None
    for name in FACTORS:
        if name in layer._modules:
            weight = layer._modules[name].weight.flatten(1)
            found = weight if found is None else weight @ found
    assert found is not None
    return layer.scaling * found


@torch.no_grad()
def merge(module: nn.Module) -> nn.Module:
    """Add every product of factors to its layer's weight, in place: the model as it was, without
    the factors. Where a weight cannot take them, nothing is changed."""
    layers, tied = list(low_rank(module)), _tied(module)
    for name, layer in layers:
        if not layer.weight.is_floating_point():
            raise PlanError(
                f"'{name}' is quantised: its adapter cannot be merged into it without being "
                "rounded away; keep the adapter beside the base"
            )
        if id(layer.weight) in tied:
            raise PlanError(
                f"'{name}' shares its weight with another layer, which has no adapter: it cannot "
                "be merged; give the layer a weight of its own first"
            )
    for _, layer in layers:
        change = product(layer)
        change = change.mT if is_transposed(layer) else change
        layer.weight += change.view(layer.weight.shape).to(layer.weight.dtype)
        for factor in FACTORS:
            layer._modules.pop(factor, None)
        layer.__class__ = type(layer).__mro__[2]
    return module


# Prompts


class Prompted(nn.Module):
    """A token model with trained vectors before the embedded tokens."""

    def forward(self, x: Tensor) -> Tensor:
        prompt: Any = self.prompt
        place = torch.arange(prompt.num_embeddings, device=x.device)
        return super().forward(x, prompt=prompt(place.expand(len(x), -1)))


def _prompted(module: Any, length: int) -> None:
    if not getattr(module, "takes_prompts", False):
        raise PlanError(
            "trainable.adapter.kind = 'prompt' is for token models that take embedded inputs "
            "(model = 'transformer' or 'huggingface'); of images the trained border is the prompt "
            "(model = 'pretrained', adapt = 'reprogram')"
        )
    module.require_prompt(length)
    table = module.get_input_embeddings().weight
    # As words are: vectors of random tokens (Lester et al. found it the better beginning).
    module.prompt = nn.Embedding(length, table.shape[1])
    some = torch.randint(0, len(table), (length,))
    module.prompt.weight.data.copy_(table.detach()[some])
    module.__class__ = _with(Prompted, type(module))


# Precision


def narrow_base(module: nn.Module, dtype: torch.dtype) -> None:
    """Let `settle` bring the base of an adapted module to this type; what is trained keeps its own.

    Every layer gets its inputs in its own type, and the model's output is the adapter's."""
    setattr(module, NARROW, dtype)
    for part in module.modules():
        if any(p.is_floating_point() for p in part.parameters(recurse=False)):
            part.register_forward_pre_hook(_own_type)
    module.register_forward_hook(_trained_type)


def settle(module: nn.Module) -> nn.Module:
    """The base in its type again, after the module was moved to another."""
    dtype = getattr(module, NARROW, None)
    if dtype is not None:
        for name in getattr(module, INSTALLED):
            place, _, own = name.rpartition(".")
            tensor = getattr(module.get_submodule(place), own)
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(dtype)
    return module


def _own_type(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    own = next(p.dtype for p in layer.parameters(recurse=False) if p.is_floating_point())
    return tuple(a.to(own) if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)


def _trained_type(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:  # noqa: ARG001
    own = next(p.dtype for p in module.parameters() if p.requires_grad)
    return output.to(own) if isinstance(output, Tensor) else output
