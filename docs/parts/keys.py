"""Every key of a plan with default and meaning, read from the models that check plans."""

from __future__ import annotations

import inspect
from typing import Any

from cupola import data, nn
from cupola.nn import losses
from cupola.training.methods import METHODS
from cupola.training.plan import Plan
from cupola.training.recipes import RECIPES
from cupola.training.transforms import TRANSFORMS
from parts.markdown import code, first_sentence, meanings, pairs, table


def _schema() -> dict[str, Any]:
    return Plan.model_json_schema()


def _section(about: str, schema: dict[str, Any], skip: tuple[str, ...] = ()) -> str:
    """A table of one section's keys; `about` is its section in meanings.toml."""
    known = meanings()[about]
    rows = []
    for key, field in schema["properties"].items():
        if key in skip:
            continue
        if key not in known:
            raise SystemExit(f"meanings.toml: [{about}] says nothing about '{key}'")
        rows.append([f"`{key}`", _allowed(field), _default(key, field, schema), known[key]])
    return table(["key", "values", "default", "meaning"], rows)


def _default(key: str, field: dict[str, Any], schema: dict[str, Any]) -> str:
    if key in schema.get("required", ()):
        return "needed"
    default = field.get("default")
    return "" if default is None or isinstance(default, dict) else code(default)


def _allowed(field: dict[str, Any]) -> str:
    """The values a JSON schema allows, in words."""
    for union in ("anyOf", "oneOf"):
        if union in field:
            kinds = [_allowed(f) for f in field[union] if f.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    if "enum" in field:
        return ", ".join(code(value) for value in field["enum"])
    if "const" in field:
        return code(field["const"])
    if "$ref" in field:
        return "table"
    kind = field.get("type")
    if kind == "array":
        inner = field.get("items") or (field.get("prefixItems") or [{}])[0]
        return f"list of {_allowed(inner)}"
    words = {"integer": "integer", "number": "number", "boolean": "`true`, `false`"}
    return f"{words.get(kind, 'table' if kind == 'object' else 'text')}{_bounds(field)}"


def _bounds(field: dict[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    found = [f"{sign} {field[key]:g}" for key, sign in signs.items() if key in field]
    return " " + " and ".join(found) if found else ""


def section(name: str) -> str:
    """The keys of one section of a plan."""
    schema = _schema()
    if name == "plan":
        return _section("plan", schema)
    return _section(name, schema["$defs"][_DEFINED.get(name, name.capitalize())])


def partitions() -> str:
    """Common keys, then those of every kind of partition."""
    definitions = _schema()["$defs"]
    kinds = [definitions[k] for k in ("IID", "Dirichlet", "Classes", "Quantity", "Natural",
                                      "Types", "Pooled")]  # fmt: skip
    common = tuple(set.intersection(*(set(kind["properties"]) for kind in kinds)) - {"kind"})
    shared = {"properties": {k: v for k, v in kinds[0]["properties"].items() if k in common}}
    text = ["Every kind takes:", "", _section("partition", shared)]
    for kind in kinds:
        name = kind["properties"]["kind"]["const"]
        text += ["", f'`kind = "{name}"`: {_about(kind["description"])}']
        own = {k: v for k, v in kind["properties"].items() if k not in (*common, "kind")}
        if own:
            text += ["", _section("partition", {**kind, "properties": own})]
    return "\n".join(text)


def transforms() -> str:
    """The options of every kind of transform."""
    text = []
    for kind, of in TRANSFORMS.items():
        schema = of.model_json_schema()
        told = _section("transforms", schema, skip=("kind",))
        text += [f'`kind = "{kind}"`: {_about(schema["description"])}', "", told, ""]
    kind = {"type": "string"}
    return "\n".join([_section("transforms", {"properties": {"kind": kind}}), "", *text])


def _about(docstring: str) -> str:
    """The first paragraph; keys are explained in the table."""
    text = " ".join(docstring.split("\n\n")[0].split())
    return text[0].lower() + text[1:]


def _options(options: dict[str, Any]) -> str:
    return ", ".join(
        f"`{key}` (needed)" if value is inspect.Parameter.empty else f"`{key}` = {code(value)}"
        for key, value in options.items()
    )


def models() -> str:
    rows = [[f"`{n}`", about, _options(nn.options(n))] for n, about in nn.describe().items()]
    return table(["name", "what it is", "options"], rows)


def loss_table() -> str:
    rows = [
        [f"`{n}`", about, _options(losses.options(n))] for n, about in losses.describe().items()
    ]
    return table(["name", "what it is", "options"], rows)


def datasets() -> str:
    hidden = ("progress",)
    rows = []
    for name in data.names():
        options = {k: v for k, v in data.options(name).items() if k not in hidden}
        rows.append([f"`{name}`", first_sentence(data.describe(name)), _options(options)])
    return table(["name", "what it is", "options"], rows)


def recipes() -> str:
    rows = []
    for r in RECIPES.values():
        given = {}
        for part in ("method", "local", "server", "participation", "privacy", "sum"):
            given |= {f"{part}.{key}": value for key, value in getattr(r, part).items()}
        rows.append([f"`{r.name}`", r.summary, r.source, pairs(given) or "–"])
    return table(["recipe", "what it is", "source", "settings"], rows)


def methods() -> str:
    rows = []
    for name, kind in METHODS.items():
        options = {key: field.default for key, field in kind.model_fields.items()}
        told = {"sum": "a sum", "gather": "every site's update", "groups": "sums of groups"}
        rows.append([f"`{name}`", kind.summary, kind.source, pairs(options) or "–",
                     told[kind.asks]])  # fmt: skip
    head = ["method", "what it is", "source", "options, with defaults", "the coordinator sees"]
    return table(head, rows)


def recipe_names() -> str:
    return table(
        ["recipe", "what it is", "source"],
        [[f"`{r.name}`", r.summary, r.source] for r in RECIPES.values()],
    )


_DEFINED = {"method": "MethodChoice"}  # where the class is not called like its section
_SECTIONS = ("plan", "data", "local", "schedule", "server", "upcycle", "participation",
             "evaluation", "privacy", "budget", "sum", "engine", "track", "link", "trainable",
             "level", "adapter", "personalise", "release", "model", "method", "loss")  # fmt: skip
PARTS = {
    **{f"keys-{name}": (lambda name=name: section(name)) for name in _SECTIONS},
    "keys-partition": partitions,
    "keys-transforms": transforms,
    "models": models,
    "losses": loss_table,
    "datasets": datasets,
    "recipes": recipes,
    "recipe-names": recipe_names,
    "methods": methods,
}
