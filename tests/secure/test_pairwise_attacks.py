"""Attacks on pairwise masks, tried and refused: a coordinator that lies, sites that cheat, replays,
messages of any kind."""

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import PHASES, Study, carry_out
from studies import Sites

from cupola.errors import FederationError
from cupola.federation import Contribution, Declined, Failure, Question
from cupola.federation.site import find_task
from cupola.secure import pairwise_keys
from cupola.secure.durable_dict import Memory
from cupola.secure.graph import Graph
from cupola.secure.identity import Identity
from cupola.secure.member import Member
from cupola.secure.pairwise_keys import sign, sign_keys, survivors_digest
from cupola.secure.pairwise_memory import agree_to_survivors
from cupola.secure.pairwise_messages import numbers
from cupola.secure.roster import simulated_roster
from cupola.secure.shamir import SHARE, combine


def refuses(answer, *words):
    assert isinstance(answer, str), "the site answered"
    assert any(word in answer for word in words), answer


def up_to(study, phase, **facts):
    """An honest attempt, driven up to before this phase."""
    run = study.run(**facts)
    carry_out(run, {0: 0, 1: 2}.get(phase, phase))
    return run


def others_keys(roster, statement, site, identity=None):
    """Keys of the coordinator's own, in a site's name."""
    private = X25519PrivateKey.generate().public_key().public_bytes_raw()
    identity = identity or Identity.simulated(99, roster.sites[site].name)
    named = replace(statement, site=roster.sites[site].name)
    return sign_keys(named, private, private, identity)


# Keys and cohorts


def cohort_with(run, changes, sites=None):
    keys = dict(zip(run.cohort.sites, run.cohort.keys, strict=True)) | changes
    chosen = sorted(keys) if sites is None else sites
    return replace(run.cohort, sites=tuple(chosen), keys=tuple(keys[s] for s in chosen))


def before_shares(study, step=0, number=None):
    """All keys are out, no site has dealt shares yet."""
    run = study.run(step, number=number)
    attempt = run.attempt
    keys = {s: study.ask(s, attempt.keys())["keys"].tobytes() for s in range(len(study.host))}
    roster = study.parties.roster
    run.cohort = pairwise_keys.Cohort(roster, attempt.statement, tuple(keys), tuple(keys.values()))
    return run


def test_keys_that_a_site_did_not_sign_are_refused():
    study = Study(5)
    run = before_shares(study)
    forged = others_keys(study.parties.roster, run.attempt.statement, 2)
    swapped = {1: run.cohort.keys[2], 2: run.cohort.keys[1]}
    half = {2: run.cohort.keys[2][:32] + forged[32:64] + run.cohort.keys[2][64:]}
    for changes in ({2: forged}, swapped, half):
        answer = study.ask(0, run.attempt.shares(cohort_with(run, changes)))
        refuses(answer, "did not sign")


def test_a_site_cannot_be_played_by_another_one():
    """A colluding site signs, with its own key, keys in another's name."""
    study = Study(5)
    run = before_shares(study)
    roster, identities, _ = simulated_roster(1, "study", 5, compensator=False)
    assert roster.digest == study.parties.roster.digest
    forged = others_keys(roster, run.attempt.statement, 2, identities[3])
    refuses(study.ask(0, run.attempt.shares(cohort_with(run, {2: forged}))), "did not sign")


def test_keys_of_another_attempt_or_step_are_refused():
    study = Study(5)
    old = before_shares(study, number=10)
    for step, number in ((0, 11), (1, 10)):
        run = study.run(step, number=number)
        if step:  # another question: a step has one
            run = study.run(number=number, question=study.host.question(1, options={"a": 1}))
        mine = study.ask(0, run.attempt.keys())["keys"].tobytes()
        cohort = replace(cohort_with(old, {0: mine}), statement=run.attempt.statement)
        refuses(study.ask(0, run.attempt.shares(cohort)), "did not sign")


def test_a_cohort_must_hold_ones_own_keys():
    study = Study(5)
    run = before_shares(study)
    own = others_keys(study.parties.roster, run.attempt.statement, 0)
    refuses(study.ask(0, run.attempt.shares(cohort_with(run, {0: own}))), "this site's keys")
    without = run.attempt.shares(cohort_with(run, {}, [1, 2, 3, 4]))
    refuses(study.ask(0, without), "this site's keys")


