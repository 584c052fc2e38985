"""Write the lock files: every package that CI installs, by exact version and SHA-256.

    python requirements/lock.py            # resolve anew, for this Python and platform
    python requirements/lock.py --check    # fail if pyproject.toml asks for what they do not hold

`ci.txt` holds what `.[dev]` needs, `build.txt` what builds packages that come as source. Versions
and hashes are those of the files that pip would install here, from the indexes it is set up with;
neither file names an index. They are for Linux on x86-64 and one version of Python (see their first
lines). torch is the CPU build: where the index has none of that version, installing fails instead
of taking a build with CUDA.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

HERE = Path(__file__).resolve().parent
PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text("utf-8"))
ALONE = ("timm", "triton")  # extras that are never in `dev`; pyproject.toml says why
CI, BUILD = HERE / "ci.txt", HERE / "build.txt"


def resolved() -> dict[str, tuple[str, str]]:
    """Package -> version and hash, as pip resolves the project with all of its extras."""
    wanted = [f"{HERE.parent}[dev]", *PROJECT["build-system"]["requires"]]
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
    told = subprocess.run(
        [*command, "--quiet", "--report", "-", *wanted],
        check=True,
        stdout=subprocess.PIPE,
    )
    return {
        canonicalize_name(part["metadata"]["name"]): (part["metadata"]["version"], _hash(part))
        for part in json.loads(told.stdout)["install"]
        if "dir_info" not in part["download_info"]  # the project itself
    }


def _hash(part: dict[str, Any]) -> str:
    return part["download_info"]["archive_info"]["hashes"]["sha256"]


def write(path: Path, packages: dict[str, tuple[str, str]]) -> None:
    head = (
        f"# Python {platform.python_version()}, {platform.system()} on {platform.machine()}. "
        "Made by: python requirements/lock.py\n"
    )
    lines = [
        f"{name}=={version} \\\n    --hash=sha256:{digest}\n"
        for name, (version, digest) in sorted(packages.items())
    ]
    path.write_text(head + "".join(lines), "utf-8")


def locked(path: Path) -> dict[str, Version]:
    """Package -> version, from a lock file."""
    lines = (line for line in path.read_text("utf-8").splitlines() if "==" in line)
    parts = (line.removesuffix(" \\").partition("==") for line in lines)
    return {name: Version(version) for name, _, version in parts}


def missing() -> list[str]:
    """What pyproject.toml asks for, extras of `dev` included, and the lock files do not hold."""
    held = locked(CI) | locked(BUILD)
    project = PROJECT["project"]
    asked = [*project["dependencies"], *PROJECT["build-system"]["requires"]]
    extras = project["optional-dependencies"]
    asked += [text for name, extra in extras.items() if name not in ALONE for text in extra]
    wrong = []
    for wanted in map(Requirement, asked):
        name = canonicalize_name(wanted.name)
        own = name == project["name"]
        if not own and (name not in held or not wanted.specifier.contains(held[name])):
            wrong.append(str(wanted))
    return wrong


def main() -> int:
    if "--check" in sys.argv[1:]:
        for wanted in missing():
            print(f"not in requirements/: {wanted}; run python requirements/lock.py")
        return int(bool(missing()))
    found = resolved()
    builders = {canonicalize_name(Requirement(r).name) for r in PROJECT["build-system"]["requires"]}
    write(BUILD, {name: facts for name, facts in found.items() if name in builders})
    write(CI, {name: facts for name, facts in found.items() if name not in builders})
    print(f"{len(found)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
