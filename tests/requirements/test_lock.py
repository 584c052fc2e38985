"""What CI installs: the lock files hold all that pyproject.toml asks for, by hash; and the bill of
materials that is made of an environment."""

import importlib.metadata
import json
import re
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINE = re.compile(r"([a-z0-9][a-z0-9-]*)==([^\s]+) \\\n    --hash=sha256:([0-9a-f]{64})\n")


def lock(name):
    return (ROOT / "requirements" / name).read_text("utf-8")


def test_the_lock_holds_what_the_project_asks_for():
    command = [sys.executable, "requirements/lock.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_missing_is_named(tmp_path):
    """Else a new dependency would be found out by CI's first import."""
    for folder in ("requirements", "."):
        (tmp_path / folder).mkdir(exist_ok=True)
    for name in ("lock.py", "ci.txt", "build.txt"):
        (tmp_path / "requirements" / name).write_text(lock(name), "utf-8")
    asked = (ROOT / "pyproject.toml").read_text("utf-8")
    asked = asked.replace('"tomli-w>=1.0"', '"tomli-w>=99", "a-new-one"')
    (tmp_path / "pyproject.toml").write_text(asked, "utf-8")
    command = [sys.executable, "requirements/lock.py", "--check"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert [line.split(";")[0] for line in done.stdout.splitlines()] == [
        "not in requirements/: tomli-w>=99",
        "not in requirements/: a-new-one",
    ]


@pytest.mark.parametrize("name", ["ci.txt", "build.txt"])
def test_every_line_is_a_version_and_a_hash_and_none_an_index(name):
    head, _, body = lock(name).partition("\n")
    assert head.startswith("# Python 3.11")
    assert LINE.sub("", body) == ""
    names = [match[0] for match in LINE.findall(body)]
    assert names == sorted(set(names))


def test_the_lock_takes_torch_without_cuda():
    held = {name: version for name, version, _ in LINE.findall(lock("ci.txt"))}
    assert held["torch"].endswith("+cpu")
    assert not [name for name in held if name.startswith(("nvidia-", "cuda-", "triton"))]


def test_tools_that_judge_the_code_are_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pinned = {line.partition("==")[0] for line in project["optional-dependencies"]["dev"]
              if "==" in line}  # fmt: skip
    assert {"ruff", "mypy"} <= pinned


@pytest.fixture(scope="module")
def materials(tmp_path_factory):
    """As SECURITY.md says, but for the library's own, slower validation."""
    pytest.importorskip("cyclonedx_py", reason="pip install -e '.[dev]' brings it")
    path = tmp_path_factory.mktemp("sbom") / "sbom.json"
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", "pyproject.toml"]
    command += ["--output-reproducible", "--no-validate", "-o", str(path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return json.loads(path.read_text("utf-8"))


def test_the_bill_of_materials_names_every_installed_package(materials):
    found = {(part["name"].lower(), part["version"]) for part in materials["components"]}
    here = [sysconfig.get_path(name) for name in ("purelib", "platlib")]  # not what ray adds
    installed = {
        (part.metadata["Name"].lower(), part.version)
        for part in importlib.metadata.distributions(path=here)
    }
    assert {part for part in installed if part[0] != "cupola"} <= found
    assert materials["metadata"]["component"]["name"] == "cupola"
    assert materials["metadata"]["component"]["licenses"][0]["license"]["id"] == "Apache-2.0"


def test_the_bill_of_materials_follows_the_schema(materials):
    """All required fields of every part; some parts against CycloneDX's own schema."""
    assert (materials["bomFormat"], materials["specVersion"]) == ("CycloneDX", "1.6")
    parts = [part for part in materials["components"] if part["name"] != "cupola"]
    assert all({"type", "name", "version", "purl"} <= set(part) for part in parts)
    assert all(part["purl"].startswith("pkg:pypi/") for part in parts)
    references = [part["bom-ref"] for part in parts]
    assert len(set(references)) == len(references)

    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    few = [part for part in parts if part["name"] in ("cryptography", "cffi")]
    links = [link for link in materials["dependencies"] if link["ref"].startswith("cffi==")]
    about = {"component": materials["metadata"]["component"]}
    small = {**materials, "metadata": about, "components": few, "dependencies": links}
    assert len(few) == 2
    judge = JsonStrictValidator(SchemaVersion.V1_6)
    assert judge.validate_str(json.dumps(small)) is None
    del small["components"][0]["name"]
    assert judge.validate_str(json.dumps(small)) is not None
