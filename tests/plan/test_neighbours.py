"""Every epsilon says for which neighbouring data sets it holds, and a total mixes none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from samples import SMALL
from test_run import checked, go

import cupola
from cupola.cli.display import comparison, show_runs
from cupola.errors import PlanError
from cupola.privacy.accounting import epsilon
from cupola.privacy.events import Event, Gaussian, Pure, SampledGaussian, common_neighbours
from cupola.report import write
from cupola.training.personalise.personal_choices import Release
from cupola.training.personalise.sparsity import epsilon_of, noise_of

RELEASE = {"epsilon": 2.0, "delta": 1e-5}  # replace-one, as releases are unless they say otherwise
PLAN: dict[str, Any] = {
    **SMALL,
    "rounds": 2,
    "model": {"name": "mlp", "hidden": [8]},
    "privacy": {"mechanism": "dp-sgd", "noise_multiplier": 2.0, "clip": 1.0},
    "personalise": {"methods": ["pfa"], "rounds": 1, "groups": 1, "minimum": 2, "channels": 4,
                    "release": RELEASE},
}  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("neighbours") / "run"
    go(folder, plan=PLAN)
    return folder


def test_check_names_the_relation_beside_every_epsilon(tmp_path: Path) -> None:
    said = checked(PLAN, tmp_path)
    assert "at delta 1e-05 (add-remove)" in said
    own = epsilon_of(Release(**RELEASE), "add-remove", 1e-5)
    assert f"epsilon 2 a site at delta 1e-05 (replace-one), {own:.3g} (add-remove) in" in said
    facts = json.loads(checked(PLAN, tmp_path, "--json"))["personalise"]["release"]
    assert facts["neighbours"] == "replace-one"
    assert facts["in_total"] == {"epsilon": own, "delta": 1e-5, "neighbours": "add-remove"}


def test_a_release_alone_has_its_own_relation(tmp_path: Path) -> None:
    said = checked({**PLAN, "privacy": {}}, tmp_path)
    assert "epsilon 2 a site at delta 1e-05 (replace-one))" in said


def test_a_total_counts_a_release_in_the_relation_of_the_total(done: Path) -> None:
    """A site's vectors have noise for one example more or less, so that they count in either."""
    result = json.loads((done / "result.json").read_text())
    spent, release = result["privacy"], result["personal"]["groups"]["release"]
    assert spent["neighbours"] == "add-remove"
    assert release["neighbours"] == "replace-one"
    noise = noise_of(Release(**RELEASE))
    events = [Event.from_dict(event) for event in spent["groups"][0]["events"]]
    assert Gaussian(noise) in events
    training = [event for event in events if event != Gaussian(noise)]
    assert spent["epsilon"] == epsilon([*training, Gaussian(noise)], spent["delta"])
    # Its own epsilon is for replacements: the same as with half of the noise.
    assert release["epsilon"] == pytest.approx(epsilon([Gaussian(noise / 2)], 1e-5), rel=1e-6)


def test_results_and_reports_name_the_relation(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show_runs([cupola.Run.open(done)], quiet=False)
    assert "at delta 1e-05 (add-remove) for an example" in " ".join(capsys.readouterr().out.split())
    page = write(done).read_text()
    assert "delta 1e-05, add-remove, at the site that spent most" in page
    assert "at delta 1e-05, replace-one" in page  # of the vectors
    columns = [str(column.header) for column in comparison([str(done)], None, "").columns]
    assert "epsilon (add-remove)" in columns
    other = {**PLAN, "personalise": None, "name": "other"}
    go(tmp_path / "other", "privacy.neighbours=replace-one", plan=other)
    table = comparison([str(done), str(tmp_path / "other")], None, "")
    told = next(c for c in table.columns if c.header == "epsilon")
    assert [str(text).split()[1] for text in told._cells] == ["(add-remove)", "(replace-one)"]


def test_events_for_replacements_only_decide_for_all() -> None:
    one, other = Gaussian(2.0), Pure(0.1, neighbours="replace-one")
    assert common_neighbours([one, SampledGaussian(0.1, 1.0)]) == "add-remove"
    for some in ([one, other], [one, SampledGaussian(0.1, 1.0, 1, "without-replacement")]):
        assert common_neighbours(some) == "replace-one"
        assert epsilon(some, 1e-5, neighbours="replace-one") > 0
        with pytest.raises(PlanError, match="replace-one"):
            epsilon(some, 1e-5)
