"""Downloads: asked for, checked, atomic."""

import hashlib
from pathlib import Path

import pytest

from cupola.data.download import Files, Remote, cache_folder, fetch
from cupola.errors import DataError


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    """A file served by its path."""
    path = tmp_path / "served.bin"
    path.write_bytes(b"content" * 1000)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Remote(path.as_uri(), "sha256:" + digest)


def test_fetch(remote: Remote, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    target = fetch(
        remote, tmp_path / "new" / "file.bin", lambda done, total: seen.append((done, total))
    )
    assert target.read_bytes() == b"content" * 1000
    assert seen == [(7000, 7000)]
    assert [p.name for p in target.parent.iterdir()] == ["file.bin"]


def test_a_wrong_checksum_leaves_nothing(remote: Remote, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected 0000"):
        fetch(Remote(remote.url, "md5:0000"), tmp_path / "new" / "file.bin")
    assert list((tmp_path / "new").iterdir()) == []


def test_no_network_is_one_clear_line(tmp_path: Path) -> None:
    for url in ("http://127.0.0.1:9/x.bin", (tmp_path / "none").as_uri()):
        with pytest.raises(DataError, match="is there a network") as caught:
            fetch(Remote(url, "md5:0"), tmp_path / "x.bin")
        assert "\n" not in str(caught.value)
        assert url in str(caught.value)
    with pytest.raises(DataError, match="only http"):
        fetch(Remote("ftp://host/x", "md5:0"), tmp_path / "x.bin")


def test_nothing_is_downloaded_unless_asked(
    remote: Remote, nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="cupola data get thing") as caught:
        Files("thing").get("served.bin", remote)
    assert remote.url in str(caught.value)
    assert str(nowhere) in str(caught.value)
    assert not nowhere.exists()
    path = Files("thing", download=True).get("served.bin", remote)
    assert path == nowhere / "thing" / "served.bin"
    assert Files("thing").get("served.bin", remote) == path  # now it is there
    monkeypatch.setenv("CUPOLA_DATA", str(tmp_path))
    assert Files("thing").get("served.bin") == tmp_path / "served.bin"
    with pytest.raises(DataError, match="put it at"):
        Files("thing", folder=tmp_path / "elsewhere").get("served.bin")


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUPOLA_CACHE", raising=False)
    assert cache_folder() == Path.home() / ".cache" / "cupola"
