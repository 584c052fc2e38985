"""Models, losses and metrics that somebody passes as objects, in the forms that training uses.

A model becomes a function that makes it, a loss one with a value for each sample, so that a
sample's loss does not depend on its company and sums over sites stay sums.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy

from cupola.base.chain import mark
from cupola.base.held_objects import Held, hold
from cupola.base.source_code import best_mark, source_mark
from cupola.errors import PlanError
from cupola.nn.losses import mean_of_sample
from cupola.nn.quantised import unpack

#: Losses that compare numbers one by one: outputs and targets must have one shape.
_BY_NUMBER = (
    *(nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss),
    *(nn.SoftMarginLoss, nn.PoissonNLLLoss),
)
_BY_NUMBER_FUNCTIONS = (
    *(F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy),
    *(F.binary_cross_entropy_with_logits, F.soft_margin_loss, F.poisson_nll_loss),
)


def called(thing: Any) -> str:
    """What people call an object."""
    while isinstance(thing, partial):
        thing = thing.func
    name = getattr(thing, "__name__", type(thing).__name__)
    return "function" if name == "<lambda>" else str(name)


# Models


def held_model(model: Any) -> Held:
    """A module, or what makes one. A module is copied: training leaves the user's as it is."""
    if isinstance(model, nn.Module):
        if any(is_lazy(p) for p in (*model.parameters(), *model.buffers())):
            raise PlanError(
                f"model={called(model)}: it has parameters without a shape yet (lazy layers); "
                "put a batch through it first"
            )
        own = unpack(copy.deepcopy(model).cpu())
        return hold(called(model), module_mark(own), partial(copy.deepcopy, own))
    if not callable(model):
        raise PlanError(
            f"model={model!r} is {_kind(model)}; pass a torch.nn.Module, or a class or function "
            "that makes one"
        )
    try:
        inspect.signature(model)
    except ValueError:
        raise PlanError(
            f"model={called(model)} does not say which parameters it takes; wrap it in a function"
        ) from None
    told, unsure = best_mark(model)
    name = mark(called(model).encode(), told.encode())
    return hold(called(model), name, model, model if unsure else None)


def module_mark(module: nn.Module) -> str:
    """The hash of a module: its layers, its own classes' source, and its weights."""
    parts = [repr(module).encode(), repr(sources(module)).encode()]
    for name, tensor in module.state_dict().items():
        if isinstance(tensor, Tensor):
            parts += [f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), _bytes(tensor)]
    return mark(*parts)


def weights_mark(module: nn.Module) -> str:
    """The hash of its weights alone."""
    tensors = [(n, t) for n, t in module.state_dict().items() if isinstance(t, Tensor)]
    return mark(*(part for name, t in tensors for part in (name.encode(), _bytes(t))))


def sources(module: nn.Module) -> dict[str, str | None]:
    """The hashes of the source of all classes in a module that are no library's."""
    kinds = {type(part) for part in module.modules()}
    own = {kind for kind in kinds if kind.__module__.split(".")[0] not in ("torch", "cupola")}
    return {kind.__qualname__: source_mark(kind) for kind in sorted(own, key=lambda k: k.__name__)}


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _kind(thing: Any) -> str:
    word = type(thing).__name__
    return f"{'an' if word[0].lower() in 'aeiou' else 'a'} {word}"


# Losses


def plain_loss(loss: Any) -> dict[str, Any] | None:
    """The plan's own name for a loss of torch, where it has one that is the same."""
    if loss is nn.CrossEntropyLoss or loss is F.cross_entropy:
        return {"name": "cross_entropy"}
    if loss is nn.MSELoss or loss is F.mse_loss:
        return {"name": "squared_error"}
    if getattr(loss, "reduction", "mean") != "mean":
        return None
    if type(loss) is nn.CrossEntropyLoss and loss.weight is None and loss.label_smoothing < 1:
        usual = {"label_smoothing": 0.0, "ignore_index": -100}
        told = {key: getattr(loss, key) for key in usual}
        return {"name": "cross_entropy"} | {k: v for k, v in told.items() if v != usual[k]}
    return {"name": "squared_error"} if type(loss) is nn.MSELoss else None


def held_loss(loss: Any) -> Held:
    """A loss with one value per sample: torch's `reduction` is set to 'none'."""
    own = PerSampleLoss(loss)
    told, unsure = best_mark(loss)
    parts = [called(loss).encode(), told.encode()]
    if isinstance(own.loss, nn.Module):
        facts = {k: v for k, v in sorted(vars(own.loss).items()) if k[0] != "_" and k != "training"}
        parts += [repr(facts).encode(), module_mark(own.loss).encode()]
    return hold(called(loss), mark(*parts), own, loss if unsure else None)


