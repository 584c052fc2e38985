"""The choices of a plan that are tried in pairs, each as settings on top of one tiny plan."""

from __future__ import annotations

import itertools
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import cupola
from cupola.analysis.folder_lock import read_lines
from cupola.analysis.plan_file import load
from cupola.analysis.run_folder import Run
from cupola.data import Dataset, FederatedData, SiteData
from cupola.errors import CupolaError
from cupola.federation import Entry
from cupola.training.check import facts
from cupola.training.forecast import Forecast, foresee

BASE: dict[str, Any] = {
    "name": "pair",
    "rounds": 2,
    "device": "cpu",
    "checkpoint_seconds": 1000,
    "data": {
        "name": "digits",
        "test": 0.02,
        "partition": {
            "kind": "iid", "sites": 6, "samples_per_site": 10, "test": 0.2, "validation": 0.2,
        },
    },
    "model": {"name": "mlp", "hidden": [6]},
    "local": {"lr": 0.05, "batch_size": 4},
    "engine": {"workers": 1},
}  # fmt: skip

Value = tuple[str, str]  # choice, value
Pair = tuple[Value, Value]

UNIFORM = "local.weighting=uniform"
JUDGED = "evaluation.on=sites", "data.partition.test=0.3"
#: What a recipe needs beside its name: a part of the model stays at the sites.
NEEDS: dict[str, tuple[str, ...]] = {
    "fedper": (*JUDGED, "model={name='mlp',hidden=[6]}"),
    "fedrep": (*JUDGED, "model={name='mlp',hidden=[6]}"),
    "fedbn": (*JUDGED, "model={name='choice_pairs:normed'}", "local.drop_last=true"),
}
PFA = ("personalise.rounds=2", "personalise.methods=['pfa']")
SITES = "privacy.noise_multiplier=0.8", UNIFORM

