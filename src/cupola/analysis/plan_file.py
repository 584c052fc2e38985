"""Reading plans: TOML in, a plan of its kind or one line per problem out (file, key, what is
allowed)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from cupola.analysis.explain import explain, parse_setting, read_toml
from cupola.analysis.header import PlanHeader
from cupola.analysis.kinds import find_kind, kind_of
from cupola.analysis.overrides import changed
from cupola.errors import PlanError

Source = str | Path | Mapping[str, Any] | PlanHeader
P = TypeVar("P", bound=PlanHeader)


def load(
    source: Source,
    settings: Iterable[str] = (),
    *,
    of: type[P] = PlanHeader,  # type: ignore[assignment]
    elsewhere: bool = False,
) -> P:
    """A plan from a TOML file, TOML text, a mapping or another plan.

    settings: 'dotted.key=value' with TOML values (bare words are strings), put on top. of: which
    kind of plan is wanted. elsewhere: its sites are real, with files of their own.

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
    if isinstance(source, of) and source.is_checked(elsewhere) and not extra:
        return source
    where, given = _read(source)
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
    return plan


def _is_file(source: Source) -> bool:
    return isinstance(source, str | Path) and "\n" not in str(source) and Path(source).is_file()


def _read(source: Source) -> tuple[str, dict[str, Any]]:
    if isinstance(source, PlanHeader):
        return f"plan '{source.name}'", source.given()
    return read_toml(source)
