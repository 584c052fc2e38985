"""The general form for many sites: a stack of models, one gradient for all of them.

The gradient of vmap(loss) is traced once per shape into a flat list of operations, which costs a
fraction of running vmap and autograd every step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from cupola.training.batched.cohort import Cohort
from cupola.training.choices import Local
from cupola.training.optimizers import LocalOptimizer
from cupola.training.workspace import Workspace

WIDTHS = 8  # widths of stack that are met, and traced, at most
TRACE_AFTER = 2  # a shape is traced when it was met this often
_SAME = {
    torch.ops.aten.expand.default,
    torch.ops.aten.view.default,
    torch.ops.aten._unsafe_view.default,
}


def stacked(space: Workspace, cohort: Cohort) -> list[Tensor]:
    """sum over sites of weight * answer, with one model per site in a stack."""
    start = space.split(space.start)
    if is_plain_sgd(cohort.local) and not cohort.mechanism.by_coordinator:
        return _plain(space, cohort, start)
    stack = [p.unsqueeze(0).expand(len(cohort), *p.shape).clone() for p in start]
    return run_stack(cohort, start, stack, partial(stack_gradient, space), widths=WIDTHS)


def _plain(space: Workspace, cohort: Cohort, start: list[Tensor]) -> list[Tensor]:
    """Plain SGD in fewer passes over memory: the first gradient is taken at the common model, and
    the change is the sum of the steps, so that nobody's last step need be made."""
    widened = _widened(cohort, WIDTHS)
    weight = torch.from_numpy(cohort.answer_weights() * cohort.lr).to(start[0])
    total = [torch.zeros_like(p) for p in start]
    stack: list[Tensor] = []
    for t, batch in enumerate(cohort.batches(widened)):
        rows = [p[: widened[t]] for p in stack]
        grads = stack_gradient(space, rows or start, *batch, shared=not rows)
        for sum_, g in zip(total, grads):
            # Sites that have finished, and are still in the stack, have gradient zero.
            sum_ += weighted_sum(weight[: widened[t]], g)
        if t + 1 == len(widened):
            break
        ahead = [g[: widened[t + 1]] for g in grads]
        if t == 0:
            stack = [torch.add(s, g, alpha=-cohort.lr) for s, g in zip(start, ahead)]
        else:
            torch._foreach_add_([p[: widened[t + 1]] for p in rows], ahead, alpha=-cohort.lr)
    return total


def is_plain_sgd(local: Local) -> bool:
    """SGD at the site with nothing else, of which only the change is wanted."""
    extras = local.momentum or local.weight_decay or local.proximal
    return local.optimizer == "sgd" and local.send != "gradients" and not extras


