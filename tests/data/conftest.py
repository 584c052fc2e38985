"""The real files of CUPOLA_DATA, and no files at all."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def real() -> Callable[[str], Path]:
    """Path of a real data file, or a skip with the reason."""

    def find(name: str) -> Path:
        folder = os.environ.get("CUPOLA_DATA")
        if not folder:
            pytest.skip(f"CUPOLA_DATA is not set: no {name}")
        path = Path(folder) / name
        if not path.exists():
            pytest.skip(f"CUPOLA_DATA has no {name}")
        return path

    return find


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No data folder, an empty cache."""
    monkeypatch.delenv("CUPOLA_DATA", raising=False)
    monkeypatch.setenv("CUPOLA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
