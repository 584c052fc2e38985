"""Hyperparameter search: many settings of one plan, chosen on validation data.

sweep(define("plan.toml", ["local.lr=0.01,0.1"]), "runs/sweep")["best"]
"""

from cupola.learn.selection import kept
from cupola.sweep.sweeps import Sweep, define, sweep

__all__ = ["Sweep", "define", "kept", "sweep"]
