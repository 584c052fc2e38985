"""Finding data files, and fetching them from their official address when asked to."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from cupola.errors import DataError

Progress = Callable[[int, int | None], None]  # bytes done, bytes in all if known


@dataclass(frozen=True)
class Remote:
    """An official file: its address and checksum ("md5:..." or "sha256:...")."""

    url: str
    checksum: str


def cache_folder() -> Path:
    """Where downloads go: CUPOLA_CACHE, or ~/.cache/cupola."""
    given = os.environ.get("CUPOLA_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "cupola"


def data_folder() -> Path | None:
    """The user's folder of data files, CUPOLA_DATA, if set."""
    given = os.environ.get("CUPOLA_DATA")
    return Path(given).expanduser() if given else None


def checksum(path: Path, algorithm: str) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(
            file, lambda: hashlib.new(algorithm, usedforsecurity=False)
        ).hexdigest()


def fetch(remote: Remote, target: Path, progress: Progress | None = None) -> Path:
    """Download to `target`: checked before it appears there, so a broken file is never left."""
    algorithm, expected = remote.checksum.split(":")
    if not remote.url.startswith(("https://", "http://", "file://")):
        raise DataError(f"{remote.url}: only http and https addresses can be downloaded")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name + ".")
    except OSError as error:
        raise DataError(f"cannot write to {target.parent}: {error}; set CUPOLA_CACHE") from None
    part = Path(name)
    try:
        with (
            os.fdopen(handle, "wb") as out,
            urllib.request.urlopen(remote.url, timeout=60) as reply,
        ):
            length = reply.headers.get("Content-Length")
            total, done = int(length) if length else None, 0
            while block := reply.read(1 << 20):
                out.write(block)
                done += len(block)
                if progress is not None:
                    progress(done, total)
        found = checksum(part, algorithm)
        if found != expected:
            raise DataError(
                f"{remote.url}: {algorithm} is {found}, expected {expected}; nothing was kept"
            )
        part.chmod(0o644)  # mkstemp's files are for their owner alone
        os.replace(part, target)
    except (urllib.error.URLError, HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"cannot download {remote.url} ({reason}): is there a network? "
            f"Or put the file at {target}"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return target


@dataclass(frozen=True)
class Files:
    """Where a loader finds its files. Only downloads if told to (`download=True`)."""

    name: str  # of the data set
    folder: Path | None = None
    download: bool = False
    progress: Progress | None = None

    def places(self, extra: Sequence[Path] = ()) -> list[Path]:
        """Folders looked in, first to last; a folder the user names is the only one."""
        if self.folder is not None:
            return [self.folder]
        data = data_folder()
        named = [] if data is None else [data, data / self.name]
        return [*named, *extra, cache_folder() / self.name]

    def look(self, name: str, extra: Sequence[Path] = ()) -> Path | None:
        """Path of a file or folder if it is there."""
        return next((p / name for p in self.places(extra) if (p / name).exists()), None)

    def get(self, name: str, remote: Remote | None = None, extra: Sequence[Path] = ()) -> Path:
        """Path of a file, downloaded if need be and wanted; else the way to get it."""
        found = self.look(name, extra)
        if found is not None:
            return found
        target = (self.folder or cache_folder() / self.name) / name
        if remote is not None and self.download:
            return fetch(remote, target, self.progress)
        raise self.missing(name, remote, extra)

    def missing(
        self, name: str, remote: Remote | None = None, extra: Sequence[Path] = ()
    ) -> DataError:
        """The error that says where a file was looked for and how to get it."""
        places = self.places(extra)
        looked = ", ".join(str(p) for p in places)
        if remote is None:
            hint = f"put it at {places[0] / name}, or name its folder with folder=..."
        else:
            hint = f"get it with `cupola data get {self.name}` (from {remote.url})"
        return DataError(f"{self.name}: {name} is not in {looked}; {hint}")
