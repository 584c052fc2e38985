"""What personalisation came to: scores by site and method, groups against known types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cupola.base.formatting import LOWER_IS_BETTER
from cupola.federation.program import State
from cupola.privacy.noise import Simulated
from cupola.training.personalise.grouping import members_of
from cupola.training.personalise.jobs import members_in
from cupola.training.personalise.personal_choices import FEDERATED, GROUPED, Release
from cupola.training.personalise.personal_program import Personalisation
from cupola.training.personalise.similarity import full_matrix
from cupola.training.personalise.sparsity import epsilon_of, noise_of, released

SHOWN = 60  # sites in a heat map
DRAWS = 20  # of noise for a point of the curve
NUMBERS = (10, 20, 30, 50)  # of channels that the heat maps compare


def outcome(
    program: Personalisation,
    state: State,
    sizes: np.ndarray,
    types: np.ndarray | None = None,
    names: Sequence[str] = (),
) -> dict[str, Any]:
    """Everything that personal.json holds. types: the true kind of each site, where known."""
    personal = state.values["personal"]
    metric = program.training.evaluation.metric
    scores = {m: _filled(program, personal, m) for m in ("federated", *program.choice.methods)}
    found: dict[str, Any] = {
        "metric": metric,
        "methods": {m: _method(s, scores["federated"], metric) for m, s in scores.items()},
        "selection": "validation" if "validation" in program.splits else "last round",
        "last_round": [m for m in program.choice.methods if m in FEDERATED],
        "sites": {
            m: {site: {k: v.get(metric) for k, v in told.items()} for site, told in s.items()}
            for m, s in scores.items()
        },
        "names": list(names),
        "kept_rounds": personal["kept"],
        "history": personal["history"],
        "done": program.job(state) is None,
    }
    if program.layers and personal["answered"]:
        found["groups"] = _groups(program, state, sizes, types)
    return found


def digest(found: Mapping[str, Any]) -> dict[str, Any]:
    """The part that belongs into result.json."""
    groups = {
        k: v for k, v in found.get("groups", {}).items() if k not in ("heat", "labels", "types")
    }
    kept = ("metric", "methods", "selection", "done")
    return {**{k: found[k] for k in kept}, "groups": groups or None}


def agreement(labels: np.ndarray, types: np.ndarray) -> dict[str, float]:
    """Adjusted Rand index, and the share of sites in the right group at the best matching."""
    from scipy.optimize import linear_sum_assignment  # slow to load, and for few runs
    from sklearn.metrics import adjusted_rand_score

    one, other = np.unique(labels, return_inverse=True)[1], np.unique(types, return_inverse=True)[1]
    table = np.zeros((one.max() + 1, other.max() + 1))
    np.add.at(table, (one.reshape(-1), other.reshape(-1)), 1)
    rows, columns = linear_sum_assignment(-table)
    right = float(table[rows, columns].sum()) / len(labels)
    return {"ari": float(adjusted_rand_score(types, labels)), "matched": right}


def separation(vectors: np.ndarray, types: np.ndarray) -> float | None:
    """Mean distance between sites of different types over that within a type."""
    apart = full_matrix(vectors)
    same, pairs = types[:, None] == types[None], ~np.eye(len(types), dtype=bool)
    if not (same & pairs).any() or same.all():
        return None
    within = float(apart[same & pairs].mean())
    return float(apart[~same].mean()) / within if within > 0 else None


def _filled(
    program: Personalisation, personal: Mapping[str, Any], method: str
) -> dict[str, dict[str, Any]]:
    """Scores of a method at every site; sites that keep the federated model have its scores."""
    scores = personal["scores"]
    if method not in GROUPED:
        return scores.get(method, {})
    if not personal["groups"]:
        return {}
    own = dict(scores.get(method, {}))
    trained = {
        str(s) for sites in members_in(program.choice, personal, method).values() for s in sites
    }
    for site, told in scores.get("federated", {}).items():
        if site not in trained and program.choice.small == "federated":
            own[site] = told
    return own


def _method(
    own: Mapping[str, Mapping[str, Any]], base: Mapping[str, Mapping[str, Any]], metric: str
) -> dict[str, Any]:
    """Means over sites, and how many gained or lost against the federated model."""
    sign = -1 if metric in LOWER_IS_BETTER else 1
    facts: dict[str, Any] = {"sites": len(own)}
    for split in ("validation", "test"):
        values = [t[split][metric] for t in own.values() if metric in t.get(split, {})]
        facts[split] = float(np.mean(values)) if values else None
        if split == "test" and values:
            ranked = sorted(sign * v for v in values)
            worst = ranked[: max(1, round(len(ranked) / 10))]
            facts["worst"] = sign * float(np.mean(worst))
            gains = [
                sign * (told["test"][metric] - base[site]["test"][metric])
                for site, told in own.items()
                if metric in told.get("test", {}) and metric in base.get(site, {}).get("test", {})
            ]
            facts |= {"better": sum(g > 0 for g in gains), "worse": sum(g < 0 for g in gains)}
    return facts


def _groups(
    program: Personalisation, state: State, sizes: np.ndarray, types: np.ndarray | None
) -> dict[str, Any]:
    personal, choice = state.values["personal"], program.choice
    answered = np.array(personal["answered"])
    labels = np.array(personal["groups"])
    vectors = state.arrays["sparsity/0"]
    together = members_of(labels, choice.minimum)
    spec = choice.release
    facts: dict[str, Any] = {
        "number": int(labels.max()) + 1,
        "given": choice.groups,
        "sizes": np.bincount(labels).tolist(),
        "training": len(together),
        "left_over": len(labels) - sum(map(len, together.values())),
        "references": choice.references,
        "minimum": choice.minimum,
        "layers": [layer.name for layer in program.layers],
        "channels": [len(chosen) for _, chosen in program.channels],
        "vector_bytes": personal["vector_bytes"] / len(answered),
        "numbers_bytes": 4 * sum(len(chosen) for _, chosen in program.channels),
        "release": None if spec is None else _release(spec),
        "labels": {str(s): int(g) for s, g in zip(answered, labels)},
    }
    known = None if types is None else np.asarray(types)[answered]
    if known is not None:
        facts |= {"types": known.tolist(), **agreement(labels, known)}
        facts["random"] = agreement(np.array(personal["random"]), known)
        if choice.curve:
            facts["curve"] = _curve(program, vectors, sizes[answered], known)
    facts["heat"] = _heat(program, state, known)
    return facts


def _release(spec: Release) -> dict[str, Any]:
    return {
        "epsilon": epsilon_of(spec),
        "noise": noise_of(spec),
        "delta": spec.delta,
        "neighbours": spec.neighbours,
        "status": "simulated: not valid for release",
    }


def _curve(
    program: Personalisation, vectors: np.ndarray, sizes: np.ndarray, types: np.ndarray
) -> list[dict[str, Any]]:
    """Agreement of the groups with the types if vectors were released with these epsilons."""
    points = []
    for target in program.choice.curve:
        noise = noise_of(Release(epsilon=target))
        found = []
        for draw in range(DRAWS):
            noised = [
                released(vector.astype(np.float64), int(n), noise, _random(program, draw, i))
                for i, (vector, n) in enumerate(zip(vectors, sizes))
            ]
            found.append(agreement(program.group(np.stack(noised)), types))
        points.append(
            {
                "epsilon": target,
                "noise": noise,
                **{k: float(np.mean([f[k] for f in found])) for k in ("ari", "matched")},
                "ari_spread": float(np.std([f["ari"] for f in found], ddof=1)),
                "draws": DRAWS,
            }
        )
    return points


def _random(program: Personalisation, draw: int, site: int) -> Simulated:
    return Simulated(program.training.seed, "curve", draw, site)


def _heat(program: Personalisation, state: State, types: np.ndarray | None) -> list[dict[str, Any]]:
    """Distances of the first sites by layer and number of channels (002, figure 7)."""
    found = []
    for i, (name, channels) in enumerate(program.channels):
        every = state.arrays[f"sparsity/{i}"]
        some = np.arange(len(every))
        if len(every) > SHOWN:  # of every kind some
            order = some if types is None else np.argsort(types, kind="stable")
            some = np.sort(order[np.linspace(0, len(every) - 1, SHOWN).astype(int)])
        for q in sorted({*(n for n in NUMBERS if n < len(channels)), len(channels)}):
            vectors = every[some][:, :q]
            part: dict[str, Any] = {
                "layer": name,
                "channels": q,
                "sites": [state.values["personal"]["answered"][s] for s in some],
                "distances": np.round(full_matrix(vectors), 5).tolist(),
                "mean_sparsity": float(every[:, :q].mean()),
            }
            if types is not None:
                groups = program.group(every[:, :q])
                part |= agreement(groups, types)
                part["separation"] = separation(vectors, types[some])
            found.append(part)
    return found
