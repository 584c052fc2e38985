"""Names in plans: recipes, data sets, models and losses, known ones or the user's 'module:name'."""

from __future__ import annotations

from typing import Any

from cupola.base.held_objects import is_absent, is_object
from cupola.base.importing import imported
from cupola.base.suggest import hint
from cupola.data import loading
from cupola.data.transform import copy_steps, transforms
from cupola.errors import DataError, PlanError
from cupola.federation.site import Task
from cupola.nn.losses import find_loss
from cupola.nn.models.building import options as model_options
from cupola.training.methods import method_of
from cupola.training.recipes import Recipe, find_recipe

#: What is measured anyway, so that a user's own metric cannot be called so.
MEASURED = frozenset(
    {"accuracy", "auroc", "auroc_error", "class_accuracy", "confusion", "loss", "miou", "r2",
     "rmse", "samples"}
)  # fmt: skip


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
    if not is_absent(choice.name):
        method_of({"name": choice.name, **choice.options})


def check_model(model: Any) -> None:
    """The model exists and takes these options; their values are checked when it is built."""
    if is_absent(model.name):  # a plan can be read where its objects are not
        return
    known = model_options(model.name)
    for option in model.options:
        if known and option not in known:
            raise PlanError(
                f"model.{option} is unknown; {hint(option, known, f'{model.name} takes', 'model.')}"
            )
        if not known:
            raise PlanError(f"model.{option} is unknown; '{model.name}' takes no options")


def check_loss(loss: Any) -> None:
    if not is_absent(loss.name):
        find_loss(loss.name, **loss.options)


def check_metrics(judge: Any) -> None:
    """The user's own metrics exist, under names that are free."""
    for name, path in (judge.metrics or {}).items():
        if name in MEASURED or not name.isidentifier():
            why = "this is measured anyway" if name in MEASURED else "this is no name"
            raise PlanError(
                f"evaluation.metrics.{name}: {why}; take another name, of letters, digits and _"
            )
        if ":" not in path:
            raise PlanError(
                f"evaluation.metrics.{name} = '{path}': name a function of your own, 'module:name'"
            )
        if not is_absent(path) and not callable(imported(path, f"evaluation.metrics.{name}")):
            raise PlanError(f"evaluation.metrics.{name} = '{path}' is not callable")


def check_data(data: Any) -> None:
    """The data set exists and takes these options; the transforms exist."""
    if is_object(data.name):
        if data.options:
            raise PlanError(
                f"data.{next(iter(data.options))} is unknown: data= was passed as an object, which "
                "takes no options"
            )
    elif ":" in data.name:
        imported(data.name, f"data.name = '{data.name}'")
        try:
            loading.check(data.name, data.options)
        except DataError as error:
            raise PlanError(f"data: {error}") from None
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
