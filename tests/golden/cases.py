"""What is recorded: every choice of a plan by itself, combinations, and studies of each test."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
for beside in ("plan", "association"):  # plans there name code in these folders
    sys.path.insert(0, str(HERE.parent / beside))

from choice_pairs import BASE, CHOICES, NEEDS, settings  # noqa: E402
from cohorts import cut, people, write_bim  # noqa: E402

from cupola.training.recipes import RECIPES  # noqa: E402

NOISED = {
    "dp-sgd": ("privacy.noise_multiplier=0.8",),
    "dp-fedavg": ("privacy.noise_multiplier=0.8",),
    "dp-fedavg-distributed": ("privacy.noise_multiplier=0.8",),
    "dp-ftrl": ("privacy.noise_multiplier=0.8",),
}
MASKED, PAIRWISE = "sum.kind=masked", "sum.protocol=pairwise"

#: Combinations that meet in real plans.
TOGETHER: dict[str, tuple[str, ...]] = {
    "scaffold, masked": ("recipe=scaffold", MASKED),
    "fednova, pairwise": ("recipe=fednova", MASKED, PAIRWISE),
    "upcycled, stragglers": ("recipe=upcycled-fedprox", "rounds=4", "local.epochs=3",
                             "participation.stragglers=0.5"),
    "upcycled, dp-sgd, masked": ("recipe=upcycled-fedavg", "rounds=4", MASKED,
                                 "privacy.mechanism=dp-sgd", "privacy.noise_multiplier=0.8"),
    "frozen, dp-ftrl, tree": ("trainable.freeze=['1']", "recipe=dp-ftrl",
                              "privacy.noise_multiplier=0.8", "privacy.matrix=tree"),
    "pfa, masked": ("personalise.rounds=2", "personalise.methods=['pfa']", "personalise.groups=1",
                    MASKED),
    "kernel normalisation": ("model={name='resnet8',norm='kernel'}",
                             "data.partition.samples_per_site=4", "rounds=1"),
    "separate sites": ("engine.kind=processes", "data.partition.sites=3"),
    "separate sites, masked": ("engine.kind=processes", "data.partition.sites=3", MASKED),
}  # fmt: skip


def plans() -> dict[str, tuple[str, ...]]:
    """Name -> settings on top of `choice_pairs.BASE`."""
    found = {
        f"recipe {name}": (f"recipe={name}", *NOISED.get(name, ()), *NEEDS.get(name, ()))
        for name in RECIPES
    }
    for choice, values in CHOICES.items():
        if choice in ("recipe", "method"):  # above; methods are held to their papers by hand
            continue
        for value in values:
            given = settings((choice, value), source="SOURCE")
            if not any("SOURCE" in text for text in given):  # those need a trained source's folder
                found[f"{choice} {value}"] = tuple(given)
    return {**found, **TOGETHER}


#: Name -> options of a study; cohorts are made by `cohorts_in`.
STUDIES: dict[str, dict[str, Any]] = {
    "chi-square": {"test": "chi-square"},
    "chi-square, trend, proposed": {"test": "chi-square", "trend": True, "variants": None},
    "chi-square, masked": {"test": "chi-square", "sum": "masked"},
    "linear": {"test": "linear"},
    "linear, proposed": {"test": "linear", "variants": None},
    "linear, masked, sex": {"test": "linear", "sum": "masked", "sex": True},
    "linear, pairwise": {"test": "linear", "sum": {"kind": "masked", "protocol": "pairwise"}},
    "logistic, SSF": {"test": "logistic", "tables": ["plink", "ssf"]},
    "logistic, masked": {"test": "logistic", "sum": "masked"},
    "logistic, Firth": {"test": "logistic", "newton": {"firth": True}},
    "logistic, quality": {
        "test": "logistic", "quality": {"maf": 0.05, "missing": 0.1, "hardy_weinberg": 1e-6},
    },
}  # fmt: skip


def cohorts_in(folder: Path) -> Callable[..., dict[str, Any]]:
    """Three cohorts on disk; gives how a study of them is written."""
    made = people(31, n=150, m=14, chromosomes=(1, 2, 23))
    made.copies[0] = 0
    made.copies[0, :2] = 1  # a variant with two carriers
    cut(folder, made, np.array_split(np.arange(150), 3))
    write_bim(folder / "public.bim", made.variants)

    def study(**options: Any) -> dict[str, Any]:
        test = options["test"]
        names = ("c0", "c1", "c2")
        return {
            "trait": {"column": "QT" if test == "linear" else "CC"},
            "covariates": [] if test == "chi-square" else ["AGE", "DOSE"],
            "cohorts": [
                {"name": n, "bfile": n, "pheno": f"{n}.pheno", "cov": f"{n}.cov"} for n in names
            ],
            "folder": str(folder),
            "people_per_column": 5,
            "workers": 1,
            **({} if "variants" in options else {"variants": "public.bim"}),
            **{key: value for key, value in options.items() if value is not None},
        }

    return study


__all__ = ["BASE", "STUDIES", "cohorts_in", "plans"]