def test_a_cohort_below_the_minimum_is_refused():
    study = Study(5)
    run = before_shares(study)
    cohort = cohort_with(run, {}, [0, 1])
    honest = run.attempt.shares(cohort_with(run, {}, [0, 1, 2]))
    arrays = {"sites": numbers(cohort.sites), "keys": honest.arrays["keys"][:2]}
    refuses(study.ask(0, replace(honest, arrays=arrays)), "too few sites")
    twice = {"sites": numbers([0, 1, 1]), "keys": honest.arrays["keys"]}
    refuses(study.ask(0, replace(honest, arrays=twice)), "well formed")
    beyond = {"sites": numbers([0, 1, 5]), "keys": honest.arrays["keys"]}
    refuses(study.ask(0, replace(honest, arrays=beyond)), "well formed")


def test_who_is_gone_for_good_is_in_no_cohort():
    """Back after all, it would be in one total and not in the next: a difference tells of it."""
    study = Study(5)
    run = before_shares(study)
    lost = study.parties.roster.sites[4].name
    study.parties.member(0).gone = lambda: frozenset([lost])
    refuses(study.ask(0, run.attempt.shares(run.cohort)), "would tell")
    without = run.attempt.shares(cohort_with(run, {}, [0, 1, 2, 3]))
    assert isinstance(study.ask(0, without), dict)


def test_shares_are_dealt_to_one_cohort():
    study = Study(5)
    run = before_shares(study)
    first = study.ask(0, run.attempt.shares(cohort_with(run, {}, [0, 1, 2, 3])))
    again = study.ask(0, run.attempt.shares(cohort_with(run, {}, [0, 1, 2, 3])))
    assert all((first[name] == again[name]).all() for name in first)
    refuses(study.ask(0, run.attempt.shares(run.cohort)), "another cohort")


def test_another_roster_is_refused():
    study, other = Study(5), Study(6)
    question = other.run().attempt.keys()
    refuses(study.ask(0, question), "roster is not the one")


def test_keys_that_lead_to_no_secret_cost_their_site_its_place():
    study = Study(5)
    roster, identities, _ = simulated_roster(1, "study", 5, compensator=False)

    def cheat(question, site, answer):
        if question.task == PHASES[0] and site == 3:
            options = question.options["hidden"]
            facts = (bytes.fromhex(options[name]) for name in ("question", "layout"))
            statement = pairwise_keys.Statement(
                "study", roster.digest, 0, options["attempt"], *facts, roster.sites[3].name
            )
            keys = sign_keys(statement, bytes(32), bytes(32), identities[3])
            return Contribution({**answer.arrays, "keys": np.frombuffer(keys, np.uint8)})
        return answer

    study.change = cheat
    total = study.sum()
    assert total.sites == [0, 1, 2, 4]
    assert "not usable" in total.failed[3]


def test_mask_keys_that_lead_to_no_secret_get_no_answer():
    """The other of the two keys: shares were dealt by then, and nothing is told without a mask."""
    study = Study(5)
    _, identities, _ = simulated_roster(1, "study", 5, compensator=False)
    run = before_shares(study)
    statement = replace(run.attempt.statement, site=study.parties.roster.sites[3].name)
    seal = X25519PrivateKey.generate().public_key().public_bytes_raw()
    bad = sign_keys(statement, bytes(32), seal, identities[3])
    run.cohort = cohort_with(run, {3: bad})
    told = {site: study.ask(site, run.attempt.shares(run.cohort)) for site in (0, 1, 2, 4)}
    picks = {site: answer["picks"].tolist() for site, answer in told.items()} | {3: [0, 1, 2, 4]}
    question = run.attempt.masked(run.cohort, range(5), run.cohort.edges(picks))
    refuses(study.ask(0, question), "not usable")


# Answers


def test_no_answer_is_given_before_shares_are_dealt():
    """Without a cohort there are no masks."""
    study = Study(5)
    ready = up_to(study, 2)
    later = study.run(number=ready.attempt.number + 1)
    study.ask(0, later.attempt.keys())
    early = later.attempt.masked(ready.cohort, ready.dealt, ready.edges)
    refuses(study.ask(0, early), "no shares were dealt")


def rescaled(attempt):
    """The same question with another bound, and so another scale."""
    expects = dict(attempt.inner.expects)
    expects["x"] = replace(expects["x"], bound=1e6)
    return replace(attempt, inner=replace(attempt.inner, expects=expects))


