"""Tweets through a plan: words from the data, their vectors from a file, both in agreement."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import cupola
from cupola.analysis.plan_file import load
from cupola.training.build import federated_data, problem

GOOD, BAD = ("nice", "fun", "love", "sunny"), ("sad", "rain", "hate", "ill")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """LEAF's layout: 6 users of 20 tweets each, one word of each tweet says its label."""
    rng = np.random.default_rng(0)
    users: dict[str, Any] = {}
    for user in range(6):
        y = rng.integers(0, 2, 20).tolist()
        said = [(GOOD if label else BAD)[rng.integers(0, 4)] for label in y]
        x = [["", "", "", "", f"today {word} the end"] for word in said]
        users[f"u{user}"] = {"x": x, "y": [4 * label for label in y]}
    (tmp_path / "all_data").mkdir()
    stored = {"users": [*users], "num_samples": [20] * 6, "user_data": users}
    (tmp_path / "all_data/a.json").write_text(json.dumps(stored))
    lines = [f"{w} 1 0.2 0" for w in GOOD] + [f"{w} -1 0.2 0" for w in BAD] + ["the 0 0 0.5"]
    (tmp_path / "vectors.txt").write_text("\n".join(lines))
    return tmp_path


def plan(folder: Path, **model: Any) -> dict[str, Any]:
    return {
        "name": "words",
        "rounds": 6,
        "data": {
            "name": "sent140",
            "folder": str(folder),
            "length": 6,
            "partition": {"kind": "natural", "merge": 3, "test": 0.2},
        },
        "model": {"name": "text_lstm", "hidden": 8, "layers": 1, **model},
        "local": {"epochs": 4, "batch_size": 8, "lr": 1.0, "momentum": 0.5},
        "evaluation": {"on": "sites", "every": 6},
    }


def test_vectors_belong_to_the_words_of_the_data(folder: Path) -> None:
    given = load(plan(folder, vectors=str(folder / "vectors.txt")))
    data = federated_data(given)
    table = problem(given, data).build().embedding.weight
    assert len(table) == data.vocabulary == len(data.words) == 13
    for word, sign in (("love", 1), ("rain", -1)):
        assert table[data.words.index(word)].tolist() == pytest.approx([sign, 0.2, 0])


def test_frozen_vectors_are_neither_trained_nor_sent(folder: Path, tmp_path: Path) -> None:
    settings = {"vectors": str(folder / "vectors.txt")}
    runs = {
        frozen: cupola.run(
            plan(folder, **settings, frozen=frozen), tmp_path / f"{frozen}", report=False
        )
        for frozen in (True, False)
    }
    fresh = problem(load(plan(folder, **settings))).build().embedding.weight
    assert (runs[True].model().embedding.weight == fresh).all()
    assert not (runs[False].model().embedding.weight == fresh).all()
    stored = load_file(tmp_path / "True" / "model.safetensors")
    assert np.array_equal(stored["embedding.weight"], fresh.detach().numpy())  # saved all the same
    for way in ("bytes_up", "bytes_down"):
        less = runs[False].history[-1][way] - runs[True].history[-1][way]
        assert less >= 3 * 6 * fresh.numel() * 4  # every site and round
    for run in runs.values():
        assert run.history[-1]["sites_test"]["accuracy"] > 0.9


@pytest.mark.slow
def test_tweets_of_real_users_are_learned(tmp_path: Path) -> None:
    """Better than the majority (60.6 %) after a few rounds of a small net."""
    if not (Path(os.environ.get("CUPOLA_DATA", "")) / "sent140_users.npz").exists():
        pytest.skip("CUPOLA_DATA has no sent140_users.npz")
    given: dict[str, Any] = {
        "name": "tweets",
        "rounds": 5,
        "data": {
            "name": "sent140",
            "words": 1000,
            "partition": {"kind": "natural", "merge": 6},
        },
        "model": {"name": "text_lstm", "embedding": 16, "hidden": 16, "layers": 1},
        "local": {"epochs": 1, "batch_size": 32, "lr": 2.0, "momentum": 0.5},
        "evaluation": {"on": "sites", "every": 5},
    }
    run = cupola.run(given, tmp_path, report=False)
    found = run.history[-1]["sites_test"]
    assert found["samples"] == 3457
    assert found["accuracy"] > 0.64
