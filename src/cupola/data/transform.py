"""Augmentation and preparation of image batches, vectorised, without torchvision.

A plan lists steps in order, e.g. `["flip", {crop = 4}, {normalise = {mean = 0.5, std = 0.25}}]`.
Steps that are random in training (flip, crop, cutout) form the `Dataset.transform`; steps that
every input needs (resize, normalise) form `Dataset.prepare`, which comes first.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cupola.base.registry import Registry
from cupola.data.dataset import Dataset, FederatedData, SiteData
from cupola.errors import DataError

Step = Callable[[Tensor, torch.Generator], Tensor]
_STEPS: Registry[type] = Registry(what="transform", error=DataError, own=False)


@dataclass(frozen=True)
class Prepare:
    """Fixed steps, in order."""

    steps: tuple[Callable[[Tensor], Tensor], ...]

    def __call__(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = step(x)
        return x


@dataclass(frozen=True)
class Augment:
    """Random steps, in order: `augment(x, generator)`, x of shape (n, C, H, W).

    Draws are made on the generator's device, so the CPU and a GPU see the same augmentation.
    """

    steps: tuple[Step, ...]

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        for step in self.steps:
            x = step(x, generator)
        return x

    def evaluate(self, x: Tensor) -> Tensor:
        """What evaluation does instead: the central crop where training crops to a size."""
        for step in self.steps:
            x = step.evaluate(x) if isinstance(step, Crop) else x
        return x


@_STEPS.add("flip")
@dataclass(frozen=True)
class Flip:
    """Mirror each image left to right with probability p."""

    p: float = 0.5

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        flip = torch.rand(len(x), generator=generator, device=generator.device) < self.p
        return torch.where(flip.to(x.device)[:, None, None, None], x.flip(-1), x)


@_STEPS.add("crop")
@dataclass(frozen=True)
class Crop:
    """Pad with zeros on every side, then cut a square (or the old shape) at a random place."""

    padding: int = 0
    size: int | None = None

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        n, _, height, width = x.shape
        out_h, out_w = (height, width) if self.size is None else (self.size, self.size)
        span_h, span_w = height + 2 * self.padding - out_h, width + 2 * self.padding - out_w
        if min(span_h, span_w) < 0:
            raise DataError(
                f"crop: size = {self.size} is larger than the {height} x {width} images"
            )
        device = generator.device
        top = torch.randint(span_h + 1, (n,), generator=generator, device=device).to(x.device)
        left = torch.randint(span_w + 1, (n,), generator=generator, device=device).to(x.device)
        x = F.pad(x, [self.padding] * 4)
        rows = top[:, None] + torch.arange(out_h, device=x.device)  # (n, out_h)
        columns = left[:, None] + torch.arange(out_w, device=x.device)
        each = torch.arange(n, device=x.device)
        # Advanced indices around the channel slice put it last: (n, out_h, out_w, C).
        cut = x[each[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        return cut.permute(0, 3, 1, 2).contiguous()

    def evaluate(self, x: Tensor) -> Tensor:
        if self.size is None:
            return x
        top, left = (x.shape[-2] - self.size) // 2, (x.shape[-1] - self.size) // 2
        return x[..., top : top + self.size, left : left + self.size]


@_STEPS.add("cutout")
@dataclass(frozen=True)
class Cutout:
    """Set a square of each image to zero, its centre anywhere (DeVries and Taylor 2017)."""

    size: int = 8

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        n, _, height, width = x.shape
        device = generator.device
        masks = []
        for length in (height, width):
            centre = torch.randint(length, (n, 1), generator=generator, device=device)
            offset = torch.arange(length, device=device) - (centre - self.size // 2)
            masks.append(((offset >= 0) & (offset < self.size)).to(x.device))
        hole = masks[0][:, None, :, None] & masks[1][:, None, None, :]
        return x.masked_fill(hole, 0.0)


@_STEPS.add("normalise")
@dataclass(frozen=True)
class Normalise:
    """(x - mean) / std, one number or one per channel, on inputs already in 0..1."""

    mean: float | tuple[float, ...]
    std: float | tuple[float, ...]

    def __call__(self, x: Tensor) -> Tensor:
        mean, std = (torch.tensor(v, dtype=x.dtype, device=x.device) for v in (self.mean, self.std))
        if mean.ndim:
            mean = mean[:, None, None]
        if std.ndim:
            std = std[:, None, None]
        return (x - mean) / std


@_STEPS.add("resize")
@dataclass(frozen=True)
class Resize:
    """Resize to size x size (bilinear, antialiased)."""

    size: int

    def __call__(self, x: Tensor) -> Tensor:
        target = (self.size, self.size)
        return F.interpolate(x, target, mode="bilinear", antialias=True, align_corners=False)


@dataclass(frozen=True)
class Transforms:
    """A parsed list of steps; `apply` puts it on every data set of a federation."""

    prepare: Prepare | None
    augment: Augment | None

    def _steps(self) -> list[Any]:
        return [step for part in (self.prepare, self.augment) if part for step in part.steps]

    def training(self, data: Dataset) -> Dataset:
        """`data` with preparation and augmentation."""
        return replace(data, transform=self.augment, prepare=self.prepare)

    def evaluation(self, data: Dataset) -> Dataset:
        """`data` as it is evaluated."""
        return self.training(data).plain()

    def apply(self, data: FederatedData) -> FederatedData:
        """The same federation, its training sets augmented, all of it prepared; still lazy."""
        check_images(data, self._steps())

        def site(i: int) -> SiteData:
            made = data.site(i)
            return SiteData(
                self.training(made.train),
                self.evaluation(made.validation),
                self.evaluation(made.test),
            )

        blank = Dataset(torch.zeros(1, *data.input_shape), torch.zeros(1))
        facts = data.facts | {
            "input_shape": tuple(self.evaluation(blank).inputs().shape[1:]),
            "public": {key: self.evaluation(value) for key, value in data.public.items()},
        }
        return FederatedData(
            len(data),
            site,
            sizes=data.sizes if data.knows_sizes else None,
            site_name=data.site_name,
            site_types=data.site_types,
            **facts,
        )


def check_images(data: FederatedData, steps: Sequence[Any]) -> None:
    """Whether these steps can be taken on this data."""
    if len(data.input_shape) != 3:
        raise DataError(f"transforms are for images, but {data.name} has shape {data.input_shape}")
    if data.kind == "segmentation" and any(not isinstance(s, Normalise | Cutout) for s in steps):
        raise DataError("transforms of segmentation data cannot move pixels: their labels stay")


def transforms(spec: Sequence[str | Mapping[str, Any]]) -> Transforms:
    """Parse a list of steps: a name, {name: its first setting}, or {name: {setting: value}}."""
    steps: list[Any] = []
    for item in [spec] if isinstance(spec, str | Mapping) else spec:
        entries = {item: {}} if isinstance(item, str) else dict(item)
        steps.extend(_step(name, settings) for name, settings in entries.items())
    fixed = tuple(s for s in steps if isinstance(s, Normalise | Resize))
    random = tuple(s for s in steps if not isinstance(s, Normalise | Resize))
    return Transforms(Prepare(fixed) if fixed else None, Augment(random) if random else None)


def copy_steps(entry: str | Mapping[str, Any]) -> Augment | None:
    """What is done to one copy of an example: 'original', or random steps that keep its shape."""
    if entry == "original":
        return None
    made = transforms([entry])
    if made.prepare is not None or made.augment is None:
        raise DataError(f"a copy is 'original' or takes flip, crop or cutout, not {entry!r}")
    if any(isinstance(step, Crop) and step.size is not None for step in made.augment.steps):
        raise DataError(f"a copy keeps the size of the images: {entry!r} without size")
    return made.augment


def _step(name: str, settings: Any) -> Any:
    kind = _STEPS.find(name)
    known = list(inspect.signature(kind).parameters)
    if not isinstance(settings, Mapping):
        settings = {known[0]: settings}
    wrong = set(settings) - set(known)
    if wrong:
        raise DataError(
            f"transform {name} has no setting {min(wrong)!r}; there are: {', '.join(known)}"
        )
    made = {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items()}
    for key, value in made.items():
        good = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in good):
            raise DataError(f"transform {name}: {key} = {value!r} is not a number")
    try:
        return kind(**made)
    except TypeError:
        raise DataError(f"transform {name} needs {' and '.join(known)}") from None
