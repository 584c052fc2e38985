"""What a list of variants costs: bytes of memory a variant, seconds to read, send and agree on it.

Two lists: 580,000 variants as chips have them, and a million of which one has an allele of 3,000
letters. Each measurement is a process of its own, since allocators keep what they once had. To
compare versions, run this file with another checkout's `src` as PYTHONPATH.

    python benchmarks/gwas/variant_lists.py [--repeat 5]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

CHIP, LONG = 580_000, 1_000_000
LETTERS = 3000


def write(path: Path, variants: int, longest: int = 1) -> None:
    """A .bim file along 22 chromosomes; names of eight to ten letters."""
    rng = np.random.default_rng(1)
    pairs = rng.integers(0, 6, variants)
    alleles = ["A\tG", "A\tC", "C\tT", "G\tT", "A\tT", "C\tG"]
    names = 100_000 + 13 * np.arange(variants)
    with path.open("w") as file:
        for i, (name, pair) in enumerate(zip(names.tolist(), pairs.tolist())):
            both = alleles[pair] if i != variants // 2 else "ACGT" * (longest // 4) + "\tA"
            both = both if longest > 1 else alleles[pair]
            file.write(f"{1 + 22 * i // variants}\trs{name}\t0\t{1000 + 2000 * i}\t{both}\n")


def resident() -> int:
    """Bytes of memory that this process holds."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


def memory(path: Path) -> dict[str, float]:
    """How much a process grows when it reads a list, after it has read a small one."""
    import pyarrow

    from cupola.association.files import read_variants

    small = path.with_name("small.bim")
    write(small, 2000)
    warm = read_variants(small)
    before = resident()
    listed = read_variants(path)
    gc.collect()
    pyarrow.default_memory_pool().release_unused()
    grown = resident() - before
    own = sum(getattr(listed, n).nbytes for n in ("chromosome", "position", "name", "a1", "a2"))
    return {"variants": len(listed), "grown_per_variant": grown / len(listed),
            "arrays_per_variant": own / len(listed), "warm": len(warm)}  # fmt: skip


def seconds(path: Path) -> dict[str, float]:
    """Reading; packing and unpacking; agreement with the same list, and with one of which every
    third variant is swapped and every seventh has another name."""
    from cupola.association import agreement, variant_list_codec
    from cupola.association.files import Variants, read_variants

    found: dict[str, float] = {}

    def timed(name: str, function):
        gc.collect()
        start = time.process_time()
        result = function()
        found[name] = time.process_time() - start
        return result

    read_variants(path)
    listed = timed("read", lambda: read_variants(path))
    packed = timed("pack", lambda: variant_list_codec.pack(listed))
    proposed = timed("unpack", lambda: variant_list_codec.unpack(packed))
    index = agreement.Index(listed)
    timed("agree", lambda: agreement.compare(proposed, listed, index))
    a1, a2, names = (np.array(x.tolist()) for x in (listed.a1, listed.a2, listed.name))
    swapped, other = np.arange(len(a1)) % 3 == 0, np.arange(len(a1)) % 7 == 0
    names = np.where(other, np.char.add("chip-", names), names)
    a1, a2 = np.where(swapped, a2, a1), np.where(swapped, a1, a2)
    differing = Variants(listed.chromosome, listed.position, names, a1, a2)
    timed("agree_with_other_names", lambda: agreement.compare(proposed, differing, index))
    timed("gather", lambda: listed[np.flatnonzero(other)])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--one", nargs=2)
    given = parser.parse_args()
    if given.one:
        what, path = given.one
        print(json.dumps({"memory": memory, "seconds": seconds}[what](Path(path))))
        return
    with tempfile.TemporaryDirectory() as folder:
        chip, long = Path(folder) / "chip.bim", Path(folder) / "long.bim"
        write(chip, CHIP)
        write(long, LONG, LETTERS)

        def one(what: str, path: Path) -> dict[str, float]:
            command = [sys.executable, __file__, "--one", what, str(path)]
            return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)

        runs = [one("seconds", chip) for _ in range(given.repeat)]
        told = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        found = {"memory": {"chip": one("memory", chip), "long": one("memory", long)},
                 "processor_seconds_at_580000": told}  # fmt: skip
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
