"""Hyperparameter search: many settings of one plan, chosen on validation data.

sweep(define("plan.toml", ["local.lr=0.01,0.1"]), "runs/sweep")["best"]
"""

from cupola.sweep.sweeps import Sweep, define, sweep
from cupola.training.selection import kept

__all__ = ["Sweep", "define", "kept", "sweep"]
