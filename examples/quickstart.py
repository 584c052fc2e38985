# %% [markdown]
# Ten sites learn to read digits without sharing them.
# First as a plan, then the same with the objects a plan stands for. Runs in seconds.

# %%
import sys
import tempfile
from pathlib import Path

import cupola
from cupola.data import Dirichlet, load, partition
from cupola.engines import InProcess
from cupola.federation import drive
from cupola.nn import build, find_loss
from cupola.training import Local, Problem, Training, TrainingHost

ROUNDS, SITES, SEED = 20, 10, 1
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())

# %% [markdown]
# ## A plan
# The same names as in a TOML file; misspelt ones are refused with a suggestion.

# %%
plan = cupola.Plan(
    name="quickstart",
    seed=SEED,
    rounds=ROUNDS,
    recipe="fedavg",
    data={"name": "digits", "partition": {"kind": "dirichlet", "alpha": 0.3, "sites": SITES}},
    model={"name": "mlp", "hidden": [64]},
    local={"lr": 0.3, "batch_size": 16},
)
run = cupola.run(plan, FOLDER / "quickstart")
accuracy = run.result["final"]["test"]["accuracy"]
print(f"plan: {accuracy:.1%} after {run.result['rounds']} rounds; see {run.folder}/report.html")

# %% [markdown]
# ## The same by hand
# Data cut into sites, a problem (model, loss), a program (the training loop) and a federation that
# carries its questions to the sites.

# %%
data = partition(load("digits"), Dirichlet(alpha=0.3, sites=SITES), seed=SEED)
problem = Problem(
    build=lambda: build("mlp", data.input_shape, data.classes, SEED, hidden=[64]),
    loss=find_loss("cross_entropy"),
    kind=data.kind,
    classes=data.classes,
    input_shape=data.input_shape,
)
training = Training(
    problem,
    sites=len(data),
    rounds=ROUNDS,
    seed=SEED,
    local=Local(lr=0.3, batch_size=16),
    public=data.public,
)
with InProcess(TrainingHost(problem, data), seed=SEED) as federation:
    state = drive(training, federation)
    sent = federation.ledger.bytes_down + federation.ledger.bytes_up
by_hand = state.values["last"]["test"]["accuracy"]
print(f"by hand: {by_hand:.1%}, {sent / 1e6:.1f} MB sent")
assert by_hand == accuracy

# %% [markdown]
# ## What is left
# The trained model is an ordinary torch module.

# %%
model = run.model()
test = data.public["test"]
print("first ten digits:", model(test.inputs(slice(0, 10))).argmax(1).tolist())
print("they are:        ", test.y[:10].tolist())
