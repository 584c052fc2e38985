"""Model reprogramming (000): a frozen model used for another task through its inputs and outputs.

    x~ = ZeroPadding(x) + unit tanh(M * Theta)      the target input amid a trained border
    y  = W f(x~) + b                                 from the source's classes to the target's

f: the source model, which is not changed; M: 1 on the border, 0 where the target input is; unit: 1,
or what that is worth in the source's inputs. Theta and (W, b) are all that is trained. Instead of
(W, b) a fixed choice of source classes can stand for the target's (`Labels`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from cupola.errors import PlanError

if TYPE_CHECKING:
    from cupola.nn.sources.trained import Preprocessing

#: zero: nothing (0) around the normalised image, as 000 says; black: around the image before it is
#: normalised, as 000's code does.
Pad = Literal["zero", "black"]

#: How a border begins: random as in 000 (Xavier's uniform numbers), or with nothing in it.
Begin = Literal["random", "zero"]

#: Whose examples a map of labels is made by while a border learns: public ones, or the sites';
#: auto: public ones if there are any.
Counted = Literal["auto", "public", "sites"]

#: Names of tensors that are neither trained nor sent, but the same at all sites by their files.
INSTALLED = "_cupola_installed"


class Placement(nn.Module):
    """Target inputs as the source's: resized to inner x inner, normalised, in the middle.

    Images (C, H, W) with pixels in 0..1; grey ones fill all channels. Numbers (d,) or series
    (C, T), scaled to about +-1, become the pixels of a square, row by row, times the source's unit.
    """

    def __init__(
        self, shape: Sequence[int], to: Preprocessing, inner: int, pad: Pad = "zero"
    ) -> None:
        super().__init__()
        require_fitting(shape, to, inner)
        self.shape, self.to_, self.inner, self.pad = tuple(shape), to, inner, pad
        before = (to.size - inner + 1) // 2
        self.around = (before, to.size - inner - before) * 2

    def forward(self, x: Tensor) -> Tensor:
        x = self._image(x) if len(self.shape) == 3 else self._square(x)
        return x.expand(-1, self.to_.channels, -1, -1).contiguous(memory_format=torch.channels_last)

    def _image(self, x: Tensor) -> Tensor:
        if x.shape[-2:] != (self.inner, self.inner):
            x = F.interpolate(x, (self.inner, self.inner), mode="bilinear", align_corners=False)
        mean, std = (x.new_tensor(v).view(-1, 1, 1) for v in (self.to_.mean, self.to_.std))
        if self.pad == "black":
            return (F.pad(x, self.around) - mean) / std
        return F.pad((x - mean) / std, self.around)

    def _square(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        side = math.isqrt(x.shape[1] - 1) + 1
        x = F.pad(x, (0, side * side - x.shape[1])).view(-1, 1, side, side) * self.to_.unit
        return F.pad(F.interpolate(x, (self.inner, self.inner), mode="nearest"), self.around)

    def extra_repr(self) -> str:
        return f"{self.shape} in the middle of {self.to_.size}x{self.to_.size}, {self.inner} pixels"


def require_fitting(shape: Sequence[int], to: Preprocessing, inner: int) -> None:
    """Refuse target inputs that the source cannot take, with the way out."""
    if not 1 <= inner <= to.size:
        raise PlanError(
            f"model.inner = {inner}: the target image lies within the source's input of "
            f"{to.size} pixels, so inner is 1 to {to.size}"
        )
    if len(shape) > 3:
        raise PlanError(f"model = 'pretrained' takes images, series or numbers, not {tuple(shape)}")
    if len(shape) < 3:
        if math.prod(shape) > inner**2:
            raise PlanError(
                f"{math.prod(shape):,} numbers do not fit into the {inner} x {inner} pixels of "
                f"the source's input: raise model.inner (to at most {to.size}) or model.size"
            )
        return
    channels, height, width = shape
    if max(height, width) > to.size:
        raise PlanError(
            f"target images of {height} x {width} are larger than the source's input, {to.size} x "
            f"{to.size}: shrink them (data.augment = [{{ resize = {inner} }}]), or take a larger "
            "model.size or source"
        )
    if channels not in (1, to.channels):
        raise PlanError(
            f"target images have {channels} channels, the source takes {to.channels}: only grey "
            "images (1 channel) are expanded; take a source with as many channels"
        )


class Border(nn.Module):
    """x + unit tanh(mask * theta): a trained frame of (C, size, size) around inner x inner.

    begin: 'zero' leaves the source's features of the first round as they are without a border.
    """

    mask: Tensor

    def __init__(self, to: Preprocessing, inner: int, begin: Begin = "random") -> None:
        super().__init__()
        if inner >= to.size:
            raise PlanError(
                f"model.inner = {inner} leaves no border of the source's {to.size} pixels to "
                "train; make it smaller"
            )
        # Xavier's, of a size x size matrix per channel
        bound = math.sqrt(3 / to.size) if begin == "random" else 0.0
        self.theta = nn.Parameter(
            torch.empty(to.channels, to.size, to.size).uniform_(-bound, bound)
        )
        before = (to.size - inner + 1) // 2
        after = to.size - inner - before
        mask = F.pad(torch.zeros(inner, inner, dtype=torch.bool), (before, after) * 2, value=True)
        self.register_buffer("mask", mask, persistent=False)
        self.unit = to.unit

    def forward(self, x: Tensor) -> Tensor:
        return x + self.unit * torch.tanh(self.theta * self.mask)

    def slope(self) -> Tensor:
        """Derivative of the output by theta, (C, size, size)."""
        moved = torch.tanh(self.theta * self.mask)
        return self.unit * (1 - moved * moved) * self.mask


class Labels(nn.Module):
    """Target logits as means of some of the source's: index (classes, per class).

    moves: whether it is made anew while a border learns (ILM-VP); whoever makes it sends it.
    """

    index: Tensor

    def __init__(
        self, index: Sequence[Sequence[int]], classes: int, of: int, *, moves: bool = False
    ) -> None:
        super().__init__()
        self.of, self.moves = of, moves
        index = [[i] if isinstance(i, int) else list(i) for i in index]
        flat = [i for row in index for i in row]
        if len(index) != classes or len({len(row) for row in index}) != 1 or not flat:
            raise PlanError(
                f"model.labels needs as many source classes for each of {classes} classes"
            )
        if min(flat) < 0 or max(flat) >= of or len(set(flat)) < len(flat):
            raise PlanError(f"model.labels names source classes 0 to {of - 1}, each at most once")
        self.register_buffer("index", torch.tensor(index), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x[:, self.index].mean(2)

    def fits(self, index: np.ndarray) -> bool:
        """Whether another index could be this one."""
        same = index.dtype == np.int64 and index.shape == tuple(self.index.shape)
        inside = same and index.min() >= 0 and index.max() < self.of
        return bool(inside and len(np.unique(index)) == index.size)


def label_counts(truth: Tensor, guessed: Tensor, classes: int, of: int) -> np.ndarray:
    """(target classes, source classes): how often the one was taken for the other."""
    known = (truth >= 0) & (truth < classes)
    cells = torch.bincount(truth[known] * of + guessed[known], minlength=classes * of)
    return cells.view(classes, of).cpu().numpy()


def frequent_labels(counts: np.ndarray, per_class: int = 1) -> list[list[int]]:
    """Source classes for each target class, by how often the source took the one for the other.

    counts: (target classes, source classes). The most frequent free pair first (ties: the lowest
    numbers); every target class gets `per_class`, every source class serves one.
    """
    targets, sources = counts.shape
    require_enough(targets, sources, per_class)
    found: list[list[int]] = [[] for _ in range(targets)]
    free = counts.astype(np.float64)
    for _ in range(targets * per_class):
        t, s = divmod(int(free.argmax()), sources)
        found[t].append(s)
        free[:, s] = -np.inf
        if len(found[t]) == per_class:
            free[t] = -np.inf
    return found


def require_enough(targets: int, sources: int, per_class: int = 1) -> None:
    if targets * per_class > sources:
        raise PlanError(
            f"{targets} target classes with {per_class} source classes each need "
            f"{targets * per_class}, the source has {sources}: a fixed mapping is not possible; "
            "train the map (model.adapt = 'reprogram')"
        )


class Narrow(nn.Module):
    """A frozen module computed in bfloat16, its outputs in float32; float64 is left as it is."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self._made: tuple[Any, dict[str, Tensor]] | None = None

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            return self.inner(x)
        given = dict(self.inner.named_parameters())
        key = [(p.data_ptr(), p._version) for p in given.values()]
        if self._made is None or self._made[0] != key:
            self._made = key, {n: p.detach().to(torch.bfloat16) for n, p in given.items()}
        return functional_call(self.inner, self._made[1], (x.to(torch.bfloat16),)).float()

    def __deepcopy__(self, memo: dict[int, Any]) -> Narrow:
        import copy

        return Narrow(copy.deepcopy(self.inner, memo))


