"""What a report says about privacy."""

import cupola
from cupola import report

PLAN = {
    "name": "private",
    "rounds": 4,
    "recipe": "dp-sgd",
    "data": {"name": "digits", "partition": {"kind": "iid", "sites": 3}},
    "model": "linear",
    "local": {"batch_size": 32},
    "privacy": {"noise_multiplier": 1.5},
}


def test_reports_show_epsilon_and_that_it_is_simulated(tmp_path):
    private = cupola.run(PLAN, tmp_path / "private")
    page = (private.folder / "report.html").read_text()
    assert "Privacy spent" in page
    assert "not valid for release" in page
    assert "&lt;b&gt;" not in page
    assert f"{private.result['privacy']['epsilon']:.3g}" in page
    assert "Gaussian noise 1.5" in page
    assert "dp-sgd, noise 1.5, clip 1" in page


def test_comparisons_have_epsilon_as_a_cost(tmp_path):
    private = cupola.run(PLAN, tmp_path / "private", report=False)
    plain = {**PLAN, "recipe": "fedavg", "privacy": {}}
    cupola.run(plain, tmp_path / "plain", report=False)
    folders = [str(tmp_path / "plain"), str(tmp_path / "private")]
    rows = report.table(folders, target=None)
    assert [row["epsilon"] for row in rows] == [None, private.result["privacy"]["epsilon"]]
    report.compare(folders, tmp_path / "both.html")
    page = (tmp_path / "both.html").read_text()
    assert "not private" in page
