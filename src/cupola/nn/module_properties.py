"""What a model and a loss do to a batch: the conditions under which sites' gradients add up.

Training over sites equals centralised training only if the loss of a sample depends on that sample
and the parameters alone: no layer or loss that mixes the batch, none that draws at random (Cupola
cannot give the same draws to two different batches). Known layers are found by their type; a
numerical probe on a copy confirms it and finds what hides in user code.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils import _pytree as pytree

from cupola.errors import PlanError
from cupola.nn.kernelnorm import KernelNorm, KNConv
from cupola.nn.losses import Loss
from cupola.nn.module_probe import (
    SEED,
    Call,
    Probe,
    by_row,
    calls,
    differ,
    draw_like,
    first_line,
    innermost,
    others_changed,
    prepare,
    run,
    sandbox,
)


@dataclass(frozen=True)
class Properties:
    """What training with a model means for its samples; layers as "name (Type)".

    batch_dependent: layers whose output for a sample depends on the others in the batch.
    random: layers that draw at random in training.
    mutates_buffers: buffers that a forward pass in training changes.
    stackable: many sites' parameters can be stacked and trained with one backward pass; if not,
        `obstacle` says why.
    """

    batch_dependent: tuple[str, ...] = ()
    random: tuple[str, ...] = ()
    mutates_buffers: tuple[str, ...] = ()
    stackable: bool = True
    obstacle: str = ""

    @property
    def utility_preserving(self) -> bool:
        """Whether gradients of parts of a batch add up to the gradient of the whole."""
        return not self.batch_dependent and not self.random


def properties(module: nn.Module, example: Tensor) -> Properties:
    """Inspect a model on inputs like `example` (n, ...), model-ready; n = 1 is enough.

    Works on copies: the module, its mode, its buffers and the global generators stay as they are.
    """
    probe = prepare(module, example)
    random = _random(probe)
    stackable, obstacle = _stackable(probe, random)
    return Properties(
        batch_dependent=_batch_dependent(probe, repeatable=not random),
        random=random,
        mutates_buffers=probe.outcome.changed,
        stackable=stackable,
        obstacle=obstacle,
    )


def loss_is_batch_dependent(loss: Loss, output: Tensor, y: Tensor) -> bool:
    """Whether the loss of a sample depends on the others in its batch.

    output, y: an example of a batch, of a model's outputs and its targets, which fixes shapes; the
    values are drawn anew, so that all classes occur. The loss may give one value per sample; then
    these must be the samples' own. Or it gives one value for the batch; then its gradient must be
    the mean of the samples' gradients (a sum over the batch is refused: it grows with the batch).
    """
    if not len(output) or len(output) != len(y):
        raise PlanError(
            f"the loss cannot be inspected on {len(output)} outputs and {len(y)} targets"
        )
    problem: Exception | None = None
    # A loss may have targets of its own kind, or float32 weights inside.
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-4)):
        for redraw in (True, False):
            outputs, targets = _loss_example(output, y, dtype, redraw)
            try:
                value, gradient = _loss_and_gradient(loss, outputs, targets)
            except Exception as error:
                problem = error
                continue
            return _loss_mixes_rows(loss, outputs, targets, value, gradient, tolerance)
    assert problem is not None
    raise PlanError(
        f"the loss cannot take outputs {tuple(output.shape)} with targets {tuple(y.shape)}: "
        f"{first_line(problem)}"
    ) from problem


def _loss_mixes_rows(
    loss: Loss, output: Tensor, y: Tensor, value: Tensor, gradient: Tensor, tolerance: float
) -> bool:
    """Compare the loss of a batch and its gradient with those of its samples alone."""
    try:
        parts = [
            _loss_and_gradient(loss, output[i : i + 1].detach(), y[i : i + 1])
            for i in range(len(output))
        ]
    except Exception:
        return True  # it cannot do with one sample
    own_gradient = torch.cat([g for _, g in parts]) / len(output)
    if value.dim() and differ([value], [torch.cat([v.reshape(1) for v, _ in parts])], tolerance):
        return True
    return differ([gradient], [own_gradient], tolerance)


def _loss_example(
    output: Tensor, y: Tensor, dtype: torch.dtype, redraw: bool
) -> tuple[Tensor, Tensor]:
    """Seven random outputs, and targets: new ones where asked, or those of the example in turn."""
    generator = torch.Generator().manual_seed(SEED)
    rows = 7
    outputs = torch.randn((rows, *output.shape[1:]), generator=generator, dtype=dtype)
    targets = y.detach().cpu()[torch.arange(rows) % len(y)]
    if redraw:
        targets = _targets(targets, outputs, generator)
    return outputs, targets.to(dtype) if targets.is_floating_point() else targets


def _loss_and_gradient(loss: Loss, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Value(s) of the loss, and the gradient of their mean with respect to the output."""
    output = output.clone().requires_grad_()
    with sandbox(SEED):
        value = loss(output, y)
    (gradient,) = torch.autograd.grad(value.mean(), output)
    return value.detach(), gradient