def test_an_answer_is_given_once_and_only_to_the_question_that_was_signed():
    study = Study(5)
    run = up_to(study, 2)
    honest = run.attempt.masked(run.cohort, run.dealt, run.edges)
    other = replace(honest, options={**honest.options, "inner": {**honest.options["inner"]}})
    other.options["inner"]["options"] = {"0": "x"}
    refuses(study.ask(0, other), "another question")
    scaled = rescaled(run.attempt)
    refuses(study.ask(0, scaled.masked(run.cohort, run.dealt, run.edges)), "another question")
    few = run.attempt.masked(run.cohort, run.dealt[:3], run.edges)
    refuses(study.ask(0, few), "too few sites dealt")
    refuses(study.ask(4, run.attempt.masked(run.cohort, run.dealt[:4], run.edges)), "too few")
    assert isinstance(study.ask(0, honest), dict)
    refuses(study.ask(0, honest), "not the time")


def test_a_site_that_failed_to_answer_has_no_second_time():
    """Its masks may have been used: a second answer under them would tell a difference."""
    study = Study(5)
    study.host.away = {0}
    run = up_to(study, 2)
    question = run.attempt.masked(run.cohort, run.dealt, run.edges)
    refuses(study.ask(0, question), "not today")
    study.host.away = set()
    refuses(study.ask(0, question), "not the time")


def test_a_site_told_of_other_dealers_is_not_unmasked():
    """The coordinator lets one site mask with few others, hoping to declare those gone later."""
    study = Study(7)
    run = up_to(study, 2)
    victim = study.ask(0, run.attempt.masked(run.cohort, run.dealt[:5], run.edges))
    honest = {
        site: study.ask(site, run.attempt.masked(run.cohort, run.dealt, run.edges))
        for site in range(1, 7)
    }
    these = {0: victim, 4: honest[4], 5: honest[5], 6: honest[6], 1: honest[1], 2: honest[2]}
    sites = sorted(these)
    present = np.stack([these[site]["present"] for site in sites])
    signatures = [these[site]["signature"].tobytes() for site in sites]
    question = run.attempt.survivors(sites, present, signatures)
    for site in sites:
        refuses(study.ask(site, question), "did not sign", "dealt no shares")


def test_one_site_cannot_be_given_a_checksum_of_its_own():
    """Its checksum under another key would stand out of the total: one equation in its numbers."""
    study = Study(5)
    run = up_to(study, 2)
    honest = run.attempt.masked(run.cohort, run.dealt, run.edges)
    other = replace(run.attempt, check=bytes(32)).masked(run.cohort, run.dealt, run.edges)
    answers = [study.ask(site, other if site == 2 else honest) for site in range(5)]
    signatures = [answer["signature"].tobytes() for answer in answers]
    question = run.attempt.survivors(range(5), np.zeros((5, 0), bool), signatures)
    for site in range(5):
        refuses(study.ask(site, question), "did not sign")


def test_one_site_cannot_be_given_a_scale_of_its_own():
    """With larger bounds the others' numbers would shrink beside one site's."""
    study, fresh = Study(5), Study(5)
    run = before_shares(study)
    other = rescaled(run.attempt)
    refuses(study.ask(1, other.keys()), "other bounds")
    shrunk = {s: fresh.ask(s, other.keys())["keys"].tobytes() for s in (1, 2, 3, 4)}
    refuses(study.ask(0, run.attempt.shares(cohort_with(run, shrunk))), "did not sign")


def test_drawn_sites_cannot_be_changed(monkeypatch):
    sparse = Graph(sites=8, picks=3, threshold=2, quorum=5)
    monkeypatch.setattr(pairwise_keys, "graph", lambda *_: sparse)
    study = Study(8)
    run = up_to(study, 2)
    edges = bytes(len(run.edges))
    refuses(study.ask(0, run.attempt.masked(run.cohort, run.dealt, edges)), "not the sites")
    refuses(study.ask(0, run.attempt.masked(run.cohort, run.dealt, b"")), "edges of another cohort")


# Survivors and shares


def agree(study, run, sites, asked=None):
    """Signatures under a set of survivors, from the sites that give one."""
    places = [list(run.answers).index(site) for site in sites]
    present = np.stack([run.present[place] for place in places])
    signatures = [run.answers[site] for site in sites]
    question = run.attempt.survivors(sites, present, signatures)
    found = {site: study.ask(site, question) for site in (asked or sites)}
    return {s: a["signature"].tobytes() for s, a in found.items() if isinstance(a, dict)}, question


