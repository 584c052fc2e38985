"""Marks of guarantees: what a plan uses is listed, and what is named exists."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cupola.analysis.grounds import ARGUED, GROUNDS, LIBRARY, MEANING, PROVEN
from cupola.cli import app

ROOT = Path(__file__).resolve().parents[2]
PLAN = """
name = "marks"
rounds = 2
model = "linear"
data = {name = "digits", partition = {kind = "iid", sites = 5}}
"""


def checked(tmp_path, *settings):
    """guarantee -> mark, as `cupola check --json` tells it."""
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    options = [part for setting in settings for part in ("--set", setting)]
    done = CliRunner().invoke(app, ["check", str(path), "--json", *options])
    assert done.exit_code == 0, done.output
    return {row["guarantee"]: row["mark"] for row in json.loads(done.output)["grounds"]}


def about(found, word):
    return {mark for guarantee, mark in found.items() if word in guarantee}


def test_a_plain_plan_claims_nothing_about_privacy(tmp_path):
    assert checked(tmp_path) == {}
    equal = checked(tmp_path, "recipe=fedfgd")
    assert about(equal, "equal to centralised training") == {ARGUED}
    assert len(equal) == 1


def test_private_training_names_its_proof_its_library_and_its_arguments(tmp_path):
    found = checked(tmp_path, "recipe=dp-sgd", "privacy.noise_multiplier=1.0")
    assert about(found, "the clip") == {PROVEN}
    assert about(found, "epsilon") == {LIBRARY}
    assert about(found, "on a grid") == {ARGUED}
    assert not about(found, "totals alone")


@pytest.mark.parametrize("protocol", ["compensator", "pairwise"])
def test_masked_sums_are_argued_and_their_primitives_a_librarys(tmp_path, protocol):
    found = checked(tmp_path, "sum.kind=masked", f"sum.protocol={protocol}")
    assert about(found, "totals alone") == {ARGUED}
    assert about(found, "signatures, key agreement") == {LIBRARY}
    assert about(found, "changed total") == {PROVEN}
    assert not about(found, "surrounded")
    assert not about(found, "epsilon")


def test_check_prints_the_marks(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    done = CliRunner().invoke(app, ["check", str(tmp_path / "plan.toml"), "--set", "sum=masked"])
    assert re.search(r"argued, unreviewed +the coordinator reads totals alone", done.output)
    assert done.output.index("proven here") < done.output.index("argued, unreviewed")


@pytest.mark.parametrize("ground", GROUNDS, ids=lambda ground: ground.guarantee[:40])
def test_what_a_mark_points_to_exists(ground):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    asked = [*project["dependencies"], *(line for extra in extras for line in extra)]
    libraries = {re.split(r"[<>=\[;]", line)[0] for line in asked}
    files = [place for place in ground.where if "/" in place]
    assert ground.mark in MEANING
    assert all((ROOT / place.partition("#")[0]).is_file() for place in files)
    named = set(ground.where) - set(files)
    assert named <= libraries
    assert bool(named) == (ground.mark == LIBRARY)
    if ground.mark == PROVEN:
        text = "".join((ROOT / place.partition("#")[0]).read_text("utf-8") for place in files)
        assert re.search(r"proof|soundness|why a total never wraps", text, re.IGNORECASE)