def _targets(y: Tensor, output: Tensor, generator: torch.Generator) -> Tensor:
    """Targets like `y` with all classes; labels outside the classes (ignored pixels) stay."""
    if y.is_floating_point():
        if bool(((y == 0) | (y == 1)).all()):
            return torch.randint(0, 2, y.shape, generator=generator).to(y.dtype)
        return torch.randn(y.shape, generator=generator, dtype=y.dtype)
    classes = 2
    if output.dim() == y.dim() + 1 and output.shape[1] > 1:
        classes = output.shape[2] if output.dim() == 3 else output.shape[1]
    drawn = torch.randint(0, classes, y.shape, generator=generator, dtype=y.dtype)
    return torch.where((y >= 0) & (y < classes), drawn, y)


def _named(module: nn.Module, names: set[str]) -> tuple[str, ...]:
    """ "name (Type)" in the module's own order."""
    return tuple(
        f"{name or 'model'} ({type(part).__name__})"
        for name, part in module.named_modules()
        if name in names
    )


def _batch_dependent(probe: Probe, *, repeatable: bool) -> tuple[str, ...]:
    known = {
        name
        for name, part in probe.module.named_modules()
        if isinstance(part, _BatchNorm) and (part.training or part.running_mean is None)
    }
    if not repeatable:
        probe = _without_known_draws(probe)
    found: set[str] = set()
    if _mixes_rows(probe, _whole(probe)) or (repeatable and _needs_batch(probe)):
        found = {call.name for call in calls(probe) if _mixes_rows(probe, call)}
        # A module that shows it only by the number of rows is named as a whole.
        found = found or ({""} if not known else set())
    return _named(probe.module, innermost(found) | known)


def _whole(probe: Probe) -> Call:
    return Call("", probe.module, (probe.x,), {})


def _without_known_draws(probe: Probe) -> Probe:
    """The probe with torch's random layers switched off; RReLU's draws depend on its input."""
    module = copy.deepcopy(probe.module)
    for part in module.modules():
        if isinstance(part, KernelNorm | KNConv):
            part.dropout = 0.0  # it may draw in evaluation, too
        elif _draws(part):
            part.eval()
    return replace(probe, module=module, outcome=run(module, (probe.x,)))


def _mixes_rows(probe: Probe, call: Call) -> bool:
    """Whether a row of the output changes when only other rows of the input do."""
    rows = probe.rows
    try:
        before = run(call.module, call.args, call.kwargs).values
        for keep in (0, rows - 1):
            args, kwargs = others_changed((call.args, call.kwargs), keep, rows)
            after = run(call.module, args, kwargs).values
            for i in by_row(before, rows):
                if differ([before[i][keep]], [after[i][keep]], probe.tolerance):
                    return True
    except Exception:  # user code that cannot take the altered input tells us nothing
        return False
    return False


