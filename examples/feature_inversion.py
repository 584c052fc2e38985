"""Feature inversion: rebuild an image from what a layer tells of it (002, section 5.4, figure 6).

The attacker knows the model and, of one input alone (the worst case: a site of a single sample),
its feature map at a layer, or the sparsity of its channels by row (horizontal), by column
(vertical), or as a whole, which is what PFA tells. It looks for an image that gives the same.
Zeros cannot be counted with a gradient: the attacker's own counts are softened, those it was told
are exact. A failed attack proves nothing: a better one may come.

    python examples/feature_inversion.py [RUN [LAYER ...]]

RUN is the folder of a finished run on images; without one, a small model is trained. LAYER: by name
or by place among the activations. Leaves inversion.png and inversion.json in the current folder.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch.nn import functional as F

import cupola
from cupola.base.randomness import torch_generator
from cupola.errors import CupolaError
from cupola.training.build import federated_data
from cupola.training.personalise.layers import ACTIVATIONS, find_layers, watching

SITE, IMAGES = 0, 3  # whose images, and how many of them
STEPS, RATE = 300, 0.05  # of Adam on the pixels
SEED = 0  # of the first guess
SOFT = 0.1  # temperature of soft counts, in deviations of the layer's inputs
SMOOTH = 0.5  # weight of the prior that images are smooth; with 0.001 the attack fails
PLAN = {"name": "inversion", "rounds": 2, "data": "digits", "model": "cnn"}
PROPERTIES = {
    "feature map": "the layer's values at every place",
    "horizontal": "share of silent places in every row, by channel",
    "vertical": "share of silent places in every column, by channel",
    "whole": "share of silent places, by channel (what PFA tells)",
}


def seen_at(module, layer, x):
    """What decides sparsity at a layer, channels last, with its gradient."""
    seen = []
    with watching(module, [layer], lambda _, values: seen.append(values), early=True):
        module(x)
    return seen[0]


def told(module, layer, values, what, soft=0.0):
    """A property of an input from its values (n, H, W, C) at a layer.

    soft: temperature of the counts; 0: exact.
    """
    if what == "feature map":
        part = dict(module.named_modules())[layer]
        return part(values) if isinstance(part, ACTIVATIONS) else values
    silent = torch.sigmoid(-values / soft) if soft else (values <= 0).to(values.dtype)
    axes = {"horizontal": (2,), "vertical": (1,), "whole": (1, 2)}[what]
    return silent.mean(axes)


def invert(module, layer, x, what, steps=STEPS, rate=RATE):
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
    draw = torch_generator(SEED, "inversion")
    guess = (0.1 * torch.randn(x.shape, generator=draw)).to(x).requires_grad_()
    optimizer = torch.optim.Adam([guess], lr=rate)
    for _ in range(steps):
        with torch.enable_grad():
            image = torch.sigmoid(guess)
            made = told(module, layer, seen_at(module, layer, image), what, soft)
            loss = (made - target).square().mean() / scale + SMOOTH * _variation(image)
            (guess.grad,) = torch.autograd.grad(loss, [guess])
        optimizer.step()
    return torch.sigmoid(guess).detach()


def _variation(image):
    return image.diff(dim=2).abs().mean() + image.diff(dim=3).abs().mean()


def psnr(one, other):
    """Peak signal-to-noise ratio in decibels, of images in [0, 1]."""
    error = float((one - other).square().mean())
    return float("inf") if error == 0 else -10 * float(np.log10(error))


def ssim(one, other):
    """Structural similarity (Wang et al. 2004) of images (1, C, H, W) in [0, 1]: Gaussian window of
    11 pixels (deviation 1.5), smaller for smaller images, mean over places and channels."""
    side = min(11, *one.shape[-2:])
    side -= 1 - side % 2  # odd
    line = torch.exp(-((torch.arange(side) - side // 2) ** 2) / (2 * 1.5**2)).double()
    line = line / line.sum()
    channels = one.shape[1]
    window = (line[:, None] * line).expand(channels, 1, side, side)

    def mean(image):
        return F.conv2d(image, window, groups=channels)

    a, b = one.double().cpu(), other.double().cpu()
    ma, mb = mean(a), mean(b)
    va, vb, cov = mean(a * a) - ma**2, mean(b * b) - mb**2, mean(a * b) - ma * mb
    c1, c2 = 0.01**2, 0.03**2
    found = ((2 * ma * mb + c1) * (2 * cov + c2)) / ((ma**2 + mb**2 + c1) * (va + vb + c2))
    return float(found.mean())


def attacked(run, layers=(0,), images=IMAGES, site=SITE, steps=STEPS):
    """Attack a run's model: scores of what is rebuilt of some of a site's images, and a picture."""
    module, data = run.model(), federated_data(run.plan)
    if len(data.input_shape) != 3:
        raise CupolaError(f"{run.folder}: inputs are no images (channels, height, width)")
    if not 0 <= site < len(data):
        raise CupolaError(f"site {site}: there are {len(data)} sites")
    held = data.site(site).train
    x = held.inputs(slice(0, images)).to(next(module.parameters()).dtype)
    if not len(x):
        raise CupolaError(f"site {site} holds no images")
    names = [layer.name for layer in find_layers(module, x[:1], layers)]
    blank = held.inputs().mean(0, keepdim=True).to(x)
    rebuilt = {
        (layer, what): [invert(module, layer, one[None], what, steps) for one in x]
        for layer in names
        for what in PROPERTIES
    }
    attacks = [
        {"image": i, "layer": layer, "property": what, **_scores(x[i : i + 1], made)}
        for (layer, what), found in rebuilt.items()
        for i, made in enumerate(found)
    ]
    result = {
        "name": run.plan.name,
        "site": site,
        "layers": names,
        "steps": steps,
        "attacks": attacks,
        "summary": [
            {"layer": layer, "property": what, **_mean(zip(x, found))}
            for (layer, what), found in rebuilt.items()
        ],
        "chance": _mean((one, blank) for one in x),
        "note": "chance: the mean image of the site; a failed attack proves nothing",
    }
    return result, picture(x, rebuilt)


def _scores(one, other):
    return {"ssim": ssim(one, other), "psnr": psnr(one, other)}


def _mean(pairs):
    """Mean scores of (original, rebuilt)."""
    found = [_scores(one[None], other) for one, other in pairs]
    return {k: float(np.mean([scores[k] for scores in found])) for k in ("ssim", "psnr")}


def picture(x, rebuilt):
    """Originals and what was rebuilt, an image per row."""
    columns = [("original", x)]
    columns += [(f"{w}\nlayer {layer}", torch.cat(made)) for (layer, w), made in rebuilt.items()]
    figure = Figure(figsize=(1.5 * len(columns), 1.5 * len(x) + 0.4), layout="constrained")
    axes = figure.subplots(len(x), len(columns), squeeze=False)
    for j, (name, shown) in enumerate(columns):
        axes[0][j].set_title(name, fontsize=7)
        for i in range(len(x)):
            pixels = shown[i].movedim(0, -1).cpu().numpy()
            pixels = pixels if pixels.shape[-1] in (3, 4) else pixels[..., 0]
            axes[i][j].imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axes[i][j].axis("off")
    return figure


def main(folder=None, *layers, out=".", **settings):
    """Attack, and print how much is rebuilt beside what the site's mean image has in common."""
    wanted = [int(w) if w.lstrip("-").isdigit() else w for w in layers or ["0"]]
    with tempfile.TemporaryDirectory() as scratch:
        run = cupola.Run.open(folder) if folder else cupola.run(PLAN, scratch, report=False)
        result, figure = attacked(run, wanted, **settings)
    (Path(out) / "inversion.json").write_text(json.dumps(result, indent=2), "utf-8")
    figure.savefig(Path(out) / "inversion.png", dpi=110)
    chance = {"layer": "", "property": "the site's mean image", **result["chance"]}
    print(f"{'layer':12} {'told of one image':22} SSIM  PSNR, dB")
    for row in [*result["summary"], chance]:
        print(f"{row['layer']:12} {row['property']:22} {row['ssim']:.3f} {row['psnr']:5.1f}")
    return result


if __name__ == "__main__":
    main(*sys.argv[1:])
