"""FSC and CSM: distances, and the groups they give."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cupola.errors import PlanError
from cupola.training.personalise.grouping import from_matrix, from_references, members_of, shuffled
from cupola.training.personalise.outcome import agreement
from cupola.training.personalise.similarity import full_matrix, to_references

SEEDS = st.integers(0, 10**6)


def clouds(seed, kinds=4, each=6, q=5, spread=0.03):
    """Vectors of `kinds` kinds around random centres, and the kind of each."""
    rng = np.random.default_rng(seed)
    types = np.repeat(np.arange(kinds), each)
    return rng.random((kinds, q))[types] + spread * rng.standard_normal((kinds * each, q)), types


def partition(labels):
    return {frozenset(np.flatnonzero(labels == g).tolist()) for g in np.unique(labels)}


def test_distances_are_euclidean():
    vectors = np.random.default_rng(1).random((7, 3))
    full = full_matrix(vectors)
    for i, j in itertools.product(range(7), repeat=2):
        assert full[i, j] == pytest.approx(np.linalg.norm(vectors[i] - vectors[j]))
    to = to_references(vectors, np.array([2]))[:, 0]
    assert np.allclose(np.delete(to, 2), np.delete(full[2], 2))
    assert to[2] == np.delete(full[2], 2).min()  # in the place of its nearest


@settings(max_examples=30)
@given(SEEDS, st.integers(2, 5))
def test_average_linkage_is_its_definition(seed, count):
    """Merge the two groups with the smallest mean distance, until so many are left."""
    apart = full_matrix(np.random.default_rng(seed).random((9, 4)))
    groups = [[i] for i in range(9)]
    while len(groups) > count:
        one, other = min(
            itertools.combinations(range(len(groups)), 2),
            key=lambda p: apart[np.ix_(groups[p[0]], groups[p[1]])].mean(),
        )
        groups[one] += groups.pop(other)
    assert partition(from_matrix(apart, count)) == {frozenset(g) for g in groups}


@settings(max_examples=30)
@given(SEEDS, st.integers(1, 7))
def test_one_reference_cuts_at_the_largest_gaps(seed, count):
    """Of all ways to cut the sorted distances, the one with the largest sum of gaps."""
    distances = np.random.default_rng(seed).random(8)
    ranked, order = np.sort(distances), np.argsort(distances)
    gaps = np.diff(ranked)
    best = max(itertools.combinations(range(7), count - 1), key=lambda cut: sum(gaps[list(cut)]))
    labels = np.zeros(8, int)
    for cut in best:
        labels[order[cut + 1 :]] += 1
    assert partition(from_references(distances[:, None], count)) == partition(labels)


@settings(max_examples=30)
@given(SEEDS, st.sampled_from([None, 3, 5]), st.integers(0, 3))
def test_the_order_of_sites_changes_no_group(seed, count, references):
    vectors, _ = clouds(seed)
    mixed = np.random.default_rng(seed).permutation(len(vectors))
    chosen = np.arange(references) * 7

    def groups(v, places):
        if not references:
            return from_matrix(full_matrix(v), count)
        return from_references(to_references(v, places), count)

    before = groups(vectors, chosen)
    after = groups(vectors[mixed], np.argsort(mixed)[chosen])
    assert partition(before[mixed]) == partition(after)


@settings(max_examples=30)
@given(SEEDS)
def test_kinds_that_are_far_apart_are_found_without_their_number(seed):
    vectors, types = clouds(seed, spread=1e-4)
    between = full_matrix(vectors[::6])
    heights = np.sort(between[np.triu_indices(4, 1)])
    assume(heights[0] > 0.25)  # the gap below the first merge of kinds must be the largest
    found = from_matrix(full_matrix(vectors))
    coarser = all(len(set(found[types == t])) == 1 for t in range(4))
    assert coarser
    assert found.max() >= 1
    assert agreement(from_matrix(full_matrix(vectors), 4), types)["ari"] == 1.0


def test_one_reference_merges_what_is_equally_far_and_a_second_tells_it_apart():
    centres = np.array([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 2.0]])
    jitter = 1e-3 * np.random.default_rng(0).random((20, 2))
    types = np.repeat(np.arange(4), 5)
    vectors = centres[types] + jitter
    alone = from_references(to_references(vectors, np.array([0])))
    assert len(np.unique(alone)) == 3
    assert alone[5] == alone[10]
    both = from_references(to_references(vectors, np.array([0, 5])), 4)
    assert agreement(both, types)["ari"] == 1.0


def test_more_groups_than_differences_are_not_made_up():
    assert from_references(np.zeros((5, 1)), 3).tolist() == [0] * 5
    assert from_references(np.zeros((5, 2))).tolist() == [0] * 5
    assert from_matrix(np.zeros((2, 2))).tolist() == [0, 0]
    assert from_matrix(full_matrix(np.arange(3.0)[:, None]), 7).tolist() == [0, 1, 2]


def test_small_groups_do_not_train_together_and_random_ones_have_the_same_sizes():
    labels = np.array([0, 0, 1, 0, 2, 1])
    assert members_of(labels, 3) == {0: [0, 1, 3]}
    assert members_of(labels, 2) == {0: [0, 1, 3], 1: [2, 5]}
    mixed = shuffled(labels, seed=4)
    assert sorted(mixed) == sorted(labels)
    assert mixed.tolist() != labels.tolist()


def test_agreement_is_one_for_any_numbering():
    types = np.array([0, 0, 1, 1, 2])
    assert agreement(np.array([5, 5, 0, 0, 1]), types) == {"ari": 1.0, "matched": 1.0}
    assert agreement(np.zeros(5, int), types)["matched"] == pytest.approx(0.4)


def test_a_hundred_thousand_sites_need_no_matrix():
    vectors, types = clouds(3, kinds=5, each=20_000, spread=0.005)
    with pytest.raises(PlanError, match="references"):
        full_matrix(vectors)
    found = from_references(to_references(vectors, np.array([0, 30_000, 70_000])), 5)
    assert agreement(found, types)["ari"] > 0.99
