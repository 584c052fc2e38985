"""Trying a module out without leaving a trace: draws repeated, buffers put back, rows compared.

Everything runs on copies, on the CPU, in float64 where the module allows it; the global generators
of torch, numpy and Python are restored.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from cupola.errors import PlanError

SEED = 20_240_229  # of the probes' own draws; no result depends on it


@dataclass(frozen=True)
class Outcome:
    """What a forward pass gave: its tensors, whether it drew, which buffers it changed."""

    values: list[Tensor]
    drew: bool
    changed: tuple[str, ...]


@dataclass(frozen=True)
class Probe:
    """A module's copy in training mode, inputs it was tried on, and how exactly it computes."""

    module: nn.Module
    x: Tensor  # (rows, ...)
    outcome: Outcome  # of x
    tolerance: float  # relative

    @property
    def rows(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Call:
    """How a part of a module was called in a forward pass."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def prepare(module: nn.Module, example: Tensor) -> Probe:
    """A probe of the module on inputs like `example` (n, ...), in training mode.

    The inputs' values are drawn from the example's own, so that they are in range and rows differ.
    """
    if not len(example):
        raise PlanError("the model cannot be inspected on no inputs; give at least one")
    generator = torch.Generator().manual_seed(SEED)
    # An odd number, which hardly occurs as another dimension; fewer rows where they cost time.
    large = example[0].numel() > 20_000 or sum(p.numel() for p in module.parameters()) > 2_000_000
    rows = 3 if large else 5
    x = draw_like(example.detach().cpu(), rows, generator)
    problem: Exception | None = None
    # User code may insist on float32, so that is tried too.
    for dtype, tolerance in ((torch.float64, 1e-9), (None, 1e-4)):
        try:
            copied = copy.deepcopy(module).cpu()
            # As training would have it; a layer that refuses to leave evaluation mode keeps it.
            copied = (copied if dtype is None else copied.to(dtype)).train()
            inputs = x.to(dtype) if dtype is not None and x.is_floating_point() else x
            outcome = run(copied, (inputs,))
            if not by_row(outcome.values, rows):
                raise ValueError("its output has not one row for each input")
            return Probe(copied, inputs, outcome, tolerance)
        except Exception as error:
            problem = error
    shape = tuple(example.shape[1:])
    assert problem is not None
    raise PlanError(
        f"the model cannot be inspected on inputs of shape {shape}: {first_line(problem)}"
    ) from problem


def draw_like(example: Tensor, rows: int, generator: torch.Generator) -> Tensor:
    """Inputs (rows, ...) whose values come from the example's own, in any order."""
    shape = (rows, *example.shape[1:])
    values = example.flatten()
    if bool((values == values[0]).all()):  # a constant would hide every difference
        if example.is_floating_point():
            return torch.rand(shape, generator=generator, dtype=example.dtype)
        return torch.randint(0, int(values[0]) + 1, shape, generator=generator, dtype=example.dtype)
    index = torch.randint(0, len(values), shape, generator=generator)
    return values[index]


@contextmanager
def sandbox(seed: int) -> Iterator[None]:
    """Every global generator seeded inside, and afterwards as it was."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            np.random.seed(seed)  # noqa: NPY002 (user code may draw from it; restored below)
            random.seed(seed)
            yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)


def run(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    seed: int = SEED,
) -> Outcome:
    """One forward pass; draws come from `seed`, buffers are put back afterwards."""
    before = {name: value.clone() for name, value in module.named_buffers()}
    try:
        with sandbox(seed), torch.no_grad():
            start = _generators()
            args, kwargs = cloned((args, kwargs or {}))  # layers may work in place
            output = module(*args, **kwargs)
            drew = _generators() != start
        changed = tuple(
            name
            for name, value in module.named_buffers()
            if name not in before or not torch.equal(before[name], value)
        )
        leaves = pytree.tree_leaves(output)
        return Outcome([v.clone() for v in leaves if isinstance(v, Tensor)], drew, changed)
    finally:
        with torch.no_grad():
            for name, value in module.named_buffers():
                if name in before and before[name].shape == value.shape:
                    value.copy_(before[name])


def _generators() -> tuple[Any, ...]:
    """State of the global generators of torch, numpy and Python, to compare."""
    torch_state = torch.default_generator.get_state().numpy().tobytes()
    _, words, position, *_ = np.random.get_state()  # noqa: NPY002
    return torch_state, np.asarray(words).tobytes(), position, random.getstate()


def cloned(tree: Any) -> Any:
    """The same structure with copies of its tensors."""
    return pytree.tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, tree)


def differ(a: list[Tensor], b: list[Tensor], tolerance: float) -> bool:
    """Whether two lists of tensors differ by more than rounding."""
    if [t.shape for t in a] != [t.shape for t in b]:
        return True
    return any(_apart(s, t, tolerance) for s, t in zip(a, b))


def _apart(a: Tensor, b: Tensor, tolerance: float) -> bool:
    if not a.numel():
        return False
    if not (a.is_floating_point() or a.is_complex()):
        return not torch.equal(a, b)
    a, b = a.detach(), b.detach()
    finite = a[torch.isfinite(a)].abs()
    scale = max(1.0, float(finite.max())) if finite.numel() else 1.0
    return not torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def by_row(values: list[Tensor], rows: int) -> list[int]:
    """Positions of the tensors that have one entry per row."""
    return [i for i, value in enumerate(values) if value.dim() and len(value) == rows]


def others_changed(tree: Any, keep: int, rows: int) -> Any:
    """The same arguments with every row but `keep` filled with other values of the same tensor."""
    generator = torch.Generator().manual_seed(SEED + 1)

    def change(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.dim() or len(value) != rows:
            return value
        changed = draw_like(value.detach(), rows, generator).to(value.dtype)
        changed[keep] = value[keep]
        return changed

    return pytree.tree_map(change, tree)


def calls(probe: Probe) -> list[Call]:
    """How every part of the module, itself included, is called in one forward pass."""
    found: list[Call] = []

    def record(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            kept = pytree.tree_map(
                lambda v: v.clone() if isinstance(v, Tensor) else v, (args, kwargs)
            )
            found.append(Call(name, module, *kept))

        return hook

    handles = [
        part.register_forward_pre_hook(record(name), with_kwargs=True)
        for name, part in probe.module.named_modules()
    ]
    try:
        run(probe.module, (probe.x,))
    finally:
        for handle in handles:
            handle.remove()
    return found


def innermost(names: set[str]) -> set[str]:
    """Those names that have no other of the names inside them."""
    return {
        name
        for name in names
        if not any(other != name and (not name or other.startswith(name + ".")) for other in names)
    }


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
