"""Checksums and hash chains: files that show what was damaged, edited, removed or reordered.

- A *chain* is a file of JSON lines. The last value of each line is the hash of the line and of the
  value before it, so that the last one, the head, stands for the whole file. A line that a crash
  cut off is no damage; one that was changed, moved or taken out in the middle is. What is missing
  at the end shows where the head is known: in a checkpoint, in a receipt.
- A *sealed* text carries the hash of its name and content: JSON as the last value of its last
  object, other text (TOML) in a comment at its beginning.
- A *checked* file of bytes begins with the hash of its name and content.

Files of earlier versions have none of this and stay readable; they cannot be verified. A chain goes
on from such lines, and covers them from then on.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from cupola.errors import DataError

_LINE = re.compile(rb',"chain":"([0-9a-f]{32})"\}$')
_JSON = re.compile(r',\s*"checksum":\s*"([0-9a-f]{32})"(\s*\}\s*\]?\s*)$')
_TEXT = re.compile(r"^# checksum: ([0-9a-f]{32})\n")
_CHECKED = b"cupola checked "
AGAIN = "restore it from a copy, or run the plan again with --overwrite"

Tail = tuple[int, str]  # lines (or bytes), and the head after them


def mark(*parts: bytes | memoryview) -> str:
    """The hash of some bytes."""
    found = blake2b(digest_size=16)
    for part in parts:
        found.update(part)
    return found.hexdigest()


def damaged(path: Path, how: str, way_out: str = AGAIN) -> DataError:
    """What is said of a file that is not as it was written."""
    return DataError(f"{path} is damaged ({how}); {way_out}")


# Chains


class Chain:
    """The running hash of lines. heads: after each of them, to look back."""

    def __init__(self) -> None:
        self.head = ""
        self.loose = 0  # lines of earlier versions, at the beginning
        self._heads = bytearray()

    @property
    def count(self) -> int:
        return len(self._heads) // 16

    @property
    def tail(self) -> Tail:
        return self.count, self.head

    def head_after(self, count: int) -> str:
        return self._heads[16 * (count - 1) : 16 * count].hex() if count else ""

    def line(self, text: str) -> tuple[bytes, str]:
        """The line that a JSON object becomes, and the head after it; `take` makes it count."""
        body = text[:-1].encode()
        head = mark(self.head.encode(), body)
        return body + f',"chain":"{head}"}}\n'.encode(), head

    def take(self, line: bytes) -> None:
        """One more line, without its end. ValueError if it does not follow."""
        found = _LINE.search(line)
        body = line if found is None else line[: found.start()]
        head = mark(self.head.encode(), body)
        if found is None:
            if self.loose < self.count:
                raise ValueError("it carries no checksum")
            self.loose += 1
        elif found[1].decode() != head:
            raise ValueError("it, or what was before it, was changed, moved or removed")
        self.head = head
        self._heads += bytes.fromhex(head)

    def read(self, path: Path, whole: bytes, way_out: str = AGAIN) -> Iterator[dict[str, Any]]:
        """The records of whole lines; a line without its end belongs to a crash."""
        for number, line in enumerate(whole[: whole.rfind(b"\n") + 1].splitlines(), start=1):
            try:
                self.take(line)
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise ValueError("it is no record")
            except ValueError as error:
                how = "it is not JSON" if isinstance(error, json.JSONDecodeError) else error
                raise damaged(path, f"line {number}: {how}", way_out) from None
            record.pop("chain", None)
            yield record

    def require(self, path: Path, tail: Tail, way_out: str = AGAIN) -> None:
        """DataError unless this chain goes on from a tail that was seen."""
        count, head = tail
        if self.count < count:
            how = f"it has {self.count} lines, and had {count}: an old copy, or cut off"
            raise damaged(path, how, way_out)
        if self.head_after(count) != head:
            raise damaged(path, f"its first {count} lines are not those it had", way_out)


def read_chain(path: Path, way_out: str = AGAIN) -> list[dict[str, Any]]:
    """The records of a file, verified."""
    return list(Chain().read(path, path.read_bytes(), way_out))


# Sealed text


def sealed_json(name: str, text: str) -> str:
    """JSON (an object, or a list of some) whose last value is its checksum."""
    body = text.rstrip().removesuffix("]").rstrip().removesuffix("}").rstrip()
    end = text[len(body) :]
    if not end.startswith(("}", "\n")) or body.endswith(("{", "[")) or "}" not in end:
        return text  # there is nothing in it
    gap = "\n    " if end.count("\n") > 1 else "\n  " if "\n" in end else ""
    return f'{body},{gap}"checksum": "{mark(name.encode(), body.encode())}"{end}'


def sealed_text(name: str, text: str) -> str:
    """Text that begins with a comment: its checksum."""
    return f"# checksum: {mark(name.encode(), text.encode())}\n{text}"


def read_sealed(path: Path, way_out: str = AGAIN) -> tuple[str, bool]:
    """A file's text, and whether a checksum has verified it; DataError if one does not fit."""
    try:
        whole = path.read_bytes().decode()
    except UnicodeDecodeError:
        raise damaged(path, "it is not text", way_out) from None
    is_json = path.suffix == ".json"
    found = (_JSON if is_json else _TEXT).search(whole)
    if found is None:
        if not whole.strip():
            raise damaged(path, "it is empty", way_out)
        near = whole[-60:] if is_json else whole[:10]  # where a checksum's name would be
        if "chec" in near[2 * (not is_json) :] or "ksum" in near:
            raise damaged(path, "its checksum is not readable", way_out)
        return whole, False
    body = whole[: found.start()] if is_json else whole[found.end() :]
    if mark(path.name.encode(), body.encode()) != found[1]:
        raise damaged(path, "its checksum does not fit", way_out)
    return body + (found[2] if is_json else ""), True


