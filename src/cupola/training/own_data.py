"""A real site's data for a training: its own, and nobody else's.

What a plan says of data is the model's side of them (shapes, classes, augmentation, what is held
out). Where they come from is the site's own affair.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cupola import data as datasets
from cupola.analysis.protocol import OwnSite
from cupola.data.dataset import FederatedData, SiteData, Source
from cupola.data.loaders.elsewhere import as_agreed
from cupola.data.partition import IID
from cupola.errors import DataError, PlanError
from cupola.training import build
from cupola.training.plan import Plan
from cupola.training.workspace import TrainingHost


def own_host(plan: Plan, site: OwnSite) -> TrainingHost:
    """The tasks' data and workspace at this site."""
    data = own_data(plan, site)
    return build.CheckedHost(build.problem(plan, data), data)


def own_data(plan: Plan, site: OwnSite) -> FederatedData:
    """The federation as this site sees it: its own data at its own number, nothing elsewhere;
    while it is looking, its own data everywhere."""
    own = dict(site.data)
    part = own.pop("part", None)
    if part is not None:  # a trial: everybody has the whole data set, and takes a part of it
        whole = build.federated_data(plan)
        return _only(whole, site, lambda: whole.site(int(part)))
    loader = own.pop("loader", plan.data.name)
    source = datasets.load(str(loader), **_with_paths(own, site.folder))
    if not isinstance(source, Source):
        raise DataError(f"data set '{site.dataset}': '{loader}' is not one owner's data")
    if plan.data.name == "elsewhere":
        told = {key: value for key, value in plan.data.options.items() if key != "public"}
        facts = datasets.load("elsewhere", **told)
        assert isinstance(facts, Source)
        source = as_agreed(source, facts)
    held = plan.data.partition
    alone = IID(sites=1, test=held.test, validation=held.validation)
    cut = datasets.partition(source, alone, plan.seed)
    if plan.data.augment:
        cut = datasets.transforms(list(plan.data.augment)).apply(cut)
    return _only(cut, site, lambda: cut.site(0))


def _only(like: FederatedData, own: OwnSite, make: Callable[[], SiteData]) -> FederatedData:
    def site(i: int) -> SiteData:
        if i != own.number and not own.looking:
            raise DataError("only this site's own data are here")
        return make()

    return FederatedData(
        own.sites,
        site,
        kind=like.kind,
        classes=like.classes,
        input_shape=like.input_shape,
        class_names=like.class_names,
        name=like.name,
        **like.token_facts,
    )


def _with_paths(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Names of files are taken from the site's folder."""
    return {
        key: str(folder / value) if key in ("path", "folder") else value
        for key, value in options.items()
    }


def describe(path: Path, target: str | None) -> dict[str, Any]:
    """The settings of a data set that is a table, or a folder of .npy files. target: the column
    that is to be predicted."""
    if path.is_dir() and any(path.glob("*.npy")):
        return {"loader": "npy", "folder": str(path), "test": 0.0}
    if not path.is_file():
        raise DataError(f"{path} is no file")
    if path.suffix == ".npz":
        return {"loader": "npz", "path": str(path), "test": 0.0}
    if not target:
        raise PlanError(f"{path}: say which column is to be predicted (--target)")
    loader = "parquet" if path.suffix in (".parquet", ".arrow", ".feather") else "csv"
    return {"loader": loader, "path": str(path), "target": target, "test": 0.0}