def unmask(study, run, site, signatures):
    mine = run.sealed[site]
    return study.ask(
        site, run.attempt.unmask(signatures, sorted(mine), [mine[s] for s in sorted(mine)])
    )


def test_keys_for_no_mask_at_all_are_refused():
    study = Study(5)
    question = study.run().attempt.keys()
    hidden = {**question.options["hidden"], "seeds": 0}
    refuses(study.ask(0, replace(question, options={"hidden": hidden})), "well formed")


def test_nothing_is_unmasked_before_survivors_are_agreed_on():
    study = Study(5)
    run = up_to(study, 3)
    refuses(unmask(study, run, 0, {}), "not the time to unmask")
    refuses(Study(5).ask(0, run.attempt.unmask({}, [], [])), "no such attempt")
    fresh = study.run(number=run.attempt.number + 1)
    for question in (fresh.attempt.keys(), fresh.attempt.unmask({}, [], [])):
        answer = study.ask(0, question)
    refuses(answer, "not the time to unmask")


def test_nobody_agrees_to_survivors_before_it_answered():
    study = Study(5)
    run = up_to(study, 2)
    question = run.attempt.survivors(range(5), np.zeros((5, 0), bool), [bytes(64)] * 5)
    refuses(study.ask(0, question), "not the time")


def test_shares_of_oneself_and_of_sites_that_dealt_none_are_not_told():
    study = Study(6)
    study.gone = {5: 1}
    run = up_to(study, 4)
    mine = run.sealed[0]
    for other in (0, 5):
        dealers = dict(sorted({**mine, other: mine[1]}.items()))
        question = run.attempt.unmask(run.signers, list(dealers), list(dealers.values()))
        refuses(study.ask(0, question), "dealt none")


def test_survivors_are_signed_again_for_who_lost_the_signature():
    study = Study(5)
    run = up_to(study, 3)
    first, question = agree(study, run, range(5))
    again = {site: study.ask(site, question)["signature"].tobytes() for site in range(5)}
    assert again == first


def test_a_cohort_of_the_minimum_is_enough():
    study = Study(5)
    run = before_shares(study)
    assert isinstance(study.ask(0, run.attempt.shares(cohort_with(run, {}, [0, 1, 2]))), dict)


def test_two_sets_of_survivors_get_no_two_quorums():
    study = Study(6)  # quorum 4
    run = up_to(study, 3)
    one, question = agree(study, run, [0, 1, 2, 3, 4, 5], asked=[0, 1, 2])
    two, _ = agree(study, run, [2, 3, 4, 5])
    assert set(one) == {0, 1, 2}
    assert set(two) == {3, 4, 5}  # site 2 has agreed to other survivors
    refuses(study.ask(3, question), "other survivors")
    for site, signatures in ((0, one), (3, two), (0, one | two), (3, one | two)):
        signatures = dict(sorted(signatures.items()))
        refuses(unmask(study, run, site, signatures), "too few", "did not sign")


def test_no_share_leaves_before_a_quorum_signed():
    study = Study(6)
    run = up_to(study, 3)
    refuses(unmask(study, run, 0, {s: bytes(64) for s in range(4)}), "not the time")
    good, _ = agree(study, run, list(range(6)))
    few = {s: good[s] for s in range(3)}
    refuses(unmask(study, run, 0, few), "too few signatures")
    refuses(unmask(study, run, 0, {**few, 3: good[2]}), "did not sign")
    refuses(unmask(study, run, 0, {**few, 3: bytes(64)}), "did not sign")
    assert isinstance(unmask(study, run, 0, good), dict)


def test_a_quorum_is_of_survivors():
    """Who gave no answer has no say in it, also if it works with the coordinator and signs."""
    study = Study(6)
    study.gone = {5: 2}
    run = up_to(study, 4)
    _, identities, _ = simulated_roster(1, "study", 6, compensator=False)
    fact = survivors_digest(run.stage, list(run.answers), np.stack(run.present))
    few = dict(list(run.signers.items())[: run.cohort.graph.quorum - 1])
    bought = {**few, 5: sign(identities[5], "pairwise survivors", fact)}
    refuses(unmask(study, run, 0, bought), "too few signatures")
    assert isinstance(unmask(study, run, 0, run.signers), dict)


