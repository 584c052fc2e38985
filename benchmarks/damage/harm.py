"""Random damage to one file of a folder, from a seed: what disks, people and back-ups do."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

SPARED = (".lock", "report.html", "log.txt", "withdrawn")
KINDS = (
    "flip", "flips", "cut", "empty", "delete", "double a line", "remove a line", "swap lines",
    "swap files", "old copy", "another's copy",
)  # fmt: skip


def files(folder: Path) -> list[Path]:
    """What can be damaged: all but locks, logs and what nothing reads."""
    return sorted(
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.is_file() and path.name not in SPARED and path.suffix not in (".log", ".part")
    )


def harm(folder: Path, seed: int, old: Path | None = None, other: Path | None = None) -> str:
    """Damage one file; what was done. old: the folder at an earlier time. other: another one of its
    kind."""
    draw = random.Random(seed)
    while True:
        kind, name = draw.choice(KINDS), draw.choice(files(folder))
        if _harm(folder, name, kind, draw, old, other):
            return f"{kind}: {name}"


def _harm(
    folder: Path, name: Path, kind: str, draw: random.Random, old: Path | None, other: Path | None
) -> bool:
    """Whether the file is another one now."""
    path = folder / name
    data = path.read_bytes()
    if kind == "delete":
        path.unlink()
        return True
    if kind == "swap files":
        second = folder / draw.choice(files(folder))
        if second.read_bytes() == data:
            return False
        path.write_bytes(second.read_bytes())
        second.write_bytes(data)
        return True
    if kind in ("old copy", "another's copy"):
        source = old if kind == "old copy" else other
        if source is None or not (source / name).is_file():
            return False
        shutil.copy2(source / name, path)
    else:
        path.write_bytes(_changed(data, kind, draw))
    return path.read_bytes() != data


def _changed(data: bytes, kind: str, draw: random.Random) -> bytes:
    if not data or kind == "empty":
        return b""
    if kind == "cut":
        return data[: draw.randrange(len(data))]
    if kind in ("flip", "flips"):
        changed = bytearray(data)
        for _ in range(1 if kind == "flip" else 8):
            changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        return bytes(changed)
    lines = data.splitlines(keepends=True)
    at = draw.randrange(len(lines))
    if kind == "double a line":
        lines.insert(at, lines[at])
    elif kind == "remove a line":
        del lines[at]
    else:
        second = draw.randrange(len(lines))
        lines[at], lines[second] = lines[second], lines[at]
    return b"".join(lines)


def tell(found: dict[str, Any], out: Path | None) -> None:
    """Print what was found, and keep it."""
    text = json.dumps(found, indent=1)
    print(text)
    if out:
        out.write_text(text + "\n")
