"""The form of a study: which keys of a plan it asks for, when they apply, and what they mean.

Allowed values and defaults are read from the models that check plans; sentences come from
`cupola.learn.meanings` and, for association studies, from the models themselves.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from typing import Any, get_args

from cupola import data as datasets
from cupola import nn
from cupola.data.dataset import Kind
from cupola.gwas.plan import StudyPlan
from cupola.learn.meanings import meanings
from cupola.learn.plan import Plan, changed
from cupola.learn.recipes import RECIPES
from cupola.web import form_layout
from cupola.web.form_layout import When
from cupola.web.plans import ASSOCIATION, ELSEWHERE, PERSONALISATION, leaves


@dataclass(frozen=True)
class Field:
    """options: (value, label) of a choice. kind: choice, flag, whole, number, list, words or text.
    when: see `form_layout.When`."""

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
        return _number(text) if self.kind in ("whole", "number") else text

    def text(self, value: Any) -> str:
        """A plan's value, as the form shows it."""
        if isinstance(value, list | tuple):
            return ", ".join(str(v) for v in value)
        return str(value).lower() if isinstance(value, bool) else str(value)  # 1.0 is no flag


@dataclass(frozen=True)
class Group:
    """Fields under one heading."""

    title: str
    fields: tuple[Field, ...]


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


#: Keys that go to a model or a loader, which have no schema: kind, sentence, values of a choice.
_LOADERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "model.hidden": ("list", "Units of each hidden layer.", ()),
    "data.called": ("text", "What every site calls these data in its settings.", ()),
    "data.kind": ("choice", "What is predicted.", get_args(Kind)),
    "data.shape": ("list", "Numbers that describe one sample: how many columns a table has beside "
                   "the one to predict; of images channels, height, width.", ()),
    "data.class_names": ("words", "Labels of the column to predict, in the model's order; not for "
                         "regression.", ()),
}  # fmt: skip


@lru_cache
def groups(kind: str) -> tuple[Group, ...]:
    """The form for a kind of study."""
    wanted = form_layout.association() if kind == ASSOCIATION else form_layout.training()
    if kind == PERSONALISATION:
        keys = ("methods", "rounds", "groups", "minimum", "release.epsilon")
        wanted.insert(4, ("Personalisation", [(f"personalise.{key}", {}) for key in keys]))
    whole = StudyPlan if kind == ASSOCIATION else Plan
    schema = whole.model_json_schema()
    return tuple(
        Group(title, tuple(_field(kind, key, when, schema) for key, when in keys))
        for title, keys in wanted
    )


def all_fields(kind: str) -> Iterator[Field]:
    for group in groups(kind):
        yield from group.fields


def _field(kind: str, key: str, when: When, schema: dict[str, Any]) -> Field:
    found, described = _look_up(key, schema)
    about = described or (_LOADERS[key][1] if key in _LOADERS else _meaning(key))
    options = _choices(key, found)
    if options:
        shown = "choice"
    else:
        types = {"boolean": "flag", "integer": "whole", "number": "number", "array": "list"}
        shown = types.get(_type(found), "text")
    if key in ("personalise.methods", "covariates"):
        shown = "list"
    if key in _LOADERS:
        shown, about, values = _LOADERS[key]
        options = tuple((v, v) for v in values)
    default = found.get("default")
    if key == "model.hidden":
        default = nn.options("mlp")["hidden"]
    start = {"recipe": "fedavg", "data.partition.kind": "iid"}.get(key, default)
    said = "" if start is None or isinstance(start, dict) else _plain(start)
    needed = key in ("name", "rounds", "data.name", "model.name", "test") or (
        kind == PERSONALISATION and key == "personalise.rounds"
    )
    return Field(key, form_layout.LABELS[key], shown, about, said, options, when, needed)


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(v) for v in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


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


def _choices(key: str, node: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    if key == "recipe":
        return tuple((r.name, f"{r.name}: {r.summary}") for r in RECIPES.values())
    if key == "data.name":
        empty = inspect.Parameter.empty
        plain = [n for n in datasets.names() if empty not in datasets.options(n).values()]
        plain.append(ELSEWHERE)
        return tuple((n, f"{n}: {_first(datasets.describe(n))}") for n in plain)
    if key == "model.name":
        told = nn.describe()
        empty = inspect.Parameter.empty
        plain = [n for n in nn.names() if empty not in nn.options(n).values()]
        return tuple((n, f"{n}: {_first(told[n])}") for n in plain)
    values = node.get("enum") or []
    return tuple((str(v), str(v)) for v in values)


def _first(text: str) -> str:
    line = " ".join(text.partition("\n\n")[0].split())
    return line if len(line) <= 90 else line[:87] + "..."


def _meaning(key: str) -> str:
    *outer, last = key.split(".")
    section = outer[-1] if outer else "plan"
    return str(meanings()[section][last])


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
    return {k: known[k].text(v) for k, v in flat.items() if k in known and v is not None}


def applies(shown: Field, values: Mapping[str, str], known: Mapping[str, Field]) -> bool:
    """Whether a field counts, given what the others say."""
    recipe = RECIPES.get(values.get("recipe") or "fedavg")
    brought = {} if recipe is None else {
        "privacy.mechanism": recipe.privacy.get("mechanism"), "sum.kind": recipe.sum.get("kind"),
    }  # fmt: skip
    for rule, listed in shown.when.items():
        key = rule.removeprefix("!")
        default = brought.get(key) or (known[key].default if key in known else "")
        said = values.get(key) if key not in known or applies(known[key], values, known) else ""
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
            if text == "true" and applies(shown, values, known):
                settings[key] = True
        elif text and applies(shown, values, known):
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
