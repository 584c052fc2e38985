"""report.table, compare, overview_picture: grouping, spread, cost to a target."""

from __future__ import annotations

import json
import statistics

import pytest
from folders import lines, make_run, make_runs

from cupola import report
from cupola.base import formatting
from cupola.base.formatting import Unit
from cupola.errors import DataError
from cupola.pages.charts import log_ticks, ticks


def test_rows_group_seeds(tmp_path):
    folder = make_runs(tmp_path / "runs")
    rows = report.table([folder], target=0.7)
    assert [row["label"] for row in rows] == ["fedavg", "scaffold", "fedadam", "fedfgd"]
    first = rows[0]
    finals = [
        json.loads((folder / f"recipe=fedavg,seed={s}" / "result.json").read_text())["final"]
        for s in (1, 2, 3)
    ]
    values = [f["test"]["accuracy"] for f in finals]
    assert first["accuracy"] == pytest.approx(statistics.mean(values))
    assert first["spread"] == pytest.approx(statistics.stdev(values))
    assert first["bytes"] == finals[0]["bytes_down"] + finals[0]["bytes_up"]
    assert first["seconds"] == pytest.approx(2.0)
    assert first["runs"] == first["finished"] == first["reached"] == 3
    json.dumps(rows)


def test_exact_cost_to_a_target(tmp_path):
    folder = make_run(tmp_path / "run")
    history = [
        {
            "round": r,
            "test": {"accuracy": a},
            "bytes_down": 100 * r,
            "bytes_up": 10 * r,
            "seconds": r,
        }
        for r, a in enumerate((0.1, 0.5, 0.4, 0.8), 1)
    ]
    lines(folder / "history.jsonl", history)
    (row,) = report.table([folder], target=0.45)
    assert (row["rounds_to_target"], row["bytes_to_target"], row["seconds_to_target"]) == (
        2,
        220,
        2,
    )
    (row,) = report.table([folder], target=0.9)
    assert (row["rounds_to_target"], row["reached"]) == (None, 0)
    (row,) = report.table([folder])
    assert row["target"] == 0.8


def test_labels_name_what_differs(tmp_path):
    for i, lr in enumerate((0.1, 0.2)):
        for seed in (1, 2):
            make_run(tmp_path / f"{i}{seed}", seed=seed, plan={"local": {"lr": lr}})
    rows = report.table([tmp_path])
    assert [row["label"] for row in rows] == ["lr = 0.1", "lr = 0.2"]
    assert [row["runs"] for row in rows] == [2, 2]


def test_same_run_twice_is_not_two_seeds(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    rows = report.table([tmp_path / "a", tmp_path / "b"])
    assert [row["runs"] for row in rows] == [1, 1]
    assert len({row["label"] for row in rows}) == 2
    assert len(report.table([tmp_path / "a", tmp_path / "a"])) == 1


def test_compare_writes_where_told(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", recipe="scaffold")
    path = report.compare([tmp_path / "a", tmp_path / "b"], tmp_path / "deep" / "c.html", 0.5)
    html = path.read_text()
    assert "Best accuracy" in html
    assert "rounds to 50 %" in html


def test_a_centralised_run_is_a_level_to_compare_with(tmp_path):
    central = make_run(tmp_path / "central", sites=1, recipe="fedsgd", size=1)
    other = make_run(tmp_path / "other", top=0.8)
    html = report.compare([central, other], tmp_path / "c.html").read_text()
    assert "Dashed: all data at one site" in html
    cheapest = html.split("Fewest bytes to")[1].split("</div>")[0]
    assert "fedavg" in cheapest
    report.overview_picture([central, other], tmp_path / "p.svg")
    with pytest.raises(DataError, match="nothing to draw"):
        report.overview_picture([central], tmp_path / "p.svg")


def test_overview_picture(tmp_path):
    folder = make_runs(tmp_path / "runs")
    png = report.overview_picture([folder], tmp_path / "images" / "demo.png")
    assert png.read_bytes().startswith(b"\x89PNG")
    svg = report.overview_picture([folder], tmp_path / "demo.svg").read_text()
    assert "<svg" in svg
    with pytest.raises(DataError, match=r"\.png or \.svg"):
        report.overview_picture([folder], tmp_path / "demo.pdf")


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0 B"), (999, "999 B"), (2_500, "2.5 kB"), (1.234e6, "1.23 MB"), (None, "–")],
)
def test_sizes_in_words(value, said):
    assert formatting.size(value) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.5, "0.5 s"), (125, "2 min 5 s"), (7300, "2 h 1 min"), (float("nan"), "–")],
)
def test_durations_in_words(value, said):
    assert formatting.duration(value) == said


def test_ticks_are_round():
    assert ticks(0, 40, Unit()) == [0, 10, 20, 30, 40]
    assert ticks(0, 2.5e6, Unit(1e6, "MB"), 5) == [0, 0.5e6, 1e6, 1.5e6, 2e6, 2.5e6]
    assert log_ticks(10, 1000, Unit()) == [10, 20, 50, 100, 200, 500, 1000]
    assert ticks(3, 3, Unit()) == [3]
