"""Book-keeping: norms and clipped sums from layers' inputs and output gradients, one backward.

Bu et al., "Differentially private optimization on large model at small cost" (ICML 2023): one
forward and one backward pass give every layer's input and its output's gradient; per-sample norms
follow from them, and the clipped sum is a contraction of the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cupola.errors import PlanError
from cupola.privacy.persample.rules import (
    Contribution,
    Kept,
    Materialised,
    Room,
    Rule,
    Sums,
    wanted,
)
from cupola.privacy.persample.tape import Layout, NotCoveredError, Tape, Use, recording

Loss = Callable[[Tensor, Tensor], Tensor]


class Part(NamedTuple):
    """A use of a layer with the gradient of its output, both (n, k, ...)."""

    layer: Any
    rule: Rule
    kept: Kept
    g: Tensor


class Share(NamedTuple):
    """What layers that have no parameter in common with others add to the samples' gradients."""

    contribution: Contribution
    parameters: dict[str, nn.Parameter]

    @property
    def squared(self) -> Tensor:
        return self.contribution.squared

    def add(self, sums: Sums, weights: Tensor) -> None:
        """Add the weighted sum over samples."""
        self.contribution.add(sums, self.parameters, weights)


def forward(
    module: nn.Module, layout: Layout, loss: Loss, x: Tensor, y: Tensor
) -> tuple[Tensor, list[Use]]:
    """Losses (rows,), with their graph, and the uses of layers."""
    tape = Tape()
    if layout.channels_last and x.dim() == 4 and x.device.type == "cpu":
        x = x.contiguous(memory_format=torch.channels_last)
    with torch.enable_grad():
        with recording(layout, tape):
            output = module(x)
        losses = loss(output, y)
    if losses.shape != (len(x),):
        raise PlanError(
            f"per-sample gradients need a loss with one value per sample, ({len(x)},), "
            f"not {tuple(losses.shape)}"
        )
    return losses, tape.uses


def backward(
    losses: Tensor, uses: list[Use], copies: int = 1, *, retain: bool = False
) -> list[list[Part]]:
    """One backward pass; parts grouped so that no two groups share a parameter.

    losses (n * copies,): a sample's loss is the mean over its copies.
    """
    if not uses:
        return []
    for use in uses:
        if any(t._version != v for t, v in zip(use.kept, use.versions)):
            raise NotCoveredError(f"the input of {_name(use.layer)} is changed in place")
    total = losses.sum() if copies == 1 else losses.sum() / copies
    points = [use.point for use in uses]
    gradients = torch.autograd.grad(total, points, allow_unused=True, retain_graph=retain)
    parts = [_part(use, g, len(losses), copies) for use, g in zip(uses, gradients) if g is not None]
    return _grouped(parts)


def shares(groups: list[list[Part]], room: Room | None) -> list[Share]:
    """Norms and weighted sums of each group; they live in the room until it is cleared again.

    Without a room every number of the samples' gradients is made, and used for norm and sum.
    """
    if room is not None:
        room.clear()
    return [_share(group, room) for group in groups]


def _part(use: Use, g: Tensor, rows: int, copies: int) -> Part:
    tensors = (*use.kept, g)
    if any(t.dim() == 0 or len(t) != rows for t in tensors):
        raise NotCoveredError(f"{_name(use.layer)} does not see one row per sample")
    *kept, g = (t.unsqueeze(1) if copies == 1 else t.unflatten(0, (-1, copies)) for t in tensors)
    arranged, g = use.rule.arrange(tuple(kept), g)
    return Part(use.layer, use.rule, arranged, g)


def _grouped(parts: list[Part]) -> list[list[Part]]:
    """Parts joined where they use the same parameter (shared layers, tied weights)."""
    if len(parts) == 1:
        return [parts]
    groups: list[tuple[set[nn.Parameter], list[Part]]] = []
    for part in parts:
        own, joined = set(wanted(part.layer).values()), [part]
        apart = []
        for parameters, members in groups:
            if parameters.isdisjoint(own):
                apart.append((parameters, members))
            else:
                own, joined = own | parameters, members + joined
        groups = [*apart, (own, joined)]
    return [members for _, members in groups]


def _share(group: list[Part], room: Room | None) -> Share:
    part = _joined(group) if len(group) > 1 else group[0]
    if part is not None:
        names = wanted(part.layer)
        if room is None:
            return Share(Materialised(part.rule.gradients(part.layer, part.kept, part.g)), names)
        return Share(part.rule.contribution(part.layer, part.kept, part.g, room), names)
    # Different layers with a parameter in common: their gradients must be added before the norm.
    total: dict[nn.Parameter, Tensor] = {}
    for part in group:
        names = wanted(part.layer)
        for name, value in part.rule.gradients(part.layer, part.kept, part.g).items():
            parameter = names[name]
            total[parameter] = total[parameter] + value if parameter in total else value
    named = {str(i): p for i, p in enumerate(total)}
    return Share(Materialised({name: total[p] for name, p in named.items()}), named)


def _joined(group: list[Part]) -> Part | None:
    """Several uses of one layer as one, where their shapes allow it."""
    first = group[0]
    if any(p.layer != first.layer for p in group):
        return None
    columns = list(zip(*((*p.kept, p.g) for p in group)))
    if any(t.shape[2:] != column[0].shape[2:] for column in columns for t in column):
        return None
    *kept, g = (torch.cat(column, 1) for column in columns)
    return Part(first.layer, first.rule, tuple(kept), g)


def _name(layer: Any) -> str:
    return type(layer).__name__
