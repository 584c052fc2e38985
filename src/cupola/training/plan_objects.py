"""Objects in the place of a plan's names: model, data, loss, metrics, method.

A plan names them ('object:Net#9f3a12bc4d5e', see `cupola.base.held_objects`), so that it stays a
value that can be written, compared and swept. The run folder keeps in objects.json what can be said
of them: hashes of source code, of weights and of rows. A resume compares them, since it promises
the bits of a run that was never interrupted: other code or other rows would break that silently.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cupola.analysis.checkpoint import json_line, write_sealed
from cupola.base.chain import mark, read_json
from cupola.base.held_objects import Held, find_object, hold, is_object, named_objects, word_of
from cupola.base.source_code import best_mark, source_mark
from cupola.data.conversion import converted
from cupola.data.dataset import FederatedData
from cupola.data.fingerprint import fingerprint
from cupola.errors import CupolaError, PlanError
from cupola.nn.module_probe import sandbox
from cupola.nn.user_objects import (
    PerSampleLoss,
    held_loss,
    held_metric,
    held_model,
    plain_loss,
    sources,
    weights_mark,
)
from cupola.training.methods import METHODS, Method, method_name

if TYPE_CHECKING:
    from cupola.training.plan import Plan
    from cupola.training.workspace import Problem

FILE = "objects.json"
Named = tuple[dict[str, Any], list[Held]]


def with_names(given: Mapping[str, Any], objects: Mapping[str, Any]) -> Named:
    """A plan's values with names in the place of objects, and what must be held on to meanwhile."""
    made, held = dict(given), []
    for key, value in objects.items():
        made, more = _NAMED[key](made, value)
        held += more
    return made, held


def _model(given: dict[str, Any], model: Any) -> Named:
    if isinstance(model, str):
        return {**given, "model": {"name": model}}, []
    held = held_model(model)
    return _placed(given, "model", held, ()), [held]


def _loss(given: dict[str, Any], loss: Any) -> Named:
    plain = {"name": loss} if isinstance(loss, str) else plain_loss(loss)
    if plain is not None:
        return {**given, "loss": plain}, []
    held = held_loss(loss)
    return _placed(given, "loss", held, ()), [held]


def _data(given: dict[str, Any], data: Any) -> Named:
    if isinstance(data, str):
        return {**given, "data": {**_table(given, "data"), "name": data}}, []
    made = converted(data)
    told, _ = fingerprint(made)
    word = made.name if made is data and made.name else "data"
    held = hold(word, told, made)
    own = _table(given, "data")
    if own.get("name") != held.name and isinstance(made, FederatedData) and "partition" in own:
        raise PlanError(
            f"data= holds {len(made)} sites, as they are; data.partition would cut them again: "
            "leave it out, or pass all rows as one data set"
        )
    return _placed(given, "data", held, ("partition", "partition_seed", "augment")), [held]


def _method(given: dict[str, Any], method: Any) -> Named:
    """An instance with its options, which stay keys of the plan; ours need no object."""
    if isinstance(method, str):
        return {**given, "method": {"name": method}}, []
    if inspect.isclass(method) and issubclass(method, Method):
        method = method()
    if not isinstance(method, Method):
        raise PlanError(
            f"method={method!r} is no method; pass an instance of a subclass of "
            "cupola.training.Method, or the name of a method"
        )
    kind = type(method)
    options = method.model_dump(mode="json", exclude_defaults=True)
    name = method_name(kind)
    if name in METHODS:
        return {**given, "method": {"name": name, **options}}, []
    told, unsure = best_mark(kind)
    held = hold(kind.__name__, mark(name.encode(), told.encode()), kind, kind if unsure else None)
    return {**given, "method": {**options, "name": held.name}}, [held]


def _metrics(given: dict[str, Any], metrics: Any) -> Named:
    if not isinstance(metrics, Mapping):
        raise PlanError(
            f"metrics={metrics!r}: pass a mapping of names to functions of (outputs, targets)"
        )
    held = {name: held_metric(name, metric) for name, metric in metrics.items()}
    names = {name: one.name for name, one in held.items()}
    judged = {**_table(given, "evaluation"), "metrics": names}
    return {**given, "evaluation": judged}, list(held.values())


def _table(given: Mapping[str, Any], section: str) -> dict[str, Any]:
    """A section as it was written."""
    own = given.get(section) or {}
    if not isinstance(own, Mapping):
        raise PlanError(f"{section} = {own!r} is no table")
    return dict(own)


def _placed(
    given: dict[str, Any], section: str, held: Held, kept: tuple[str, ...]
) -> dict[str, Any]:
    """The section with this object. Options of what another name stood for mean nothing to it, but
    for those of the section's own."""
    own = _table(given, section)
    if "name" in own and own["name"] != held.name:
        own = {key: own[key] for key in kept if key in own}
    return {**given, section: {**own, "name": held.name}}


_NAMED: dict[str, Callable[[dict[str, Any], Any], Named]] = {
    "model": _model,
    "data": _data,
    "loss": _loss,
    "method": _method,
    "metrics": _metrics,
}


# What a run folder says of them


