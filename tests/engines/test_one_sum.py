"""`masked_sum`: the real protocol over parties of this process."""

from __future__ import annotations

import numpy as np
import pytest

from cupola.engines import InProcess
from cupola.errors import DataError, PlanError
from cupola.federation import Question
from cupola.secure import masked_sum, simulated_parties


@pytest.mark.parametrize("protocol", ["compensator", "pairwise"])
def test_the_sum_is_the_sum(protocol) -> None:
    draw = np.random.default_rng(0)
    held = {f"party {i}": draw.normal(size=(2, 3)) for i in range(5)}
    found = masked_sum(held, bound=10.0, protocol=protocol)
    assert np.allclose(found, sum(held.values()), atol=1e-9)
    counts = [{"a": draw.integers(0, 9, 4), "b": draw.random()} for _ in range(4)]
    named = masked_sum(counts, bound=10, protocol=protocol)
    assert named["a"].tolist() == sum(one["a"] for one in counts).tolist()
    assert named["a"].dtype == np.int64
    assert named["b"] == pytest.approx(sum(one["b"] for one in counts))


def test_what_leaves_a_party_is_masked(monkeypatch) -> None:
    """Nobody asks unmasked: a party's own array is in no answer."""
    asked = []
    plain = InProcess.ask

    def listening(self, question: Question, sites):
        for site, answer in plain(self, question, sites):
            asked.append((question.task, answer))
            yield site, answer

    monkeypatch.setattr(InProcess, "ask", listening)
    masked_sum([[1.0], [2.0], [3.0]], bound=10.0)
    assert "masked sum" not in {task for task, _ in asked}
    told = [a for _, answer in asked for a in answer.arrays.values() if a.shape == (1,)]
    assert told
    assert not any(float(a[0]) in (1.0, 2.0, 3.0) for a in told)


@pytest.mark.parametrize(
    ("parties", "options", "said"),
    [
        ([[1], [2]], {}, "2 parties: a total needs minimum = 3"),
        ([], {}, "0 parties"),
        ([[1], [2], [30]], {}, "'2': a number is beyond bound = 10"),
        ([[1], [2], [np.nan]], {}, "beyond bound"),
        ([[1], [2], [1, 2]], {}, "'2' and '0' do not have the same"),
        ([{"a": 1}, {"a": 1}, {"b": 1}], {}, "do not have the same"),
        ([["x"], [1], [2]], {}, "no array of numbers"),
        ([[1], [2], [3]], {"bound": 0}, "bound must be a number above 0"),
    ],
)
def test_refusals(parties, options, said: str) -> None:
    with pytest.raises((DataError, PlanError)) as caught:
        masked_sum(parties, **{"bound": 10, **options})
    assert said in str(caught.value)


def test_another_site_does_not_contribute() -> None:
    """The task gives nothing of a site whose data are anything else."""
    keys = simulated_parties("study", seed=1, sites=3)

    class Others:
        def __len__(self) -> int:
            return 3

        def data(self, site: int) -> dict[str, np.ndarray]:  # noqa: ARG002
            return {"array": np.zeros(1)}

        def workspace(self) -> None:
            return None

    with InProcess(Others(), parties=keys.member) as federation:
        total = federation.sum(Question("masked sum"), range(3))
    assert set(total.failed) == {0, 1, 2}
