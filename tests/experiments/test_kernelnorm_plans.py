"""Plans of kernel normalisation that are meant for a GPU: each runs a tiny round here, on tiny sets
in the layout of the official files."""

import io
import tarfile

import numpy as np
import pytest

import cupola
from cupola.data import NO_LABEL, load, partition
from cupola.errors import DataError
from reproduce import find_table

TABLES = {
    "kernelnorm-preactresnet": 16,
    "kernelnorm-densenet": 16,
    "kernelnorm-imagenette": 13,
    "kernelnorm-cityscapes": 15,
}
WNIDS = (
    "n01440764", "n02102040", "n02979186", "n03000684", "n03028079",
    "n03394916", "n03417042", "n03425413", "n03445777", "n03888257",
)  # fmt: skip
CITIES = ("aachen", "bochum")
#: What makes a run tiny, by data set; its data are in the folder.
TINY = {
    "cifar100": [
        "participation.kind=fraction",
        "participation.count=1",
        "data.partition.samples_per_site=20",
    ],
    "cifar10": ["local.batch_size=8"],
    "imagenette": ["data.size=64", "local.batch_size=8"],
    "cityscapes": ["data.height=32", "data.width=64", "local.batch_size=2"],
}


def write_cifar(path, prefix, label_bytes, parts, classes):
    rng = np.random.default_rng(0)
    with tarfile.open(path, "w:gz") as archive:
        members = {}
        for name, n in parts.items():
            records = rng.integers(0, 256, (n, label_bytes + 3072), dtype=np.uint8)
            records[:, label_bytes - 1] = np.arange(n) % classes
            members[name] = records.tobytes()
        if label_bytes == 2:
            members["fine_label_names.txt"] = "\n".join(f"c{i}" for i in range(classes)).encode()
        for name, content in members.items():
            info = tarfile.TarInfo(f"{prefix}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """A folder for each data set."""
    image = pytest.importorskip("PIL.Image")
    root, rng = tmp_path_factory.mktemp("sets"), np.random.default_rng(1)

    def save(path, pixels):
        path.parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(pixels).save(path)

    for name in TINY:
        (root / name).mkdir()
    write_cifar(
        root / "cifar100" / "cifar-100-binary.tar.gz", "cifar-100-binary", 2,
        {"train.bin": 2000, "test.bin": 20}, 100,
    )  # fmt: skip
    write_cifar(
        root / "cifar10" / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", 1,
        {**{f"data_batch_{i}.bin": 4 for i in range(1, 6)}, "test_batch.bin": 10}, 10,
    )  # fmt: skip
    for version, pixels in (("160", 70), ("320", 90)):
        for part, n in (("train", 2), ("val", 1)):
            for wnid in WNIDS:
                for i in range(n):
                    path = root / "imagenette" / f"imagenette2-{version}" / part / wnid
                    shape = (pixels, pixels + 10, 3)
                    save(path / f"{i}.JPEG", rng.integers(0, 256, shape, dtype=np.uint8))
    for part in ("train", "val"):
        for city in CITIES:
            for frame in ("000000_000019", "000001_000019"):
                stem = f"{city}_{frame}"
                pixels = rng.integers(0, 256, (64, 128, 3), dtype=np.uint8)
                save(root / f"cityscapes/leftImg8bit/{part}/{city}/{stem}_leftImg8bit.png", pixels)
                ids = rng.integers(0, 34, (64, 128), dtype=np.uint8)
                save(root / f"cityscapes/gtFine/{part}/{city}/{stem}_gtFine_labelIds.png", ids)
    return root


@pytest.mark.parametrize(("name", "cells"), TABLES.items())
def test_every_cell_has_a_plan(name, cells):
    table = find_table(name)
    plans = [table.plan_of(cell, 1) for cell in table.cells()]
    assert len(plans) == cells
    assert {plan.device for plan in plans} == {"auto"}
    assert "not run here" in table.note


def runs():
    """One run of every row, by table."""
    rows = ("NoNorm", "LayerNorm", "GroupNorm", "KernelNorm")
    large = ("LayerNorm", "GroupNorm", "LocalContextNorm", "BatchNorm", "KernelNorm")
    found = [("kernelnorm-preactresnet", row, "silo, batch 16") for row in rows]
    found += [("kernelnorm-preactresnet", "KernelNorm", "device, batch 64")]
    for name in ("kernelnorm-densenet", "kernelnorm-imagenette"):
        found += [(name, row, "batch 1024") for row in rows]
    found += [("kernelnorm-imagenette", "KNResNet-13, epsilon 7", "batch 1024")]
    found += [("kernelnorm-cityscapes", row, "ResNet-18") for row in large]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "row", "column"), runs())
def test_a_tiny_round(name, row, column, sets, tmp_path):
    table = find_table(name)
    cell = next(c for c in table.cells() if (c.row, c.column) == (row, column))
    plan = table.plan_of(cell, 1)
    tiny = ["rounds=1", f"data.folder={sets / plan.data.name}", *TINY[plan.data.name]]
    run = cupola.run(plan, tmp_path / "run", settings=tiny, report=False)
    assert run.result["status"] == "finished"
    last = run.history[-1]["test"]
    assert np.isfinite(last["loss"])
    assert {"accuracy", "class_accuracy", "miou"} <= set(last)
    if plan.privacy.on:
        assert run.result["privacy"]["epsilon"] <= plan.privacy.epsilon


def test_cityscapes_labels(sets, tmp_path):
    source = load("cityscapes", folder=sets / "cityscapes", height=64, width=128)
    assert source.group_names == CITIES
    assert (source.input_shape, source.classes) == ((3, 64, 128), 19)
    image = pytest.importorskip("PIL.Image")
    stem = "aachen_000000_000019_gtFine_labelIds.png"
    with image.open(sets / "cityscapes/gtFine/train/aachen" / stem) as file:
        ids = np.asarray(file)
    labels = source.train.y[0].numpy()
    assert (labels[ids == 7] == 0).all()  # road
    assert (labels[ids == 33] == 18).all()  # bicycle
    assert (labels[np.isin(ids, [0, 4, 9, 14, 18, 29, 30])] == NO_LABEL).all()
    assert len(np.unique(labels)) == 20
    sites = partition(source, {"kind": "natural"}, seed=1)
    assert [sites.site_name(i) for i in range(2)] == list(CITIES)
    small = load("cityscapes", folder=sets / "cityscapes", height=16, width=32)
    assert small.train.y.shape == (4, 16, 32)
    assert set(np.unique(small.train.y)) <= {*range(19), NO_LABEL}  # nearest, not in between
    with pytest.raises(DataError, match="leftImg8bit is not in"):
        load("cityscapes", folder=tmp_path)


def test_any_loss_leaves_out_pixels_without_a_label(sets, tmp_path):
    table = find_table("kernelnorm-cityscapes")
    plan = table.plan_of(table.cells()[3], 1)
    tiny = [*TINY["cityscapes"], "rounds=1", f"data.folder={sets / 'cityscapes'}"]
    tiny += ["model.name=fcn", "model.width=32", "loss=focal", "data.partition.kind=natural"]
    plan = plan.change({"data.partition": {"kind": "natural"}})
    run = cupola.run(plan, tmp_path / "run", settings=tiny, report=False)
    assert run.result["status"] == "finished"
    assert run.result["sites"] == 2
