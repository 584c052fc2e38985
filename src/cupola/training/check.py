"""What a plan will do, cost and reveal, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cupola.data.dataset import FederatedData
    from cupola.federation.program import Program
    from cupola.training.forecast import Forecast
    from cupola.training.loop import Training
    from cupola.training.personalise.personal_program import Personalisation
    from cupola.training.plan import Plan
    from cupola.training.workspace import TrainingHost


def facts(plan: Plan, host: TrainingHost | None = None) -> dict[str, Any]:
    """Everything `cupola check` says, as plain values. host: of other data than the plan's."""
    import numpy as np

    from cupola.analysis import grounds
    from cupola.training import build
    from cupola.training.changing_sites import told
    from cupola.training.disclosure import learned, masking
    from cupola.training.forecast import forecast
    from cupola.training.frozen import share

    host = host or build.host(plan)
    program = build.training(plan, host)
    whole = build.program(plan, host, program)
    cost = forecast(plan, host, program, whole)
    data = host.sites
    sizes = data.sizes(np.arange(min(len(data), 100_000)))
    counted, frozen = share(program.space.module), program.space.frozen
    utility, personalise = _utility(program, data), _personalise(whole)
    released = personalise is not None and personalise["release"] is not None
    rests = grounds.of_training(program, utility["preserved"], released)
    return {
        "name": plan.name,
        "recipe": plan.recipe,
        "task": plan.task,
        "method": None if plan.method is None else plan.method.name,
        "rounds": plan.rounds,
        "training_rounds": program.training_rounds,
        "data": {
            "name": plan.data.name,
            "kind": data.kind,
            "classes": data.classes,
            "sites": len(data),
            "partition": build.partition_kind(plan),
            "samples": int(sizes.sum()),
            "samples_per_site": {
                "least": int(sizes.min()),
                "median": int(np.median(sizes)),
                "most": int(sizes.max()),
            },
            "empty": int((sizes == 0).sum()),
            "evaluated_on": plan.evaluation.on,
            "public": {name: len(part) for name, part in data.public.items()},
        },
        "model": {
            "name": plan.model.name,
            "parameters": counted.parameters,
            "trainable": counted.trained,
            "source": plan.model.options.get("source"),
            "adapter": _adapter(plan, host, program),
            "frozen": frozen.parameters,
            "checksum": frozen.regenerate(host.problem.frozen_seed).hex() or None,
            "levels": _levels(program),
            "labels": program.maps.facts(),
        },
        "bytes": {
            "sites": cost.sites,
            "per_site_down": cost.per_site_down,
            "per_site_up": cost.per_site_up,
            "per_round": cost.per_round,
            "total": cost.total,
            "down": cost.down,
            "up": cost.up,
            "at_most": list(cost.bytes_vary),
            "rows": list(cost.rows),
        },
        "link": {
            "down": plan.link.down,
            "up": plan.link.up,
            "seconds": plan.link.seconds(cost.per_site_down, cost.per_site_up),
        },
        "privacy": _privacy(program, host, cost),
        "sum": masking(program),
        "parties": [
            {"party": party, "learns": what} for party, what in learned(program, told(plan))
        ],
        "grounds": [ground.to_json() for ground in rests],
        "utility": utility,
        "personalise": personalise,
    }


def _adapter(plan: Plan, host: TrainingHost, program: Training) -> dict[str, Any] | None:
    """The base of an adapter, and what a mean over sites makes of what is trained."""
    from cupola.nn.adapters import low_rank
    from cupola.training.adapters import averaging, base_name

    choice = plan.trainable.adapter
    found = averaging(program.problem, program.local.lr, host.sites)
    if choice is None or found is None:
        return None
    layers = [name for name, _ in low_rank(program.space.module)]
    return {
        "kind": choice.kind,
        "rank": choice.rank if layers else None,
        "layers": len(layers),
        "base": base_name(plan),
        "base_checksum": program.space.frozen.installed,
        "exact": found.exact,
        "difference": found.difference,
        "idle": list(found.idle),
    }


def _levels(program: Training) -> list[dict[str, int]]:
    """Sites that train less, and how many parameters."""
    found = program.levels
    if found is None:
        return []
    sizes = {n: p.numel() for n, p in program.space.pairs()}
    whole = sum(sizes.values())
    return [
        {"sites": many, "trainable": whole - sum(sizes[n] for n in frozen)}
        for frozen, many in zip(found.frozen, found.counts)
    ]


def _personalise(whole: Program) -> dict[str, Any] | None:
    from cupola.training.personalise.personal_program import Personalisation

    if not isinstance(whole, Personalisation):
        return None
    choice = whole.choice
    return {
        "methods": list(choice.methods),
        "rounds": choice.rounds,
        "layers": [
            {"name": layer.name, "channels": len(chosen), "of": layer.channels}
            for layer, (_, chosen) in zip(whole.layers, whole.channels)
        ],
        "vector_bytes": 4 * sum(len(chosen) for _, chosen in whole.channels),
        "release": _release(whole),
        "minimum": choice.minimum,
    }


def _release(whole: Personalisation) -> dict[str, Any] | None:
    """What a site's vectors spend by themselves, and as they count in the training's total, which
    may be for other neighbours."""
    from cupola.training.personalise.sparsity import epsilon_of

    release, privacy = whole.choice.release, whole.training.privacy
    if release is None:
        return None
    own = {"delta": release.delta, "neighbours": release.neighbours}
    total = {"delta": privacy.delta, "neighbours": privacy.neighbours}
    counted = {"epsilon": epsilon_of(release, privacy.neighbours, privacy.delta), **total}
    return {
        "epsilon": epsilon_of(release),
        **own,
        "in_total": counted if privacy.on and total != own else None,
    }


def _privacy(program: Training, host: TrainingHost, cost: Forecast) -> dict[str, Any] | None:
    """What a plan promises: who is hidden from whom by the training's mechanism, and what the whole
    program spends."""
    from cupola.training.spending import as_json, promised

    spent = cost.privacy
    if spent is None:
        return None
    promise = promised(program, host)
    said: dict[str, Any] = {
        "against": "everybody outside the site",
        "unprotected": ["all that follows from training: nothing but the vectors has noise"],
        "warnings": [],
        "published": [],
    }
    if promise is not None:
        said = as_json(promise, program.privacy.published)
    kept = ("mechanism", "unit", "neighbours", "delta", "noise", "epsilon", "groups", "course",
            "status")  # fmt: skip
    return {**said, **{k: spent[k] for k in kept}, "at_most": list(cost.epsilon_vary)}


def _utility(program: Training, data: FederatedData) -> dict[str, Any]:
    from dataclasses import asdict

    from cupola.training.utility import check as equal

    verdict = equal(program, data)
    return {
        "preserved": verdict.preserved,
        "difference": verdict.difference,
        "conditions": [asdict(condition) for condition in verdict.conditions],
    }
