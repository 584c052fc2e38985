"""Our own analyses, and an example's, pass the public suite."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

import cupola
from cupola.testing import check_analysis

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))

from cases import BASE, cohorts_in

REGRESSION = {"kind": "pooled_regression:PooledRegression", "name": "diabetes"}


def test_a_users_own_analysis_passes(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    assert len(check_analysis(REGRESSION, tmp_path)) == 8


def test_a_regression_over_sites_is_the_pooled_one(tmp_path):
    known = load_diabetes()
    x = known.data[:, [known.feature_names.index(n) for n in ("age", "sex", "bmi", "bp")]]
    pooled = np.linalg.lstsq(np.column_stack([np.ones(len(x)), x]), known.target, rcond=None)[0]
    for kind, most in (("plain", 1e-11), ("masked", 1e-7)):
        result = cupola.run({**REGRESSION, "sum": kind}, tmp_path / kind).result
        assert np.abs(np.array([*result.beta.values()]) / pooled - 1).max() < most


@pytest.mark.parametrize("more", [{}, {"personalise": {"rounds": 1, "methods": ["finetune"]}}])
def test_training_passes(tmp_path, more):
    check_analysis({**BASE, **more}, tmp_path, tolerance=1e-2)


@pytest.mark.parametrize("test", ["chi-square", "linear", "logistic"])
def test_association_passes(tmp_path, test):
    check_analysis(cohorts_in(tmp_path)(test=test), tmp_path / "runs", tolerance=1e-4)
