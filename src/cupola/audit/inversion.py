"""Inversion: rebuild an input from what a layer tells of it (002, section 5.4 and figure 6).

The attacker knows the model and, of one input alone (the worst case: a site of a single sample),
its feature map at a layer, or the sparsity of its channels by row (horizontal), by column
(vertical), or as a whole, which is what PFA tells. It looks for an image that gives the same.
Zeros cannot be counted with a gradient: the attacker's own counts are softened, those it was told
are exact.

A failed attack proves nothing: a better one may come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cupola.errors import CupolaError
from cupola.federation.randomness import torch_generator
from cupola.personalize.layers import ACTIVATIONS, find_layers, watching
from cupola.plan.checkpoint import json_line, write_atomically, write_sealed
from cupola.plan.compose import federated_data
from cupola.plan.folder import Run, locked

PROPERTIES = {
    "feature map": "the layer's values at every place",
    "horizontal": "share of silent places in every row, by channel",
    "vertical": "share of silent places in every column, by channel",
    "whole": "share of silent places, by channel (what PFA tells)",
}
SOFT = 0.1  # temperature of soft counts, in deviations of the layer's inputs
SMOOTH = 0.5  # weight of the prior that images are smooth; with 0.001 the attack fails
Step = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Attack:
    """steps and rate: of Adam on the pixels. seed: of the first guess."""

    steps: int = 300
    rate: float = 0.05
    seed: int = 0


USUAL = Attack()


def seen_at(module: nn.Module, layer: str, x: Tensor) -> Tensor:
    """What decides sparsity at a layer, channels last, with its gradient."""
    seen: list[Tensor] = []
    with watching(module, [layer], lambda _, values: seen.append(values), early=True):
        module(x)
    return seen[0]


def told(module: nn.Module, layer: str, values: Tensor, what: str, soft: float = 0.0) -> Tensor:
    """A property of an input from its values (n, H, W, C) at a layer.

    soft: temperature of the counts; 0: exact.
    """
    if what == "feature map":
        part = dict(module.named_modules())[layer]
        return part(values) if isinstance(part, ACTIVATIONS) else values
    silent = torch.sigmoid(-values / soft) if soft else (values <= 0).to(values.dtype)
    axes = {"horizontal": (2,), "vertical": (1,), "whole": (1, 2)}[what]
    return silent.mean(axes)


def invert(module: nn.Module, layer: str, x: Tensor, what: str, attack: Attack) -> Tensor:
    """The image (1, C, H, W) in [0, 1] that the attacker finds for `x`, of which it sees only the
    property. The module must be in evaluation mode."""
    with torch.no_grad():
        values = seen_at(module, layer, x)
        if values.dim() != 4:
            raise CupolaError(
                f"layer '{layer}' has no places (its values have {values.dim() - 1} axes): choose "
                "a layer whose channels are maps"
            )
        target = told(module, layer, values, what)
        soft = SOFT * float(values.std()) if what != "feature map" else 0.0
        scale = float(target.var()) or 1.0
    draw = torch_generator(attack.seed, "inversion")
    guess = (0.1 * torch.randn(x.shape, generator=draw)).to(x).requires_grad_()
    optimizer = torch.optim.Adam([guess], lr=attack.rate)
    for _ in range(attack.steps):
        with torch.enable_grad():
            image = torch.sigmoid(guess)
            made = told(module, layer, seen_at(module, layer, image), what, soft)
            loss = (made - target).square().mean() / scale + SMOOTH * _variation(image)
            (guess.grad,) = torch.autograd.grad(loss, [guess])
        optimizer.step()
    return torch.sigmoid(guess).detach()


def _variation(image: Tensor) -> Tensor:
    return image.diff(dim=2).abs().mean() + image.diff(dim=3).abs().mean()


def psnr(one: Tensor, other: Tensor) -> float:
    """Peak signal-to-noise ratio in decibels, of images in [0, 1]."""
    error = float((one - other).square().mean())
    return float("inf") if error == 0 else -10 * float(np.log10(error))


def ssim(one: Tensor, other: Tensor) -> float:
    """Structural similarity (Wang et al. 2004) of images (1, C, H, W) in [0, 1]: Gaussian window of
    11 pixels (deviation 1.5), smaller for smaller images, mean over places and channels."""
    side = min(11, *one.shape[-2:])
    side -= 1 - side % 2  # odd
    line = torch.exp(-((torch.arange(side) - side // 2) ** 2) / (2 * 1.5**2)).double()
    line = line / line.sum()
    channels = one.shape[1]
    window = (line[:, None] * line).expand(channels, 1, side, side)

    def mean(image: Tensor) -> Tensor:
        return F.conv2d(image, window, groups=channels)

    a, b = one.double().cpu(), other.double().cpu()
    ma, mb = mean(a), mean(b)
    va, vb, cov = mean(a * a) - ma**2, mean(b * b) - mb**2, mean(a * b) - ma * mb
    c1, c2 = 0.01**2, 0.03**2
    found = ((2 * ma * mb + c1) * (2 * cov + c2)) / ((ma**2 + mb**2 + c1) * (va + vb + c2))
    return float(found.mean())


def inversion_audit(
    folder: str | Path,
    *,
    layers: Sequence[int | str] = (0,),
    images: int = 3,
    site: int = 0,
    attack: Attack = USUAL,
    step: Step | None = None,
) -> dict[str, Any]:
    """Attack a finished run's model: rebuild some of a site's images, write inversion.json and
    inversion.png into the run folder."""
    run = Run.open(folder)
    module, data = run.model(), federated_data(run.plan)
    if len(data.input_shape) != 3:
        raise CupolaError(f"{folder}: inputs are no images (channels, height, width)")
    if not 0 <= site < len(data):
        raise CupolaError(f"--site {site}: there are {len(data)} sites")
    held = data.site(site).train
    x = held.inputs(slice(0, images)).to(next(module.parameters()).dtype)
    if not len(x):
        raise CupolaError(f"site {site} holds no images")
    found = find_layers(module, x[:1], layers)
    blank = held.inputs().mean(0, keepdim=True).to(x)
    work = [(i, layer.name, what) for i in range(len(x)) for layer in found for what in PROPERTIES]
    rebuilt, rows = {}, []
    with locked(run.folder):
        for number, (i, layer, what) in enumerate(work, 1):
            if step is not None:
                step("inversions", number, len(work))
            made = invert(module, layer, x[i : i + 1], what, attack)
            rebuilt[i, layer, what] = made
            scores = {"ssim": ssim(x[i : i + 1], made), "psnr": psnr(x[i : i + 1], made)}
            rows.append({"image": i, "layer": layer, "property": what, **scores})
        mean = [{"ssim": ssim(p[None], blank), "psnr": psnr(p[None], blank)} for p in x]
        result = {
            "name": run.plan.name,
            "site": site,
            "layers": [layer.name for layer in found],
            "steps": attack.steps,
            "attacks": rows,
            "summary": _summary(rows),
            "chance": {k: float(np.mean([m[k] for m in mean])) for k in ("ssim", "psnr")},
            "note": "chance: the mean image of the site; a failed attack proves nothing",
        }
        write_sealed(run.folder / "inversion.json", json_line(result, indent=2))
        picture = _picture(x, rebuilt, [layer.name for layer in found])
        write_atomically(run.folder / "inversion.png", picture)
    return result


def _summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kinds = dict.fromkeys((row["layer"], row["property"]) for row in rows)
    return [
        {
            "layer": layer,
            "property": what,
            **{
                k: float(
                    np.mean([r[k] for r in rows if (r["layer"], r["property"]) == (layer, what)])
                )
                for k in ("ssim", "psnr")
            },
        }
        for layer, what in kinds
    ]


def _picture(x: Tensor, rebuilt: dict[tuple[int, str, str], Tensor], layers: list[str]) -> bytes:
    """Originals and what was rebuilt, an image per row."""
    import io

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = [("original", x)] + [
        (f"{what}\nlayer {layer}", torch.cat([rebuilt[i, layer, what] for i in range(len(x))]))
        for layer in layers
        for what in PROPERTIES
    ]
    figure = Figure(figsize=(1.5 * len(columns), 1.5 * len(x) + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(x), len(columns), squeeze=False)
    for j, (name, shown) in enumerate(columns):
        axes[0][j].set_title(name, fontsize=7)
        for i in range(len(x)):
            pixels = shown[i].movedim(0, -1).cpu().numpy()
            pixels = pixels if pixels.shape[-1] in (3, 4) else pixels[..., 0]
            axes[i][j].imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes[i][j].axis("off")
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return file.getvalue()
