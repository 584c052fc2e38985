"""`cupola.nn` by itself: layers and models for those who train by their own loop."""

from __future__ import annotations

import subprocess
import sys

ABOVE = ("federation", "privacy", "secure", "data", "engines", "analysis", "training", "site")


def test_nn_imports_nothing_of_the_federation():
    code = (
        "import sys\n"
        "from cupola.nn import KNConv2d, build, kernel_normalise\n"
        "kernel_normalise(build('resnet8', (3, 8, 8), 10, 0, width=2))\n"
        "print(*sorted(m for m in sys.modules if m.startswith('cupola.')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[1] for name in found.stdout.split()}
    assert "nn" in loaded
    assert not loaded & set(ABOVE)
