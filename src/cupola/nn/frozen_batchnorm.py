"""Trained BatchNorm as what it is after training: a fixed scale and shift of every channel.

`fold` multiplies it into the convolution before it; `still` keeps a layer of its own, whose
statistics never move and whose scale and shift may be trained (evaluation mode, for good). Both
compute what the model in evaluation mode does, see one sample at a time, and have no buffers.
Values are made in float64 by operations that IEEE 754 rounds in one way, so that every machine
makes the same bits of the same file.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from cupola.nn.normalisation import Affine, norm


class Standardise(nn.Module):
    """(x - mean) / std by channel of (n, C, ...), both fixed."""

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.mean = nn.Parameter(mean, requires_grad=False)
        self.std = nn.Parameter(std, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        shape = (-1, *[1] * (x.dim() - 2))
        return (x - self.mean.view(shape)) / self.std.view(shape)


class StillNorm(nn.Sequential):
    """A trained BatchNorm in evaluation mode; its scale and shift can go on being trained."""

    def __init__(self, layer: _BatchNorm) -> None:
        mean, std, weight, bias = _parts(layer)
        affine = Affine(len(mean))
        affine.weight.data, affine.bias.data = _tensor(weight), _tensor(bias)  # type: ignore[union-attr]
        super().__init__(Standardise(_tensor(mean), _tensor(std)), affine)


def fold(module: nn.Module) -> nn.Module:
    """BatchNorm that follows a convolution goes into its weights; any other becomes still."""
    for parent in list(module.modules()):
        if isinstance(parent, nn.Sequential):
            _fold_pairs(parent)
    return still(module)


def still(module: nn.Module) -> nn.Module:
    """Every BatchNorm with statistics as a `StillNorm`."""
    return _replaced(module, StillNorm)


def fresh_groups(module: nn.Module, groups: int = 32) -> nn.Module:
    """Every BatchNorm thrown away for an untrained GroupNorm, as 000's baselines do."""
    return _replaced(
        module, lambda old: norm("group", old.num_features, groups=min(groups, old.num_features))
    )


def _fold_pairs(parent: nn.Sequential) -> None:
    before: nn.Module | None = None
    for name, layer in list(parent.named_children()):
        if isinstance(layer, nn.BatchNorm2d) and type(before) is nn.Conv2d:
            _into(before, layer)
            delattr(parent, name)
        else:
            before = layer


def _into(convolution: nn.Conv2d, layer: _BatchNorm) -> None:
    mean, std, weight, bias = _parts(layer)
    factor = weight / std
    old = convolution.weight.detach().cpu().double().numpy()
    shift = 0.0 if convolution.bias is None else convolution.bias.detach().cpu().double().numpy()
    convolution.weight = nn.Parameter(_tensor(old * factor.reshape(-1, 1, 1, 1)))
    convolution.bias = nn.Parameter(_tensor((shift - mean) * factor + bias))


def _parts(layer: _BatchNorm) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Mean, deviation, scale and shift in float64."""
    assert layer.running_mean is not None
    assert layer.running_var is not None
    mean, variance = (
        t.detach().cpu().double().numpy() for t in (layer.running_mean, layer.running_var)
    )
    ones, zeros = np.ones_like(mean), np.zeros_like(mean)
    weight = ones if layer.weight is None else layer.weight.detach().cpu().double().numpy()
    bias = zeros if layer.bias is None else layer.bias.detach().cpu().double().numpy()
    return mean, np.sqrt(variance + layer.eps), weight, bias


def _replaced(module: nn.Module, make: Callable[[_BatchNorm], nn.Module]) -> nn.Module:
    for parent in list(module.modules()):
        for name, layer in parent.named_children():
            if isinstance(layer, _BatchNorm) and layer.running_mean is not None:
                setattr(parent, name, make(layer))
    return module


def _tensor(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(torch.float32)
