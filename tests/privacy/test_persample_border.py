"""Per-sample gradients of a border and of the trained size of the image within it."""

from __future__ import annotations

import persample_oracles as oracles
import pytest
import torch

from cupola.nn import build, find_loss
from cupola.privacy.persample import PerSample

pytestmark = pytest.mark.usefixtures("source")


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("adapt", ["reprogram", "labels"])
def test_clipped_sums_equal_every_sample_by_itself(source: str, adapt: str, copies: int) -> None:
    given = {"labels": [[i] for i in range(5)]} if adapt == "labels" else {}
    options = {"source": source, "least_inner": 4, "adapt": adapt, **given}
    module = build("pretrained", (3, 12, 12), 5, 1, **options).double().eval()
    loss, x = find_loss("cross_entropy"), torch.rand(4 * copies, 3, 12, 12).double()
    y = torch.tensor([0, 2, 1, 0]).repeat_interleave(copies)
    rows = oracles.alone(module, loss, x, y)
    expected = [row.unflatten(0, (-1, copies)).mean(1) for row in rows]
    assert [g[0].numel() for g in expected[:2]] == [1, 3 * 16 * 16]
    engine = PerSample(module, loss)
    clip = 0.5 * float(oracles.norms(expected).median())
    found = engine.clipped_sum(x, y, clip, multiplicity=copies)
    oracles.assert_equal(found, expected, clip, 1e-9)
    assert engine.form is not None
    assert (engine.fallback, engine.form.alone) == (None, None)
