"""The fields of a study's form: allowed values and defaults are read from the models that check
plans; the form itself comes from the analysis."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from typing import Any

from cupola.analysis.forms import Entry, When
from cupola.analysis.overrides import changed
from cupola.training.meanings import meanings
from cupola.web.kinds import analysis_named, forms
from cupola.web.plans import leaves

_BROAD = 36  # letters


@dataclass(frozen=True)
class Field:
    """options: (value, label) of a choice. kind: choice, flag, whole, number, list, words or text.
    when: see `cupola.analysis.forms.When`."""

    key: str
    label: str
    kind: str
    about: str
    default: str = ""
    options: tuple[tuple[str, str], ...] = ()
    when: When = field(default_factory=dict)
    needed: bool = False

    @property
    def id(self) -> str:
        return "f-" + self.key.replace(".", "-")

    @property
    def broad(self) -> bool:
        """Whether its choices are sentences, which take a line of the form."""
        return any(len(label) > _BROAD for _, label in self.options)

    @property
    def when_json(self) -> str:
        return json.dumps(self.when)

    def value(self, text: str) -> Any:
        """What was typed, as a plan holds it; what cannot be read is for the plan to refuse."""
        text = text.strip()
        if self.kind == "flag":
            return text == "true"
        if self.kind in ("list", "words"):
            between = "," if self.kind == "words" else r"[,\s]+"
            parts = [p.strip() for p in re.split(between, text.strip("[]")) if p.strip()]
            plain = [p.strip("\"'") for p in parts]
            return plain if self.kind == "words" else [_number(p) for p in plain]
        if self.kind == "choice" and text in ("true", "false"):  # a flag that is on by default
            return text == "true"
        return _number(text) if self.kind in ("whole", "number") else text


@dataclass(frozen=True)
class Group:
    """Fields under one heading; folded: shown when they are asked for."""

    title: str
    fields: tuple[Field, ...]
    lead: str = ""
    folded: bool = False

    def concerned(self, said: Mapping[str, Any]) -> bool:
        """Whether anything is said of its fields."""
        return any(said.get(field.key) for field in self.fields)


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@lru_cache
def groups(kind: str) -> tuple[Group, ...]:
    """The form for a kind of study; none of a kind that is made from a plan's text."""
    form = forms().get(kind)
    if form is None:
        return ()
    schema = analysis_named(kind).Plan.model_json_schema()
    return tuple(
        Group(
            title,
            tuple(_field(entry, schema) for entry in entries),
            form.leads.get(title, ""),
            title in form.folded,
        )
        for title, entries in form.groups
    )


def all_fields(kind: str) -> Iterator[Field]:
    for group in groups(kind):
        yield from group.fields


def brought(kind: str) -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Values of other keys that come with a value of a key."""
    form = forms().get(kind)
    return form.brings if form else {}


def _field(entry: Entry, schema: dict[str, Any]) -> Field:
    found, described = _look_up(entry.key, schema)
    options = entry.options or tuple((str(v), str(v)) for v in found.get("enum") or [])
    types = {"boolean": "flag", "integer": "whole", "number": "number", "array": "list"}
    shown = entry.kind or ("choice" if options else types.get(_type(found), "text"))
    start = found.get("default") if entry.default is None else entry.default
    default = "" if start is None or isinstance(start, dict) else _plain(start)
    about = entry.about or described or _meaning(entry.key)
    return Field(entry.key, entry.label, shown, about, default, options, entry.when, entry.needed)


def _plain(value: Any) -> str:
    """A plan's value, as the form shows it."""
    if isinstance(value, list | tuple):
        return ", ".join(str(v) for v in value)
    return str(value).lower() if isinstance(value, bool) else str(value)  # 1.0 is no flag


