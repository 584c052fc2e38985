"""A model that Cupola has trained, as a source: the folder of its finished run."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cupola.base.chain import read_result
from cupola.errors import PlanError
from cupola.nn.sources.trained import Preprocessing, Trained

_COUNTER = "num_batches_tracked"  # of BatchNorm, which is no part of the function


def from_run(folder: Path, size: int | None = None, fresh: int | None = None) -> Trained:
    """The trained model of an image classifier's run; its data are not needed. fresh: a seed for
    new weights instead."""
    from safetensors.torch import load_file

    from cupola.nn.models.building import build

    try:
        plan = tomllib.loads((folder / "plan.toml").read_text("utf-8"))
        result = read_result(folder, whole=True)
        if not result:
            raise ValueError("there is no result.json")
    except (OSError, ValueError) as error:
        raise PlanError(f"model.source = '{folder}' is no finished run: {error}") from None
    shape, classes = result.get("input_shape"), result.get("classes")
    if not shape or not classes or len(shape) != 3 or shape[1] != shape[2]:
        raise PlanError(
            f"model.source = '{folder}' is not a classifier of square images, or was run by an "
            f"older version of cupola: its inputs are {tuple(shape or ())}, with {classes} classes"
        )
    if size is not None and size != shape[1]:
        raise PlanError(f"model.size = {size}: the run's model takes images of {shape[1]} pixels")
    model = dict(plan["model"])
    name = model.pop("name")
    if name == "pretrained":
        raise PlanError(
            f"model.source = '{folder}' is itself made of a source; take that one's, "
            f"'{model.get('source')}'"
        )
    if ":" in name:
        raise PlanError(
            f"model.source = '{folder}' is a model of somebody's own code ('{name}'), which a "
            "source must not bring along; register it, or train one of `cupola models`"
        )
    to = _preprocessing(plan, shape)
    module = build(name, shape, classes, 1 if fresh is None else fresh, **model)
    if fresh is not None:
        return Trained(str(folder), module, to, classes)
    try:
        missing, strange = module.load_state_dict(
            load_file(folder / "model.safetensors"), strict=False
        )
        problem = next(iter([*strange, *(n for n in missing if n.split(".")[-1] != _COUNTER)]), "")
    except RuntimeError as error:
        problem = str(error).splitlines()[0]
    if problem:
        raise PlanError(
            f"{folder / 'model.safetensors'} does not fit the model '{name}' of its plan: {problem}"
        )
    return Trained(str(folder), module, to, classes)


def _preprocessing(plan: Mapping[str, Any], shape: list[int]) -> Preprocessing:
    """What the plan's data went through: its normalisation, or none."""
    channels = shape[0]
    mean, std = [0.0] * channels, [1.0] * channels
    for step in _normalisations(plan.get("data", {}).get("augment", ())):
        mean = _each(step.get("mean", 0.0), channels)
        std = _each(step.get("std", 1.0), channels)
    return Preprocessing(shape[1], tuple(mean), tuple(std))


def _normalisations(steps: Iterable[Any]) -> list[Mapping[str, Any]]:
    return [
        step["normalise"] for step in steps if isinstance(step, Mapping) and "normalise" in step
    ]


def _each(value: Any, channels: int) -> list[float]:
    values = [float(v) for v in value] if isinstance(value, list | tuple) else [float(value)]
    return values * channels if len(values) == 1 else values