#: choice -> value -> settings. The plan without any of them is the first value of each.
CHOICES: dict[str, dict[str, tuple[str, ...]]] = {
    "recipe": {
        **{
            name: (f"recipe={name}",)
            for name in ("fedprox", "upcycled-fedavg", "fedavgm", "fedadam", "fednova", "scaffold",
                         "fedfgd", "fedcmb+wga", "ditto", "pfedme")
        },
        "fedrep": ("recipe=fedrep", "evaluation.on=sites"),
        "adaptive upcycling": ("recipe=upcycled-fedprox",
                               "server.upcycle={damping=0.04,adaptive=true}"),
    },
    "method": {
        "feddyn": ("method.name=feddyn", UNIFORM),
        "moon": ("method.name=moon",),
        "fedntd": ("method.name=fedntd",),
        "median": ("method.name=median", UNIFORM),
        "krum": ("method.name=krum", UNIFORM),
        "geometric median": ("method={name='geometric-median',group=3}",),
        "of every site": ("method={name='geometric-median',group=1}",),
    },
    "mechanism": {
        "dp-sgd": ("privacy.mechanism=dp-sgd", "privacy.noise_multiplier=0.8"),
        "dp-sgd, epsilon": ("privacy.mechanism=dp-sgd", "privacy.epsilon=30", UNIFORM),
        "dp-sgd, copies": ("privacy.mechanism=dp-sgd", "privacy.noise_multiplier=0.8",
                           "privacy.augmentations=['original',{flip=1}]"),
        "central": ("privacy.mechanism=central", *SITES),
        "quantile": ("privacy.mechanism=central", *SITES, "privacy.quantile=0.5"),
        "dp-ftrl": ("privacy.mechanism=dp-ftrl", *SITES),
        "restarts": ("privacy.mechanism=dp-ftrl", *SITES, "privacy.restart=1",
                     "privacy.matrix=tree"),
        "honaker": ("privacy.mechanism=dp-ftrl", *SITES, "privacy.matrix=tree-honaker"),
        "distributed": ("privacy.mechanism=distributed", *SITES, "sum.kind=masked"),
        "output": ("privacy.mechanism=output", "privacy.noise_multiplier=0.8", "local.proximal=0.5",
                   "model={name='linear'}", "privacy.neighbours=replace-one"),
        "objective": ("privacy.mechanism=objective", "privacy.answer_epsilon=50",
                      "local.proximal=0.5", "model={name='linear'}",
                      "privacy.neighbours=replace-one"),
    },
    "budget": {
        "large": ("privacy.budget.epsilon=1000", "privacy.budget.trust_coordinator=true",
                  "evaluation.on=public", "data.partition.validation=0", UNIFORM),
        "small": ("privacy.budget.epsilon=3", "privacy.budget.trust_coordinator=true",
                  "evaluation.on=public", "data.partition.validation=0", UNIFORM),
    },
    "sum": {
        "compensator": ("sum.kind=masked",),
        "pairwise": ("sum.kind=masked", "sum.protocol=pairwise"),
        "all of them": ("sum.kind=masked", "sum.minimum=6"),
    },
    "personalise": {
        "pfa, found": PFA,
        "pfa, one group": (*PFA, "personalise.groups=1"),
        "pfa, small ones": (*PFA, "personalise.groups=3", "personalise.small=finetune"),
        "pfa, references": (*PFA, "personalise.groups=2", "personalise.references=2",
                            "personalise.minimum=2"),
        "pfa, released": (*PFA, "personalise.release.noise_multiplier=2"),
        "pfa, another recipe": (*PFA, "personalise.groups=2", "personalise.adapt.recipe=fedprox",
                                "personalise.adapt.participation.kind=all"),
        "random": ("personalise.rounds=2", "personalise.methods=['pfa','random']"),
        "alone": ("personalise.rounds=2", "personalise.methods=['finetune','scratch']"),
        "together": ("personalise.rounds=2", "personalise.methods=['ditto','fedper']"),
        "rivals": ("personalise.rounds=2", "personalise.methods=['distill','ewc']"),
    },
    "trainable": {
        "freeze": ("trainable.freeze=['1']",),
        "only": ("trainable.only=['3']",),
        "a level by share": ("trainable.level=[{share=0.5,freeze=['1']}]",),
        "a level by site": ("trainable.level=[{sites=[0,3],freeze=['1']}]",),
        "lora": ("trainable.adapter={kind='lora',rank=2}",),
        "lora-sb": ("trainable.adapter={kind='lora-sb',rank=2,modules_to_save=['3']}",),
    },
    "model": {
        "linear": ("model={name='linear'}",),
        "batch normalisation": ("model={name='choice_pairs:normed'}",),
        "convolution": ("model={name='choice_pairs:convolution'}",),
        "dropout": ("model={name='mlp',hidden=[6],dropout=0.5}",),
        "reprogrammed": ("model={name='pretrained',source='SOURCE'}",),
        "labels that follow": ("model={name='pretrained',source='SOURCE',adapt='labels',relabel=1,"
                               "least_inner=4}",),
        "a new head": ("model={name='pretrained',source='SOURCE',adapt='head'}",),
    },
    "data": {
        "words": ("data={name='choice_pairs:words'}", "model={name='choice_pairs:tagger'}"),
        "regression": ("data={name='diabetes',test=0.9,partition={kind='iid',sites=6,test=0.2}}",),
        "an empty site": ("data.partition.samples_per_site=[10,0,10,10,7,10]",),
        "flipped": ("data.augment=['flip']",),
        "twenty sites": ("data.partition.sites=20", "data.partition.samples_per_site=8"),
    },
    "participation": {
        "fraction": ("participation.kind=fraction", "participation.fraction=0.5"),
        "count": ("participation.kind=fraction", "participation.count=4"),
        "poisson": ("participation.kind=poisson", "participation.fraction=0.6"),
        "at-most-once": ("participation.kind=at-most-once", "participation.count=3"),
        "rotation": ("participation.kind=rotation", "participation.count=3"),
    },
    "stragglers": {
        "kept": ("participation.stragglers=0.5", "participation.keep_stragglers=true",
                 "local.epochs=3"),
        "dropped": ("participation.stragglers=0.3", "participation.keep_stragglers=false"),
        "dropouts": ("participation.dropouts=0.3",),
        "quorum": ("participation.dropouts=0.1", "engine.quorum=0.6"),
    },
    "evaluation": {
        "sites": ("evaluation.on=both", "evaluation.train=true"),
        "each site": ("evaluation.per_site=true", "evaluation.auroc=8"),
        "best": ("evaluation.best=true", "evaluation.every=2"),
        "patience": ("evaluation.patience=1", "rounds=3"),
        "public validation": ("data.partition.validation=0", "evaluation.best=true",
                              "data.partition.public_validation=0.05"),
    },
    "local": {
        "adam": ("local.optimizer=adam",),
        "cosine": ("local.schedule.kind=cosine", "server.schedule.kind=step"),
        "float64": ("dtype=float64",),
        "twin": ("twin=true",),
        "own task": ("task=choice_pairs:half",),
    },
    "transforms": {
        "quantise": ("transforms=[{kind='quantise',bits=7}]",),
        "both ways": ("transforms=[{kind='quantise',bits=10,download=8}]",),
        "a random part": ("transforms=[{kind='sparsify',share=0.3}]",),
        "a part, quantised": ("transforms=[{kind='sparsify',share=0.5,feedback=false},"
                              "{kind='quantise',bits=8}]",),
        "top-k": ("transforms=[{kind='top-k',share=0.1}]",),
        "top-k, forgetful": ("transforms=[{kind='top-k',share=0.1,feedback=false}]",),
    },
    "engine": {
        "one by one": ("engine.mode=one-by-one", "engine.workers=2"),
        "stacked": ("engine.mode=stacked",),
        "explicit": ("engine.mode=explicit",),
    },
}  # fmt: skip


