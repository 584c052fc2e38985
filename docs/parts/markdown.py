"""Tables and values as Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from cupola.training.meanings import meanings

__all__ = ["code", "first_sentence", "meanings", "pairs", "table"]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(c) for c in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def code(value: Any) -> str:
    """A value as TOML writes it."""
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def pairs(values: dict[str, Any]) -> str:
    """Settings as TOML, in a line."""
    return ", ".join(f"`{key} = {json.dumps(value)}`" for key, value in values.items())


def first_sentence(text: str) -> str:
    """Of a docstring; a full stop ends it where a new sentence or the end follows."""
    paragraph = " ".join((text or "").strip().split("\n\n")[0].split())
    for i, letter in enumerate(paragraph):
        after = paragraph[i + 1 : i + 3]
        if letter == "." and (not after or (after[0] == " " and after[1:].isupper())):
            return paragraph[: i + 1]
    return paragraph
