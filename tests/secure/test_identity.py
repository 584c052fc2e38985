"""Keys are made by their party, kept by it, and spelt one way."""

import contextlib
import json
import os
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupola.errors import CupolaError, DataError, FederationError
from cupola.secure.identity import Identity, Party


def test_keys_are_written_for_their_owner_and_read_again(tmp_path):
    path = tmp_path / "new" / "site.key"
    made = Identity.create(path, "Hospital A")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["site.key"]
    again = Identity.open(path)
    assert again.public == made.public
    assert not again.repeatable
    assert again.sign.sign(b"x") == made.sign.sign(b"x")


def test_an_existing_file_is_never_touched(tmp_path):
    path = tmp_path / "site.key"
    Identity.create(path, "A")
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"'site.key' exists"):
        Identity.create(path, "A")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["site.key"]


def test_two_parties_have_nothing_in_common(tmp_path):
    a, b = (Identity.create(tmp_path / name, "A").public for name in "ab")
    assert len({a.sign, a.seal, b.sign, b.seal}) == 4
    assert a.fingerprint != b.fingerprint


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_keys_that_others_can_read_are_refused(tmp_path):
    path = tmp_path / "site.key"
    Identity.create(path, "A")
    path.chmod(0o640)
    with pytest.raises(DataError, match="can be read by others"):
        Identity.open(path)


def test_simulated_keys_can_be_repeated_and_say_so():
    a, again = Identity.simulated(1, "a"), Identity.simulated(1, "a")
    assert a.repeatable
    assert a.public == again.public
    others = [Identity.simulated(2, "a"), Identity.simulated(1, "b"), Identity.simulated(-1, "a")]
    assert len({p.public.sign for p in [a, *others]}) == 4


def test_nothing_private_is_shown(tmp_path):
    identity = Identity.create(tmp_path / "k", "A")
    facts = json.loads((tmp_path / "k").read_text())
    shown = f"{identity} {identity!r} {identity.public}"
    assert facts["sign"] not in shown
    assert facts["seal"] not in shown


@given(st.binary(max_size=80))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_damaged_file_is_refused_without_its_folder_or_content(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("keys")
    path = folder / "site.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(DataError) as refused:
        Identity.open(path)
    assert str(refused.value) == "'site.key' cannot be read, or is not a key file"


def test_damaged_facts_are_refused(tmp_path):
    path = tmp_path / "site.key"
    Identity.create(path, "A")
    good = json.loads(path.read_text())
    for key, value in [
        ("sign", "00"), ("seal", "zz"), ("name", ""), ("name", 3), ("format", 2), ("cupola", "x"),
        ("sign", None), ("seal", 5),
    ]:  # fmt: skip
        path.write_text(json.dumps({**good, key: value}))
        with pytest.raises(DataError):
            Identity.open(path)
    for text in ("[]", "null", "3", "[" * 4000, json.dumps({"cupola": "identity"})):
        path.write_text(text)
        with pytest.raises(DataError):
            Identity.open(path)
    path.unlink()
    with pytest.raises(DataError):
        Identity.open(path)


def test_a_public_key_has_one_spelling():
    """X25519 ignores the top bit, and both curves take numbers modulo the field."""
    party = Identity.simulated(1, "a").public
    twin = bytes([*party.seal[:31], party.seal[31] | 0x80])
    for sign, seal in [
        (party.sign, twin),
        (party.sign, b"\xff" * 32),
        (b"\xff" * 32, party.seal),
        ((2**255 - 19).to_bytes(32, "little"), party.seal),
        (party.sign[:31], party.seal),
        (party.sign, "a" * 32),
    ]:
        with pytest.raises(FederationError):
            Party("a", sign, seal)


@given(st.binary(max_size=33), st.binary(max_size=33), st.text(max_size=4))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_fuzzed_parties_raise_nothing_but_the_declared_error(sign, seal, name):
    with contextlib.suppress(CupolaError):
        party = Party(name, sign, seal)
        assert len(party.fingerprint) == 29
        party.check()


def test_keys_of_small_order_are_refused():
    """The eight points of small order of each curve, in their usual form."""
    good, p = Identity.simulated(1, "a").public, 2**255 - 19
    good.check()
    y8 = "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"
    y8 = int.from_bytes(bytes.fromhex(y8), "little")
    for y in (0, 1, p - 1, y8, p - y8):
        for sign in {y, y | 1 << 255}:
            with pytest.raises(FederationError, match="protects nothing"):
                Party("a", sign.to_bytes(32, "little"), good.seal).check()
    u8 = 325606250916557431795983626356110631294008115727848805560023387167927233504
    u8b = 39382357235489614581723060781553021112529911719440698176882885853963445705823
    for u in (0, 1, p - 1, u8, u8b):
        with pytest.raises(FederationError, match="protects nothing"):
            Party("a", good.sign, u.to_bytes(32, "little")).check()