def test_never_both_shares_of_one_site():
    study = Study(6)
    run = up_to(study, 3)
    private = [vars(study.parties.member(s))["pairwise"] for s in range(6)]
    good, _ = agree(study, run, [0, 1, 2, 3, 4])  # site 5 is declared gone although it answered
    told = {s: unmask(study, run, s, dict(sorted(good.items()))) for s in range(5)}
    refuses(unmask(study, run, 5, dict(sorted(good.items()))), "not the time")
    for dealer in range(6):
        rows = {}
        for holder, arrays in told.items():
            order = [holder, *sorted(run.sealed[holder])]
            if dealer in order:
                rows[holder + 1] = arrays["shares"][order.index(dealer)].tobytes()
        chosen = list(rows)[: run.cohort.graph.threshold]
        secret = combine(chosen, [rows[point][:SHARE] for point in chosen])
        public = run.cohort.mask_key(dealer)
        try:
            opened = X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()
        except ValueError:
            opened = b""
        assert (opened == public) == (dealer == 5)  # the key of the one who is gone, of no other
    # Later, the set cannot be another one.
    assert agree(study, run, list(range(6)))[0].keys() <= {5}
    assert all(session.signed for session in private[:5])


def test_survivors_below_quorum_or_without_oneself_are_refused():
    study = Study(6)
    run = up_to(study, 3)
    assert agree(study, run, [0, 1, 2])[0] == {}
    assert agree(study, run, [1, 2, 3, 4], asked=[0])[0] == {}


def test_survivors_who_gave_no_answer_are_refused():
    study = Study(6)
    study.gone = {5: 2}
    run = up_to(study, 3)
    run.answers[5], present = run.answers[4], run.present[4]
    run.present.append(present)
    assert agree(study, run, [0, 1, 2, 3, 4, 5], asked=range(5))[0] == {}


def test_a_survivor_who_dealt_no_shares_is_refused_even_if_it_signs():
    """One that works with the coordinator: its own mask could be taken off by nobody else."""
    study = Study(6)
    study.gone = {5: 1}
    run = up_to(study, 3)
    roster, identities, _ = simulated_roster(1, "study", 6, compensator=False)
    statement = replace(run.attempt.statement, site=roster.sites[5].name)
    facts = (statement.encode(), run.stage, run.present[0].tobytes())
    signatures = [*run.answers.values(), sign(identities[5], "pairwise masked", *facts)]
    present = np.stack([*run.present, run.present[0]])
    question = run.attempt.survivors([*run.answers, 5], present, signatures)
    assert run.cohort.is_answer(5, run.stage, present[5], signatures[5])
    refuses(study.ask(0, question), "who dealt no shares")


def test_what_a_site_sent_cannot_be_belied():
    """With false word on who sent an array, two sites' sum of it would be told."""
    host = Sites(5, (2,), absent={0: ["x"], 1: ["x"], 2: ["x"]})
    study = Study(host=host)
    run = up_to(study, 3, question=host.question(partial=True))
    run.present = [np.ones_like(row) for row in run.present]
    assert agree(study, run, list(range(5)))[0] == {}


def test_phases_of_an_older_attempt_are_over():
    study = Study(5)
    old = up_to(study, 3, number=10)
    up_to(study, 1, number=11)
    refuses(study.ask(0, old.attempt.shares(old.cohort)), "no such attempt")
    assert agree(study, old, list(range(5)))[0] == {}
    fresh = study.ask(0, old.attempt.keys())["keys"].tobytes()
    assert fresh != old.cohort.keys[0]  # asked again: new keys, for which nothing old is good
    refuses(study.ask(0, old.attempt.shares(old.cohort)), "this site's keys")


# The same question again


def test_the_same_question_is_told_for_the_same_survivors_only():
    study = Study(5)
    first = study.sum()
    again = study.sum()
    later = study.sum(study.host.question(3, round=3))
    for total in (again, later):
        assert all((total.arrays[name] == first.arrays[name]).all() for name in first.arrays)
    for step in (0, 4):
        with pytest.raises(FederationError, match="no total is told without site 4"):
            study.sum(study.host.question(step, round=step), range(4))
    study.gone = {2: 2}
    total = study.run(5, question=study.host.question(5, round=5))
    carry_out(total, 3)
    with pytest.raises(FederationError, match="no total is told without site 2"):
        total.agree()
    total.before = ()  # a coordinator that asks all the same
    with pytest.raises(FederationError, match="0 of 4 signatures"):
        total.agree()


