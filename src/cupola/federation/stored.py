"""What a site keeps on its own disk: its state between questions, and the answers it gave.

Files are written whole or not at all, and are on disk before anything depends on them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np

from cupola.errors import DataError
from cupola.federation.message import Arrays, Declined, Question, digest
from cupola.federation.site import StateStore

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

_MARK = 32  # letters of a question's digest


class StoredAnswers:
    """The answers to the last steps, as bytes, so that a question asked again gets the same.

    Under one step a site answers one question, and it answers no new question under an earlier
    step than its last one: who asks out of order, or asks something else, is refused. What the
    coordinator has confirmed is let go, except for the last answer, which says how far this is.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.look_again()

    def look_again(self) -> None:
        """Read which steps were answered: another process may have answered for this site since."""
        self._steps = {int(path.stem) for path in self._folder.glob("*.answer")}

    def find(self, question: Question, form: str = "") -> bytes | None:
        """The answer that was given to this question; None if it is new, Declined if neither.

        form: of a question that can be asked in several (openly, for a masked sum).
        """
        if question.step not in self._steps:
            if self._steps and question.step < max(self._steps):
                raise Declined("a later step was answered: this one is over")
            return None
        whole = self._path(question.step).read_bytes()
        if len(whole) < _MARK:
            raise DataError("a stored answer is damaged; restore it from a copy")
        if whole[:_MARK] != _key(question, form):
            raise Declined("another question was answered under this step")
        return whole[_MARK:]

    def once(self, question: Question, form: str, compute: Callable[[], bytes]) -> bytes:
        """The stored answer, or a new one, which is durable when this returns."""
        held = self.find(question, form)
        if held is not None:
            return held
        answer = compute()
        write_durably(self._path(question.step), [_key(question, form), answer])
        self._steps.add(question.step)
        for step in [s for s in self._steps if s <= question.confirmed and s < question.step]:
            self._path(step).unlink(missing_ok=True)
            self._steps.discard(step)
        return answer

    def _path(self, step: int) -> Path:
        return self._folder / f"{step}.answer"


def _key(question: Question, form: str) -> bytes:
    mark = digest(question).encode()
    if not form:
        return mark
    import hashlib

    return hashlib.blake2b(mark + form.encode(), digest_size=_MARK // 2).hexdigest().encode()


class DiskStore(StateStore):
    """A site's state on its own disk: one file per version, written before the answer is sent."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        for path in folder.glob("*.npz"):
            site, step = (int(part) for part in path.stem.split("-"))
            with np.load(path, allow_pickle=False) as arrays:
                self._versions.setdefault(site, {})[step] = dict(arrays)

    def write(self, site: int, step: int, arrays: Arrays, confirmed: int) -> None:
        path = self._folder / f"{site}-{step}.npz"
        with _replacing(path) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        super().write(site, step, arrays, confirmed)
        kept = {f"{site}-{s}" for s in self._versions[site]}
        for old in self._folder.glob(f"{site}-*.npz"):
            if old.stem not in kept:
                old.unlink()


class _replacing:
    """A file that takes its name when it is whole and on disk."""

    def __init__(self, path: Path) -> None:
        self._path, self._part = path, path.with_suffix(".part")

    def __enter__(self) -> IO[bytes]:
        self._file = self._part.open("wb")
        if self._path.exists():  # who may read it stays as it was
            self._part.chmod(self._path.stat().st_mode & 0o777)
        return self._file

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            with self._file:
                if kind is None:
                    self._file.flush()
                    os.fsync(self._file.fileno())
            if kind is None:
                self._part.replace(self._path)
                sync_folder(self._path.parent)
        finally:
            with suppress(OSError):
                self._part.unlink(missing_ok=True)


def write_durably(path: Path, parts: list[bytes]) -> None:
    """Write a file whole or not at all; it is on disk when this returns."""
    with _replacing(path) as file:
        for part in parts:
            file.write(part)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class Alone:
    """One process at a time may answer for a site: held until close or the process's end."""

    def __init__(self, folder: Path, wait: float = 10.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] | None = (folder / ".lock").open("ab")
        deadline = time.monotonic() + wait
        while fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    self.close()
                    raise DataError(
                        f"another process answers for {folder}; wait for it to end, or stop it"
                    ) from None
                time.sleep(0.05)  # one that was told to end may still be at work

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
