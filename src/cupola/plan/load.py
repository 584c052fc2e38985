"""Reading plans: TOML in, a Plan or one line per problem out (file, key, what is allowed)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cupola.errors import PlanError
from cupola.plan.explain import explain, parse_setting, read_toml
from cupola.plan.nested import changed
from cupola.plan.plan import Plan


def load(source: str | Path | Mapping[str, Any] | Plan, settings: Iterable[str] = ()) -> Plan:
    """A plan from a TOML file, TOML text, a mapping or another plan.

    settings: 'dotted.key=value' with TOML values (bare words are strings), put on top.
    """
    where, given = _read(source)
    extra = dict(parse_setting(text) for text in settings)
    try:
        plan = Plan.model_validate(changed(given, extra))
        for label, chosen in plan.settings() if plan.many else ():
            where_run = f"{where} ({label})"
            Plan.model_validate(changed(plan.given(), chosen))
    except ValidationError as error:
        place = locals().get("where_run", where)
        raise PlanError("\n".join(explain(error, place, extra, Plan))) from None
    return plan


def _read(source: str | Path | Mapping[str, Any] | Plan) -> tuple[str, dict[str, Any]]:
    if isinstance(source, Plan):
        return f"plan '{source.name}'", source.given()
    return read_toml(source)