def test_sites_left_out_before_stay_out():
    study = Study(6)
    study.gone = {5: 2}
    first = study.sum()
    study.gone = {}
    again = study.sum()
    assert again.sites == first.sites == [0, 1, 2, 3, 4]
    assert "stays out" in again.failed[5]
    run = before_shares(study)
    refuses(study.ask(0, run.attempt.shares(run.cohort)), "other survivors")
    assert isinstance(study.ask(5, run.attempt.shares(run.cohort)), dict)  # it signed nothing yet


def test_a_site_remembers_beyond_its_process(tmp_path):
    study = Study(5)
    members = {}

    def member(site):
        if site not in members:
            members[site] = study.parties.new_member(site, Memory(tmp_path / f"{site}.jsonl"))
        return members[site]

    study.engine.parties = member
    study.sum()
    for old in members.values():
        old.memory.close()
    members.clear()
    run = before_shares(study)
    for site in range(4):
        answer = study.ask(site, run.attempt.shares(cohort_with(run, {}, [0, 1, 2, 3])))
        refuses(answer, "other survivors")
    for old in members.values():
        old.memory.close()


def test_consent_to_leave_lets_a_study_go_on():
    study = Study(6)
    roster, identities, _ = simulated_roster(1, "study", 6, compensator=False, leaves=[5])
    members = [Member(identity, roster, i) for i, identity in enumerate(identities)]
    study.engine.parties = members.__getitem__
    study.federation.roster = roster
    first = study.sum()
    assert first.sites == [0, 1, 2, 3, 4, 5]
    second = study.sum(study.host.question(1, round=1), range(5))
    assert second.sites == [0, 1, 2, 3, 4]
    with pytest.raises(FederationError, match="no total is told without site 4"):
        study.sum(study.host.question(2, round=2), range(4))


def test_whoever_may_leave_a_crowd_stays_in_all_totals_of_a_question():
    roster, identities, _ = simulated_roster(1, "study", 6, compensator=False, leaves=range(6))
    member, nothing = Member(identities[2], roster, 2), np.zeros((4, 0), bool)
    assert agree_to_survivors(member, b"q" * 32, [0, 1, 2, 3], nothing) == (True,)
    with pytest.raises(Declined, match="other survivors"):
        agree_to_survivors(member, b"q" * 32, [2, 3, 4, 5], nothing)
    assert agree_to_survivors(member, b"q" * 32, [1, 2, 3, 4], nothing) == (True,)


# Sites that cheat, and lines that change things


@pytest.mark.parametrize("name", ["masked/x", "masked/n", "check/x", "masked/#weight"])
def test_a_changed_answer_is_found_out(name):
    study = Study(5)

    def cheat(question, site, answer):
        if question.task == PHASES[2] and site == 2:
            answer.arrays[name] = answer.arrays[name].copy()
            answer.arrays[name][0] ^= 1
        return answer

    study.change = cheat
    with pytest.raises(FederationError, match="checksum is wrong"):
        study.sum()


def test_changed_shares_are_found_out():
    study = Study(5)

    def cheat(question, site, answer):
        if question.task == PHASES[4] and site == 1:
            answer.arrays["shares"][2, 3] ^= 1
        return answer

    study.change = cheat
    with pytest.raises(FederationError, match=r"checksum is wrong|do not belong"):
        study.sum()
    study = Study(6)
    study.gone, study.change = {3: 2}, cheat
    with pytest.raises(FederationError, match=r"checksum|do not fit|do not belong"):
        study.sum()


def test_a_sealed_share_opens_for_its_holder_only():
    study = Study(5)
    run = up_to(study, 4)
    mine = run.sealed[0]
    wrong = {1: mine[2], 2: run.sealed[3][2], 3: bytes(len(mine[3])), 4: mine[4]}
    answer = study.ask(0, run.attempt.unmask(run.signers, list(wrong), list(wrong.values())))
    assert answer["valid"].tolist() == [True, False, False, False, True]
    assert not answer["shares"][1:4].any()


def test_one_lost_share_is_made_up_for_by_another_holder():
    study = Study(6)

    def lose(question, site, answer):
        if question.task == PHASES[4] and site == 0:
            answer.arrays["valid"][1:] = False
        return answer

    study.change = lose
    assert study.sum().sites == list(range(6))


