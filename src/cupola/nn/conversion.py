"""Existing convolutional networks in kernel-normalised form.

The recipe is that of Nasirigerdeh et al. ("Kernel normalization for federated and differentially
private learning", section III): norms go, convolutions become `KNConv` with a bias, and in networks
with short cuts (ResNet, PreactResNet, DenseNet) a `KernelNorm` of single pixels stands before the
last pooling. Which layer feeds which is read from the network's graph (`torch.fx`).
"""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules import batchnorm, conv, instancenorm, pooling

from cupola.errors import PlanError
from cupola.nn.kernelnorm import (
    Evaluation,
    KernelNorm,
    KernelNorm1d,
    KernelNorm2d,
    KernelNorm3d,
    KNConv,
    KNConv1d,
    KNConv2d,
    KNConv3d,
)
from cupola.nn.normalisation import LocalContextNorm, PositionalNorm

_CONVOLUTIONS = {nn.Conv1d: KNConv1d, nn.Conv2d: KNConv2d, nn.Conv3d: KNConv3d}
_SINGLE = {KNConv1d: KernelNorm1d, KNConv2d: KernelNorm2d, KNConv3d: KernelNorm3d}
_NORMS = (
    batchnorm._BatchNorm,
    instancenorm._InstanceNorm,
    nn.GroupNorm,
    PositionalNorm,
    LocalContextNorm,
)
_FOREIGN = (
    nn.LayerNorm, nn.RMSNorm, nn.LocalResponseNorm, nn.MultiheadAttention, nn.RNNBase,
    conv._ConvTransposeNd,
)  # fmt: skip
_LAST_POOLS = (pooling._AdaptiveAvgPoolNd, pooling._AdaptiveMaxPoolNd, pooling._AvgPoolNd)
_POOLING = {
    F.adaptive_avg_pool2d, F.adaptive_avg_pool1d, F.adaptive_avg_pool3d, F.avg_pool1d,
    F.avg_pool2d, F.avg_pool3d, F.adaptive_max_pool2d, torch.mean, "mean",
}  # fmt: skip
_SUMS = {operator.add, operator.iadd, torch.add, "add", "add_"}
_JOINS = {torch.cat, *_SUMS}


def kernel_normalise(
    model: nn.Module,
    dropout: float = 0.1,
    last_dropout: float | None = 0.5,
    *,
    evaluation: Evaluation = "expected",
) -> nn.Module:
    """A kernel-normalised copy of a ResNet, PreactResNet, DenseNet or VGG.

    Names and weights of convolutions stay; a bias that was missing is zero. Norms become
    identities. Weights that were trained with other norms have to be trained on: the function is
    another. Activations no longer work in place.
    dropout: of the convolutions' statistics. last_dropout: of those of the `KernelNorm` before the
        last pooling, for networks with short cuts; None: no such layer.

    >>> from cupola.nn import build
    >>> model = kernel_normalise(build("resnet8", (3, 32, 32), 10, seed=0, norm="batch"))
    >>> sum(p.numel() for p in model.parameters())  # as published
    1856394
    """
    model = copy.deepcopy(model)
    _require_known(model)
    nodes = _graph(model)
    parts = dict(model.named_modules())
    calls = [(n, parts.get(str(n.target)) if n.op == "call_module" else None) for n in nodes]
    convolutions = [i for i, (_, part) in enumerate(calls) if type(part) in _CONVOLUTIONS]
    if not convolutions:
        raise PlanError("kernel_normalise: the model has no convolutions that it calls")
    end = convolutions[-1]
    if not any(isinstance(part, nn.Linear) for _, part in calls[end:]):
        convolutions.pop()  # it gives the scores, as a last linear layer does elsewhere
    made: dict[str, nn.Module] = {}
    for i in convolutions:
        node, part = calls[i]
        made[str(node.target)] = _converted(part, dropout, evaluation)
    made |= {str(n.target): _emptied(n) for n, part in calls if isinstance(part, _NORMS)}
    if last_dropout is not None and any(_is(node, _JOINS) for node, _ in calls):
        kind = _SINGLE[_CONVOLUTIONS[type(calls[end][1])]]  # type: ignore[index]
        place, pool = _last_place(calls, end)
        last = kind(1, dropout=last_dropout, evaluation=evaluation)
        made[place] = last if pool is None else nn.Sequential(last, pool)
    for part in model.modules():
        if getattr(part, "inplace", False) is True:  # a KNConv needs its output once more
            part.inplace = False  # type: ignore[assignment]
    for name, part in made.items():
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, part)
    return model