def _look_up(key: str, schema: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The JSON schema of a dotted key, and its description."""
    place: list[dict[str, Any]] = [schema]
    for part in key.split("."):
        inner = [p["properties"][part] for p in place if part in p.get("properties", {})]
        place = [r for p in inner for r in _resolved(p, schema)] or [{}]
        about = next((p["description"] for p in inner if "description" in p), "")
        default = next((p["default"] for p in inner if "default" in p), None)
    merged = dict(place[0])
    if len(place) > 1:
        merged = {"anyOf": place}
        if all("const" in p for p in place):
            merged = {"enum": [p["const"] for p in place]}
    if default is not None:
        merged["default"] = default
    return merged, about


def _resolved(node: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    if "$ref" in node:
        return _resolved(schema["$defs"][node["$ref"].rsplit("/", 1)[-1]], schema)
    for union in ("anyOf", "oneOf"):
        if union in node:
            found = [r for part in node[union] for r in _resolved(part, schema)]
            return [r for r in found if r.get("type") != "null"]
    return [node]


def _type(node: dict[str, Any]) -> str:
    if "anyOf" in node:
        return _type(node["anyOf"][0])
    return str(node.get("type", "string"))


def _meaning(key: str) -> str:
    """Of a key that every plan has."""
    *outer, last = key.split(".")
    return str(meanings().get(outer[-1] if outer else "plan", {}).get(last, ""))


def as_html(markdown: str) -> str:
    """A sentence of meanings.toml: code in code, links as plain words."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    own = r",? or your own .*?`module:name`.*?(?=\.\s|\.$|;|$)"  # not from a browser
    plain = re.sub(own, "", plain)
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(plain, quote=False))


def filled(kind: str, given: Mapping[str, Any]) -> dict[str, str]:
    """What a plan says, as the form's texts."""
    flat: dict[str, Any] = {}
    lists: dict[str, list[Any]] = {}
    for key, value in leaves(given):
        lists.setdefault(key, []).append(value)
    flat = {key: values if len(values) > 1 else values[0] for key, values in lists.items()}
    known = {f.key: f for f in all_fields(kind)}
    return {k: _plain(v) for k, v in flat.items() if k in known and v is not None}


def applies(kind: str, shown: Field, values: Mapping[str, str], known: Mapping[str, Field]) -> bool:
    """Whether a field counts, given what the others say."""
    brings: dict[str, str] = {}
    for key, by_value in brought(kind).items():
        brings |= by_value.get(values.get(key) or known[key].default, {})
    for rule, listed in shown.when.items():
        key = rule.removeprefix("!")
        default = brings.get(key) or (known[key].default if key in known else "")
        counts = key not in known or applies(kind, known[key], values, known)
        said = values.get(key) if counts else ""
        if ((said or default) in listed) == rule.startswith("!"):
            return False
    return True


def from_form(kind: str, before: Mapping[str, Any], form: Mapping[str, str]) -> dict[str, Any]:
    """A plan's content from the form; keys that the form does not know stay as they were."""
    known = {f.key: f for f in all_fields(kind)}
    given = _without(before, set(known))
    values = {key: str(form.get(key, "")) for key in known}
    settings: dict[str, Any] = {}
    for key, shown in known.items():
        text = values[key].strip()
        if shown.kind == "flag":
            if text == "true" and applies(kind, shown, values, known):
                settings[key] = True
        elif text and applies(kind, shown, values, known):
            settings[key] = shown.value(text)
    if any(key.startswith("data.partition.") for key in settings):
        settings.setdefault("data.partition.kind", "iid")  # which the form shows as its default
    # A section's kind first: the others are read by it.
    return changed(given, dict(sorted(settings.items(), key=lambda s: s[0].count("."))))


def _without(tree: Mapping[str, Any], keys: set[str], prefix: str = "") -> dict[str, Any]:
    left: dict[str, Any] = {}
    for name, value in tree.items():
        if prefix + name in keys:
            continue
        if isinstance(value, Mapping):
            inner = _without(value, keys, f"{prefix}{name}.")
            if inner:
                left[name] = inner
        else:
            left[name] = value
    return left


def field_of(kind: str, key: str) -> str:
    """The field at which a problem with `key` is shown; '' for none."""
    known = [f.key for f in all_fields(kind)]
    if key in known:
        return key
    below = [k for k in known if k.startswith(key + ".")] if key else []
    above = [k for k in known if key.startswith((k + ".", k + "["))]
    return (above or below or [""])[0]