# Code of a user's own


def normed(input_shape: tuple[int, ...], classes: int | None) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(math.prod(input_shape), 6),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Linear(6, classes or 1),
    )


def convolution(classes: int | None) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, 2),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, classes or 1),
    )


class _Tagger(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 5)
        self.relu = nn.ReLU()
        self.out = nn.Linear(5, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.relu(self.words(x)))


def tagger(classes: int) -> nn.Module:
    return _Tagger(classes)


def words() -> FederatedData:
    def text(seed: int, n: int) -> Dataset:
        x = torch.randint(0, 7, (n, 5), generator=torch.Generator().manual_seed(seed))
        return Dataset(x[:, :-1], x[:, 1:])

    held = [SiteData(text(i, 8), text(20 + i, 2), text(40 + i, 2)) for i in range(6)]
    return FederatedData.from_arrays(
        held, kind="language", classes=7, vocabulary=7, public={"test": text(99, 4)}
    )


def _own_task() -> Any:
    from dataclasses import replace

    from cupola.federation import task
    from cupola.training.local import train

    @task("half-hearted pairs")
    def half(site: Any, question: Any) -> Any:
        answer = train(site, question)
        return replace(answer, arrays={n: a / 2 for n, a in answer.arrays.items()})

    return half


half = _own_task()

# Pairs, and what must hold of each


@cache
def values() -> list[Value]:
    return [(choice, value) for choice, told in CHOICES.items() for value in told]


def pairs() -> list[Pair]:
    """Every value with every value of every other choice."""
    found = itertools.combinations(values(), 2)
    return [tuple(sorted((a, b))) for a, b in found if a[0] != b[0]]  # type: ignore[misc]


def settings(*chosen: Value, source: str = "") -> list[str]:
    """What these values set; a budget without a mechanism of its own is one of dp-sgd."""
    of = {choice for choice, _ in chosen}
    if "budget" in of and "mechanism" not in of:
        chosen = (("mechanism", "dp-sgd"), *chosen)
    ordered = sorted(chosen, key=values().index)
    return [s.replace("SOURCE", source) for c, v in ordered for s in CHOICES[c][v]]


def refusal(given: list[str]) -> str | None:
    """What check says against these settings; None if it says they can be run."""
    try:
        foresee(load(BASE, given))
    except CupolaError as error:
        return str(error)
    return None


def carry_out(given: list[str], folder: Path) -> None:
    """Check, run, and compare; whatever goes wrong is a fault."""
    plan = load(BASE, given)
    facts(plan)  # all that check prints can be made
    told = foresee(plan)
    run = cupola.run(plan, folder, report=False)
    assert run.status == "finished", run.result["reason"]
    as_foreseen(told, run)


def merged(wanted: set[Pair], allowed: set[Pair], most: int = 8) -> tuple[Value, ...]:
    """A wanted pair, with values that bring in further wanted ones; each pair of them is allowed.

    Values that set one key differently are not put together, unless they are the pair itself.
    """
    chosen = list(min(wanted))
    while len(chosen) < most:
        able = [v for v in values() if all(_together(v, c, allowed) for c in chosen)]
        gain = {v: sum(tuple(sorted((v, c))) in wanted for c in chosen) for v in able}
        if not able or not max(gain.values()):
            break
        chosen.append(max(able, key=lambda v: gain[v]))
    return tuple(chosen)


def within(chosen: tuple[Value, ...]) -> set[Pair]:
    return set(itertools.combinations(sorted(chosen), 2))


def _together(one: Value, other: Value, allowed: set[Pair]) -> bool:
    if tuple(sorted((one, other))) not in allowed:
        return False
    mine, theirs = (dict(s.split("=", 1) for s in CHOICES[c][v]) for c, v in (one, other))
    return not any(_clash(a, b) and mine[a] != theirs[b] for a in mine for b in theirs)


def _clash(one: str, other: str) -> bool:
    return one == other or one.startswith(other + ".") or other.startswith(one + ".")


def as_foreseen(told: Forecast, run: Run) -> None:
    """Bytes and epsilon are those that were promised: exactly, or at most where that is said."""
    down, up, spent = run.result["bytes_down"], run.result["bytes_up"], run.result["privacy"]
    entries = [Entry(**e) for e in read_lines(run.folder / "ledger.jsonl")]
    assert down == sum(e.bytes_down * (len(e.sites) + len(e.failed)) for e in entries)
    assert up == sum(sum(e.up()) for e in entries)
    if told.bytes_vary:
        assert down <= told.down
        assert up <= told.up
    else:
        assert (told.down, told.up) == (down, up)
    if told.privacy is None:
        assert spent is None
    elif told.epsilon_vary:
        assert spent["epsilon"] <= told.privacy["epsilon"] + 1e-9
    else:
        assert spent["epsilon"] == pytest.approx(told.privacy["epsilon"], abs=1e-9, rel=0)
