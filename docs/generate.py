"""Fill the generated parts of the documentation from the code, so that they cannot drift.

    python docs/generate.py            # rewrite what has changed
    python docs/generate.py --check    # only say what would change, and fail if anything would

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`; docs/parts/ makes it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT / "docs") not in sys.path:
    sys.path.insert(0, str(ROOT / "docs"))

from parts import PARTS  # noqa: E402 (found through the line above)

_PART = re.compile(r"<!-- generated: ([\w-]+) -->\n.*?<!-- end -->", re.DOTALL)


def pages() -> Iterator[Path]:
    """Every page that may hold generated parts."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").glob("*.md"))


def rendered(text: str) -> str:
    """A page with its generated parts made anew."""
    return _PART.sub(
        lambda m: f"<!-- generated: {m[1]} -->\n{PARTS[m[1]]().strip()}\n<!-- end -->", text
    )


def main() -> int:
    only_check = "--check" in sys.argv[1:]
    stale = 0
    for page in pages():
        before = page.read_text("utf-8")
        after = rendered(before)
        if after == before:
            continue
        stale += 1
        if not only_check:
            page.write_text(after, "utf-8")
        print(f"{page.relative_to(ROOT)}: {'out of date' if only_check else 'written'}")
    return int(only_check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