@pytest.mark.parametrize("phase", range(5))
def test_sites_that_answer_nonsense_are_left_out(phase):
    study = Study(6)

    def cheat(question, site, answer):
        if question.task != PHASES[phase] or site != 4 or isinstance(answer, Failure):
            return answer
        name = ["keys", "sealed", "signature", "signature", "shares"][phase]
        return Contribution({**answer.arrays, name: answer.arrays[name].astype(np.int64)})

    study.change = cheat
    total = study.sum()
    expected = [0, 1, 2, 3, 4, 5] if phase > 2 else [0, 1, 2, 3, 5]
    assert total.sites == expected
    question = study.host.question()
    assert (total.arrays["n"] == study.plain(question, expected).arrays["n"]).all()


def test_a_signature_is_good_for_one_purpose():
    study = Study(5)
    run = up_to(study, 3)
    member = study.parties.member(1)
    fact = survivors_digest(run.stage, list(run.answers), np.stack(run.present))
    party = run.cohort.roster.sites[1]
    good = sign(member.identity, "pairwise survivors", fact)
    assert pairwise_keys.is_signed(party, good, "pairwise survivors", fact)
    assert not pairwise_keys.is_signed(party, good, "pairwise masked", fact)
    assert not pairwise_keys.is_signed(run.cohort.roster.sites[2], good, "pairwise survivors", fact)
    assert not pairwise_keys.is_signed(party, good[:-1], "pairwise survivors", fact)


# Messages of any kind

SCRAPS = st.one_of(
    st.none(),
    st.integers(-(2**70), 2**70),
    st.text(max_size=8),
    st.sampled_from(["00" * 32, "zz" * 32, "", [], {}, True, 1.5, "00" * 3]),
)
DTYPES = st.sampled_from([np.int32, np.uint8, np.int64, bool, np.float32])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_message_is_answered_or_declined_and_changes_no_total(data):
    study = FUZZED
    STEPS.append(len(STEPS))
    step = len(STEPS)
    run = study.run(step, question=study.host.question(step, round=step))
    honest = study._ask
    changes = data.draw(st.sets(st.sampled_from(range(5)), min_size=1, max_size=2))

    def ask(question, sites):
        sites = list(sites)
        if PHASES.index(question.task) in changes and sites:
            hostile = mangled(question, data)
            with suppress(Declined, FederationError):
                find_task(question.task)(study.engine.context(sites[0]), hostile)
        yield from honest(question, sites)

    study.engine.ask = ask
    try:
        total = study.federation.sum(run.attempt.inner, range(5))
    except FederationError:
        return
    finally:
        study.engine.ask = honest
    if total.sites:
        expected = study.plain(run.attempt.inner, total.sites)
        assert (total.arrays["n"] == expected.arrays["n"]).all()
        assert total.weight == expected.weight


FUZZED, STEPS = Study(5), []


def mangled(question: Question, data) -> Question:
    arrays, options = dict(question.arrays), dict(question.options)
    hidden = dict(options["hidden"])
    for name in data.draw(st.sets(st.sampled_from(sorted(hidden)), max_size=2)):
        hidden[name] = data.draw(SCRAPS)
    options["hidden"] = data.draw(st.sampled_from([hidden, hidden, hidden, None, 3]))
    if "inner" in options and data.draw(st.booleans()):
        inner = dict(options["inner"])
        inner[data.draw(st.sampled_from([*inner, "step", "more"]))] = data.draw(SCRAPS)
        options["inner"] = data.draw(st.sampled_from([inner, inner, inner, None, []]))
    if arrays:
        for name in data.draw(st.sets(st.sampled_from(sorted(arrays)), max_size=2)):
            how = data.draw(st.sampled_from(["drop", "type", "bits", "short", "flat"]))
            array = arrays.pop(name)
            if how == "type":
                arrays[name] = array.astype(data.draw(DTYPES))
            elif how == "bits" and array.size:
                changed = array.copy().reshape(-1)
                changed[data.draw(st.integers(0, array.size - 1))] ^= 1
                arrays[name] = changed.reshape(array.shape)
            elif how == "short":
                arrays[name] = array[:-1]
            elif how == "flat":
                arrays[name] = array.reshape(-1)
    step = data.draw(st.sampled_from([question.step, question.step, 0, -1]))
    return replace(question, arrays=arrays, options=options, step=step)
