"""Reading plans: TOML in, a plan of its kind or one line per problem out (file, key, what is
allowed)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

from pydantic import ValidationError

from cupola.analysis.explain import explain, parse_setting, read_toml
from cupola.analysis.header import PlanHeader
from cupola.analysis.kinds import find_kind, kind_of
from cupola.analysis.overrides import changed
from cupola.base.suggest import suggest
from cupola.errors import PlanError

if TYPE_CHECKING:
    from torch import nn

Source = str | Path | Mapping[str, Any] | PlanHeader
P = TypeVar("P", bound=PlanHeader)


class Objects(TypedDict, total=False):
    """Objects in the place of a plan's names.

    model: a module, or a class or function that makes one. data: (x, y), (frame, 'column'), a torch
    or Hugging Face data set, a cupola Source or FederatedData; or a list or mapping of these, one
    for each site. loss: of torch, or a function with one value per sample. method: an instance of a
    method. metrics: functions of (outputs, targets) with one value per sample, by name. A name
    of a plan will do as well.
    """

    model: nn.Module | Callable[..., nn.Module] | str
    data: Any
    loss: nn.Module | type[nn.Module] | Callable[..., Any] | str
    method: Any
    metrics: Mapping[str, Callable[[Any, Any], Any]]


def load(
    source: Source,
    settings: Iterable[str] = (),
    *,
    of: type[P] = PlanHeader,  # type: ignore[assignment]
    elsewhere: bool = False,
    **objects: Unpack[Objects],
) -> P:
    """A plan from a TOML file, TOML text, a mapping or another plan.

    settings: 'dotted.key=value' with TOML values (bare words are strings), put on top. of: which
    kind of plan is wanted. elsewhere: its sites are real, with files of their own. model, data,
    loss, method, metrics: objects, see `Objects`; the plan names them, and keeps them.

    >>> import cupola
    >>> given = {"name": "tiny", "rounds": 2, "data": "digits", "model": "linear"}
    >>> plan = cupola.load(given, ["recipe=fedprox", "local.lr=0.05"])
    >>> plan.local.lr, plan.local.proximal
    (0.05, 0.1)
    >>> cupola.load(given, ["recipe=fedpox"])
    Traceback (most recent call last):
    cupola.errors.PlanError: ...did you mean 'fedprox'?
    """
    extra = dict(parse_setting(text) for text in settings)
    if isinstance(source, of) and source.is_checked(elsewhere) and not extra and not objects:
        return source
    where, given = _read(source)
    held: Any = ()
    if objects:
        require_known(objects)
        given, held = find_kind(kind_of(given)).with_objects(given, objects)
    given = changed(given, extra)
    kind = find_kind(kind_of(given)).Plan
    if "folder" in kind.model_fields and _is_file(source):
        given = {"folder": str(Path(str(source)).resolve().parent), **given}
    if not kind.model_fields["name"].is_required() and _is_file(source):
        given = {"name": Path(str(source)).stem, **given}
    context = {"elsewhere": elsewhere}
    try:
        plan = kind.model_validate(given, context=context)
        for label, chosen in plan.settings() if plan.many else ():
            where_run = f"{where} ({label})"
            kind.model_validate(changed(plan.given(), chosen), context=context)
    except ValidationError as error:
        place = locals().get("where_run", where)
        raise PlanError("\n".join(explain(error, place, extra, kind))) from None
    if not isinstance(plan, of):
        raise PlanError(f"{where}: this is a plan of kind '{plan.kind}', which is not for this")
    del held  # by now the plan does
    return plan


def require_known(objects: Mapping[str, Any]) -> None:
    """PlanError for a keyword that is misspelt, or stands for nothing."""
    for name, value in objects.items():
        if name not in Objects.__annotations__:
            raise PlanError(f"there is no {name}=; {suggest(name, Objects.__annotations__)}")
        if value is None:
            raise PlanError(f"{name}=None: pass an object, or leave {name}= out")


def _is_file(source: Source) -> bool:
    return isinstance(source, str | Path) and "\n" not in str(source) and Path(source).is_file()


def _read(source: Source) -> tuple[str, dict[str, Any]]:
    if isinstance(source, PlanHeader):
        return f"plan '{source.name}'", source.given()
    if not isinstance(source, str | Path | Mapping):
        raise PlanError(f"a plan is a file, TOML text, a mapping or a cupola.Plan, not {source!r}")
    return read_toml(source)
