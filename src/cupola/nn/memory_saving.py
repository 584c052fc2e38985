"""Layers of frozen models that keep little or nothing for the backward pass.

torch keeps a convolution's input whether or not the gradient of its weight is asked for (a linear
layer's it does not). The gradient of the input is a transposed convolution with the weight, which
needs nothing else. Of a rectifier it keeps all values, where a bit for each would do; here it is a
byte.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


class _Convolution(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        how: tuple[Any, ...],
    ) -> Tensor:
        stride, padding, dilation, groups = how
        zero = [0] * len(stride)
        return torch.convolution(x, weight, bias, stride, padding, dilation, False, zero, groups)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        x, weight, _, ctx.how = inputs
        ctx.shape = x.shape
        ctx.save_for_backward(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (weight,) = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.how
        g = grads[0]
        # Transposed: torch's backward of a convolution would make an input to look at.
        places = zip(ctx.shape[2:], g.shape[2:], stride, padding, dilation, weight.shape[2:])
        more = [n - ((m - 1) * s - 2 * p + d * (k - 1) + 1) for n, m, s, p, d, k in places]
        found = torch.convolution(g, weight, None, stride, padding, dilation, True, more, groups)
        return found, None, None, None


class _Gate(torch.autograd.Function):
    """min(max(x, 0), top): what is let through is remembered, not what it was."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, top: float) -> tuple[Tensor, Tensor]:
        if top == math.inf:  # a clamp to infinity is nothing that ONNX knows
            gate, passed = x.clamp_min(0), x > 0
        else:
            gate, passed = x.clamp(0, top), (x > 0) & (x < top)
        return gate, passed.to(torch.int8)  # a gradient times int8: twice as fast

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        del inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (passed,) = ctx.saved_tensors
        return grads[0] * passed, None


class LeanReLU(nn.ReLU):
    """ReLU that keeps a byte for each value."""

    def forward(self, x: Tensor) -> Tensor:
        return _Gate.apply(x, math.inf)[0] if x.requires_grad else super().forward(x)


class LeanReLU6(nn.ReLU6):
    """ReLU6 likewise."""

    def forward(self, x: Tensor) -> Tensor:
        return _Gate.apply(x, 6.0)[0] if x.requires_grad else super().forward(x)


class _Lean:
    """A convolution that never asks for the gradient of its weight."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        own: Any = self
        if not x.requires_grad or weight.requires_grad:
            return super()._conv_forward(x, weight, bias)  # type: ignore[misc]
        how = (own.stride, own.padding, own.dilation, own.groups)
        return _Convolution.apply(x, weight, bias, how)


class LeanConv1d(_Lean, nn.Conv1d): ...


class LeanConv2d(_Lean, nn.Conv2d): ...


class LeanConv3d(_Lean, nn.Conv3d): ...


_LEAN: dict[type, type] = {nn.Conv1d: LeanConv1d, nn.Conv2d: LeanConv2d, nn.Conv3d: LeanConv3d}

_GATES: dict[type, type] = {nn.ReLU: LeanReLU, nn.ReLU6: LeanReLU6}


def make_lean(module: nn.Module) -> None:
    """Turn every convolution whose parameters are all frozen into one that keeps no input."""
    for layer in module.modules():
        kind = _LEAN.get(type(layer))
        if kind is None or any(p.requires_grad for p in layer.parameters(recurse=False)):
            continue
        if layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
            layer.__class__ = kind


def make_all_lean(module: nn.Module) -> None:
    """The same for a module of which nothing is trained, rectifiers included."""
    make_lean(module)
    for layer in module.modules():
        if type(layer) in _GATES:
            layer.__class__ = _GATES[type(layer)]