def described(plan: Plan, problem: Problem) -> dict[str, Any]:
    """What can be said of a plan's objects, for people and for a resume."""
    found: dict[str, Any] = {}
    for key, name in dict(named_objects(plan.to_dict())).items():
        thing = find_object(name, f"{key} = '{name}'", PlanError)
        facts: dict[str, Any] = {"object": word_of(name)}
        if key == "model.name":
            module = problem.build()
            facts["classes"] = sources(module)
            facts["initial_weights"] = weights_mark(module)
            facts["parameters"] = sum(p.numel() for p in module.parameters())
            if inspect.isroutine(thing):
                facts["source"] = source_mark(thing)
        elif key == "data.name":
            facts["rows"], facts["facts"] = fingerprint(thing)
        else:
            own = thing.loss if isinstance(thing, PerSampleLoss) else thing
            facts["source"] = source_mark(own)
        found[key.removesuffix(".name")] = facts
    unknown = [key for key, facts in found.items() if None in _marks(facts)]
    if unknown:
        found["not_compared"] = (
            f"the source of {', '.join(unknown)} cannot be read (code typed at a prompt): a resume "
            "does not notice if it has changed"
        )
    return found


def _marks(facts: Mapping[str, Any]) -> list[Any]:
    return [*facts.get("classes", {}).values(), facts.get("source", "")]


def record(plan: Plan, problem: Problem, folder: Path) -> None:
    """Write objects.json; PlanError if objects of a run that goes on are not what they were."""
    new = described(plan, problem)
    if not new:
        return
    path = folder / FILE
    if not path.exists():
        write_sealed(path, json_line(new, indent=2))
    elif changed := differences(read_json(path), new):
        raise PlanError(
            f"{folder} was begun with other objects than these: {'; '.join(changed)} (see "
            f"{FILE}). A run goes on only with the same code, weights and rows: restore them, or "
            "begin a new run in another folder"
        )


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What is not as it was when the run began, a line each."""
    lines = []
    for key in old.keys() & new.keys() - {"not_compared"}:
        before, now = old[key], new[key]
        if before == now:
            continue
        changed = [part for part in before if before[part] != now.get(part)]
        lines.append(f"{key} ({before['object']}): {', '.join(changed)}")
    return sorted(lines)


# Tried before anything is asked


def try_out(plan: Plan, problem: Problem, data: FederatedData) -> None:
    """Put a few rows through a user's model, loss and metrics: what does not go together is said
    here, by its name, before anybody is asked."""
    names = [plan.model.name, plan.loss.name if plan.loss else ""]
    if not any(map(is_object, (*names, *(plan.evaluation.metrics or {}).values()))):
        return
    said = word_of(plan.model.name)
    rows = next((s.train for s in map(data.site, range(min(len(data), 100))) if len(s.train)), None)
    if rows is None:
        return
    with sandbox(0), torch.no_grad():
        try:
            module = problem.module().eval()
        except CupolaError:
            raise
        except Exception as error:
            raise PlanError(f"model = {said}: making it fails: {_told(error)}") from error
        if not any(p.requires_grad for p in module.parameters()):
            raise PlanError(f"model = {said} has no trainable parameters")
        device = next((p.device for p in module.parameters()), torch.device("cpu"))
        x, y = (_ready(part, problem, device) for part in (rows.inputs(slice(0, 3)), rows.y[:3]))
        shape = f"{tuple(x.shape)} {x.dtype}".replace("torch.", "")
        try:
            output = module(x)
        except CupolaError:
            raise
        except Exception as error:
            hint = "" if x.is_floating_point() else (
                "; integers are taken for tokens: pass x.astype('float32') if they are features"
            )  # fmt: skip
            raise PlanError(
                f"model = {said} does not take inputs {shape}: {_told(error)}{hint}"
            ) from error
        if not isinstance(output, Tensor) or not output.dim() or len(output) != len(x):
            what = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise PlanError(
                f"model = {said} gives {what} for inputs {shape}; it must give one tensor with a "
                "row for each sample"
            )
        _try_judging(plan, problem, output, y)


def _try_judging(plan: Plan, problem: Problem, output: Tensor, y: Tensor) -> None:
    from cupola.training.metrics import measured

    shapes = f"outputs {tuple(output.shape)} and targets {tuple(y.shape)} {y.dtype}"
    shapes = shapes.replace("torch.", "")
    hint = ""
    if y.is_floating_point() and not bool((y % 1).any()):
        hint = (
            "; targets are floats, so this is a regression: pass y.astype(int) if they are classes"
        )
    if problem.kind in ("classification", "segmentation"):
        scores = output.shape[1] if output.dim() > 1 else 1
        if scores != problem.classes and not (scores == 1 and problem.classes == 2):
            raise PlanError(
                f"model = {word_of(plan.model.name)} gives {scores} scores, the data have "
                f"{problem.classes} classes"
            )
    try:
        values = problem.loss(output, y)
    except CupolaError:
        raise
    except Exception as error:
        name = plan.loss.name if plan.loss else "the usual one"
        raise PlanError(
            f"loss = {word_of(name)} does not take {shapes}: {_told(error)}{hint}"
        ) from error
    if values.shape != (len(y),):
        raise PlanError(
            f"loss = {word_of(plan.loss.name if plan.loss else '')} gives the shape "
            f"{tuple(values.shape)}; one value per sample is needed, ({len(y)},)"
        )
    for name, metric in problem.metrics.items():
        measured(name, metric, output, y)


def _ready(values: Tensor, problem: Problem, device: torch.device) -> Tensor:
    return values.to(device, problem.dtype if values.is_floating_point() else values.dtype)


def _told(error: Exception) -> str:
    text = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {text}"


def refused_elsewhere(plan: Plan) -> str | None:
    """Why a plan with objects cannot be carried out at real sites; None if it has none."""
    found = [f"{key} ({word_of(name)})" for key, name in named_objects(plan.to_dict())]
    if not found:
        return None
    return (
        f"{', '.join(found)}: passed as objects of one Python program, and no code crosses to "
        "another; name them in the plan as 'module:name', where the module is installed"
    )
