# %% [markdown]
# Federated averaging by hand: the slow, obvious loop, and the recipe beside it, equal bit for bit.
#
# McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data".
# From Cupola come the data, the initial weights and the shuffles; everything else is written out.

# %%
import sys
import tempfile
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import cupola
from cupola.base.randomness import permutation
from cupola.data import Dirichlet, load, partition
from cupola.nn import build

ROUNDS, SITES, SEED = 3, 5, 1
RATE, EPOCHS, BATCH = 0.3, 2, 16
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
torch.set_num_threads(1)  # as the engine's sites: more threads add up in another order

# %%
data = partition(load("digits"), Dirichlet(alpha=0.3, sites=SITES), seed=SEED)
sites = [data.site(i).train for i in range(SITES)]
model = build("mlp", data.input_shape, data.classes, SEED, hidden=[32])
parameters = list(model.parameters())


def train(site, round):
    """A site's work: some epochs of SGD on its own rows, in an order of its own."""
    rows = sites[site]
    for epoch in range(EPOCHS):
        order = permutation(SEED, f"shuffle {epoch}", round, site, len(rows))
        for start in range(0, len(order), BATCH):
            batch = torch.from_numpy(order[start : start + BATCH])
            loss = cross_entropy(model(rows.inputs(batch)), rows.y[batch])
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients):
                    parameter.add_(gradient, alpha=-RATE)


# %% [markdown]
# A round: every site starts from the coordinator's model and sends what changed. The coordinator
# subtracts the mean change, weighted by samples, computed in double precision.

# %%
for round in range(1, ROUNDS + 1):
    before = [parameter.detach().clone() for parameter in parameters]
    total = [torch.zeros_like(b, dtype=torch.float64) for b in before]
    for site, rows in enumerate(sites):
        with torch.no_grad():
            for parameter, b in zip(parameters, before):
                parameter.copy_(b)
        train(site, round)
        for t, b, parameter in zip(total, before, parameters):
            t.add_(b - parameter.detach(), alpha=len(rows))
    samples = sum(len(rows) for rows in sites)
    with torch.no_grad():
        for parameter, b, t in zip(parameters, before, total):
            parameter.copy_((b.double() - t / samples).float())

# %% [markdown]
# The recipe, as a plan.

# %%
run = cupola.run(
    {
        "name": "fedavg",
        "seed": SEED,
        "rounds": ROUNDS,
        "recipe": "fedavg",
        "data": {
            "name": "digits",
            "partition": {"kind": "dirichlet", "alpha": 0.3, "sites": SITES},
        },
        "model": {"name": "mlp", "hidden": [32]},
        "local": {"lr": RATE, "epochs": EPOCHS, "batch_size": BATCH},
        "engine": {"mode": "one-by-one"},
    },
    FOLDER / "fedavg",
)
same = all(torch.equal(a, b) for a, b in zip(model.parameters(), run.model().parameters()))
print(f"by hand and by recipe: {'the same bits' if same else 'different'}")
assert same
