"""The differencing attack: nearly equal questions, the second without one site. Both protocols."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import Study as Pairs
from pairs import carry_out
from settling import OTHER, QUESTION, SMALL, Study
from studies import Sites

from cupola.engines import InProcess, masked_sums
from cupola.errors import FederationError
from cupola.federation import Declined
from cupola.secure import lost_sites, simulated_parties
from cupola.secure.differences import ALL, behind, exposed, parts
from cupola.secure.durable_dict import Memory
from cupola.secure.roster import simulated_roster

ROSTER, MEMBERS, _ = simulated_roster(1, "study", 6)
NAMES = [site.name for site in ROSTER.sites]


def nearly(host, step):
    """The same but for a number without meaning: another question by its hash."""
    return host.question(step, round=0, arrays={"nonce": np.array([float(step)])})


# The rule

some = st.lists(st.frozensets(st.sampled_from("abcdefgh"), min_size=3), min_size=1, max_size=5)


@given(some, st.lists(st.integers(-3, 3), min_size=5, max_size=5))
@settings(max_examples=200, deadline=None)
def test_whatever_combines_totals_has_one_coefficient_for_a_part(sets, factors):
    combined = {s: sum(f for f, one in zip(factors, sets) if s in one) for s in "abcdefgh"}
    for part in parts(sets):
        assert len({combined[site] for site in part}) == 1
    assert sorted(site for part in parts(sets) for site in part) == sorted(set().union(*sets))


@given(some)
@settings(max_examples=200, deadline=None)
def test_what_is_let_through_tells_of_three_at_once(sets):
    """In whatever order totals are asked for: no combination of those let through tells of fewer.
    By brute force, over all combinations with the coefficients -1, 0 and 1."""
    told = []
    for one in sets:
        if not exposed(told, {"x": one}, 3):
            told.append({"x": one})
    for number in range(3 ** len(told)):
        signs = [number // 3**i % 3 - 1 for i in range(len(told))]
        counts = {s: sum(f for f, o in zip(signs, told) if s in o["x"]) for s in "abcdefgh"}
        singled = [site for site, count in counts.items() if count]
        assert not singled or len(singled) >= 3


def test_weights_go_with_the_arrays_they_came_with():
    """Who judges need not train; but a site that sends an array of its own is still told of."""
    train = behind({ALL: "abcd", "model": "abcd"}, 3)
    assert not exposed([train], behind({ALL: "abc", "counts": "abc"}, 3), 3)
    assert exposed([train], behind({ALL: "abc", "model": "abc"}, 3), 3) == {"d"}
    more = behind({ALL: "abcde", "model": "abcd", "head": "e"}, 3)
    assert exposed([train], more, 3) == {"e"}


# The compensator


@pytest.fixture
def lasting(tmp_path):
    made = []

    def study(**facts):
        made.append(Study(6, memory=tmp_path / "memory", **facts))
        return made[-1]

    yield study
    for one in made:
        one.compensator.close()


def refused(study, request, sites):
    with pytest.raises(Declined, match="would tell of too few sites") as found:
        study.compensator.settle(request)
    return str(found.value).endswith(f": {sites}")


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("attempt", [0, 9])
def test_a_nearly_equal_question_without_a_site_is_refused(lasting, restarted, attempt):
    study = lasting()
    study.compensator.settle(study.request(range(6)))
    if restarted:
        study.restart()
    for step in (1, 2, 1000):
        less = study.request(range(5), step=step, question=OTHER, attempt=attempt)
        assert refused(study, less, [5])
    study.compensator.settle(study.request(range(6), step=3, question=OTHER))


def test_who_drops_out_stays_out(lasting):
    study = lasting()
    study.compensator.settle(study.request(range(5)))
    study.restart()
    assert refused(study, study.request(range(6), step=1, question=OTHER), [5])
    study.compensator.settle(study.request(range(5), step=1, question=OTHER))


def test_sets_may_differ_by_the_minimum_and_what_they_make_with_others_too(lasting):
    study = lasting()
    study.compensator.settle(study.request(range(6)))
    study.compensator.settle(study.request([0, 1, 2], step=1, question=OTHER))
    study.compensator.settle(study.request([3, 4, 5], step=2, question=OTHER))
    study.restart()
    assert refused(study, study.request([1, 2, 3], step=3, question=QUESTION), [0, 4, 5])


def test_an_array_less_is_a_site_less(lasting):
    study = lasting()
    study.compensator.settle(study.request(range(6)))
    less = study.request(range(6), {5: SMALL[:1]}, step=1, question=OTHER)
    assert refused(study, less, [5])


def test_where_sites_may_change_only_the_same_question_is_compared(lasting):
    study = lasting(changes=True)
    study.compensator.settle(study.request(range(6)))
    study.compensator.settle(study.request(range(5), step=1, question=OTHER))
    assert refused(study, study.request(range(5), step=2), [5])


def test_a_coordinator_leaves_out_who_stays_out_and_waits_for_who_is_missing(tmp_path):
    """Over a restart of everybody: a site is late at the beginning, another one later."""
    host = Sites(6)
    parties = simulated_parties("study", seed=1, sites=6)

    def hidden():
        return masked_sums(InProcess(host, seed=3, parties=parties.member), parties, tmp_path)

    with hidden() as first:
        host.away = {5}
        assert first.sum(nearly(host, 0), range(6)).sites == [0, 1, 2, 3, 4]
        host.away = set()
        for step in (1, 2):
            total = first.sum(nearly(host, step), range(6))
            assert total.sites == [0, 1, 2, 3, 4]
            assert "stays out" in total.failed[5]
    with hidden() as second:
        host.away = {2}
        with pytest.raises(FederationError, match=r"no total is told without site 2.*go-on"):
            second.sum(nearly(host, 3), range(6))
        host.away = set()  # it came back before the step was settled
        assert second.sum(nearly(host, 3), range(6)).sites == [0, 1, 2, 3, 4]


class Back(set):
    """Sites that do not answer the first time."""

    def __contains__(self, site):
        here = super().__contains__(site)
        self.discard(site)
        return here


@pytest.mark.parametrize("protocol", ["compensator", "pairwise"])
def test_a_site_that_crashed_is_back_before_the_step_is_settled(protocol):
    host = Sites(5)
    parties = simulated_parties("study", seed=1, sites=5, protocol=protocol)
    with masked_sums(InProcess(host, seed=3, parties=parties.member), parties) as hidden:
        hidden.sum(nearly(host, 0), range(5))
        host.away = Back([3])
        assert hidden.sum(nearly(host, 1), range(5)).sites == [0, 1, 2, 3, 4]


def test_two_coordinators_of_one_study_get_no_more_than_one(tmp_path):
    """The same sites and the same compensator, asked by two processes in turns."""
    host, parties = Sites(5), simulated_parties("study", seed=1, sites=5)
    one = masked_sums(InProcess(host, seed=3, parties=parties.member), parties, tmp_path)
    two = masked_sums(InProcess(host, seed=3, parties=parties.member), parties)
    two.compensator.close()
    two.compensator = one.compensator
    without = {"4": "decline"}
    with one:
        one.sum(nearly(host, 0), range(5))
        same_step = two.sum(replace(nearly(host, 0), options=without), range(5))
        assert not same_step.sites
        assert set(same_step.failed.values()) == {"another question was answered under this step"}
        with pytest.raises(FederationError, match="no total is told without site 4"):
            two.sum(replace(nearly(host, 1), options=without), range(5))


# Pairwise


def lasting_members(study, folder):
    """Members that remember beyond their process; gives what ends all processes."""
    members = {}

    def member(site):
        if site not in members:
            members[site] = study.parties.new_member(site, Memory(folder / f"{site}.jsonl"))
        return members[site]

    def restart():
        for old in members.values():
            old.memory.close()
        members.clear()

    study.engine.parties = member
    return restart


@pytest.mark.parametrize("restarted", [False, True])
def test_with_pairwise_masks_every_site_refuses_it(tmp_path, restarted):
    study = Pairs(5)
    restart = lasting_members(study, tmp_path)
    study.sum(nearly(study.host, 0))
    if restarted:
        restart()
    with pytest.raises(FederationError, match="no total is told without site 4"):
        study.sum(nearly(study.host, 1), range(4))
    # A coordinator that does not care what it is told gets no signature.
    run = study.run(2, question=nearly(study.host, 2))
    run._same_again = lambda *_: None
    run.sites = [0, 1, 2, 3]
    carry_out(run, 3)
    with pytest.raises(FederationError, match="0 of 3 signatures"):
        run.agree()
    assert study.sum(nearly(study.host, 3)).sites == [0, 1, 2, 3, 4]
    restart()


def test_with_pairwise_masks_who_drops_out_stays_out(tmp_path):
    study = Pairs(6)
    restart = lasting_members(study, tmp_path)
    study.gone = {5: 2}
    assert study.sum(nearly(study.host, 0)).sites == [0, 1, 2, 3, 4]
    study.gone = {}
    restart()
    total = study.sum(nearly(study.host, 1))
    assert total.sites == [0, 1, 2, 3, 4]
    assert "stays out" in total.failed[5]
    restart()


# Going on without a site that is lost


def agreed(lost, signers, roster=ROSTER, members=MEMBERS):
    return [lost_sites.signed(lost_sites.go_on(members[i], roster, lost), roster) for i in signers]


def test_all_that_stay_agree_or_the_lost_one_does():
    lost = [NAMES[5]]
    assert lost_sites.gone(agreed(lost, range(5)), ROSTER) == set(lost)
    assert lost_sites.gone(agreed(lost, [5]), ROSTER) == set(lost)
    for missing in range(5):
        rest = [i for i in range(5) if i != missing]
        assert not lost_sites.gone(agreed(lost, rest), ROSTER)
        assert lost_sites.awaited(agreed(lost, rest), ROSTER, lost) == (NAMES[missing],)


def test_several_are_lost_together_or_one_after_the_other():
    both = NAMES[4:]
    assert lost_sites.gone(agreed(both, range(4)), ROSTER) == set(both)
    after = agreed([NAMES[5]], range(5)) + agreed([NAMES[4]], range(4))
    assert lost_sites.gone(after, ROSTER) == set(both)
    assert not lost_sites.gone(agreed(NAMES[2:], range(2)), ROSTER)  # two are too few to go on
    assert not lost_sites.gone(agreed(NAMES[1:], [0]), ROSTER)


def test_an_agreement_is_signed_for_this_roster_and_this_site():
    text = lost_sites.go_on(MEMBERS[0], ROSTER, [NAMES[5]])
    other = simulated_roster(1, "study", 6, minimum=4)[0]
    for bad, roster in [
        (text.replace(NAMES[0], NAMES[1]), ROSTER),
        (text.replace("5\n", "4\n"), ROSTER),
        (text.replace("go-on", "revocation"), ROSTER),
        (text, other),
        ("{}", ROSTER),
        ("[" * 9000, ROSTER),
    ]:
        with pytest.raises(FederationError, match="not an agreement"):
            lost_sites.signed(bad, roster)
    with pytest.raises(FederationError, match="no site 'nobody'"):
        lost_sites.go_on(MEMBERS[0], ROSTER, ["nobody"])


def test_a_study_goes_on_without_a_lost_site_and_it_stays_out(lasting):
    study = lasting()
    study.compensator.settle(study.request(range(6)))
    less = study.request(range(5), step=1, question=OTHER)
    assert refused(study, less, [5])
    study.gone = frozenset([NAMES[5]])
    study.compensator.settle(less)
    study.restart()
    assert refused(study, study.request(range(6), step=2, question=OTHER), [5])
    assert refused(study, study.request([0, 1, 2, 3], step=2, question=OTHER), [4])
    # A step that was settled with it, and whose total was lost, can be told without it.
    study.compensator.settle(study.request(range(5), attempt=1))
    assert study.compensator.settled(0) == [0, 1, 2, 3, 4]


def test_with_pairwise_masks_it_goes_on_too():
    study = Pairs(6)
    study.sum(nearly(study.host, 0))
    study.gone = {5: 0}
    with pytest.raises(FederationError, match="no total is told without site 5"):
        study.sum(nearly(study.host, 1))
    for site in range(6):
        study.parties.member(site).gone = lambda: frozenset([NAMES[5]])
    assert study.sum(nearly(study.host, 1)).sites == [0, 1, 2, 3, 4]
    assert study.sum(nearly(study.host, 0)).sites == [0, 1, 2, 3, 4]  # the same step again
    study.gone = {}
    assert study.sum(nearly(study.host, 2)).sites == [0, 1, 2, 3, 4]


def test_agreements_are_kept_and_damaged_ones_wait(tmp_path):
    for member in MEMBERS[:5]:
        lost_sites.keep(tmp_path, lost_sites.go_on(member, ROSTER, [NAMES[5]]), ROSTER)
    assert lost_sites.gone(lost_sites.kept(tmp_path, ROSTER), ROSTER) == {NAMES[5]}
    path = next((tmp_path / lost_sites.FOLDER).iterdir())
    path.write_bytes(path.read_bytes()[:-9])
    assert not lost_sites.gone(lost_sites.kept(tmp_path, ROSTER), ROSTER)
