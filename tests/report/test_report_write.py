"""report.write: one file, complete, safe, also for a run that is not finished."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from folders import lines, make_run, make_runs

from cupola import report
from cupola.errors import DataError

_VOID = {"meta", "br", "circle", "path", "rect", "input", "img"}


class _Balance(HTMLParser):
    """Every element that opens closes, in order; collects tags and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def parsed(html: str) -> _Balance:
    page = _Balance()
    page.feed(html)
    assert page.open == []
    return page


def loads_nothing(html: str) -> None:
    """No address that a browser would fetch."""
    assert "http://" not in html
    assert "https://" not in html
    assert not re.search(r"@import|url\(", html)
    for tag, attrs in parsed(html).seen:
        assert tag not in {"link", "iframe", "object", "embed", "base"}
        for name in ("src", "href", "xlink:href", "action"):
            assert not attrs.get(name) or attrs[name].startswith("./")


def test_single_run_says_everything(tmp_path):
    folder = make_run(tmp_path / "run", per_site=True, confusion=True, twin=True)
    path = report.write(folder)
    html = path.read_text()
    assert path == folder / "report.html"
    loads_nothing(html)
    assert len(html) < 400_000
    for said in (
        "How it learned",
        "by bytes sent",
        "Against the centralised twin",
        "Who holds what",
        "What was sent",
        "Who learned what",
        "model change after local training",
        "the total over sites",
        "each site&#x27;s own answer",
        "Confusion matrix",
        "Spread over sites",
        "not finite",
        "simulated",
        "finished",
        "torch",
        "dirichlet",
    ):
        assert said in html, said
    final = json.loads((folder / "result.json").read_text())["final"]
    assert f"{100 * final['test']['accuracy']:.2f} %" in html
    assert not list(folder.glob(".report-*"))


def test_many_runs(tmp_path):
    html = report.write(make_runs(tmp_path / "runs")).read_text()
    loads_nothing(html)
    assert "12 of 12 finished" in html
    assert "Communication and utility" in html
    assert "scaffold" in html
    assert 'class="band' in html


def test_links_to_the_reports_of_runs(tmp_path):
    folder = make_runs(tmp_path / "runs")
    report.write(folder / "recipe=fedavg,seed=1")
    html = report.write(folder).read_text()
    assert 'href="./recipe%3Dfedavg%2Cseed%3D1/report.html"' in html
    loads_nothing(html)


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"


def test_hostile_names_are_text(tmp_path):
    folder = make_run(tmp_path / "run", name=HOSTILE, recipe=HOSTILE, reason=HOSTILE, per_site=True)
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    history[0]["failed"] = {HOSTILE: 1}
    history[-1]["per_site"] = {HOSTILE: {"accuracy": 0.5}, "2": {"accuracy": 0.6}}
    lines(folder / "history.jsonl", history)
    entry = {"task": HOSTILE, "kind": HOSTILE, "sites": [HOSTILE], "bytes_up": [7],
             "failed": {HOSTILE: HOSTILE}, "bytes_down": 5, "reveals": HOSTILE,
             "protection": HOSTILE}  # fmt: skip
    lines(folder / "ledger.jsonl", [entry])
    held = {"sites": 2, "classes": [HOSTILE, "b"], "counts": [[1, 2], [3, 4]], "sizes": [3, 7],
            "names": [HOSTILE, HOSTILE]}  # fmt: skip
    (folder / "partition.json").write_text(json.dumps(held))
    other = make_run(tmp_path / "other", name=HOSTILE + "2", recipe="fedavg")
    for html in (
        report.write(folder).read_text(),
        report.compare([folder, other], tmp_path / "c.html").read_text(),
    ):
        page = parsed(html)
        assert [tag for tag, _ in page.seen].count("script") == 1
        assert "img" not in [tag for tag, _ in page.seen]
        assert not any(name.startswith("on") for _, attrs in page.seen for name in attrs)
        assert "<script>alert" not in html


@pytest.mark.parametrize(
    "values",
    [
        {"sites": "x", "counts": "no", "sizes": [None, "a"]},
        {"counts": [[1, 2], [3]], "sizes": [3, 3]},
        {"counts": [[float("nan")]], "sizes": [1]},
        {"sites": 3, "counts": [], "sizes": []},
    ],
)
def test_odd_partitions_do_not_break_it(tmp_path, values):
    folder = make_run(tmp_path / "run")
    (folder / "partition.json").write_text(json.dumps(values))
    loads_nothing(report.write(folder).read_text())


def test_unfinished_run_with_a_torn_line(tmp_path):
    folder = make_run(tmp_path / "run", status=None)
    with (folder / "history.jsonl").open("a") as file:
        file.write('{"round": 41, "te')
    html = report.write(folder).read_text()
    assert "has not finished" in html
    assert "40" in html
    loads_nothing(html)


def test_run_that_has_only_begun(tmp_path):
    folder = make_run(tmp_path / "run", status=None)
    for name in ("history.jsonl", "ledger.jsonl", "partition.json"):
        (folder / name).unlink()
    assert "nothing was measured yet" in report.write(folder).read_text()


def test_nan_and_missing_values_are_left_out(tmp_path):
    folder = make_run(tmp_path / "run")
    history = [
        {"round": 1, "test": {"accuracy": float("nan"), "loss": None}},
        {"round": 2, "test": {"accuracy": 0.5, "loss": float("inf")}, "bytes_down": 10},
        {"round": 3, "test": {}, "failed": None},
    ]
    lines(folder / "history.jsonl", history)
    html = report.write(folder).read_text()
    assert "50.00 %" in html
    assert "nan" not in re.sub(r"<(style|script)>.*?</\1>", "", html, flags=re.S).lower()


def test_regression_uses_its_own_metric(tmp_path):
    folder = make_run(tmp_path / "run", plan={"evaluation": {"metric": "rmse"}})
    history = [
        {"round": r, "test": {"rmse": 3 / r, "loss": 9 / r**2}, "bytes_up": r, "seconds": r}
        for r in (1, 2, 3)
    ]
    lines(folder / "history.jsonl", history)
    (row,) = report.table([folder], target=1.5)
    assert row["metric"] == "rmse"
    assert row["rmse"] == 1.0
    assert row["rounds_to_target"] == 2
    assert "RMSE" in report.write(folder).read_text()


def test_many_sites_and_rounds_stay_small(tmp_path):
    folder = make_run(tmp_path / "run", rounds=1500, sites=300)
    entry = json.loads((folder / "ledger.jsonl").read_text().splitlines()[0])
    lines(folder / "ledger.jsonl", [entry] * 20)
    assert report.write(folder).stat().st_size < 1_000_000


def test_no_run_there(tmp_path):
    with pytest.raises(DataError, match="no folder"):
        report.write(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no run"):
        report.write(tmp_path / "empty")


def test_runs_json_cannot_point_outside(tmp_path):
    make_run(tmp_path / "secret")
    folder = tmp_path / "runs"
    make_run(folder / "a")
    entries = [{"label": "a", "folder": "a"}, {"label": "x", "folder": "../secret"}, "odd", {}]
    (folder / "runs.json").write_text(json.dumps(entries))
    assert [run.label for run in report.find_runs(folder)] == ["a"]
