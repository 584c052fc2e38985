"""Federated training: one loop, orthogonal choices, published methods as recipes."""

from cupola.training import local as _local  # registers the task 'train'
from cupola.training import metrics as _metrics  # registers the task 'evaluate'
from cupola.training.choices import (
    Budget,
    Evaluation,
    Level,
    Local,
    Participation,
    Privacy,
    Schedule,
    Server,
    Trainable,
    Upcycle,
)
from cupola.training.loop import Training
from cupola.training.methods import METHODS, Method, Round, Turn
from cupola.training.recipes import RECIPES, Recipe, find_recipe
from cupola.training.transforms import Quantise, Sparsify, TopK, Transform
from cupola.training.workspace import Problem, TrainingHost, Workspace, pick_device

__all__ = [
    "METHODS",
    "RECIPES",
    "Budget",
    "Evaluation",
    "Level",
    "Local",
    "Method",
    "Participation",
    "Privacy",
    "Problem",
    "Quantise",
    "Recipe",
    "Round",
    "Schedule",
    "Server",
    "Sparsify",
    "TopK",
    "Trainable",
    "Training",
    "TrainingHost",
    "Transform",
    "Turn",
    "Upcycle",
    "Workspace",
    "find_recipe",
    "pick_device",
]

del _local, _metrics