class PerSampleLoss:
    """A user's loss as (outputs, targets) -> (n,): the mean over each sample's own elements."""

    def __init__(self, loss: Any) -> None:
        self.name = called(loss)
        if inspect.isclass(loss) and issubclass(loss, nn.Module):
            try:
                loss = loss()
            except TypeError as error:
                raise PlanError(
                    f"loss={self.name}: it cannot be made without arguments ({error}); pass an "
                    "instance"
                ) from None
        if not callable(loss) or inspect.isclass(loss):
            raise PlanError(
                f"loss={loss!r} is {_kind(loss)}; pass a loss of torch, a function of outputs and "
                "targets with one value per sample, or the name of a loss"
            )
        base = loss.func if isinstance(loss, partial) else loss
        known = any(base is function for function in _BY_NUMBER_FUNCTIONS)
        self.by_number = known or isinstance(base, _BY_NUMBER)
        self.ignored = _option(loss, "ignore_index")
        if _option(loss, "reduction") == "sum":
            raise PlanError(
                f"loss={self.name}(reduction='sum'): the loss of a batch is the mean over its "
                "samples here; leave reduction out, and multiply local.lr by the batch size"
            )
        self.loss: Callable[..., Tensor]
        if isinstance(loss, nn.Module):
            if any(True for _ in loss.parameters()):
                raise PlanError(
                    f"loss={self.name} has parameters of its own, which nobody would train; make "
                    "them part of the model"
                )
            self.loss = copy.deepcopy(loss).cpu()
            if hasattr(self.loss, "reduction"):
                self.loss.reduction = "none"  # type: ignore[assignment]
        elif "reduction" in _parameters(loss):
            self.loss = partial(loss, reduction="none")
        else:
            self.loss = loss

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        if self.by_number:
            output, y = self._alike(output, y)
        self._follow(output)
        values = self.loss(output, y)
        if not isinstance(values, Tensor):
            raise PlanError(f"loss={self.name} gives {_kind(values)}, not a tensor")
        if not values.dim() or values.shape[0] != output.shape[0]:
            shape = "one number" if not values.dim() else f"the shape {tuple(values.shape)}"
            raise PlanError(
                f"loss={self.name} gives {shape} for a batch of {output.shape[0]}; it must give "
                "one value per sample, so that no sample's loss depends on the others: leave out "
                "the mean, or take a parameter `reduction`, which is set to 'none'"
            )
        counts = self.ignored is not None and values.dim() > 1 and values.shape == y.shape
        return mean_of_sample(values, y != self.ignored if counts else None)

    def _alike(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and targets of one shape; (n, 1) against (n,) would compare every pair."""
        if output.dim() == y.dim() + 1 and output.shape[-1] == 1:
            output = output.squeeze(-1)
        if output.shape != y.shape:
            raise PlanError(
                f"loss={self.name} compares number by number: outputs {tuple(output.shape)} and "
                f"targets {tuple(y.shape)} must have one shape"
            )
        return output, y.to(output.dtype)

    def _follow(self, output: Tensor) -> None:
        """Class weights and the like go where the outputs are."""
        for name, held in self.loss.named_buffers() if isinstance(self.loss, nn.Module) else ():
            wanted = output.dtype if held.is_floating_point() else held.dtype
            if held.device != output.device or held.dtype != wanted:
                setattr(self.loss, name, held.to(output.device, wanted))


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):
        return {}


def _option(loss: Any, name: str) -> Any:
    """What a loss was given for an option: as an instance, by `partial`, or by default."""
    if isinstance(loss, nn.Module):
        return getattr(loss, name, None)
    found = _parameters(loss).get(name)
    return None if found is None or found.default is found.empty else found.default


# Metrics


def held_metric(name: str, metric: Any) -> Held:
    """A function of (outputs, targets) with one value per sample: a metric is their mean, and
    sites tell the sum."""
    if not isinstance(name, str) or not name.isidentifier():
        raise PlanError(f"metrics: {name!r} is no name; take letters, digits and _")
    if not callable(metric) or inspect.isclass(metric):
        raise PlanError(
            f"metrics['{name}'] is {_kind(metric)}; pass a function of (outputs, targets) with "
            "one value per sample"
        )
    told, unsure = best_mark(metric)
    own = mark(name.encode(), told.encode())
    return hold(called(metric), own, metric, metric if unsure else None)
