"""Checkpoints: one safetensors file, replaced atomically, that holds all a resume needs.

Written beside the old one, synced, then renamed over it: a crash at any moment leaves the old or
the new checkpoint, never a mixture.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from cupola.errors import CupolaError
from cupola.federation import State

FILE = "state.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A program's state after a step, and what belongs to it.

    sites: site state, named 'site/array'. down, up: bytes by site. lengths: of the run's files in
    bytes when the state was reached; what is behind them belongs to lost steps.
    seconds: spent so far.
    """

    state: State
    sites: Mapping[str, np.ndarray]
    down: Mapping[int, int]
    up: Mapping[int, int]
    lengths: Mapping[str, int]
    seconds: float

    def save(self, folder: Path) -> None:
        arrays, groups = _stacked(self.sites)
        for name, array in self.state.arrays.items():
            arrays[f"state/{name}"] = np.array(array, order="C", copy=True)
        for name, counts in (("down", self.down), ("up", self.up)):
            arrays[f"bytes/{name}"] = np.array([[*counts], [*counts.values()]], np.int64)
        facts = {
            "step": self.state.step,
            "values": self.state.values,
            "order": list(self.state.arrays),  # safetensors sorts names
            "groups": groups,
            "lengths": dict(self.lengths),
            "seconds": self.seconds,
        }
        folder.mkdir(exist_ok=True)
        write_atomically(folder / FILE, save(arrays, {"cupola": json.dumps(facts)}))

    @classmethod
    def load(cls, folder: Path) -> Checkpoint | None:
        """The last checkpoint, or None if the run had not come to one."""
        path = folder / FILE
        if not path.exists():
            return None
        try:
            with safe_open(path, "numpy") as file:
                facts = json.loads(file.metadata()["cupola"])
                # Copies: torch wants arrays it may write to.
                arrays = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise CupolaError(
                f"{path} cannot be read ({error}); run the plan again with --overwrite"
            ) from error
        state = State(
            facts["step"], {n: arrays[f"state/{n}"] for n in facts["order"]}, facts["values"]
        )
        counts = {
            name: dict(zip(*(column.tolist() for column in arrays[f"bytes/{name}"])))
            for name in ("down", "up")
        }
        return cls(
            state,
            _unstacked(arrays, facts["groups"]),
            counts["down"],
            counts["up"],
            facts["lengths"],
            facts["seconds"],
        )


def _stacked(sites: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Site state as few large arrays: equal arrays of many sites stacked, beside their sites."""
    groups: dict[tuple[str, str, tuple[int, ...]], list[tuple[int, np.ndarray]]] = {}
    for path, array in sites.items():
        site, name = path.split("/", 1)
        key = (name, array.dtype.str, array.shape)
        groups.setdefault(key, []).append((int(site), array))
    arrays = {}
    for i, members in enumerate(groups.values()):
        arrays[f"sites/{i}/index"] = np.array([site for site, _ in members], np.int64)
        arrays[f"sites/{i}/values"] = np.stack([array for _, array in members])
    return arrays, [name for name, _, _ in groups]


def _unstacked(arrays: Mapping[str, np.ndarray], groups: list[str]) -> dict[str, np.ndarray]:
    return {
        f"{site}/{name}": np.array(value)
        for i, name in enumerate(groups)
        for site, value in zip(arrays[f"sites/{i}/index"], arrays[f"sites/{i}/values"])
    }


def write_atomically(path: Path, content: bytes | str) -> None:
    """The file has its old or its new content, whatever happens; on disk when this returns."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    if os.name == "posix":
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class Log:
    """A file of JSON lines that only grows; `length` is what has been written, in bytes."""

    def __init__(self, path: Path, length: int = 0) -> None:
        self._file = path.open("ab", buffering=0)
        if self._file.tell() < length:
            self._file.close()
            raise CupolaError(
                f"{path} is shorter than its checkpoint says; it was changed from outside. "
                "Run the plan again with --overwrite"
            )
        self._file.truncate(length)
        self.length = length

    def write(self, record: Mapping[str, Any]) -> None:
        line = (json_line(record) + "\n").encode()
        self._file.write(line)
        self.length += len(line)

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def json_line(value: Any, indent: int | None = None) -> str:
    """JSON that every reader takes: numbers that are not finite become null."""
    separators = (",", ":") if indent is None else None
    try:
        return json.dumps(value, allow_nan=False, indent=indent, separators=separators)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, separators=separators)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
