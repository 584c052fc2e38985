"""A study that is killed in the middle and gone on with leaves the same table."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from cohorts import cut, people, write_bim

import cupola
from cupola.base.chain import read_result

# Waits after a number of steps, so that the kill comes in the middle on any machine.
CHILD = """
import sys, time
import cupola
folder, out, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
seen = []
def watch(*facts):
    seen.append(facts)
    if len(seen) == at:
        print("here", flush=True)
        time.sleep(600)
cupola.run(f"{folder}/study.toml", out, progress=watch, report=False)
"""


def _study(folder, test):
    made = people(41, n=150, m=60, chromosomes=(1, 2, 23))
    cut(folder, made, np.array_split(np.arange(150), 3))
    write_bim(folder / "public.bim", made.variants)
    lines = [f'test = "{test}"', f"trait.column = '{'QT' if test == 'mixed' else 'CC'}'",
             "mixed = { groups = 2, calibration = 5, sums = 15 }", "limits.people = 1",
             "covariates = ['AGE', 'DOSE']", "variants = 'public.bim'", "sum = 'masked'",
             "workers = 1", "chunk = 8",
             "checkpoint_seconds = 0", "people_per_column = 10"]  # fmt: skip
    for n in ("c0", "c1", "c2"):
        lines += ["[[cohorts]]", f"name = '{n}'", f"bfile = '{n}'", f"pheno = '{n}.pheno'",
                  f"cov = '{n}.cov'"]  # fmt: skip
    (folder / "study.toml").write_text("\n".join(lines) + "\n")
    return folder / "study.toml"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.parametrize(
    ("test", "at"),
    [("logistic", 2), ("logistic", 5), ("logistic", 9),
     ("mixed", 11), ("mixed", 14), ("mixed", 16), ("mixed", 24)],
)  # fmt: skip
def test_killed_and_gone_on_with(tmp_path, test, at):
    study = _study(tmp_path, test)
    whole = cupola.run(study, tmp_path / "whole", report=False).result
    out = tmp_path / "killed"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path), str(out), str(at)],
        stdout=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline().strip() == b"here"
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(30) == -signal.SIGKILL
    child.stdout.close()
    assert read_result(out) == {}
    assert not (out / f"study.assoc.{test}").exists()
    again = cupola.resume(out, report=False)[0].result
    for name in (f"study.assoc.{test}", "study.dropped.tsv"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    for name in ("tested", "bytes_up", "bytes_down"):
        assert again[name] == whole[name]
