"""A hash of somebody's source code: does a resumed run have the code that it began with?"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import partial
from typing import Any

from cupola.base.chain import mark

#: Packages whose code comes with a version of its own.
LIBRARIES = ("torch", "numpy", "builtins", "cupola", "transformers", "torchvision", "timm", "peft")


def source_mark(thing: Any) -> str | None:
    """The hash of a class's or function's own source, and of the classes it inherits from.

    Comments, docstrings and layout do not count. None where no source can be read (code typed at a
    prompt): then nobody can tell whether it has changed. What it calls elsewhere is not in it.
    """
    if isinstance(thing, partial):
        inner = source_mark(thing.func)
        told = repr((thing.args, sorted(thing.keywords.items())))
        return None if inner is None else mark(inner.encode(), told.encode())
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
