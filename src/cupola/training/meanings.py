"""What every key of a plan means, in a sentence: for the documentation and for the web form."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from importlib.resources import files
from typing import Any


@lru_cache
def meanings() -> dict[str, Any]:
    """meanings.toml: by section, then by key, as Markdown."""
    return tomllib.loads((files("cupola.training") / "meanings.toml").read_text("utf-8"))
