"""Every pair of choices either runs end to end as foreseen, or is refused before it begins.

Pairs are looked at one by one; those that check allows are then run, several in one plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import sklearn.datasets
from choice_pairs import Pair, Value, carry_out, merged, pairs, refusal, settings, values, within

pytestmark = pytest.mark.usefixtures("source", "_digits_read_once")
STEP = 72  # of the few that are tried every time: each value comes about once


@pytest.fixture(scope="module")
def _digits_read_once() -> Iterator[None]:
    """Thousands of plans want them, and reading the file is a quarter of a check."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sklearn.datasets, "load_digits", cache(sklearn.datasets.load_digits))
        yield


@pytest.mark.parametrize("pair", pairs()[::STEP], ids=str)
def test_some_pairs(pair: Pair, source: str, tmp_path: Path) -> None:
    given = settings(*pair, source=source)
    said = refusal(given)
    if said is None:
        carry_out(given, tmp_path / "run")
    else:
        assert len(said) > 20  # in words


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen",
    [
        [("mechanism", "dp-sgd"), ("sum", "compensator"), ("personalise", "pfa, one group"),
         ("trainable", "freeze"), ("stragglers", "dropouts")],
        [("mechanism", "restarts"), ("sum", "pairwise"), ("personalise", "alone"),
         ("evaluation", "each site"), ("participation", "rotation")],
        [("transforms", "both ways"), ("sum", "pairwise"), ("local", "float64")],
        [("transforms", "top-k"), ("recipe", "scaffold")],
    ],
)  # fmt: skip
def test_sites_in_processes_of_their_own(chosen: list[Value], tmp_path: Path) -> None:
    fewer = ["engine.kind=processes", "engine.timeout=900", "data.partition.sites=4"]
    carry_out([*settings(*chosen), *fewer], tmp_path / "run")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_pair(source: str, tmp_path: Path) -> None:
    refused = {pair: refusal(settings(*pair, source=source)) for pair in pairs()}
    allowed = {pair for pair, said in refused.items() if said is None}
    assert all(len(said) > 20 for said in refused.values() if said is not None)
    assert len(allowed) > 0.8 * len(refused)
    assert {value for pair in allowed for value in pair} == set(values())
    faults, wanted = [], set(allowed)
    while wanted:
        chosen = merged(wanted, allowed)
        while len(chosen) > 2 and refusal(settings(*chosen, source=source)) is not None:
            chosen = chosen[:-1]  # three choices may be one too many
        wanted -= within(chosen)
        try:
            carry_out(settings(*chosen, source=source), tmp_path / str(len(wanted)))
        except Exception as error:
            faults.append(f"{chosen}: {type(error).__name__}: {error}")
    assert not faults, "\n".join(faults)
