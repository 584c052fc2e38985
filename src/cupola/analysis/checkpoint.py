"""Checkpoints: one safetensors file, replaced atomically, that holds all a resume needs.

Written beside the old one, synced, then renamed over it: a crash at any moment leaves the old or
the new checkpoint, never a mixture. It carries the hash of all its bytes, and what the other files
of its folder were like: a resume goes on from the folder that was left, or says what is damaged.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from cupola.base.chain import AGAIN, Tail, damaged, mark, sealed_json, sealed_text
from cupola.base.files import write_atomically
from cupola.base.jsonl import Log as Log
from cupola.base.jsonl import json_line as json_line
from cupola.federation.program import State

FILE = "state.safetensors"
_EMPTY = "0" * 32  # where the checksum will stand
_PLAIN = ("lengths", "seconds", "files", "tails", "heads", "plan")  # early ones have but the first


@dataclass(frozen=True)
class Checkpoint:
    """A program's state after a step, and what belongs to it.

    sites: site state, named 'site/array'. down, up: bytes by site. lengths: of the run's files in
    bytes when the state was reached; what is behind them belongs to lost steps.
    seconds: spent so far. files: hashes of files that do not change. tails: of chains that only
    grow, by the name of their file; heads: of those that are cut back to `lengths`. plan: its hash.
    """

    state: State
    sites: Mapping[str, np.ndarray]
    down: Mapping[int, int]
    up: Mapping[int, int]
    lengths: Mapping[str, int]
    seconds: float
    files: Mapping[str, str] = field(default_factory=dict)
    tails: Mapping[str, Tail] = field(default_factory=dict)
    heads: Mapping[str, Tail] = field(default_factory=dict)
    plan: str = ""

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
            **{name: getattr(self, name) for name in _PLAIN},
        }
        folder.mkdir(exist_ok=True)
        data = save(arrays, {"cupola": json.dumps(facts), "checksum": _EMPTY})
        write_atomically(folder / FILE, _with_checksum(data))

    @classmethod
    def load(cls, folder: Path) -> Checkpoint | None:
        """The last checkpoint, or None if the run had not come to one."""
        path = folder / FILE
        if not path.exists():
            return None
        try:
            _verify(path.read_bytes())
            with safe_open(path, "numpy") as file:
                facts = json.loads(file.metadata()["cupola"])
                # Copies: torch wants arrays it may write to.
                arrays = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
            raise damaged(path, f"cannot be read: {error}", AGAIN) from error
        state = State(
            facts["step"], {n: arrays[f"state/{n}"] for n in facts["order"]}, facts["values"]
        )
        counts: dict[str, Any] = {
            name: dict(zip(*(column.tolist() for column in arrays[f"bytes/{name}"])))
            for name in ("down", "up")
        }
        plain = {name: facts[name] for name in _PLAIN if name in facts}
        return cls(state, _unstacked(arrays, facts["groups"]), **counts, **plain)


_PLACE = b'"checksum":"'


def _split(data: bytes) -> tuple[bytes, bytes, bytes] | None:
    """A safetensors file before, in and behind the place of its checksum."""
    header = data[: 8 + int.from_bytes(data[:8], "little")]
    start = header.find(_PLACE) + len(_PLACE)
    return (header[:start], header[start : start + 32], data) if start >= len(_PLACE) else None


def _hash(before: bytes, data: bytes) -> bytes:
    """Of header and arrays. Arrays by their CRC-32: against accidents it is enough, and it takes a
    fifth of the time of a hash, which would be half of that of a save."""
    start = 8 + int.from_bytes(data[:8], "little")
    behind = memoryview(data)[len(before) + 32 : start]
    return mark(before, behind, b"%08x" % zlib.crc32(memoryview(data)[start:])).encode()


def _with_checksum(data: bytes) -> list[bytes | memoryview]:
    found = _split(data)
    assert found is not None
    before, _, _ = found
    return [before, _hash(before, data), memoryview(data)[len(before) + 32 :]]


def _verify(data: bytes) -> None:
    """ValueError if a checksum is there and does not fit; earlier versions wrote none."""
    found = _split(data)
    if found is not None and found[1] != _hash(found[0], data):
        raise ValueError("its checksum does not fit")


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


def write_sealed(path: Path, text: str) -> None:
    """A text with its checksum (see `cupola.base.chain`), whole or not at all."""
    seal = sealed_json if path.suffix == ".json" else sealed_text
    write_atomically(path, seal(path.name, text))
