"""An adapter in a plan: its base found and named, put together, and what averaging makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from cupola.base.chain import read_result
from cupola.base.randomness import derive
from cupola.errors import CupolaError, PlanError
from cupola.nn.adapters import EXACT, adapt, low_rank, named, narrow_base, product
from cupola.nn.reprogram import Adapted
from cupola.training.adapter_choice import Adapter

if TYPE_CHECKING:
    from cupola.data.dataset import FederatedData
    from cupola.training.loop import Training
    from cupola.training.plan import Plan
    from cupola.training.workspace import Problem

PROBED = 16  # samples of each pseudo-site


@dataclass(frozen=True)
class WithAdapter:
    """Makes a module with an adapter, everything else of it frozen. seed: of what is drawn and
    trained; fixed factors are filled by a workspace, as all that comes from a seed."""

    make: Callable[[], nn.Module]
    choice: Adapter
    seed: int

    def __call__(self) -> nn.Module:
        module, choice = self.make(), self.choice
        fresh = _fresh(module)
        if choice.base is not None:
            fresh = load_base(module, choice.base, choice.modules_to_save)
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(derive(self.seed, "adapter"))
            adapt(
                module,
                choice.kind,
                rank=choice.rank,
                alpha=choice.alpha,
                patterns=choice.targets,
                modules_to_save=tuple(dict.fromkeys((*choice.modules_to_save, *fresh))),
                length=choice.length,
            )
        if choice.base_dtype == "bfloat16":
            narrow_base(module, torch.bfloat16)
        return module


def _fresh(module: nn.Module) -> tuple[str, ...]:
    """Modules that a base came without, which are trained in full: nobody has yet."""
    if isinstance(module, Adapted):
        if module.border is not None or not isinstance(module.output, nn.Module):
            raise PlanError(
                "trainable.adapter with a trained border: the adapter freezes all else; set "
                "model.adapt = 'head', whose last layer is trained beside the adapter"
            )
        return ("output",)
    return tuple(getattr(module, "fresh", ()))


def load_base(module: nn.Module, base: str, apart: tuple[str, ...]) -> tuple[str, ...]:
    """Fill a module from a run's folder or a file of safetensors. apart: modules that may have
    another shape there, or be missing; those that are not filled are given back."""
    path = Path(base).expanduser()
    said = f"trainable.adapter.base = '{base}'"
    if path.is_dir():
        try:
            read_result(path, whole=True)  # a damaged run is no base
        except CupolaError as error:
            raise PlanError(f"{said}: {error}") from None
        path = path / "model.safetensors"
    try:
        held = load_file(path)
    except (OSError, SafetensorError) as error:
        raise PlanError(f"{said} holds no weights that can be read: {error}") from None
    own: dict[str, Tensor] = dict(module.state_dict(keep_vars=False))
    tied = {name: id(p) for name, p in module.named_parameters(remove_duplicate=False)}
    aliases = {tied[name] for name in held if name in tied}
    left = []
    for name, tensor in own.items():
        given = held.get(name)
        alike = given is not None and given.is_floating_point() == tensor.is_floating_point()
        if given is not None and alike and given.shape == tensor.shape:
            tensor.copy_(given)
        elif tied.get(name) in aliases and given is None:
            continue  # the file has it under its other name
        elif name.endswith("num_batches_tracked") and given is None:
            continue
        elif named(name.rpartition(".")[0], apart):
            left.append(name.rpartition(".")[0])
        else:
            what = "is missing" if given is None else f"is {_form(given)}"
            raise PlanError(
                f"{said}: '{name}' {what} there, {_form(tensor)} in the model; if it is to be "
                f"trained anew, name its module in trainable.adapter.modules_to_save"
            )
    if strange := [n for n in held if n not in own and not named(n.rpartition(".")[0], apart)]:
        raise PlanError(f"{said}: the model has no '{strange[0]}'")
    return tuple(dict.fromkeys(left))


def _form(tensor: Tensor) -> str:
    kind = "" if tensor.is_floating_point() else f" of {tensor.dtype}".replace("torch.", "")
    return f"{list(tensor.shape)}{kind}"


def base_name(plan: Plan) -> str | None:
    """What a plan calls the base of its adapter; None without an adapter."""
    choice = plan.trainable.adapter
    if choice is None:
        return None
    options = plan.model.options
    found = choice.base or options.get("source") or options.get("path")
    if found or ":" in plan.model.name:
        return str(found or plan.model.name)
    return f"{plan.model.name}, untrained"


def metadata(plan: Plan, training: Training) -> dict[str, str] | None:
    """What the saved model of a plan with an adapter says of its base; None without an adapter."""
    base = base_name(plan)
    if base is None:
        return None
    told = {"name": base, "checksum": training.space.frozen.installed}
    return {"base": json.dumps(told)}  # one entry: safetensors writes several in any order


# What a mean over sites makes of it


@dataclass(frozen=True)
class Averaging:
    """exact: whether the mean of what is trained is the mean of the models. difference: where it is
    not, of a probe's two sites, relative to the mean's own change; None where nothing was probed.
    idle: layers whose factors the model never uses."""

    exact: bool
    difference: float | None = None
    idle: tuple[str, ...] = ()


def averaging(problem: Problem, lr: float, data: FederatedData) -> Averaging | None:
    """How far the mean of an adapter is from the mean of the models: two pseudo-sites take a step
    together, since B starts at zero, and then one apart, in float64."""
    choice = problem.trainable.adapter
    if choice is None:
        return None
    if choice.kind in EXACT:
        return Averaging(True)
    if choice.kind == "prompt":  # the mean of prompts is the prompt of no mean of models
        return Averaging(False)
    alike = problem.trainable.model_copy(update={"level": ()})  # no sites that train less
    probe = replace(problem, dtype=torch.float64, device="cpu", precision="full", trainable=alike)
    batches = _pseudo_sites(data)
    if batches is None:
        return Averaging(False)
    from cupola.training.workspace import Workspace

    space = Workspace(probe)
    space.module.eval()  # a probe draws nothing
    start = _products(space.module)
    space.flat.sub_(lr * _gradient(space, [batches[0], batches[1]]))
    idle = _idle(space)
    common = space.flat.clone()
    apart, factors = [], []
    for batch in batches:
        space.flat.copy_(common)
        space.flat.sub_(lr * _gradient(space, [batch]))
        apart.append(_products(space.module))
        factors.append(space.flat.clone())
    space.flat.copy_((factors[0] + factors[1]) / 2)
    together = _products(space.module)
    mean = [(a + b) / 2 for a, b in zip(*apart)]
    moved = _size([m - s for m, s in zip(mean, start)])
    missed = _size([m - t for m, t in zip(mean, together)])
    return Averaging(False, missed / moved if moved > 0 else None, idle)


def _pseudo_sites(data: FederatedData) -> list[tuple[Any, slice]] | None:
    """Two sites with samples, or two halves of the only one."""
    held = (data.site(i).train for i in range(min(len(data), 20)))
    some = [train.plain() for train in held if len(train)][:2]
    if len(some) == 1 and len(some[0]) > 1:
        half = min(PROBED, len(some[0]) // 2)
        return [(some[0], slice(0, half)), (some[0], slice(half, 2 * half))]
    return [(train, slice(0, PROBED)) for train in some] if len(some) == 2 else None


def _gradient(space: Any, parts: list[tuple[Any, slice]]) -> Tensor:
    found = [space.gradient(*space.batch(data, rows)) for data, rows in parts]
    flat = [torch.cat([g.reshape(-1) for g in grads]) for grads in found]
    return sum(flat[1:], flat[0]) / len(flat)


def _idle(space: Any) -> tuple[str, ...]:
    """Adapted layers that are as they were after a step: the model goes round them."""
    return tuple(name for name, layer in low_rank(space.module) if not bool(product(layer).any()))


def _products(module: nn.Module) -> list[Tensor]:
    with torch.no_grad():
        return [product(layer) for _, layer in low_rank(module)]


def _size(tensors: list[Tensor]) -> float:
    return float(torch.stack([t.square().sum() for t in tensors]).sum().sqrt())
