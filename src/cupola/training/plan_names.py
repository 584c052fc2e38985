"""Names in plans: recipes, data sets, models and losses, known ones or the user's 'module:name'."""

from __future__ import annotations

from typing import Any

from cupola.base.importing import imported
from cupola.base.suggest import hint
from cupola.data import loading
from cupola.data.transform import copy_steps, transforms
from cupola.errors import PlanError
from cupola.federation.site import Task
from cupola.nn.losses import find_loss
from cupola.nn.models.building import options as model_options
from cupola.training.methods import method_of
from cupola.training.recipes import Recipe, find_recipe


def recipe(name: str) -> Recipe:
    """A published recipe, or the user's own object at 'module:name'."""
    if ":" not in name:
        return find_recipe(name)
    found = imported(name, f"recipe = '{name}'")
    if not isinstance(found, Recipe):
        raise PlanError(f"recipe = '{name}' is a {type(found).__name__}, not a cupola Recipe")
    return found


def site_task(name: str) -> str:
    """The name under which sites know the task of a plan; the user's own is imported."""
    if ":" not in name:
        return name
    found = imported(name, f"task = '{name}'")
    if not isinstance(found, Task):
        raise PlanError(
            f"task = '{name}' is a {type(found).__name__}; decorate it with @cupola.federation.task"
        )
    return found.name


def check_method(choice: Any) -> None:
    method_of({"name": choice.name, **choice.options})


def check_model(model: Any) -> None:
    """The model exists and takes these options; their values are checked when it is built."""
    known = model_options(model.name)
    for option in model.options:
        if known and option not in known:
            raise PlanError(
                f"model.{option} is unknown; {hint(option, known, f'{model.name} takes', 'model.')}"
            )
        if not known:
            raise PlanError(f"model.{option} is unknown; '{model.name}' takes no options")


def check_loss(loss: Any) -> None:
    find_loss(loss.name, **loss.options)


def check_data(data: Any) -> None:
    """The data set exists and takes these options; the transforms exist."""
    if ":" in data.name:
        imported(data.name, f"data.name = '{data.name}'")
    elif data.name not in loading.names():
        raise PlanError(
            f"data.name = '{data.name}' is unknown; {hint(data.name, loading.names(), 'known')}"
        )
    else:
        known = [*loading.options(data.name), "partition", "augment", "partition_seed"]
        for option in data.options:
            if option not in known:
                inner = type(data.partition).model_fields
                where = "did you mean data.partition." + option + "?"
                raise PlanError(
                    f"data.{option} is unknown; "
                    + (where if option in inner else hint(option, known, "data.*", "data."))
                )
    transforms(list(data.augment))


def check_copies(plan: Any) -> None:
    """Copies of examples (privacy.augmentations) differ, and it is said once how."""
    how, random = plan.privacy.augmentations, transforms(list(plan.data.augment)).augment
    if isinstance(how, int):
        if how > 1 and random is None and ":" not in plan.data.name:
            raise PlanError(
                f"privacy.augmentations = {how}: the copies would be the same; give data.augment "
                "random steps, or list a step for every copy"
            )
        return
    for entry in how:
        copy_steps(entry)
    if random is not None:
        raise PlanError(
            "privacy.augmentations lists what is done to each copy; data.augment cannot have "
            "random steps, too"
        )
