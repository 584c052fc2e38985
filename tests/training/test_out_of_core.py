"""Training on inputs that stay in their files: the same models, and memory that stays flat."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small

import cupola
from cupola.analysis.protocol import OwnSite
from cupola.data import Dataset, FederatedData, Rows, SiteData
from cupola.data.loaders.array_files import ArrayFile
from cupola.errors import PlanError
from cupola.training import Local, Privacy
from cupola.training.own_data import describe, own_host


def in_files(data: FederatedData, folder: Path) -> FederatedData:
    """The same federation with its inputs in npy files, a file for each part of a site."""

    def stored(name: str, rows: Dataset) -> Dataset:
        if not len(rows):
            return rows
        np.save(folder / f"{name}.npy", rows.x.numpy())
        return replace(rows, x=Rows(ArrayFile(folder / f"{name}.npy")))

    sites = [data.site(i) for i in range(len(data))]
    parts = ("train", "validation", "test")
    made = [
        SiteData(*(stored(f"{i} {p}", getattr(s, p)) for p in parts)) for i, s in enumerate(sites)
    ]
    public = {name: stored(name, rows) for name, rows in data.public.items()}
    return small.federation(made, public=public)


CHOICES = {
    "epochs": {"local": Local(lr=0.1, batch_size=8)},
    "batches": {"local": Local(lr=0.1, work="batches", batches=3, batch_size=8)},
    "gradient": {"local": Local(lr=0.1, work="gradient")},
    "dp-sgd": {
        "local": Local(lr=0.1, batch_size=8),
        "privacy": Privacy(mechanism="dp-sgd", clip=1.0, noise_multiplier=1.0),
    },
    "central": {
        "local": Local(lr=0.1, batch_size=8, weighting="uniform"),
        "privacy": Privacy(mechanism="central", clip=1.0, noise_multiplier=1.0),
    },
}


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("mode", ["one-by-one", "auto"])
def test_models_are_those_of_data_in_memory(name, mode, tmp_path):
    memory = small.digits((20, 300, 0, 20), held=5)
    files = in_files(memory, tmp_path)
    what = small.problem(memory)
    found, expected = (
        small.run(small.training(data, what=what, **CHOICES[name]), data, how)
        for data, how in ((files, mode), (memory, "one-by-one"))
    )
    for key, array in expected.arrays.items():
        assert (found.arrays[key] == array).all()


def test_evaluation_reads_files(tmp_path):
    plan = {
        "name": "t", "rounds": 2, "model": "linear", "evaluation": {"on": "both"},
        "data": {"name": "npz", "partition": {"kind": "iid", "sites": 3, "test": 0.2}},
    }  # fmt: skip
    source = small.source()
    arrays = {"x": source.train.x.numpy(), "y": source.train.y.numpy()}
    np.savez(tmp_path / "all.npz", **arrays)
    for key, array in arrays.items():
        np.save(tmp_path / f"{key}.npy", array)
    memory, files = (
        cupola.run(
            {**plan, "data": {**plan["data"], **more}}, folder=tmp_path / more["name"]
        ).result["final"]
        for more in (
            {"name": "npz", "path": str(tmp_path / "all.npz")},
            {"name": "npy", "folder": str(tmp_path)},
        )
    )
    for part in ("test", "site_test"):
        if part in memory:
            assert files[part]["accuracy"] == pytest.approx(memory[part]["accuracy"])
    assert files["test"]["loss"] == pytest.approx(memory["test"]["loss"], rel=1e-5)


def test_a_joint_form_is_refused(tmp_path):
    source = small.source()
    np.save(tmp_path / "x.npy", source.train.x.numpy())
    np.save(tmp_path / "y.npy", source.train.y.numpy())
    plan = cupola.load(
        {
            "name": "t", "rounds": 1, "model": "linear", "engine": {"mode": "together"},
            "data": {"name": "npy", "folder": str(tmp_path)},
        }
    )  # fmt: skip
    with pytest.raises(PlanError, match="inputs that stay in their files"):
        cupola.run(plan, folder=tmp_path / "run")


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_a_real_site_takes_its_data_from_its_files(kind, tmp_path):
    """Its labels in the plan's order, by settings like those that `site join --data` writes."""
    x, names = np.random.default_rng(0).random((30, 4), np.float32), ["ill", "well"]
    y = np.arange(30) % 2
    if kind == "npy":
        np.save(tmp_path / "x.npy", x)
        np.save(tmp_path / "y.npy", y)
        np.save(tmp_path / "class_names.npy", np.array(names))
        settings = describe(tmp_path, None) | {"folder": "."}
    else:
        table = {str(i): x[:, i] for i in range(4)} | {"state": [names[i] for i in y]}
        pq.write_table(pa.table(table), tmp_path / "own.parquet")
        settings = describe(tmp_path / "own.parquet", "state") | {"path": "own.parquet"}
    plan = cupola.load(
        {
            "name": "t", "rounds": 1, "model": "linear",
            "data": {
                "name": "elsewhere", "called": "ours", "kind": "classification", "shape": [4],
                "class_names": ["well", "ill"],
            },
        },
        elsewhere=True,
    )  # fmt: skip
    site = OwnSite(1, 3, settings, tmp_path, tmp_path, rules=None)
    held = own_host(plan, site).data(1).train
    assert not held.in_memory
    assert held.y.tolist() == (1 - y).tolist()
    assert (held.inputs().numpy() == x).all()


MEASURED = """
import sys
from pathlib import Path
import cupola, numpy as np, torch
from cupola.data import Dataset, load

torch.set_num_threads(1)
folder, how = Path(sys.argv[1]), sys.argv[2]

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(key))

plan = cupola.load({"name": "t", "rounds": 1, "model": "linear",
    "data": {"name": "digits", "partition": {"kind": "iid", "sites": 3}}})
cupola.run(plan, folder=folder / f"warm {how}")  # whatever a run needs besides data
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
data = {"name": "npy", "folder": str(folder), "test": 0.1} if how == "files" else {
    "name": "npz", "path": str(folder / "all.npz"), "test": 0.1}
done = cupola.run(cupola.load({"name": "t", "rounds": 2, "model": "linear", "data":
    {**data, "partition": {"kind": "iid", "sites": 10}}}), folder=folder / how)
print(status("VmHWM") - before, done.result["final"]["test"]["accuracy"])
"""


@pytest.mark.slow
def test_memory_stays_flat(tmp_path):
    """200 MB of inputs: two rounds over all of them and an evaluation."""
    rng = np.random.default_rng(0)
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", dtype=np.float32, shape=(12_500, 4_000))
    for start in range(0, len(x), 500):
        x[start : start + 500] = rng.standard_normal((500, 4_000), np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    np.save(tmp_path / "y.npy", y)
    np.savez(tmp_path / "all.npz", x=x, y=y)
    (tmp_path / "half").mkdir()
    np.save(tmp_path / "half" / "x.npy", x[::2])
    np.save(tmp_path / "half" / "y.npy", y[::2])
    runs = {"half": (tmp_path / "half", "files"), "all": (tmp_path, "files")}
    found = {}
    for name, (folder, how) in (runs | {"memory": (tmp_path, "memory")}).items():
        run = [sys.executable, "-c", MEASURED, str(folder), how]
        told = subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()
        found[name] = (int(told[-2]), float(told[-1]))
    print(found)
    assert found["all"][1] == found["memory"][1]
    assert found["memory"][0] > 200
    assert found["all"][0] < found["memory"][0] / 2
    assert abs(found["all"][0] - found["half"][0]) < 60  # 100 MB more of data
