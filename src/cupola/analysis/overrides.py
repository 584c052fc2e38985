"""Plans and studies before they are checked: nested plain values, and dotted keys set in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from cupola.base.renaming import warn_renamed

SHORT_FORMS = (
    ("data", "name"), ("model", "name"), ("loss", "name"), ("method", "name"), ("sum", "kind"),
)  # fmt: skip


def normal(value: Any) -> Any:
    """Plain nested values: short forms written out, models as what was set, no None."""
    if (given := getattr(value, "_given", None)) is not None:  # a plan
        return normal(given)
    found = plain(value)
    if not isinstance(found, dict):
        return found
    for section, key in SHORT_FORMS:
        if isinstance(found.get(section), str):
            found[section] = {key: found[section]}
    data = found.get("data")
    if isinstance(data, dict) and isinstance(data.get("partition"), str):
        data["partition"] = {"kind": data["partition"]}
    if isinstance(found.get("grid"), dict):
        found["grid"] = dict(flat(found["grid"]))
    return found


def changed(given: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of `given` with dotted keys set."""
    result = normal(given)
    for key, value in settings.items():
        *path, last = key.split(".")
        place = result
        for part in path:
            if not isinstance(place.get(part), dict):
                place[part] = {}
            place = place[part]
        place[last] = plain(value)
        result = normal(result)
        if isinstance(result.get("grid"), dict):
            result["grid"].pop(key, None)
            if not result["grid"]:
                del result["grid"]
        if key == "seed":
            result.pop("seeds", None)
        elif key == "seeds":
            result.pop("seed", None)
    return result


def with_new_names(given: dict[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """A plan's dotted keys, and those of its grid, by their names of today; `given` is changed."""
    for old, new in renamed.items():
        *path, last = old.split(".")
        section: Any = given
        for part in path:
            section = section.get(part) if isinstance(section, dict) else None
        places = ((section, last, new.rpartition(".")[2]), (given.get("grid"), old, new))
        for place, was, name in places:
            if isinstance(place, dict) and was in place:
                if name in place:
                    raise ValueError(f"{old} and {new} are one option; give {new} only")
                warn_renamed(old, new)
                place[name] = place.pop(was)
    return given


def plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        unset = value.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        kind = getattr(value, "kind", None)  # which partition it is goes without saying in code
        return {**unset, **({} if kind is None else {"kind": kind})}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def merge(
    defaults: Mapping[str, Any], own: Mapping[str, Any], alternatives: Iterable[set[str]] = ()
) -> dict[str, Any]:
    """`own` on top of defaults, nested tables as well. A default goes if `own` names one of its
    alternatives."""
    found = {
        key: value
        for key, value in defaults.items()
        if not any(key in those and (those - {key}) & own.keys() for those in alternatives)
    }
    for key, value in own.items():
        inner = found.get(key)
        both = isinstance(inner, dict) and isinstance(value, dict)
        found[key] = merge(inner, value, alternatives) if both else value  # type: ignore[arg-type]
    return found


def flat(
    tree: Mapping[str, Any], prefix: str = "", between: str = "."
) -> Iterator[tuple[str, Any]]:
    """Nested tables as dotted keys and their values."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}{between}", between)
        else:
            yield prefix + key, value
