"""Which modules have per-sample gradients, and whether book-keeping sees all of a module.

Hooks see layers, not what user code does with their parameters or with the order of rows. So before
a module's first batch book-keeping is tried on a copy with three samples: sums weighted at random
must equal what autograd says. A use of a parameter outside its layer, samples in another dimension
than the first, or layers that mix samples all show there.

Weights and samples of the trial are drawn at random: what is found must not depend on private
samples, nor on weights that somebody chose so that it finds nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from cupola.errors import PlanError
from cupola.nn.kernelnorm import KernelNorm, KNConv
from cupola.nn.module_probe import sandbox
from cupola.nn.quantised import QuantisedLinear, packed
from cupola.nn.reprogram import Adapted, Border
from cupola.privacy.persample.bookkeeping import backward, forward, shares
from cupola.privacy.persample.rules import Room, Sums
from cupola.privacy.persample.tape import Layout, NotCoveredError, layout

Loss = Callable[[Tensor, Tensor], Tensor]
SAMPLES = 3
LABELS = (0, 1, -100, -1, 255)  # of samples, and of what does not count
SEED = 271_828  # of the trial's own draws; no result depends on it


def unsupported(module: nn.Module) -> str | None:
    """Why a module, in its present mode, has no per-sample gradients; None if it may have."""
    for name, part in module.named_modules():
        place = f"{name or 'the model'} ({type(part).__name__})"
        if packed(part):
            return (
                f"{place} is quantised and gives no gradient to what is before it: see "
                f"cupola.nn.quantised.unpack, which gives torch's dense layers one"
            )
        if isinstance(part, _BatchNorm) and (part.training or part.running_mean is None):
            return (
                f"{place} mixes the samples of a batch, so no sample has a gradient of its own: "
                f"take group normalisation, or put the layer in evaluation mode"
            )
        if isinstance(part, _InstanceNorm) and part.track_running_stats and part.training:
            return (
                f"{place} keeps running statistics of the samples, which no noise protects: "
                f"set track_running_stats = False"
            )
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            if part.scale_grad_by_freq:
                return f"{place} scales gradients by frequencies in the batch, which mixes samples"
            if part.max_norm is not None:
                return (
                    f"{place} changes its weights by the tokens it sees (max_norm), without noise"
                )
    return None


def remembers(module: nn.Module, x: Tensor) -> str | None:
    """A buffer that is another after other samples; None if there is none. Refused where the model
    fails on drawn samples, so that nobody can tell.

    What changes whatever the samples are (a counter, a power iteration) tells nothing of them.
    """
    names = dict(module.named_buffers())
    if not names:
        return None
    with chance(), torch.no_grad():
        try:
            copied = redrawn(module)
            before = [copy.deepcopy(copied), copied]
            for one in before:
                drawn, _ = drawn_like(module, x, x, SAMPLES)
                with chance(1):
                    one(drawn)
        except Exception as error:
            raise PlanError(
                f"the model has buffers ('{next(iter(names))}') and fails on random samples, so "
                "that nobody can tell whether they change with the samples it sees, which no noise "
                f"protects: {str(error) or type(error).__name__}; leave them out"
            ) from error
    pairs = zip(names, *(one.buffers() for one in before))
    return next((n for n, a, b in pairs if not _same_bits(a, b)), None)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


class Trial(NamedTuple):
    """Why book-keeping would be wrong (None: it is right), and the numbers it keeps of a sample."""

    problem: str | None
    kept: int = 0


def trial(
    module: nn.Module, loss: Loss, x: Tensor, y: Tensor, *, channels_last: bool = False
) -> Trial:
    """Try book-keeping on a copy of the module.

    x, y: samples (n, ...); only their shapes and types count. channels_last as in `Layout`. Raises
    `PlanError` if samples see each other. Leaves module and generators as they were.
    """
    missing = layout(module).missing
    if missing is not None:
        return Trial(f"{missing} has no rule")
    problem = ""
    for dtype, tolerance in ((torch.float64, 1e-8), (None, 1e-3)):  # user code may want float32
        if dtype is not None and x.device.type == "mps":
            continue
        with chance():
            try:
                copied = redrawn(module, dtype)
                found = replace(layout(copied), channels_last=channels_last)
                samples = drawn_like(module, x, y, SAMPLES, dtype)
                return _compared(copied, found, loss, *samples, tolerance)
            except NotCoveredError as reason:
                return Trial(str(reason))
            except PlanError:
                raise
            except Exception as error:
                problem = str(error)
    return Trial(f"it cannot be tried on a copy ({problem})")


def _compared(
    module: nn.Module, found: Layout, loss: Loss, x: Tensor, y: Tensor, tolerance: float
) -> Trial:
    start = torch.default_generator.get_state()
    with _counted() as saved:
        losses, uses = forward(module, found, loss, x, y)
    draws = not torch.equal(start, torch.default_generator.get_state())
    groups = backward(losses, uses, retain=True)
    trained = [p for p in module.parameters() if p.requires_grad]
    weights = torch.rand(SAMPLES, device=x.device, dtype=torch.float64) + 0.5
    with torch.no_grad():
        sums = Sums()
        for share in shares(groups, Room(2**30)):
            share.add(sums, weights)
        totals = sums.all(trained)
    expected = torch.autograd.grad((losses * weights).sum(), trained, materialize_grads=True)
    _refuse_mixing(module, loss, x, y, None if draws else losses, tolerance)
    whole = torch.stack([e.to_dense().norm() for e in expected]).norm()
    for (name, _), total, e in zip(_trained(module), totals, expected):
        if not torch.allclose(total, e.to_dense().double(), tolerance, tolerance * float(whole)):
            return Trial(f"{name} is used in a way its layer's rule does not see")
    kept = sum(t.numel() for use in uses for t in use.kept)
    if any(isinstance(use.layer, Border) for use in uses):
        kept = sum(saved.values())  # a frozen source keeps much and records nothing
    return Trial(None, kept // SAMPLES)


@contextmanager
def _counted() -> Iterator[dict[int, int]]:
    """Sizes, by address, of what the graph made meanwhile keeps for the backward pass."""
    found: dict[int, int] = {}

    def keep(t: Tensor) -> Tensor:
        if t.dim() and len(t) == SAMPLES:  # weights are there anyway
            found[t.data_ptr()] = t.numel()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        yield found


def _trained(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]


def _refuse_mixing(
    module: nn.Module, loss: Loss, x: Tensor, y: Tensor, losses: Tensor | None, tolerance: float
) -> None:
    """Compare samples' losses in a batch with their losses alone.

    Random layers are switched off for it; a model that still draws is not compared.
    """
    with torch.no_grad():
        if losses is None:
            for part in module.modules():
                calm(part)
            start = torch.default_generator.get_state()
            losses = loss(module(x), y)
            if not torch.equal(start, torch.default_generator.get_state()):
                return
        parts = [module(x[i : i + 1]) for i in range(SAMPLES)]
        alone = torch.cat([loss(part, y[i : i + 1]) for i, part in enumerate(parts)])
        same = torch.allclose(
            losses.detach(), alone, 10 * tolerance, 10 * tolerance, equal_nan=True
        )
        if not same or _weighs_by_labels(loss, parts, y, tolerance):
            raise PlanError(
                "the loss of a sample depends on the other samples in its batch, so no sample has "
                "a gradient of its own: the model or the loss mixes them"
            )


def _weighs_by_labels(loss: Loss, outputs: list[Any], y: Tensor, tolerance: float) -> bool:
    """Whether a sample's loss changes with the others' labels, as that of a mean over what counts
    does, or of weights by how often a class is there."""
    if y.is_floating_point() or not all(isinstance(o, Tensor) for o in outputs):
        return False
    if y.device.type != "cpu":  # a label that is none ends a process on others
        return False
    for other in LABELS:
        try:
            changed = torch.full_like(y, other)
            changed[0] = other == 0  # a usual label
            with_others = loss(torch.cat(outputs), changed)[:1]
            alone = loss(outputs[0], changed[:1])
        except Exception:  # the loss knows no such label
            continue
        if not torch.allclose(with_others, alone, 10 * tolerance, 10 * tolerance, equal_nan=True):
            return True
    return False


def calm(part: nn.Module) -> None:
    """Switch off the draws of torch's random layers and of kernel normalisation."""
    if isinstance(part, _DropoutNd | nn.RReLU):
        part.eval()
    elif isinstance(part, nn.MultiheadAttention | nn.RNNBase | KernelNorm | KNConv):
        part.dropout = 0.0