def _needs_batch(probe: Probe) -> bool:
    """Whether a sample alone gives another output than in its batch (or none at all)."""
    whole = probe.outcome.values
    for index in (0, probe.rows - 1):
        try:
            alone = run(probe.module, (probe.x[index : index + 1],)).values
        except Exception:  # such as BatchNorm, which refuses a single value per channel
            return True
        for i in by_row(whole, probe.rows):
            if differ([whole[i][index : index + 1]], [alone[i]], probe.tolerance):
                return True
    return False


def _random(probe: Probe) -> tuple[str, ...]:
    known = {name for name, part in probe.module.named_modules() if _draws(part)}
    found: set[str] = set()
    if _varies(probe, _whole(probe)):
        found = {call.name for call in calls(probe) if _varies(probe, call)}
    return _named(probe.module, innermost(found | known))


def _draws(part: nn.Module) -> bool:
    """Layers of torch and ours that are known to draw in training."""
    if isinstance(part, KernelNorm | KNConv):
        return part.random
    if not part.training:
        return False
    if isinstance(part, _DropoutNd):
        return part.p > 0
    if isinstance(part, nn.RReLU):
        return part.lower < part.upper
    if isinstance(part, nn.MultiheadAttention):
        return part.dropout > 0
    if isinstance(part, nn.RNNBase):
        return part.dropout > 0 and part.num_layers > 1
    if isinstance(part, nn.FractionalMaxPool2d | nn.FractionalMaxPool3d):
        return part._random_samples is None
    return False


def _varies(probe: Probe, call: Call) -> bool:
    """Whether the same input may give another output: it draws, or two passes differ."""
    first = run(call.module, call.args, call.kwargs)
    if first.drew:  # sees rare events too, such as skipping a layer once in a while
        return True
    second = run(call.module, call.args, call.kwargs, SEED + 1)
    return differ(first.values, second.values, probe.tolerance)


def _stackable(probe: Probe, random: tuple[str, ...]) -> tuple[bool, str]:
    """Train two copies at once, with their parameters stacked, and compare with one by one."""
    if random:
        return False, f"random layers: {', '.join(random)}"
    if not any(True for _ in probe.module.parameters()):
        return False, "no parameters"
    if probe.outcome.changed:
        return False, f"a forward pass changes buffers, such as {probe.outcome.changed[0]}"
    module = copy.deepcopy(probe.module)
    generator = torch.Generator().manual_seed(SEED)
    stacked = {
        name: torch.stack([p.detach(), p.detach() + 0.01 * _noise(p, generator)]).requires_grad_()
        for name, p in module.named_parameters()
        if p.is_floating_point()  # a quantised weight stays what it is
    }
    x = torch.stack([probe.x[:2], draw_like(probe.x, 2, generator)])

    def forward(parameters: dict[str, Tensor], x: Tensor) -> list[Tensor]:
        output = functional_call(module, parameters, (x.clone(),))
        return [value for value in pytree.tree_leaves(output) if isinstance(value, Tensor)]

    def gradients(outputs: list[Tensor]) -> list[Tensor]:
        total = torch.stack([v.square().sum() for v in outputs if v.is_floating_point()]).sum()
        found = torch.autograd.grad(total, list(stacked.values()), allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(stacked.values(), found)]

    try:
        with warnings.catch_warnings(), sandbox(SEED):
            # A fallback of vmap is a loop over sites in disguise: correct, but no gain.
            warnings.filterwarnings("error", message="There is a performance drop")
            together = vmap(forward)(stacked, x)
            gradient = gradients(together)
    except Exception as error:
        return False, f"does not run under vmap: {first_line(error)}"
    with sandbox(SEED):
        each = [forward({k: v[i] for k, v in stacked.items()}, x[i]) for i in range(2)]
        apart = [torch.stack(pair) for pair in zip(*each)]
        expected = gradients(apart)
    if differ(apart + expected, together + gradient, 10 * probe.tolerance):
        return False, "stacked copies give other results than single ones"
    return True, ""


def _noise(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, dtype=like.dtype)
