"""Dense networks (linear models, perceptrons) for many sites at once, with hand-written gradients.

explicit: a stack of models; forward, backward and step are a handful of batched products.
implicit: SGD moves a layer by sums of outer products, W_t = a_t W_0 - sum_s c_ts d_s' h_s, so its
output at step t is a_t h W_0' - sum_s c_ts (h h_s') d_s: local models are never made, and the
cohort's change is one matrix product. It pays when a site has few samples and layers are wide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from cupola.training.batched.cohort import Cohort
from cupola.training.batched.stacked import is_plain_sgd, run_stack, summed_change
from cupola.training.choices import Local
from cupola.training.workspace import Workspace

# activation -> its derivative, given its output
_DERIVATIVE: dict[type, Callable[[Tensor], Tensor]] = {
    nn.ReLU: lambda h: h > 0,
    nn.Tanh: lambda h: 1 - h * h,
    nn.Sigmoid: lambda h: h * (1 - h),
}


def layers_of(space: Workspace) -> list[nn.Linear] | None:
    """The linear layers of a network that is nothing but Linear and known activations."""
    if "layers" not in space.cache:
        space.cache["layers"] = _read(space)
    found = space.cache["layers"]
    return None if found is None else found[0]


def _read(space: Workspace) -> tuple[list[nn.Linear], list[nn.Module]] | None:
    """Linear layers and the activations between them, or None."""
    if not isinstance(space.module, nn.Sequential):
        return None
    parts = list(space.module)
    if parts and isinstance(parts[0], nn.Flatten):
        parts = parts[1:]
    linear, between = parts[::2], parts[1::2]
    if len(linear) != len(between) + 1:
        return None
    if not all(type(m) is nn.Linear and m.bias is not None for m in linear):
        return None
    if not all(type(m) in _DERIVATIVE for m in between):
        return None
    if len(space.params) != 2 * len(linear):
        return None
    return [m for m in linear if isinstance(m, nn.Linear)], list(between)


def _activations(space: Workspace) -> list[nn.Module]:
    layers_of(space)
    return space.cache["layers"][1]


def output_gradient(space: Workspace, output: Tensor, y: Tensor, share: Tensor) -> Tensor:
    """d(sum of share * loss) / d(output) for outputs (..., classes).

    y as from `targets`; share (..., 1).
    """
    if space.plain_cross_entropy:
        return torch.softmax(output, -1).sub_(y).mul_(share)
    flat = output.detach().reshape(-1, output.shape[-1]).requires_grad_()
    with torch.enable_grad():
        target = y.reshape(len(flat), *y.shape[share.dim() - 1 :])
        value = (space.problem.loss(flat, target) * share.reshape(-1)).sum()
    return torch.autograd.grad(value, flat)[0].view_as(output)


def targets(space: Workspace, cohort: Cohort) -> Tensor:
    """The cohort's targets; one-hot where that gives the gradient at once."""
    if not space.plain_cross_entropy:
        return cohort.y
    hot = space.flat.new_zeros(len(cohort.y), space.params[-1].numel())
    return hot.scatter_(1, cohort.y[:, None], 1)


def explicit(space: Workspace, cohort: Cohort) -> list[Tensor]:
    """sum over sites of weight * answer, with a stack of models.

    The bias is one more column of the weight, and every layer's input has a last column of ones.
    """
    activations = _activations(space)
    params = space.split(space.start)
    start = [torch.cat([w, b[:, None]], 1) for w, b in zip(params[::2], params[1::2])]
    stack = [w.expand(len(cohort), *w.shape).clone() for w in start]
    cohort = replace(
        cohort,
        x=with_ones(cohort.x.flatten(1)),
        y=targets(space, cohort),
        share=cohort.share.unsqueeze(-1),
    )

    def factors(
        rows: list[Tensor], x: Tensor, y: Tensor, share: Tensor
    ) -> list[tuple[Tensor, Tensor]]:
        """Per layer, last first, (d, h): its gradient is d' h."""
        inputs = [x]
        for weight, activation in zip(rows, activations):
            inputs.append(with_ones(activation(torch.bmm(inputs[-1], weight.mT))))
        back = output_gradient(space, torch.bmm(inputs[-1], rows[-1].mT), y, share)
        found = [(back, inputs[-1])]
        for i in range(len(rows) - 1, 0, -1):
            back = torch.bmm(back, rows[i][..., :-1])
            back.mul_(_DERIVATIVE[type(activations[i - 1])](inputs[i][..., :-1]))
            found.append((back, inputs[i - 1]))
        return found

    if is_plain_sgd(cohort.local) and not activations and space.plain_cross_entropy:
        _logistic(cohort, stack[0])
        sums = summed_change(cohort, start, stack)
    elif is_plain_sgd(cohort.local):  # step without ever writing a gradient
        rows, width, rate = stack, len(cohort), -cohort.lr
        for active, batch in zip(cohort.active, cohort.batches(cohort.active)):
            if active < width:
                rows, width = [w[:active] for w in stack], active
            for weight, (back, below) in zip(reversed(rows), factors(rows, *batch)):
                weight.baddbmm_(back.mT, below, alpha=rate)
        sums = summed_change(cohort, start, stack)
    else:

        def gradient(rows: list[Tensor], *batch: Tensor) -> list[Tensor]:
            return [torch.bmm(back.mT, below) for back, below in factors(rows, *batch)[::-1]]

        sums = run_stack(cohort, start, stack, gradient)
    return [part for w in sums for part in (w[:, :-1].contiguous(), w[:, -1].contiguous())]


