"""Plans in, run folders out.

>>> plan = load("experiments/plan.toml", ["local.lr=0.2"])
>>> cupola.run(plan).result["final"]["test"]["accuracy"]
"""

from cupola.plan.compose import federated_data, federation, host, problem, training
from cupola.plan.folder import Run
from cupola.plan.load import load
from cupola.plan.plan import Data, Engine, Loss, Model, Plan

__all__ = [
    "Data",
    "Engine",
    "Loss",
    "Model",
    "Plan",
    "Run",
    "federated_data",
    "federation",
    "host",
    "load",
    "problem",
    "training",
]
