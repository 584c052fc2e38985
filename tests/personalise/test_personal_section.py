"""The section of a report on personalisation."""

from __future__ import annotations

import re

import pytest

from cupola.training.personalise.personal_section import _sites


@pytest.mark.parametrize(("metric", "best"), [("accuracy", 0.9), ("r2", 0.9), ("rmse", 0.2)])
def test_the_best_method_of_a_site_is_bold(metric: str, best: float) -> None:
    sites = {"federated": {"0": {"test": 0.2}}, "pfa": {"0": {"test": 0.9}}}
    (bold,) = re.findall(r"<td[^>]*><b>([^<]*)</b>", _sites({"metric": metric, "sites": sites}))
    assert float(bold.rstrip(" %")) == pytest.approx(best * (100 if "%" in bold else 1))