def _logistic(cohort: Cohort, stack: Tensor) -> None:
    """Plain SGD on multinomial logistic regression: five operations a step, and nothing else."""
    rows, turned, width, rate = stack, stack.mT, len(cohort), -cohort.lr
    for active, (x, y, share) in zip(cohort.active, cohort.batches(cohort.active)):
        if active < width:
            rows, turned, width = stack[:active], stack[:active].mT, active
        back = torch.softmax(torch.bmm(x, turned), -1).sub_(y).mul_(share)
        rows.baddbmm_(back.mT, x, alpha=rate)


def with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(()).expand(*x.shape[:-1], 1)], -1)


def step_coefficients(local: Local, lr: float, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """SGD as linear algebra: parameters before step t are a[t] * start - sum_s c[t, s] * g_s.

    Found by running the optimizer on the coefficients of (start, g_0, g_1, ...), momentum, weight
    decay and proximal term included; t runs to `steps`, the end of the round.
    """
    basis = np.eye(steps + 1)
    place, momentum = basis[0].copy(), np.zeros(steps + 1)
    path = [place.copy()]
    for t in range(steps):
        grad = basis[t + 1] + local.proximal * (place - basis[0]) + local.weight_decay * place
        momentum = local.momentum * momentum + grad if t else grad
        place = place - lr * (grad + local.momentum * momentum if local.nesterov else momentum)
        path.append(place.copy())
    table = np.array(path)
    return table[:, 0], -table[:, 1:]


@torch.no_grad()
def implicit(space: Workspace, cohort: Cohort) -> list[Tensor]:
    """sum over sites of weight * answer, without making any site's model."""
    activations = _activations(space)
    start = space.split(space.start)
    local, longest, width = cohort.local, len(cohort.active), cohort.index.shape[2]
    keep, drift = step_coefficients(local, cohort.lr, longest)
    depth = len(start) // 2
    sites = len(cohort)
    inputs = [
        space.flat.new_zeros(sites, longest, width, start[2 * i].shape[1]) for i in range(depth)
    ]
    backs = [
        space.flat.new_zeros(sites, longest, width, start[2 * i].shape[0]) for i in range(depth)
    ]
    wanted = targets(space, cohort)
    places = cohort.index.transpose(0, 1).reshape(-1)
    torch.index_select(cohort.x.flatten(1), 0, places, out=inputs[0].flatten(0, 2))
    first = torch.addmm(start[1], inputs[0].flatten(0, 2), start[0].T).view(
        sites, longest, width, -1
    )

    for t, active in enumerate(cohort.active):
        past = np.flatnonzero(drift[t, :t])
        # The coefficient of every earlier sample, negative: outputs lose what SGD has moved away.
        scale = torch.from_numpy(-drift[t, :t]).to(space.flat).repeat_interleave(width)
        for i, activation in enumerate([*activations, None]):
            h = inputs[i][:active, t]
            if i == 0:
                z = first[:active, t] * keep[t]
            else:
                z = (h @ start[2 * i].T).add_(start[2 * i + 1]).mul_(keep[t])
            if len(past):
                earlier = inputs[i][:active, :t].flatten(1, 2)
                moved = backs[i][:active, :t].flatten(1, 2)
                gram = torch.bmm(h, earlier.mT).add_(1).mul_(scale)  # + 1 for the bias
                z.baddbmm_(gram, moved)
            if activation is not None:
                z = inputs[i + 1][:active, t] = activation(z)
        y, share = wanted[cohort.index[t, :active]], cohort.share[t, :active, :, None]
        back = output_gradient(space, z, y, share)
        for i in reversed(range(depth)):
            backs[i][:active, t] = back
            if i:
                below = (back @ start[2 * i]).mul_(keep[t])
                if len(past):
                    earlier = inputs[i][:active, :t].flatten(1, 2)
                    moved = backs[i][:active, :t].flatten(1, 2)
                    below.baddbmm_(torch.bmm(back, moved.mT).mul_(scale), earlier)
                back = below.mul_(_DERIVATIVE[type(activations[i - 1])](inputs[i][:active, t]))

    weight = cohort.answer_weights()
    if local.send == "gradients":
        each, rest = weight[:, None] * cohort.coefficient, 0.0
    else:
        ends = np.array(cohort.steps)
        each, rest = weight[:, None] * drift[ends], float(weight @ (1 - keep[ends]))
    factor = torch.from_numpy(each).to(space.flat)[:, :, None, None]
    result = []
    for i in range(depth):
        back = backs[i].mul_(factor).flatten(0, 2)
        result += [
            torch.addmm(start[2 * i], back.T, inputs[i].flatten(0, 2), beta=rest),
            torch.add(back.sum(0), start[2 * i + 1], alpha=rest),
        ]
    return result
