"""The loss landscape: mean loss on a plane through a trained model's weights.

Li et al., "Visualizing the loss landscape of neural nets" (NeurIPS 2018): along two random
directions, each filter of which has the norm of the model's own filter, so that models of
different scale can be compared; biases and the scales and shifts of normalisations stay as they
are. The flatter, the less the loss depends on where exactly training ended.

    python examples/loss_landscape.py [RUN]

RUN is the folder of a finished run; without one, a small model is trained. Leaves landscape.png
and landscape.json in the current folder.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

import cupola
from cupola.base.randomness import torch_generator
from cupola.errors import DataError
from cupola.training.build import federated_data, problem

SAMPLES = 500  # of the test data, the first ones
POINTS = 11  # steps along each direction
REACH = 1.0  # of the longest step; 1 is as long as the weights themselves
BATCH = 250
PLAN = {"name": "landscape", "rounds": 3, "data": "digits", "model": "mlp"}


def direction(module, seed, number):
    """A random direction in the space of the parameters, normalised by filter."""
    generator = torch_generator(seed, "landscape", number)
    found = {}
    for name, p in module.named_parameters():
        drawn = torch.randn(p.shape, generator=generator).to(p.device, p.dtype)
        if p.dim() < 2:
            found[name] = torch.zeros_like(drawn)
            continue
        own, random = (t.flatten(1).norm(dim=1) for t in (p.detach(), drawn))
        found[name] = drawn * (own / random.clamp_min(1e-12)).view(-1, *[1] * (p.dim() - 1))
    return found


@torch.no_grad()
def landscape(module, loss, x, y, *, seed, reach=REACH, points=POINTS, batch=BATCH):
    """Steps (points,) in -reach..reach, and mean losses (points, points) of the samples there.

    In evaluation mode; the module is as it was afterwards.
    """
    first, second = direction(module, seed, 1), direction(module, seed, 2)
    start = {name: p.detach().clone() for name, p in module.named_parameters()}
    modes = {part: part.training for part in module.modules()}
    steps, found = np.linspace(-reach, reach, points), np.empty((points, points))
    module.eval()
    try:
        for i, a in enumerate(steps):
            for j, b in enumerate(steps):
                for name, p in module.named_parameters():
                    p.copy_(start[name] + a * first[name] + b * second[name])
                pieces = zip(x.split(batch), y.split(batch))
                found[i, j] = sum(float(loss(module(u), v).sum()) for u, v in pieces) / len(x)
    finally:
        for name, p in module.named_parameters():
            p.copy_(start[name])
        for part, training in modes.items():
            part.training = training
    return steps, found


def around(run):
    """The landscape of a run's model, on the coordinator's test data or else on a site's own."""
    data = federated_data(run.plan)
    held = data.public.get("test")
    if held is None or not len(held):
        held = next((d for d in (data.site(i).test for i in range(len(data))) if len(d)), None)
    if held is None:
        raise DataError(f"{run.folder}: no test data to show the loss of")
    made, chosen = problem(run.plan, data), slice(0, SAMPLES)
    x, y = held.inputs(chosen), held.y[chosen]
    x = x.to(made.dtype) if x.is_floating_point() else x
    steps, losses = landscape(run.model(), made.loss, x, y, seed=run.plan.seed)
    # A loss that is not a number, far away, is as large as any.
    most = losses[np.isfinite(losses)].max(initial=0.0)
    return steps, np.nan_to_num(losses, nan=most, posinf=most, neginf=most), len(x)


def picture(steps, losses):
    """A map of the loss, shaded from the least to the most, and cuts through its middle."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    plane, cuts = figure.subplots(1, 2)
    span = (steps[0], steps[-1])
    shown = plane.imshow(losses, cmap="Blues", origin="lower", extent=(*span, *span))
    plane.set(title="loss around the model", xlabel="second direction", ylabel="first direction")
    figure.colorbar(shown)
    middle = len(steps) // 2
    cuts.plot(steps, losses[:, middle], label="first direction")
    cuts.plot(steps, losses[middle], label="second direction")
    cuts.set(title="cuts", xlabel="step", ylabel="loss")
    cuts.legend(frameon=False)
    return figure


def main(folder=None, out="."):
    """Measure, draw, and say how much the loss rises."""
    with tempfile.TemporaryDirectory() as scratch:
        run = cupola.Run.open(folder) if folder else cupola.run(PLAN, scratch, report=False)
        steps, losses, samples = around(run)
    found = {"steps": steps.tolist(), "losses": losses.tolist(), "samples": samples}
    (Path(out) / "landscape.json").write_text(json.dumps(found), "utf-8")
    picture(steps, losses).savefig(Path(out) / "landscape.png", dpi=110)
    middle = float(losses[POINTS // 2, POINTS // 2])
    print(f"loss of {samples} test samples: {middle:.4g} at the model,")
    print(f"from {losses.min():.4g} to {losses.max():.4g} around it; see landscape.png")
    return found


if __name__ == "__main__":
    main(*sys.argv[1:2])
