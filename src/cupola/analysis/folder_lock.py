"""Who may write to a folder, under which name, and until when: for runs and studies."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cupola.analysis.checkpoint import write_sealed
from cupola.base.chain import read_sealed
from cupola.base.files import take
from cupola.base.jsonl import read_lines as read_lines
from cupola.errors import CupolaError, PlanError

LOCK = ".lock"
ASIDE = ".replaced"  # what --overwrite replaces, until the new run has begun
MOVING = ".replacing"  # the same, while it is moved there or back: a crash leaves it in two places
DROPPED = ".dropped"  # the same, once it is not needed any more
RESERVE = ".reserve"  # room for the reason on a full disk
HIDDEN = (LOCK, ASIDE, MOVING, DROPPED, RESERVE)
_RESERVED = 1 << 16  # bytes
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder against other processes; the system frees it when its holder dies."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _refuse_links(folder)
        file = (folder / LOCK).open("a+")
    except OSError as error:
        raise PlanError(f"cannot write to {folder}: {error.strerror}") from None
    with file:
        if not take(file):
            file.seek(0)
            raise CupolaError(
                f"{folder} is in use by process {file.read().strip() or 'unknown'}; "
                "wait for it, or choose another folder"
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        _move_back(folder)
        shutil.rmtree(folder / DROPPED, ignore_errors=True)
        yield


def _refuse_links(folder: Path) -> None:
    """What is written to a link is written elsewhere: a folder that somebody sent could name any
    file of this user's to be cut short."""
    link = next((path for path in folder.rglob("*") if path.is_symlink()), None)
    if link is not None:
        raise PlanError(
            f"{link} is a link; a run folder holds its files itself: put what it leads to there, "
            "or choose another folder (--out)"
        )


@contextmanager
def signals(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and a request to terminate stop between two steps (in the main thread)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    known = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: stop()) for number in known}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_id(folder: Path | None, name: str) -> str:
    """Names a run in a file that outlives it: the same after a resume, another for a new run."""
    if folder is None:
        return secrets.token_hex(8)
    path = folder / f"{name}.id"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_sealed(path, secrets.token_hex(8))
    return read_sealed(path)[0].strip()


# What --overwrite replaces


class Aside:
    """The old run of a folder, out of the way until the new one has begun: then `drop` it; or, if
    it cannot begin, bring it `back`. A folder of this name is whole: a crash while files are moved
    leaves another name, from which `locked` moves them back."""

    def __init__(self, folder: Path, contents: Sequence[str]) -> None:
        self._folder, self._place, self._contents = folder, folder / ASIDE, contents
        if self._place.exists():  # a new run was killed before it had begun: it goes
            self._clear()
            return
        (folder / MOVING).mkdir()
        for name in self._held():
            (folder / name).rename(folder / MOVING / name)
        (folder / MOVING).rename(self._place)

    def _held(self) -> list[str]:
        return [name for name in self._contents if (self._folder / name).exists()]

    def _clear(self) -> None:
        for name in self._held():
            remove(self._folder / name)

    def back(self) -> None:
        self._clear()
        self._place.rename(self._folder / MOVING)
        _move_back(self._folder)

    def __enter__(self) -> Aside:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None and self._place.exists():  # it had not begun
            self.back()


def drop(folder: Path) -> None:
    """A new run has begun: what it replaces goes."""
    if (folder / ASIDE).exists():
        (folder / ASIDE).rename(folder / DROPPED)
        shutil.rmtree(folder / DROPPED, ignore_errors=True)


def _move_back(folder: Path) -> None:
    if (folder / MOVING).exists():
        for path in (folder / MOVING).iterdir():
            path.rename(folder / path.name)
        (folder / MOVING).rmdir()


def remove(path: Path) -> None:
    """A file, or a folder that is no link to one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def room(folder: Path) -> Iterator[Callable[[], None]]:
    """Hold some room on the disk; calling frees it, so that a full disk leaves a reason behind."""
    path = folder / RESERVE

    def free() -> None:
        with suppress(OSError):
            path.unlink(missing_ok=True)

    with suppress(OSError):
        path.write_bytes(bytes(_RESERVED))
    try:
        yield free
    finally:
        free()
