"""Published methods as named sets of choices. A plan's own settings go on top."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cupola.base.suggest import suggest
from cupola.errors import PlanError


@dataclass(frozen=True)
class Recipe:
    """A method as settings of a plan: its sections local, server, participation, privacy, sum and
    method (see `cupola.training.methods`); and its source."""

    name: str
    summary: str
    source: str
    local: dict[str, Any] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    participation: dict[str, Any] = field(default_factory=dict)
    privacy: dict[str, Any] = field(default_factory=dict)
    sum: dict[str, Any] = field(default_factory=dict)
    method: dict[str, Any] = field(default_factory=dict)


_GRADIENTS = {"send": "gradients"}
_FEDOPT = "Reddi et al. 2021, Adaptive federated optimization"
_UPCYCLED = "Upcycled-FL: improving accuracy and privacy with less computation"
_UPFL = "Nasirigerdeh et al. 2023, Utility-preserving federated learning (AISec)"

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "fedavg",
            "local epochs, models averaged by samples",
            "McMahan et al. 2017",
            participation={"keep_stragglers": False},
        ),
        Recipe(
            "fedprox",
            "FedAvg with a proximal term; partial work is kept",
            "Li et al. 2020",
            local={"proximal": 0.1},
        ),
        Recipe(
            "upcycled-fedprox",
            "FedProx with every second round by the coordinator alone, for free",
            _UPCYCLED,
            local={"proximal": 0.1},
            server={"upcycle": {"damping": 0.04}},
        ),
        Recipe(
            "upcycled-fedavg",
            "FedAvg with every second round by the coordinator alone, for free",
            _UPCYCLED,
            server={"upcycle": {"factor": 0.7}},
            participation={"keep_stragglers": False},
        ),
        Recipe(
            "fedavgm",
            "FedAvg with momentum at the coordinator",
            "Hsu et al. 2019",
            server={"momentum": 0.9},
        ),
        Recipe(
            "fedadam",
            "Adam at the coordinator",
            _FEDOPT,
            server={"optimizer": "adam", "lr": 0.03},
        ),
        Recipe(
            "fedyogi",
            "Yogi at the coordinator",
            _FEDOPT,
            server={"optimizer": "yogi", "lr": 0.03},
        ),
        Recipe(
            "fedadagrad",
            "Adagrad at the coordinator",
            _FEDOPT,
            server={"optimizer": "adagrad", "lr": 0.03, "betas": (0.0, 0.99)},
        ),
        Recipe(
            "fednova",
            "changes normalised by local steps before averaging",
            "Wang et al. 2020",
            local={"send": "normalised"},
        ),
        Recipe(
            "scaffold",
            "control variates against client drift",
            "Karimireddy et al. 2020",
            local={"control_variates": True, "weighting": "uniform"},
        ),
        Recipe(
            "feddyn",
            "dynamic regularisation: sites' optima agree with the federation's",
            "Acar et al. 2021",
            local={"weighting": "uniform"},
            method={"name": "feddyn"},
        ),
        Recipe(
            "ditto",
            "a personal model beside FedAvg's, drawn to it",
            "Li et al. 2021, Ditto",
            method={"name": "ditto"},
        ),
        Recipe(
            "pfedme",
            "sites descend on Moreau envelopes, whose minimisers are personal models",
            "Dinh et al. 2020",
            local={"weighting": "uniform"},
            method={"name": "pfedme"},
        ),
        Recipe(
            "fedper",
            "FedAvg of all but the last layers, which stay at their site",
            "Arivazhagan et al. 2019",
            method={"name": "fedper"},
        ),
        Recipe(
            "fedrep",
            "the last layers stay at their site and are trained before what is shared",
            "Collins et al. 2021",
            local={"weighting": "uniform"},
            method={"name": "fedrep"},
        ),
        Recipe(
            "fedbn",
            "FedAvg of all but normalisation layers, which stay at their site",
            "Li et al. 2021, FedBN",
            method={"name": "fedbn"},
        ),
        Recipe(
            "fedfgd",
            "one full gradient per round; equals centralised full-gradient descent",
            _UPFL,
            local={"work": "gradient", **_GRADIENTS},
        ),
        Recipe(
            "fedsmb",
            "one mini-batch per round; equals centralised SGD when sites are equal in size",
            _UPFL,
            local={"work": "batches", "batches": 1, **_GRADIENTS},
        ),
        Recipe(
            "fedcmb",
            "tau mini-batches per round, accumulated gradients sent",
            _UPFL,
            local={"work": "batches", "batches": 5, **_GRADIENTS},
        ),
        Recipe(
            "fedcmb+wga",
            "FedCMB with weighted gradient accumulation: early gradients count more",
            _UPFL,
            local={"work": "batches", "batches": 5, "accumulation": "weighted", **_GRADIENTS},
        ),
        Recipe(
            "dp-sgd",
            "one private step per round at each site: examples are protected from everybody else",
            "Abadi et al. 2016",
            local={"work": "batches", "batches": 1, "weighting": "uniform", **_GRADIENTS},
            privacy={"mechanism": "dp-sgd"},
        ),
        Recipe(
            "dp-fedavg",
            "FedAvg with clipped updates and noise at the coordinator: whole sites are protected",
            "McMahan et al. 2018; Andrew et al. 2021 (moving clip)",
            local={"weighting": "uniform"},
            privacy={"mechanism": "central"},
        ),
        Recipe(
            "dp-fedavg-distributed",
            "FedAvg with clipped updates, masked sums and noise in shares: whole sites are "
            "protected, from the coordinator too",
            "Kairouz, Liu and Steinke 2021",
            local={"weighting": "uniform"},
            privacy={"mechanism": "distributed"},
            sum={"kind": "masked"},
        ),
        Recipe(
            "dp-ftrl",
            "FedAvg with noise that is correlated over rounds: no sampling of sites needed",
            "Kairouz et al. 2021; FedPT uses it",
            local={"weighting": "uniform"},
            server={"momentum": 0.9},
            privacy={"mechanism": "dp-ftrl"},
        ),
    )
}


def find_recipe(name: str) -> Recipe:
    """A recipe by name; unknown names are refused with a suggestion."""
    if name not in RECIPES:
        raise PlanError(f"recipe = '{name}' is unknown; {suggest(name, RECIPES)}")
    return RECIPES[name]
