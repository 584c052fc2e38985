"""The numbers behind pairwise masks, against their definitions."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom

from cupola.errors import FederationError
from cupola.secure import graph as graphs
from cupola.secure.graph import DROPS, REPAIR, SECRET, draw, graph


@settings(max_examples=100, deadline=None, derandomize=True)
@given(sites=st.integers(2, 120), data=st.data())
def test_only_one_set_of_survivors_gets_a_quorum(sites, data):
    minimum = data.draw(st.integers(2, sites))
    found, colluders = graph(sites, minimum), minimum - 2
    assert 2 * found.quorum > sites + colluders  # two sets would share an honest signer
    assert 2 * (found.quorum - 1) <= sites + colluders  # and one signature less would not do
    assert found.quorum <= sites
    assert found.threshold > colluders
    assert found.quorum >= minimum - 1


def test_few_sites_mask_with_all_others():
    for sites in range(3, 100):
        found = graph(sites, 3)
        assert found.complete
        assert found.threshold == found.quorum


def test_too_few_sites():
    with pytest.raises(FederationError, match="at least 4"):
        graph(3, 4)
    with pytest.raises(FederationError, match="at least 2"):
        graph(1, 1)


@pytest.mark.parametrize(("others", "marked", "picks"), [(9, 3, 4), (199, 20, 70), (50, 0, 7)])
def test_tails(others, marked, picks):
    exact = hypergeom.sf(np.arange(picks + 1) - 1, others, marked, picks)
    with np.errstate(divide="ignore"):
        assert np.allclose(np.exp2(graphs._at_least(others, marked, picks)), exact, rtol=1e-9)


@pytest.mark.parametrize(("sites", "minimum"), [(150, 3), (600, 40)])
def test_a_sparse_graph_keeps_its_promises(sites, minimum):
    """By integers of any length, not by logarithms."""
    found, colluders = graph(sites, minimum), minimum - 2
    assert 2 * found.picks < sites - 1
    picks, all_draws = found.picks, math.comb(sites - 1, found.picks)

    def at_least(marked, number):
        ways = (
            math.comb(marked, j) * math.comb(sites - 1 - marked, picks - j)
            for j in range(max(number, 0), picks + 1)
            if j <= marked and picks - j <= sites - 1 - marked
        )
        return sum(ways)

    bad = next(x for x in range(picks + 1) if at_least(colluders, x + 1) << SECRET <= all_draws)
    need = found.threshold - 1 - bad
    assert need > 0
    # log2 of sum over sizes of C(sites, size) * P[each has drawn `need` of its own]^size
    total = 0.0
    for size in range(need + 1, sites // 2 + 1):
        inside = at_least(size - 1, need)
        if inside:
            log = math.log2(inside) - math.log2(all_draws)
            total += 2.0 ** max(-2000, math.log2(math.comb(sites, size)) + size * log)
    assert total <= 2.0**-SECRET * (1 + 1e-6)
    gone = math.ceil(DROPS * sites)
    lost = at_least(gone, picks - found.threshold + 1)
    assert lost * sites << REPAIR <= all_draws * 1.000001


def test_draws_are_distinct_others_and_differ():
    others = list(range(1, 60))
    one, two = draw(others, 20), draw(others, 20)
    assert one == sorted(set(one))
    assert len(one) == 20
    assert set(one) <= set(others)
    assert one != two
    assert draw(others, 59) == others


def test_everybody_is_drawn_about_as_often():
    counts = np.zeros(30)
    for _ in range(2000):
        counts[draw(list(range(30)), 10)] += 1
    assert np.abs(counts / 2000 - 1 / 3).max() < 0.06