def read_json(path: Path, way_out: str = AGAIN) -> Any:
    """What a sealed JSON file says, without its checksum."""
    text, _ = read_sealed(path, way_out)
    try:
        return json.loads(text)
    except ValueError:
        raise damaged(path, "it is not JSON", way_out) from None


# Folders


def marks(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The hashes of those of these files that are there."""
    return {name: mark((folder / name).read_bytes()) for name in names if (folder / name).is_file()}


def require_marks(folder: Path, told: Mapping[str, str], way_out: str = AGAIN) -> None:
    """DataError for the first file that is not as it was."""
    for name, hashed in told.items():
        path = folder / name
        if not path.is_file():
            raise damaged(path, "it is missing", way_out)
        if mark(path.read_bytes()) != hashed:
            raise damaged(path, "it is not what the run wrote", way_out)


def tails(folder: Path, names: Iterable[str]) -> dict[str, Tail]:
    """Of chains in this folder, made durable, their lengths in bytes and their heads."""
    found = {}
    for name in names:
        if (folder / name).is_file():
            with (folder / name).open("rb") as file:
                os.fsync(file.fileno())
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - 50))
                ends = _LINE.search(file.read().removesuffix(b"\n"))
            if ends is not None:
                found[name] = size, ends[1].decode()
    return found


def require_tails(folder: Path, told: Mapping[str, Tail]) -> None:
    """DataError for the first chain that does not go on from where it was."""
    for name, (size, head) in told.items():
        path, chain = folder / name, Chain()
        whole = path.read_bytes() if path.is_file() else b""
        for _ in chain.read(path, whole[:size]):
            pass
        if len(whole) < size or chain.head != head:
            raise damaged(path, f"its first {size} bytes are not those it had")
        for _ in chain.read(path, whole[size:]):
            pass


def read_result(folder: Path, whole: bool = False) -> dict[str, Any]:
    """What result.json says, verified; nothing while there is none. whole: all files that it names
    are verified, too; while there is none, those that the checkpoint knows."""
    path = folder / "result.json"
    if not path.is_file():
        if whole:
            require_checkpoint(folder)
        return {}
    way_out = f"`cupola resume {folder}` writes it again, if its checkpoint is there"
    found = read_json(path, way_out)
    if not isinstance(found, dict):
        raise damaged(path, "it is no record", way_out)
    told = found.get("checksums") or {}
    if not whole:
        told = {name: told[name] for name in ("plan.toml", "study.toml") if name in told}
    require_marks(folder, told, way_out)
    return found


def checkpoint_facts(folder: Path) -> dict[str, Any]:
    """What a run's checkpoint says of the folder; nothing while there is none."""
    path = folder / "checkpoint" / "state.safetensors"
    if not path.is_file():
        return {}
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(size, path.stat().st_size)))
        facts = json.loads(header["__metadata__"]["cupola"])
        return facts if isinstance(facts, dict) else {}
    except (ValueError, KeyError, TypeError):
        raise damaged(path, "its header is not readable") from None


def require_checkpoint(folder: Path) -> None:
    """DataError unless the files of a run that is not finished go on from its checkpoint."""
    facts = checkpoint_facts(folder)
    require_marks(folder, facts.get("files", {}))
    ends = {f"{name}.jsonl": (facts["lengths"][name], head)
            for name, (_, head) in facts.get("heads", {}).items()}  # fmt: skip
    require_tails(folder, {**facts.get("tails", {}), **ends})


# Checked bytes


def checked(name: str, data: bytes) -> list[bytes]:
    """The parts of a file whose first line is its checksum."""
    return [_CHECKED, mark(name.encode(), data).encode(), b"\n", data]


def read_checked(path: Path, way_out: str = AGAIN) -> bytes:
    """The bytes of such a file; those of an earlier version as they are."""
    try:
        whole = path.read_bytes()
    except FileNotFoundError:
        raise damaged(path, "it is missing", way_out) from None
    if not whole.startswith(_CHECKED):
        if whole[: len(_CHECKED) // 2] == _CHECKED[: len(_CHECKED) // 2] or not whole:
            raise damaged(path, "its beginning is not as it was written", way_out)
        return whole
    start = len(_CHECKED) + 33
    data = whole[start:]
    if whole[len(_CHECKED) : start] != mark(path.name.encode(), data).encode() + b"\n":
        raise damaged(path, "its checksum does not fit", way_out)
    return data