def _widened(cohort: Cohort, widths: int) -> list[int]:
    """Sites in the stack at each step, rounded up so that only so many widths occur."""
    grain = -(-len(cohort) // widths) if widths else 1
    return [min(len(cohort), -(-a // grain) * grain) for a in cohort.active]


def run_stack(
    cohort: Cohort,
    start: list[Tensor],
    stack: list[Tensor],
    gradient: Callable[..., list[Tensor]],
    widths: int = 0,
) -> list[Tensor]:
    """Local training of a whole stack; the models of finished sites stay where they are.

    widths: how many widths of stack `gradient` may see, if it is slow on those it has not met;
    then it also computes, in vain, for some sites that have finished.
    """
    local = cohort.local
    optimizer = LocalOptimizer(local, cohort.lr)
    total: list[Tensor] = []
    coefficient = torch.from_numpy(cohort.coefficient).to(stack[0])
    widened = _widened(cohort, widths)
    rows, width = stack, len(cohort)
    for t, (active, batch) in enumerate(zip(cohort.active, cohort.batches(widened))):
        if active < width:
            rows, width = [p[:active] for p in stack], active
            optimizer.active(active)
        if widened[t] == active:
            grads = gradient(rows, *batch)
        else:
            grads = [g[:active] for g in gradient([p[: widened[t]] for p in stack], *batch)]
        if local.proximal:
            torch._foreach_add_(grads, rows, alpha=local.proximal)
            torch._foreach_sub_(grads, [s * local.proximal for s in start])
        if local.send == "gradients":
            if not total:
                total = [torch.zeros_like(p) for p in stack]
            for sum_, g in zip(total, grads):
                factor = coefficient[:active, t].view(-1, *[1] * (g.dim() - 1))
                sum_[:active].addcmul_(g, factor)
        optimizer.step(rows, grads)
    if local.send == "gradients":
        return _summed(cohort, total, cohort.answer_weights())
    return summed_change(cohort, start, stack)


def summed_change(cohort: Cohort, start: list[Tensor], stack: list[Tensor]) -> list[Tensor]:
    """sum over sites of weight * (start - end); overwrites the stack."""
    torch._foreach_sub_(stack, start)
    return _summed(cohort, stack, -cohort.answer_weights())


def _summed(cohort: Cohort, stack: list[Tensor], weight: np.ndarray) -> list[Tensor]:
    """sum over sites of weight * answer, each answer clipped where the coordinator adds noise."""
    clip = cohort.mechanism.privacy.clip
    if cohort.mechanism.by_coordinator:
        parts = [p.reshape(len(p), -1).double().norm(dim=1) for p in stack]
        norms = torch.stack(parts).norm(dim=0).cpu().numpy()
        weight = weight * np.minimum(1.0, clip / np.maximum(norms, 1e-300))
        cohort.halves.extend(np.where(norms <= clip, 0.5, -0.5).tolist())
        stack = [p.double() for p in stack]  # what one site adds is not to drown in rounding
    return [weighted_sum(torch.from_numpy(weight).to(p), p) for p in stack]


def weighted_sum(weight: Tensor, stack: Tensor) -> Tensor:
    """sum over the first dimension, as one matrix-vector product."""
    return (weight @ stack.reshape(len(stack), -1)).view(stack.shape[1:])


def stack_gradient(
    space: Workspace,
    rows: list[Tensor],
    x: Tensor,
    y: Tensor,
    share: Tensor,
    shared: bool = False,
) -> list[Tensor]:
    """Gradient of every site's own loss at its model (or all at one, if shared), traced for shapes
    that come again."""
    key = f"stack {shared} {tuple(x.shape)}"
    known: dict[str, Any] = space.cache
    if not callable(known.get(key)):
        # Neither tracing nor calling a module with other parameters is safe in two threads.
        with space.lock:
            if not callable(known.get(key)):
                known[key] = known.get(key, 0) + 1
                function = _gradient_function(space, shared)
                if known[key] < TRACE_AFTER:
                    return list(function(*rows, x, y, share))
                known[key] = _trace(function, (*rows, x, y, share))
    return known[key](*rows, x, y, share)


def _gradient_function(space: Workspace, shared: bool) -> Callable[..., Any]:
    names, module, loss = space.names, space.module, space.problem.loss
    lean = space.plain_cross_entropy  # the same, in fewer operations

    def site_loss(params: list[Tensor], x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        output = functional_call(module, dict(zip(names, params)), (x,))
        if lean and output.dim() == 2:
            picked = torch.log_softmax(output, 1).gather(1, y.unsqueeze(1)).squeeze(1)
            return -(picked * share).sum()
        return (loss(output, y) * share).sum()

    gradient = vmap(grad(site_loss), in_dims=(None if shared else 0, 0, 0, 0))

    def flat(*inputs: Tensor) -> Any:
        *params, x, y, share = inputs
        return gradient(params, x, y, share)

    return flat


def _trace(function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> Callable[..., list[Tensor]]:
    """The operations of one gradient, without those that change nothing."""
    with torch.no_grad():
        module = make_fx(function)(*inputs)
    graph = module.graph
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _SAME:
            source = node.args[0]
            before, after = source.meta.get("val"), node.meta.get("val")
            if before is not None and after is not None and before.shape == after.shape:
                node.replace_all_uses_with(source)
                graph.erase_node(node)
    graph.eliminate_dead_code()
    module.recompile()

    def run(*values: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return list(module.forward(*values))

    return run
