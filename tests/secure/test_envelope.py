"""An envelope opens for one reader, from one site, for one answer, and never otherwise."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupola.secure.envelope import ENVELOPE, EnvelopeError, Statement, seal, unseal
from cupola.secure.identity import Identity, Party

SITE, OTHER, THIRD = (Identity.simulated(3, name) for name in ("site", "other", "third"))
STATEMENT = Statement("study", b"r" * 32, 4, 1, b"q" * 32, b"l" * 32, "site")
SEED = bytes(range(32))
GOOD = seal(STATEMENT, SEED, SITE, THIRD.public)
quick = settings(max_examples=200, deadline=None, derandomize=True)


def refused(statement, envelope, signer=SITE.public, reader=THIRD):
    with pytest.raises(EnvelopeError):
        unseal(statement, envelope, signer, reader)
    return True


def test_the_compensator_reads_what_the_site_sealed():
    assert len(GOOD) == ENVELOPE == 144
    assert unseal(STATEMENT, GOOD, SITE.public, THIRD) == SEED
    assert SEED not in GOOD


def test_no_two_envelopes_are_alike():
    again = seal(STATEMENT, SEED, SITE, THIRD.public)
    assert again[:32] != GOOD[:32]
    assert again[32:80] != GOOD[32:80]
    assert unseal(STATEMENT, again, SITE.public, THIRD) == SEED


@pytest.mark.parametrize(
    "change",
    [
        {"study": "study2"},
        {"roster": b"R" * 32},
        {"step": 5},
        {"attempt": 2},
        {"question": b"Q" * 32},
        {"layout": b"L" * 32},
        {"site": "other"},
        {"terms": b"T" * 32},
        {"step": 1, "attempt": 4},
        {"question": b"l" * 32, "layout": b"q" * 32},
    ],
)
def test_an_envelope_is_for_one_answer(change):
    assert refused(replace(STATEMENT, **change), GOOD)
    assert replace(STATEMENT, **change).encode() != STATEMENT.encode()


def test_only_the_named_site_can_sign_and_only_the_compensator_can_read():
    assert refused(STATEMENT, GOOD, signer=OTHER.public)
    assert refused(STATEMENT, GOOD, reader=OTHER)
    forged = seal(STATEMENT, SEED, OTHER, THIRD.public)  # the coordinator's own keys
    assert refused(STATEMENT, forged)
    assert refused(STATEMENT, forged[:80] + GOOD[80:])
    assert refused(STATEMENT, GOOD[:32] + forged[32:80] + GOOD[80:])


def test_a_seal_of_another_key_does_not_open():
    """The site was given a wrong compensator's key: the right one cannot read it."""
    assert refused(STATEMENT, seal(STATEMENT, SEED, SITE, OTHER.public))


def test_a_seed_cannot_be_lifted_into_ones_own_envelope():
    """Another site that re-signs a seed it cannot read gains nothing: the seal holds the
    statement, with the first site's name."""
    own = replace(STATEMENT, site="other")
    from cupola.secure.envelope import _signed

    lifted = GOOD[:80] + OTHER.sign.sign(_signed(own, GOOD[:32], GOOD[32:80]))
    assert refused(own, lifted, signer=OTHER.public)


@given(st.integers(0, 144 * 8 - 1))
@quick
def test_every_bit_counts(bit):
    bad = bytearray(GOOD)
    bad[bit // 8] ^= 1 << bit % 8
    assert refused(STATEMENT, bytes(bad))


@given(st.binary(max_size=200))
@quick
def test_fuzzed_envelopes_raise_nothing_but_the_declared_error(data):
    assert refused(STATEMENT, data)
    assert refused(STATEMENT, (data * 144)[:144] if data else bytes(144))


@pytest.mark.parametrize("bad", [None, 3, "a" * 144, [0] * 144, bytearray(GOOD), memoryview(GOOD)])
def test_what_is_not_bytes_is_refused(bad):
    assert refused(STATEMENT, bad)


def test_keys_without_secrecy_are_refused():
    """Points of small order would make the shared secret known to all."""
    from cupola.secure.envelope import _signed

    for point in (bytes(32), (1).to_bytes(32, "little")):
        signature = SITE.sign.sign(_signed(STATEMENT, point, GOOD[32:80]))
        assert refused(STATEMENT, point + GOOD[32:80] + signature)
        with pytest.raises(EnvelopeError):
            seal(STATEMENT, SEED, SITE, Party("third", THIRD.public.sign, point))