class Adapted(nn.Module):
    """A source with what is around it: output(trunk(border(place(x)))).

    Where only `output` is trained, all before it gives the same in every step: `fixed` is then
    true, and the model takes `features`, (n, width), as well as inputs. from_file: whether the
    trunk's values are a source's.
    """

    from_file = True

    def __init__(
        self,
        place: Placement,
        border: Border | None,
        trunk: nn.Module,
        output: nn.Module,
        width: int,
    ) -> None:
        super().__init__()
        self.place, self.border, self.trunk, self.output = place, border, trunk, output
        self.width = width

    @property
    def fixed(self) -> bool:
        early = [m for m in (self.place, self.border, self.trunk) if m is not None]
        trained = any(p.requires_grad for m in early for p in m.parameters())
        return not trained and self.place.shape != (self.width,)

    def train(self, mode: bool = True) -> Adapted:
        """A frozen source stays in evaluation mode: it draws nothing."""
        super().train(mode)
        if not any(p.requires_grad for p in self.trunk.parameters()):
            self.trunk.eval()
        return self

    def features(self, x: Tensor) -> Tensor:
        """What `output` sees, (n, width)."""
        x = self.place(x)
        return self.trunk(x if self.border is None else self.border(x))

    def forward(self, x: Tensor) -> Tensor:
        ready = x.shape[1:] == (self.width,) and self.fixed
        return self.output(x if ready else self.features(x))
