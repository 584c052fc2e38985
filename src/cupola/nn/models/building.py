"""The registry of models and `build`, which makes one from its name, a seed and options."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from cupola.base.randomness import derive
from cupola.base.registry import Registry
from cupola.errors import PlanError
from cupola.nn.huggingface import with_logits
from cupola.nn.quantised import unpack

_MODELS: Registry[Any] = Registry("model")

#: `@model("name", "one line")` registers a function (input_shape, classes, *, options) -> module.
model = _MODELS.add
names = _MODELS.names
describe = _MODELS.describe
options = _MODELS.options
checked = _MODELS.check


def build(
    name: str, input_shape: Sequence[int], classes: int | None, seed: int, **options: Any
) -> nn.Module:
    """A freshly initialised model, on the CPU, the same for the same seed everywhere.

    name: a registered model, or "module:callable" for the user's own, which is called with the
        options, and with input_shape and classes if its signature names them; a module of
        transformers is wrapped so that it takes tokens and gives logits.
    input_shape: of one model-ready input, without the batch: (C, H, W), (d,) or (T,).
    classes: number of classes (or of tokens); None for regression on one number.
    The global random number generators are left as they were.
    """
    shape = tuple(int(size) for size in input_shape)
    if not shape or min(shape) < 1:
        raise PlanError(f"model = {name!r}: inputs of shape {shape} hold nothing")
    if classes is not None and classes < 1:
        raise PlanError(f"model = {name!r}: {classes} classes; at least 1 is needed")
    make = _MODELS.find(name)
    arguments = {"input_shape": shape, "classes": classes}
    if ":" in name:
        taken = inspect.signature(make).parameters
        arguments = {key: value for key, value in arguments.items() if key in taken}
    arguments |= _MODELS.check(name, options)
    if ":" in name:
        _MODELS.require(name, _MODELS.parameters(name), arguments)
    # From the run's seed, on the CPU, whatever the process drew before. Not torch.manual_seed: that
    # would also reseed the accelerators.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(derive(seed, "model"))
        module = make(**arguments)
    if not isinstance(module, nn.Module):
        raise PlanError(f"model = {name!r} gave a {type(module).__name__}, not a torch.nn.Module")
    module = unpack(module)
    _instances_fit(name, module, shape)
    return with_logits(module)


def _instances_fit(name: str, module: nn.Module, shape: tuple[int, ...]) -> None:
    """Refuse instance normalisation of single pixels, which have no variance of their own."""
    if not any(isinstance(part, nn.InstanceNorm2d) for part in module.modules()):
        return
    empty = {key: value.to("meta") for key, value in module.state_dict().items()}
    try:
        torch.func.functional_call(module, empty, (torch.empty(2, *shape, device="meta"),))
    except ValueError as error:
        if "spatial" not in str(error):
            raise
        raise PlanError(
            f"model.norm = 'instance': {name!r} makes single pixels of inputs {shape}, which have "
            f"no variance: enlarge the images or take another normalisation"
        ) from error
