"""A hash of somebody's source code: does a resumed run have the code that it began with?"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np

from cupola.base.chain import mark

#: Packages whose code comes with a version of its own.
LIBRARIES = ("torch", "numpy", "builtins", "cupola", "transformers", "torchvision", "timm", "peft")
_DEEP = 20  # values within values that are looked at


def source_mark(thing: Any) -> str | None:
    """The hash of a class's or function's own source, and of the classes it inherits from; and of
    the values that it holds: an instance's attributes, a function's defaults and what it closes
    over, the arguments of a `partial`.

    Comments, docstrings and layout do not count. None where no source can be read (code typed at a
    prompt), or a value that nobody can compare: then nobody can tell whether it has changed. What
    it calls elsewhere is not in it.
    """
    code, values = _code_mark(thing), _values(thing)
    if code is None or not values:
        return code
    told = _told(values, (id(thing),))
    return None if told is None else mark(code.encode(), told.encode())


def best_mark(thing: Any) -> tuple[str, bool]:
    """The same hash, or what can be had of it: and whether another object may have it, too."""
    found = source_mark(thing)
    return found or _code_mark(thing) or "unknown", found is None


def _values(thing: Any) -> list[Any]:
    """What somebody's object holds besides its code."""
    if isinstance(thing, partial):
        return [_values(thing.func), thing.args, thing.keywords]
    function = getattr(thing, "__func__", thing)
    if inspect.isfunction(function):
        closed = [_content(cell) for cell in function.__closure__ or ()]
        own = [function.__defaults__, function.__kwdefaults__, getattr(thing, "__self__", None)]
        return [*closed, *own] if closed or any(own) else []
    if inspect.isclass(thing) or inspect.isroutine(thing) or not _is_own(type(thing)):
        return []
    told = {k: v for k, v in _attributes(thing).items() if k[0] != "_" and k != "training"}
    return [told] if told else []


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _attributes(thing: Any) -> dict[str, Any]:
    return dict(getattr(thing, "__dict__", {}))


def _told(value: Any, around: tuple[int, ...]) -> str | None:
    """A value in words that are equal only for equal values; None if nobody can tell."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | PurePath):
        return repr(value)
    if id(value) in around:  # it holds itself
        return "around"
    if len(around) > _DEEP:
        return None
    kind, around = type(value).__name__, (*around, id(value))
    if hasattr(value, "detach") or hasattr(value, "__array__"):  # a tensor, an array
        return _numbers(value.detach().cpu() if hasattr(value, "detach") else value)
    if isinstance(value, Mapping):
        parts = [_told(part, around) for pair in value.items() for part in pair]
    elif isinstance(value, list | tuple):
        parts = [_told(part, around) for part in value]
    elif isinstance(value, set | frozenset):
        parts = sorted([_told(part, around) for part in value], key=str)
    elif inspect.isclass(value) or inspect.isroutine(value) or isinstance(value, partial):
        parts = [_code_mark(value), _told(_values(value), around)]
    elif _attributes(value):
        parts = [_code_mark(value), _told(_attributes(value), around)]
    else:
        return f"{kind} {value!r}" if " at 0x" not in repr(value) else None
    return None if None in parts else f"{kind}({', '.join(map(str, parts))})"


def _numbers(values: Any) -> str | None:
    array = np.asarray(values)
    if array.dtype.hasobject:
        return None
    held = mark(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return f"{array.dtype} {array.shape} {held}"


def _code_mark(thing: Any) -> str | None:
    if isinstance(thing, partial):
        return _code_mark(thing.func)
    kind = thing if inspect.isclass(thing) or inspect.isroutine(thing) else type(thing)
    parts = [one for one in inspect.getmro(kind) if _is_own(one)] if inspect.isclass(kind) else None
    texts = []
    for part in [kind] if parts is None else parts:
        if not _is_own(part):
            texts.append(f"{part.__module__}.{part.__qualname__}")
            continue
        try:
            texts.append(_plain(inspect.getsource(part)))
        except (OSError, TypeError):
            return None
    if not texts:
        texts = [f"{kind.__module__}.{kind.__qualname__}"]
    return mark(*(text.encode() for text in texts))


def _is_own(part: Any) -> bool:
    return (getattr(part, "__module__", None) or "builtins").split(".")[0] not in LIBRARIES


def _plain(source: str) -> str:
    """Source without comments, docstrings and layout; as it is where it is part of a statement."""
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError:  # a lambda in the middle of a call
        return " ".join(source.split())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = node.body[0]
            text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            if text and isinstance(first.value.value, str):  # type: ignore[attr-defined]
                node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
