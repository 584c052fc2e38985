"""Methods, one file each (see `method.Method`): what [method] in a plan names, and choices of
[local] that are methods, too.

A new one is a file here and a line below; a user's own is named by a plan as 'module:Class'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from cupola.base.importing import imported
from cupola.base.suggest import hint
from cupola.errors import PlanError
from cupola.federation.message import Question
from cupola.training.choices import Local
from cupola.training.methods.ditto import Ditto
from cupola.training.methods.feddyn import FedDyn
from cupola.training.methods.fednova import FedNova
from cupola.training.methods.fedntd import FedNtd
from cupola.training.methods.fedprox import FedProx
from cupola.training.methods.geometric_median import GeometricMedian
from cupola.training.methods.krum import Krum
from cupola.training.methods.local_parts import FedBN, FedPer, FedRep
from cupola.training.methods.method import Method as Method
from cupola.training.methods.method import Round as Round
from cupola.training.methods.method import method_name as method_name
from cupola.training.methods.moon import Moon
from cupola.training.methods.pfedme import PFedMe
from cupola.training.methods.scaffold import Scaffold
from cupola.training.methods.trimmed_mean import Median, TrimmedMean
from cupola.training.turn import Turn as Turn

#: Those that a plan names; the others follow from its [local].
METHODS: dict[str, type[Method]] = {
    "feddyn": FedDyn,
    "moon": Moon,
    "fedntd": FedNtd,
    "trimmed-mean": TrimmedMean,
    "median": Median,
    "krum": Krum,
    "geometric-median": GeometricMedian,
    "ditto": Ditto,
    "pfedme": PFedMe,
    "fedper": FedPer,
    "fedrep": FedRep,
    "fedbn": FedBN,
}
#: Classes of objects that this process uses: they need not be importable (a notebook's, say).
_USED: dict[str, type[Method]] = {}


def methods_of(local: Local, own: Method | None = None) -> tuple[Method, ...]:
    """All that takes part in a round, in the order in which their hooks are called."""
    found: list[Method] = []
    if local.proximal:
        found.append(FedProx(mu=local.proximal))
    if local.control_variates:
        found.append(Scaffold())
    if local.send == "normalised":
        found.append(FedNova())
    return (*found, *([] if own is None else [own]))


def methods_for(question: Question) -> tuple[Method, ...]:
    """Those of a question. A site has compared its [method] with the plan before (`plan_check`)."""
    local = Local.model_validate(question.options["local"])
    return methods_of(local, own_of(question))


def own_of(question: Question) -> Method | None:
    """A plan's own method, as a question says it."""
    told = question.options.get("method")
    return None if told is None else method_of(told)


def find_method(name: str) -> type[Method]:
    """A method by name, or the user's own at 'module:Class'."""
    if name in _USED:
        return _USED[name]
    if ":" not in name:
        if name not in METHODS:
            raise PlanError(f"method.name = '{name}' is unknown; {hint(name, METHODS, 'known')}")
        return METHODS[name]
    found = imported(name, f"method.name = '{name}'")
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise PlanError(
            f"method.name = '{name}' is a {type(found).__name__}; it must be a subclass of "
            "cupola.training.Method"
        )
    return found


def method_of(told: Mapping[str, Any]) -> Method:
    """The method of a plan's [method], its options checked."""
    name = str(told["name"])
    kind = find_method(name)
    options = {key: value for key, value in told.items() if key != "name"}
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise PlanError(
                f"method.{key} is unknown; {hint(key, kind.model_fields, 'known', 'method.')}"
            ) from None
        said = first["msg"].removeprefix("Value error, ")
        where = f"method.{key}" if key else "method"
        raise PlanError(f"{where}: {said} ('{name}')") from None


def told_of(method: Method) -> dict[str, Any]:
    """What a question says of a method: its name, and options that are not the defaults."""
    kind = type(method)
    name = method_name(kind)
    _USED[name] = kind  # the latest: a notebook's cell may have made the class anew
    return {"name": name, **method.model_dump(exclude_defaults=True, mode="json")}
