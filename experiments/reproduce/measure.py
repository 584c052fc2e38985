"""One number from a run: what a table's cell is judged by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cupola.base.formatting import finite
from cupola.errors import DataError
from cupola.pages.folder import sent
from cupola.report import RunFolder
from cupola.sweep import kept
from reproduce.published_epsilon import upcycled_epsilon

COSTS = ("rounds", "bytes", "seconds")
TO_TARGET = ("rounds_to", "bytes_to", "seconds_to")
OF_SITES = {
    "train_accuracy": "accuracy on what sites train on",
    "worst_sites": "mean accuracy of the worst tenth of the sites",
    "sites_spread": "standard deviation of the accuracy over sites",
}
PERSONAL = {
    "ari": "adjusted Rand index of the groups against the known types",
    "matched": "sites in the right group",
    "ari_random": "the same of the random groups",
}
_OF_PERSONAL = ("personal_", "ari_at_", "matched_at_")
WORDS = {
    **OF_SITES,
    **PERSONAL,
    "train_loss": "loss on what sites train on",
    "epsilon": "epsilon, rigorous, of the site that spends most",
    "privacy_area": "area under accuracy (%) against epsilon, over the evaluated rounds",
    "epsilon_published": "epsilon by the formulas of 003 for the same noise, mean over sites",
    "seconds": "seconds",
    "bytes": "megabytes sent",
}
_HELD_OUT = ("test", "sites_test")


def measure(run: RunFolder, what: str, target: float | None = None) -> float | None:
    """A metric at the end; rounds, bytes or seconds, in all or '..._to' a target; weights_mse; or
    one of WORDS."""
    if what in COSTS:
        value = {"rounds": run.rounds, "bytes": run.bytes_sent, "seconds": run.seconds}[what]
        return float(value) if finite(value) else None
    if what in TO_TARGET:
        record = run.reached(target) if target is not None else None
        if record is None:
            return None
        keys = {"rounds_to": record.get("round"), "seconds_to": record.get("seconds")}
        value = sent(record) if what == "bytes_to" else keys[what]
        return float(value) if finite(value) else None
    if what == "weights_mse":
        return weights_mse(run.path)
    if what in ("train_accuracy", "train_loss"):
        return run.final(what.removeprefix("train_"), "sites_train")
    if what in ("worst_sites", "sites_spread"):
        return _over_sites(run, what)
    if what in PERSONAL or what.startswith(_OF_PERSONAL):
        return _personal(run, what)
    if what == "epsilon":
        value = (run.result.get("privacy") or {}).get("epsilon")
        return float(value) if finite(value) else None
    if what == "privacy_area":
        return _privacy_area(run)
    if what == "epsilon_published":
        return upcycled_epsilon(run)
    return kept(run, what)


def _privacy_area(run: RunFolder) -> float | None:
    """From the first evaluated round to the last, by trapezoids (000, Table VI)."""
    course = (run.result.get("privacy") or {}).get("course")
    points = [
        (r.get("round", 0), v) for split in _HELD_OUT for r, v in run.curve("accuracy", split)
    ]
    if not course or len(points) < 2 or any(spent is None for _, spent in course):
        return None  # without noise there is no epsilon
    share, spent = zip(*((0.0, 0.0), *course))
    rounds, accuracy = zip(*points)
    epsilon = np.interp(np.array(rounds) / max(rounds), share, spent)
    return float(np.trapezoid(100 * np.array(accuracy), epsilon))


def _personal(run: RunFolder, what: str) -> float | None:
    """Of personalisation: a method's mean over sites ('personal_pfa'), how well the groups agree
    with the known types, also under noise ('ari_at_0.5': at that epsilon)."""
    found = run.result.get("personal") or {}
    groups = found.get("groups") or {}
    if what.startswith("personal_"):
        value = (found.get("methods") or {}).get(what.removeprefix("personal_"), {}).get("test")
    elif "_at_" in what:
        name, at = what.split("_at_")
        points = {p["epsilon"]: p[name] for p in groups.get("curve") or ()}
        value = points.get(float(at))
    elif what.endswith("_random"):
        value = (groups.get("random") or {}).get(what.removesuffix("_random"))
    else:
        value = groups.get(what)
    return float(value) if finite(value) else None


def _over_sites(run: RunFolder, what: str) -> float | None:
    """How unequal the last model is, from what sites told of themselves (evaluation.per_site)."""
    told: list[dict[str, Any]] = [r["per_site"] for r in run.history if "per_site" in r]
    last = told[-1].values() if told else ()
    own = sorted(float(m["accuracy"]) for m in last if finite(m.get("accuracy")))
    if not own:
        return None
    worst = own[: max(1, round(len(own) / 10))]
    return float(np.mean(worst) if what == "worst_sites" else np.std(own))


def weights_mse(folder: Path) -> float:
    """Mean over all weights of the squared difference between a run's model and its twin's."""
    from safetensors.numpy import load_file

    files = [folder / "model.safetensors", folder / "twin" / "model.safetensors"]
    for path in files:
        if not path.is_file():
            raise DataError(f"{path} is missing; measure = 'weights_mse' needs twin = true")
    ours, theirs = (load_file(path) for path in files)
    gaps = [np.ravel(ours[n].astype(np.float64) - theirs[n].astype(np.float64)) for n in ours]
    return float(np.mean(np.concatenate(gaps) ** 2))
