"""Whole-genome regression by sums equals the textbook's on the pooled people."""

import numpy as np
import pytest
from cohorts import carry_out, cut, people, sites, study, write_bim
from pooled_genome import pooled

from cupola.association import questions, results
from cupola.association.structure import predictions
from cupola.association.study_choices import WholeGenome

SMALL = WholeGenome(
    block=6, folds=3, components_elsewhere=True, people=0, own_people=0, carriers=3,
    people_per_marker=0, people_per_prediction=0, maf=0.05,
)  # fmt: skip
N, M = 240, 60


def family(seed=5, n=N, m=M, chromosomes=(1, 2, 3, 23, 24, 26)):
    """People whose trait many markers shape."""
    data = people(seed, n=n, m=m, missing=0.02, chromosomes=chromosomes)
    rng = np.random.default_rng(seed)
    copies = np.where(data.copies == 3, 1, data.copies).astype(float)
    level = rng.normal(size=m) @ (copies - copies.mean(axis=1, keepdims=True))
    data.qt = (level / level.std() + rng.normal(size=n) + 0.02 * data.age).round(4)
    data.cc = 1.0 + (data.qt > np.quantile(data.qt, 0.6))
    return data


def carried_out(folder, chosen, data, masked=False, parts=3, **options):
    bases = cut(folder, data, np.array_split(np.arange(len(data)), parts))
    cohorts = sites(chosen, bases)
    for site in cohorts:
        site.whole_genome = chosen.whole_genome
    program, state, reach = carry_out(chosen, cohorts, data.variants, masked, **options)
    return program, state, cohorts, reach


def chosen(test="linear", **whole):
    given = SMALL.model_copy(update=whole)
    return study(test, whole_genome=given, chunk=16)


def folds(data, folds=3, parts=3):
    """Of everybody tested, as simulated cohorts draw them."""
    from cupola.federation import SiteContext
    from cupola.federation.site import StateStore

    parts = np.array_split(np.arange(len(data)), parts)
    found = [
        predictions.folds_of(None, SiteContext(i, None, None, StateStore(), 0), len(p), folds)
        for i, p in enumerate(parts)
    ]
    return np.concatenate(found)


@pytest.mark.parametrize("test", ["linear", "logistic"])
@pytest.mark.parametrize("masked", [False, True])
def test_federated_equals_pooled(tmp_path, monkeypatch, test, masked):
    monkeypatch.setattr(questions, "COARSE", 0)  # sums over missing calls with 64 bits, too
    data, given = family(), chosen(test)
    program, state, _, _ = carried_out(tmp_path, given, data, masked)
    ours = results(program, state)
    theirs = pooled(data, given, folds(data))
    np.testing.assert_allclose(ours.columns["BETA"], theirs[0], rtol=1e-9, atol=1e-11)
    # Newton takes its sums at coefficients of 32 bits, and the last step after them.
    np.testing.assert_allclose(
        ours.columns["SE"], theirs[1], rtol=1e-9 if test == "linear" else 1e-5
    )
    assert len(np.unique(ours.variants.chromosome)) == 6
    assert np.isfinite(theirs[0]).sum() > 50
