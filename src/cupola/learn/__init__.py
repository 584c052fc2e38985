"""Federated training: one loop, orthogonal choices, published methods as recipes."""

from cupola.learn import local as _local  # registers the task 'train'
from cupola.learn import metrics as _metrics  # registers the task 'evaluate'
from cupola.learn.choices import (
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
from cupola.learn.recipes import RECIPES, Recipe, find_recipe
from cupola.learn.training import Training
from cupola.learn.workspace import Problem, TrainingHost, Workspace, pick_device

__all__ = [
    "RECIPES",
    "Budget",
    "Evaluation",
    "Level",
    "Local",
    "Participation",
    "Privacy",
    "Problem",
    "Recipe",
    "Schedule",
    "Server",
    "Trainable",
    "Training",
    "TrainingHost",
    "Upcycle",
    "Workspace",
    "find_recipe",
    "pick_device",
]

del _local, _metrics