def chance(seed: int = 0) -> AbstractContextManager[None]:
    """Process-wide generators at a fixed place, meanwhile; nothing private depends on them."""
    return sandbox(SEED + seed)


def redrawn(module: nn.Module, dtype: torch.dtype | None = None) -> nn.Module:
    """A copy with random weights of ordinary size; of a trained source the trained part only."""
    copied = copy.deepcopy(module)
    copied = copied if dtype is None else copied.to(dtype)
    own = isinstance(module, Adapted)
    with torch.no_grad():
        for p in copied.parameters():
            if not p.is_floating_point() or (own and not p.requires_grad):
                continue
            if p.dim() > 1:
                p.copy_(torch.randn(p.shape) / math.sqrt(max(1, p[0].numel())))
            else:
                p.copy_(torch.randn(p.shape))
        for part in () if own else copied.modules():
            if isinstance(part, _BatchNorm):
                for statistic in (part.running_var, part.running_mean):
                    if statistic is not None:
                        statistic.copy_(0.5 + torch.rand(statistic.shape))
            if isinstance(part, QuantisedLinear):
                part.redraw()
    return copied


def drawn_like(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    n: int,
    dtype: torch.dtype | None = None,
    *,
    wide: bool = False,
) -> tuple[Tensor, Tensor]:
    """n random samples of the shapes and types of these: numbers in [0, 1), tokens, labels.

    wide: every second sample has numbers of both signs, about 2.
    """
    embeddings = [m for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    tokens = min((m.num_embeddings for m in embeddings), default=2)

    def draw(like: Tensor, below: int) -> Tensor:
        shape = (n, *like.shape[1:])
        if like.is_floating_point():
            numbers = torch.rand(shape)
            if wide:
                numbers[1::2] = 2 * torch.randn(numbers[1::2].shape)
            return numbers.to(like.device, like.dtype if dtype is None else dtype)
        return torch.randint(0, below, shape).to(like.device, like.dtype)

    return draw(x, tokens), draw(y, 2)
