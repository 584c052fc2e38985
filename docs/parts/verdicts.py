"""What equals centralised training: tables of what the checks find, not of what we believe."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from cupola.analysis.plan_file import load
from cupola.data import FederatedData
from cupola.training import build, utility
from cupola.training.recipes import RECIPES, Recipe
from cupola.training.utility import Verdict, check
from parts.markdown import table
from parts.suitability import suitability

# Equal sites that divide into whole batches: what FedSMB needs.
PLAN: dict[str, Any] = {
    "name": "probe",
    "rounds": 3,
    "data": {"name": "digits", "partition": {"kind": "iid", "sites": 4, "samples_per_site": 48}},
    "model": "linear",
    "local": {"batch_size": 16},
}
UNEQUAL = ("data.partition.samples_per_site=[48, 32, 64, 16]",)
ONE_CLASS = ('data.partition={kind="classes", k=1, sites=10, samples_per_site=48}',)
ONE_STEP = ("recipe=fedavg", "local.batch_size=64")


def verdict(*settings: str) -> Verdict:
    """What `cupola check` says of the small plan with these settings."""
    plan = load(PLAN, settings)
    data = _data(build.federated_data, plan.data.model_dump_json(), plan)
    return check(build.training(plan, build.TrainingHost(build.problem(plan, data), data)), data)


_KNOWN: dict[str, FederatedData] = {}


def _data(make: Any, key: str, plan: Any) -> FederatedData:
    if key not in _KNOWN:
        _KNOWN[key] = make(plan)
    return _KNOWN[key]


def _row(name: str, *settings: str) -> list[str]:
    found = verdict(*settings)
    reasons = "; ".join(c.reason for c in found.failing[:1])
    return [name, _yes(found.preserved), reasons, _order(found.difference)]


def _yes(value: bool) -> str:
    return "yes" if value else "**no**"


def _order(difference: float | None) -> str:
    """The order of magnitude; rounding differs between machines."""
    if difference is None:
        return ""
    return "rounding (< 1e-12)" if difference < 1e-12 else f"{difference:.0e}"


def _noise(recipe: Recipe) -> tuple[str, ...]:
    """Some noise for a private recipe: without any it is refused."""
    return ("privacy.noise_multiplier=1.0",) if recipe.privacy else ()


_JUDGED = ("data.partition.test=0.25", "evaluation.on=sites")  # there each has its own model
_DEEP = {
    "fedper": (*_JUDGED, "model=mlp"),
    "fedrep": (*_JUDGED, "model=mlp"),
    "fedbn": (*_JUDGED, "model={name='resnet8',norm='group'}"),
}

HEAD = ["", "equals centralised training", "what fails first", "difference in the probe"]


def algorithms() -> str:
    rows = [
        _row(f"`{r.name}`", f"recipe={r.name}", *_noise(r), *_DEEP.get(r.name, ()))
        for r in RECIPES.values()
    ]
    rows += [
        _row("`fedavg`, one batch and one epoch", *ONE_STEP),
        _row("`fedprox`, one batch and one epoch", *ONE_STEP, "local.proximal=0.1"),
        _row("`fedcmb`, `local.batches = 1`", "recipe=fedcmb", "local.batches=1"),
        _row("`fedfgd`, one class a site", "recipe=fedfgd", *ONE_CLASS),
        _row("`fedsmb`, one class a site", "recipe=fedsmb", *ONE_CLASS),
        _row("`fedfgd`, unequal sites", "recipe=fedfgd", *UNEQUAL),
        _row("`fedsmb`, unequal sites", "recipe=fedsmb", *UNEQUAL),
        _row("`fedsmb`, batches of 10 at sites of 48", "recipe=fedsmb", "local.batch_size=10"),
        _row("`fedfgd`, uniform weights, unequal sites", "recipe=fedfgd",
             "local.weighting=uniform", *UNEQUAL),
        _row("`fedfgd`, half of the sites a round", "recipe=fedfgd",
             'participation={kind="fraction", fraction=0.5}'),
        _row("`fedfgd`, drop-outs", "recipe=fedfgd", "participation.dropouts=0.3"),
    ]  # fmt: skip
    return table(HEAD, rows)


def optimizers() -> str:
    gradients = ("recipe=fedfgd",)
    rows = [
        _row("site: SGD", *ONE_STEP),
        _row("site: SGD with weight decay", *ONE_STEP, "local.weight_decay=0.01"),
        _row("site: SGD with momentum", *ONE_STEP, "local.momentum=0.9"),
        _row("site: SGD with Nesterov momentum", *ONE_STEP, "local.momentum=0.9",
             "local.nesterov=true"),
        _row("site: Adam", *ONE_STEP, "local.optimizer=adam", "local.lr=0.01"),
        _row("coordinator: SGD", *gradients),
        _row("coordinator: SGD with momentum", *gradients, "server.momentum=0.9"),
        _row("coordinator: SGD with weight decay", *gradients, "server.weight_decay=0.01"),
        *(_row(f"coordinator: {name}", *gradients, f"server.optimizer={name.lower()}",
               "server.lr=0.01") for name in ("Adam", "Yogi", "Adagrad")),
        _row("coordinator: Adam on changes", *ONE_STEP, "server.optimizer=adam", "server.lr=0.01"),
        _row("coordinator: momentum on changes", *ONE_STEP, "server.momentum=0.9"),
        _row("step schedule", *gradients, 'local.schedule={kind="step", gamma=0.5}'),
    ]  # fmt: skip
    return table(HEAD, rows)


@lru_cache
def _suitability() -> list[Any]:
    return suitability()


def layers() -> str:
    rows = [
        [f"`{r.name}`", _yes(r.usable), "" if r.batch_independent else "mixes the batch",
         "" if r.deterministic else "draws at random"]
        for r in _suitability() if r.kind == "layer"
    ]  # fmt: skip
    return table(["layer", "can be used", "batch", "chance"], rows)


def losses() -> str:
    rows = [
        [r.name, _yes(r.usable), "" if r.batch_independent else "mixes the batch"]
        for r in _suitability()
        if r.kind == "loss"
    ]
    return table(["loss", "can be used", "batch"], rows)


def probe() -> str:
    """How large the probe is, in a sentence."""
    return (
        f"Then it runs {utility.PROBE_ROUNDS} rounds in float64 on at most {utility.PROBE_SITES} "
        f"sites with some {utility.PROBE_SAMPLES} samples each, beside centralised training on the "
        "same samples, and compares the weights. Weights that differ by at most "
        f"{utility.EQUAL:g} (relative to the largest) are equal: equal runs differ by about 1e-16, "
        "others by far more. The answer is yes only if the conditions and the probe both say so."
    )


PARTS = {
    "probe": probe,
    "suitable-algorithms": algorithms,
    "suitable-optimizers": optimizers,
    "suitable-layers": layers,
    "suitable-losses": losses,
}
