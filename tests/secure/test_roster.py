"""A roster is exactly what its parties agreed to, or it is refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupola.errors import FederationError
from cupola.secure.identity import Identity, Party
from cupola.secure.roster import Roster, body_digest, consent, simulated_roster

MEMBERS = [Identity.simulated(5, f"s{i}") for i in range(4)]
THIRD = Identity.simulated(5, "compensator")
SITES = tuple(m.public for m in MEMBERS)


def signed(what, members, minimum=3, sites=SITES, study="study"):
    body = body_digest(study, sites, THIRD.public, minimum)
    return {what: {m.name: consent(m, body, what) for m in members}}


def test_a_roster_survives_json():
    roster = Roster("study", SITES, THIRD.public, 2, signed("two", MEMBERS, 2))
    again = Roster.from_json(roster.to_json())
    assert again == roster
    assert again.digest == roster.digest
    assert Roster.from_json(Roster("s", SITES).to_json()).compensator is None


def test_every_fact_changes_the_digest():
    other = Identity.simulated(6, "s3").public
    renamed = Party("t3", SITES[3].sign, SITES[3].seal)
    rosters = [
        Roster("study", SITES, THIRD.public),
        Roster("study 2", SITES, THIRD.public),
        Roster("study", SITES, None),
        Roster("study", SITES[:3], other),
        Roster("study", SITES, THIRD.public, 4),
        Roster("study", SITES[:3], THIRD.public),
        Roster("study", SITES[::-1], THIRD.public),
        Roster("study", (*SITES[:3], other), THIRD.public),
        Roster("study", (*SITES[:3], renamed), THIRD.public),
        Roster("study", SITES, THIRD.public, 3, signed("leaves", MEMBERS[:1])),
        Roster("study", SITES, THIRD.public, 3, signed("leaves", MEMBERS[:2])),
        Roster("study", SITES, THIRD.public, 3, signed("two", MEMBERS[:1])),
    ]
    digests = {roster.digest for roster in rosters}
    assert len(digests) == len(rosters)


def test_parties_and_keys_are_distinct():
    a = SITES[0]
    mixed = [
        Party("s9", a.sign, SITES[1].seal[::-1]),  # another's key to sign with
        Party("s9", SITES[1].sign[::-1], a.seal),
        Party("s9", a.seal, a.sign),  # swapped
        Party("s0", Identity.simulated(9, "x").public.sign, Identity.simulated(9, "x").public.seal),
        Party("s9", THIRD.public.sign, Identity.simulated(9, "x").public.seal),
    ]
    for party in mixed[:1] + mixed[2:]:
        with pytest.raises(FederationError, match="same"):
            Roster("study", (*SITES, party), THIRD.public)
    with pytest.raises(FederationError, match="same name"):
        Roster("study", SITES, Party("s1", THIRD.public.sign, THIRD.public.seal))


@pytest.mark.parametrize("minimum", [-1, 0, 1, 5, 2**70, 3.0, "3", None, True])
def test_unusable_minima_are_refused(minimum):
    with pytest.raises(FederationError, match="minimum"):
        Roster("study", SITES, THIRD.public, minimum)


def test_two_sites_need_everybodys_consent():
    with pytest.raises(FederationError, match="every site"):
        Roster("study", SITES, THIRD.public, 2)
    with pytest.raises(FederationError, match="every site"):
        Roster("study", SITES, THIRD.public, 2, signed("two", MEMBERS[:3], 2))
    with pytest.raises(FederationError, match="every site"):
        Roster("study", SITES, THIRD.public, 2, signed("leaves", MEMBERS, 2))
    assert Roster("study", SITES, THIRD.public, 2, signed("two", MEMBERS, 2)).minimum == 2


def test_a_consent_is_for_one_roster_one_matter_and_from_its_site():
    good = signed("leaves", MEMBERS[:1])["leaves"]["s0"]
    assert Roster("study", SITES, THIRD.public, 3, {"leaves": {"s0": good}}).leaves == {"s0"}
    for what, name, signature in [
        ("leaves", "s1", good),  # another's
        ("two", "s0", good),  # for something else
        ("leaves", "nobody", good),
        ("leaves", "compensator", good),
        ("everything", "s0", good),
        ("leaves", "s0", good[:-1]),
        ("leaves", "s0", "good"),
        ("leaves", "s0", None),
        ("leaves", "s0", signed("leaves", MEMBERS[:1], 4)["leaves"]["s0"]),
        ("leaves", "s0", signed("leaves", MEMBERS[:1], study="other")["leaves"]["s0"]),
        ("leaves", "s0", signed("leaves", MEMBERS[:1], sites=SITES[:3])["leaves"]["s0"]),
    ]:
        with pytest.raises(FederationError, match="consent"):
            Roster("study", SITES, THIRD.public, 3, {what: {name: signature}})
    with pytest.raises(FederationError, match="consents are"):
        consent(MEMBERS[0], bytes(32), "everything")


def test_consents_cannot_be_added_later():
    roster = Roster("study", SITES, THIRD.public, 3, signed("leaves", MEMBERS[:1]))
    with pytest.raises(TypeError):
        roster.consents["two"] = {}
    with pytest.raises(TypeError):
        roster.consents["leaves"]["s1"] = b""


def test_simulated_rosters_are_complete():
    roster, members, third = simulated_roster(1, "st", 5, minimum=2, leaves=[3])
    assert [m.public for m in members] == list(roster.sites)
    assert roster.compensator == third.public
    assert roster.leaves == {"site 3"}
    assert roster.digest == simulated_roster(1, "st", 5, minimum=2, leaves=[3])[0].digest
    assert simulated_roster(1, "st", 5, compensator=False)[0].compensator is None


TEXT = Roster("study", SITES, THIRD.public, 3, signed("leaves", MEMBERS[:1])).to_json()


@given(st.integers(0, len(TEXT) - 1), st.characters(max_codepoint=0x250), st.booleans())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_tampered_text_is_refused_or_another_roster(where, character, cut):
    tampered = TEXT[:where] if cut else TEXT[:where] + character + TEXT[where + 1 :]
    try:
        found = Roster.from_json(tampered)
    except FederationError:
        return
    same = json.loads(tampered) == json.loads(TEXT)
    upper = tampered.lower() == TEXT.lower()  # hex may be written in capitals
    assert (found.digest == Roster.from_json(TEXT).digest) == same or upper


@pytest.mark.parametrize(
    "change",
    [
        {"minimum": 1},
        {"sites": []},
        {"sites": None},
        {"sites": [{"name": "x"}]},
        {"sites": "abc"},
        {"compensator": {}},
        {"compensator": []},
        {"consents": []},
        {"consents": {"leaves": []}},
        {"consents": {"leaves": {"s0": 3}}},
        {"format": 2},
        {"study": ""},
        {"study": ["x"]},
        {"more": 1},
    ],
)
def test_changed_facts_are_refused(change):
    with pytest.raises(FederationError):
        Roster.from_json(json.dumps({**json.loads(TEXT), **change}))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "3", "[" * 100_000, '{"cupola":"roster","format":1}', b"\xff\xfe"]
)
def test_what_is_no_roster_is_refused(text):
    with pytest.raises(FederationError):
        Roster.from_json(text)


def test_a_fact_twice_is_refused():
    doubled = TEXT.replace('"minimum": 3,', '"minimum": 3, "minimum": 4,')
    assert doubled != TEXT
    with pytest.raises(FederationError):
        Roster.from_json(doubled)
