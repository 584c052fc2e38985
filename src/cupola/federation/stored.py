"""What a site keeps on its own disk: its state between questions, and the answers it gave.

Files are written whole or not at all, with a checksum, and are on disk before anything depends on
them.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np

from cupola.base.chain import checked, damaged, read_checked
from cupola.base.files import take, write_atomically
from cupola.errors import DataError
from cupola.federation.message import Arrays, Declined, Question, digest
from cupola.federation.site import StateStore

_MARK = 32  # letters of a question's digest
_COPY = "restore this folder from its newest copy, or withdraw and join under a new name"


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
        self._steps = {_number(path.stem, path) for path in self._folder.glob("*.answer")}

    @property
    def newest(self) -> int:
        """The last step that was answered; -1 if none was."""
        return max(self._steps, default=-1)

    def require(self, newest: int) -> None:
        """DataError unless the last answer that was seen, or a later one, is here."""
        if self.newest < newest:
            raise damaged(self._path(newest), "it is missing: an old copy", _COPY)

    def find(self, question: Question, form: str = "") -> bytes | None:
        """The answer that was given to this question; None if it is new, Declined if neither.

        form: of a question that can be asked in several (unmasked, for a masked sum).
        """
        if question.step not in self._steps:
            if self._steps and question.step < max(self._steps):
                raise Declined("a later step was answered: this one is over")
            return None
        path = self._path(question.step)
        whole = read_checked(path, _COPY)
        if len(whole) < _MARK:
            raise damaged(path, "it is cut off", _COPY)
        if whole[:_MARK] != _key(question, form):
            raise Declined("another question was answered under this step")
        return whole[_MARK:]

    def once(self, question: Question, form: str, compute: Callable[[], bytes]) -> bytes:
        """The stored answer, or a new one, which is durable when this returns."""
        held = self.find(question, form)
        if held is not None:
            return held
        answer = compute()
        path = self._path(question.step)
        write_atomically(path, checked(path.name, _key(question, form) + answer))
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


_BESIDE = "versions beside"


class DiskStore(StateStore):
    """A site's state on its own disk: one file per version, written before the answer is sent.
    Each names the versions that were kept beside it, so that a missing one is noticed."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        beside: dict[int, tuple[int, list[int]]] = {}
        for path in folder.glob("*.npz"):
            site, step = (_number(part, path) for part in f"{path.stem}-".split("-")[:2])
            try:
                with np.load(io.BytesIO(read_checked(path, _COPY)), allow_pickle=False) as arrays:
                    found = dict(arrays)
            except (ValueError, OSError, EOFError, zipfile.BadZipFile):
                raise damaged(path, "it holds no arrays", _COPY) from None
            kept = found.pop(_BESIDE, np.zeros(0, np.int64)).tolist()
            beside[site] = max(beside.get(site, (-1, [])), (step, kept))
            self._versions.setdefault(site, {})[step] = found
        for site, (_, kept) in beside.items():
            for step in kept:
                if step not in self._versions[site]:
                    raise damaged(self._path(site, step), "it is missing", _COPY)

    def _path(self, site: int, step: int) -> Path:
        return self._folder / f"{site}-{step}.npz"

    @property
    def newest(self) -> int:
        """The last step that left something; -1 if none did."""
        return max((step for kept in self._versions.values() for step in kept), default=-1)

    def require(self, newest: int) -> None:
        """DataError unless the last version that was seen, or a later one, is here."""
        if self.newest < newest:
            raise damaged(self._folder, f"what step {newest} left is missing: an old copy", _COPY)

    def write(self, site: int, step: int, arrays: Arrays, confirmed: int) -> None:
        super().write(site, step, arrays, confirmed)
        kept = [s for s in self._versions[site] if s < step]
        packed, path = io.BytesIO(), self._path(site, step)
        np.savez(packed, **arrays, **{_BESIDE: np.array(kept, np.int64)})  # type: ignore[arg-type]
        write_atomically(path, checked(path.name, packed.getvalue()))
        self._prune(site)

    def _prune(self, site: int) -> None:
        kept = {f"{site}-{s}" for s in self._versions[site]}
        for old in self._folder.glob(f"{site}-*.npz"):
            if old.stem not in kept:
                old.unlink()


def _number(text: str, path: Path) -> int:
    try:
        return int(text)
    except ValueError:
        raise damaged(path, "it does not belong here", _COPY) from None


class SingleWriterLock:
    """One process at a time may answer for a site: held until close or the process's end."""

    def __init__(self, folder: Path, wait: float = 10.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] | None = (folder / ".lock").open("ab")
        if not take(self._file, wait):  # one that was told to end may still be at work
            self.close()
            raise DataError(f"another process answers for {folder}; wait for it to end, or stop it")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
