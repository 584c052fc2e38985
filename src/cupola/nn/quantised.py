"""Quantised dense layers: a frozen weight in 8 bits, W = scale * q, with a gradient for its inputs.

torch's dynamically quantised layer rounds its inputs to 8 bits as well, has no gradient, and keeps
its weight where neither parameters nor buffers show it: adapted as it is, it would train on wrong
gradients and be hashed by nobody. `unpack` puts `QuantisedLinear` in its place: the same weight,
as parameters that ask for no gradient, multiplied in the precision of its inputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cupola.errors import PlanError

_TORCH = "torch.ao.nn.quantized.dynamic.modules.linear.Linear"
_FLOATS = "FloatFunctional"  # sums and the like, before they are quantised
#: Where layers come from that hold their weights in ways of their own.
_PACKED = ("torch.ao.nn.quantized.", "torch.ao.nn.intrinsic.quantized.", "bitsandbytes", "torchao")
_WAY_OUT = (
    "take the base as it was before (trainable.adapter.base_dtype = 'bfloat16' keeps it in half "
    "the bits), or quantise its dense layers with torch.ao.quantization.quantize_dynamic"
)


class _Product(torch.autograd.Function):
    """x W'. What waits for the backward pass are the 8 bits; W is made of them twice."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, q: Tensor, scale: Tensor) -> Tensor:
        return F.linear(x, _whole(q, scale, x.dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        _, q, scale = inputs
        ctx.save_for_backward(q, scale)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        g, (q, scale) = grads[0], ctx.saved_tensors
        return g @ _whole(q, scale, g.dtype), None, None


def _whole(q: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return q.to(dtype) * scale.to(dtype)


class QuantisedLinear(nn.Module):
    """A dense layer that keeps its weight in 8 bits.

    weight: int8 (outputs, inputs); scale: (outputs, 1), of every row. Both are frozen for good;
    bias may be trained.
    """

    in_features: int
    out_features: int
    weight: nn.Parameter
    scale: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self._hold(weight, scale, bias)

    def _hold(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        rows = scale.reshape(-1).expand(len(weight))
        held = {"weight": weight, "scale": rows[:, None], "bias": bias}
        for name, tensor in held.items():
            own = None if tensor is None else nn.Parameter(tensor.detach().clone(), False)
            self.register_parameter(name, own)

    def forward(self, x: Tensor) -> Tensor:
        output = _Product.apply(x, self.weight, self.scale)
        return output if self.bias is None else output + self.bias

    @torch.no_grad()
    def redraw(self) -> None:
        """Another weight at random, of ordinary size: for trials on a copy."""
        self.weight.copy_(torch.randint(-127, 128, self.weight.shape))
        self.scale.fill_((73.6 * self.in_features**0.5) ** -1)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


def unpack(module: nn.Module) -> nn.Module:
    """Turn torch's dynamically quantised dense layers into `QuantisedLinear`, in place; refuse
    other layers whose weights parameters and buffers do not show."""
    for name, part in list(module.named_modules()):
        if _kind(part) == _TORCH:
            _unpacked(part, name)
    for name, part in module.named_modules():
        if packed(part):
            raise PlanError(
                f"'{name or 'the model'}' ({_kind(part)}) keeps its weight where no checksum sees "
                f"all of it, or has no gradient; {_WAY_OUT}"
            )
    return module


def packed(part: nn.Module) -> bool:
    """Whether a layer is quantised in a form of another library, which shows no gradient here."""
    kinds = {type(part), *map(type, part.parameters(recurse=False))}
    return any(k.__module__.startswith(_PACKED) and k.__name__ != _FLOATS for k in kinds)


def _kind(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__name__}"


def _unpacked(part: Any, name: str) -> None:
    """Its hooks, and whoever else holds it, stay: it becomes another class."""
    if part._packed_params.dtype != torch.qint8:
        kind = str(part._packed_params.dtype).removeprefix("torch.")
        raise PlanError(f"'{name}' is quantised to {kind}, not to 8 bits; {_WAY_OUT}")
    weight, bias = part.weight(), part.bias()
    rows = weight.qscheme() != torch.per_tensor_affine
    scale = weight.q_per_channel_scales() if rows else torch.tensor(weight.q_scale())
    zero = weight.q_per_channel_zero_points() if rows else torch.tensor(weight.q_zero_point())
    if bool(zero.any()):
        raise PlanError(
            f"'{name}' is quantised around another number than 0; {_WAY_OUT}, whose scheme is "
            "symmetric unless it is told otherwise"
        )
    for own in ("scale", "zero_point", "version"):
        part.__dict__.pop(own, None)
    del part._modules["_packed_params"]
    part.__class__ = QuantisedLinear
    part._hold(weight.int_repr(), scale.float(), bias)
