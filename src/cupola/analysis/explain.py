"""TOML in, and one line per problem out (file, key, what is allowed), for plans and studies."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from cupola.analysis.overrides import normal
from cupola.base.suggest import closest, hint
from cupola.errors import PlanError


def parse_setting(text: str) -> tuple[str, Any]:
    """'local.lr=0.2' as a dotted key and a value."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise PlanError(f"--set {text}: say key=value, for example --set local.lr=0.2")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return key, value.strip()
    return key, parsed["value"] if len(parsed) == 1 else value.strip()


def read_toml(source: str | Path | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Where it is from, for messages, and what it says: a file, TOML text or a mapping."""
    if isinstance(source, Mapping):
        return "plan", normal(source)
    if isinstance(source, str) and ("\n" in source or "=" in source) and not _is_file(source):
        return "plan", normal(_parse(source, "plan"))
    path = Path(source)
    try:
        text = path.read_text("utf-8")
    except IsADirectoryError:
        raise PlanError(f"{path} is a folder; a plan is a TOML file") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise PlanError(f"{path}: cannot be read ({reason})") from None
    return str(path), normal(_parse(text, str(path)))


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        found = re.search(r"\(at line (\d+), column \d+\)", message)
        line = f"line {found[1]}" if found else "last line"
        reason = re.sub(r"\s*\(at .*\)", "", message)
        raise PlanError(f"{where}, {line}: not TOML: {reason}") from None


def explain(
    error: ValidationError, where: str, settings: Iterable[str], whole: type[BaseModel]
) -> list[str]:
    """One line per problem of what should be a `whole`."""
    lines = []
    for key, text in problems(error, whole):
        origin = "--set" if any(f"{key}.".startswith(f"{s}.") for s in settings) else where
        line = f"{origin}: {text}"
        if line not in lines:
            lines.append(line)
    return lines


def problems(error: ValidationError, whole: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """(dotted key, what is wrong with it) of what should be a `whole`."""
    for problem in error.errors():
        path = _path(problem["loc"], whole)
        yield ".".join(path), _sentence(problem, path, whole)


def _path(loc: tuple[int | str, ...], whole: type[BaseModel]) -> list[str]:
    """Keys as the user wrote them: pydantic adds the names of union members."""
    path: list[str] = []
    section: Any = whole
    for part in loc:
        if isinstance(part, int):
            if path:
                path[-1] += f"[{part}]"
            continue
        fields = section.model_fields if _is_model(section) else {}
        if path and section is None and path[-1] == "partition":
            section = partitions().get(part)
            continue
        if path and not fields:  # inside a plain value: the rest names types, not keys
            break
        path.append(part)
        section = _model_of(fields[part].annotation) if part in fields else None
    return path


def _is_model(section: Any) -> bool:
    return isinstance(section, type) and issubclass(section, BaseModel)


def _model_of(annotation: Any) -> Any:
    """The model behind an annotation, if it is one section (maybe optional)."""
    if _is_model(annotation):
        return annotation
    found = [a for a in get_args(annotation) if _is_model(a)]
    return found[0] if len(found) == 1 else None


def partitions() -> dict[str, type[BaseModel]]:
    from cupola.data.partition import Partition

    members = get_args(get_args(Partition)[0])
    return {m.model_fields["kind"].default: m for m in members}


def _sentence(problem: Any, path: list[str], whole: type[BaseModel]) -> str:
    key = ".".join(path)
    kind, message = problem["type"], problem["msg"]
    if kind == "plan":
        return str(message)
    if kind == "extra_forbidden":
        return f"{key} is unknown; {_meant(path, problem, whole)}"
    if kind == "missing":
        return f"{key} is missing"
    if kind == "union_tag_not_found":
        return f"{key}.kind is missing; there are: {', '.join(partitions())}"
    if kind == "union_tag_invalid":
        given = problem["ctx"]["tag"]
        return f"{key}.kind = '{given}' is unknown; {hint(given, partitions(), 'there are')}"
    if kind == "value_error":
        text = message.removeprefix("Value error, ")
        return f"{key}: {text}" if key else text
    if kind == "string_pattern_mismatch" and key == "device":
        message = "must be auto, cpu, cuda or mps"
    elif kind == "string_pattern_mismatch" and key == "name":
        message = "must begin with a letter or digit; letters, digits, spaces and . , + = @ - _"
    message = re.sub(r"^Input should be ", "must be ", message)
    message = re.sub(r"^must be a valid (\w+).*", r"must be a \1", message)
    message = message.replace("a integer", "an integer").replace("a dictionary", "a table")
    text = f"{key} = {shown(problem['input'])}: {message[0].lower()}{message[1:]}"
    allowed = re.findall(r"'([^']+)'", message) if kind == "literal_error" else []
    close = closest(problem["input"], allowed) if isinstance(problem["input"], str) else None
    return f"{text}; did you mean '{close}'?" if close else text


def _meant(path: list[str], problem: Any, whole: type[BaseModel]) -> str:
    """A suggestion for an unknown key: in its own section, else anywhere in the plan."""
    *outer, last = path
    section: Any = whole
    for part in outer:
        name = part.partition("[")[0]
        section = _model_of(section.model_fields[name].annotation) if section else None
    if section is None:  # a partition, the one place where sections differ by kind
        kind = next((p for p in problem["loc"] if p in partitions()), "iid")
        section = partitions()[str(kind)]
    prefix = "".join(part + "." for part in outer)
    close = closest(last, section.model_fields)
    if close:
        return f"did you mean {prefix}{close}?"
    for name, field in whole.model_fields.items():
        inner = _model_of(field.annotation)
        if inner is not None and (found := closest(last, inner.model_fields)):
            return f"did you mean {name}.{found}?"
    return f"there are: {', '.join(prefix + name for name in section.model_fields)}"


def shown(value: Any) -> str:
    """A value as in TOML, shortened."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