class _Copy(nn.Module):
    """A copy, which the caller may overwrite."""

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


def _emptied(norm: fx.Node) -> nn.Module:
    """What stands in the place of a norm."""
    # `out += x` is traced as `out + x`.
    added = any(_is(user, _SUMS) and user.args[0] is norm for user in norm.users)
    return _Copy() if added else nn.Identity()


def _require_known(model: nn.Module) -> None:
    for name, part in model.named_modules():
        derived = isinstance(part, conv._ConvNd) and not isinstance(part, KNConv)
        derived = derived and type(part) not in _CONVOLUTIONS
        if isinstance(part, _FOREIGN) or derived:
            raise PlanError(
                f"kernel_normalise turns ResNets and VGGs, not models with {name} "
                f"({type(part).__name__}): put KNConv2d in place of convolutions by hand"
            )


class _Tracer(fx.Tracer):
    """Norms and kernel-normalised layers are leaves."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        known = isinstance(m, (*_NORMS, KNConv, KernelNorm))
        return known or super().is_leaf_module(m, module_qualified_name)


def _graph(model: nn.Module) -> list[fx.Node]:
    try:
        return list(_Tracer().trace(model).nodes)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise PlanError(
            "kernel_normalise cannot follow what the model does with its input (torch.fx: "
            f"{reason}): put KNConv2d in place of convolutions by hand"
        ) from error


def _converted(old: Any, dropout: float, evaluation: Evaluation) -> KNConv:
    new = _CONVOLUTIONS[type(old)](
        old.in_channels, old.out_channels, old.kernel_size, old.stride, old.padding, old.dilation,
        old.groups, True, old.padding_mode, "meta", dropout=dropout, evaluation=evaluation,
    )  # fmt: skip
    new.weight, bias = old.weight, old.bias
    if bias is None:
        zeros = old.weight.detach().new_zeros(old.out_channels)
        bias = nn.Parameter(zeros, requires_grad=old.weight.requires_grad)
    new.bias = bias
    return new.train(old.training)


def _last_place(
    calls: list[tuple[fx.Node, nn.Module | None]], end: int
) -> tuple[str, nn.Module | None]:
    """Where the last `KernelNorm` goes: in place of a norm that follows no convolution, as in
    pre-activation networks, or before the last pooling layer."""
    modules = dict(calls)
    for node, part in calls[end:]:
        before = node.args[0] if node.args else None
        if isinstance(part, _NORMS) and not _is_convolution(modules, before):
            return str(node.target), None
        if isinstance(part, _LAST_POOLS):
            return str(node.target), part
        if _is(node, _POOLING):
            raise PlanError(
                f"kernel_normalise: the last pooling, {node.target}, is a function, so no layer "
                "can be put before it: make it a module (nn.AdaptiveAvgPool2d), or take "
                "last_dropout = None and add a KernelNorm2d(1) by hand"
            )
    raise PlanError(
        "kernel_normalise: the model has short cuts, but no pooling after its last convolution "
        "before which a KernelNorm could stand: take last_dropout = None for none"
    )


def _is_convolution(modules: dict[fx.Node, nn.Module | None], node: Any) -> bool:
    return isinstance(node, fx.Node) and isinstance(modules.get(node), conv._ConvNd)


def _is(node: fx.Node, targets: set[Any]) -> bool:
    return node.op in ("call_function", "call_method") and node.target in targets
