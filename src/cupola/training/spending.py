"""A plan's privacy: the sites' book of what they spend, what was promised and what was spent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cupola.analysis.folder_lock import run_id as run_id
from cupola.federation.site import Accounts
from cupola.privacy.accounting import epsilon, within
from cupola.privacy.budget import Book, History, Limit
from cupola.privacy.events import Event
from cupola.privacy.published import figures
from cupola.training.choices import Privacy
from cupola.training.loop import Training
from cupola.training.mechanisms import mechanism_of
from cupola.training.mechanisms.base import binary_problems
from cupola.training.personalise.personal_choices import Release
from cupola.training.personalise.sparsity import noise_of
from cupola.training.plan import Plan
from cupola.training.privacy_promise import SIMULATED, Guarantee, guarantee, resolve
from cupola.training.upcycle import training_rounds
from cupola.training.workspace import TrainingHost

SHOWN = 50  # groups of sites with equal histories that are listed one by one


def book(plan: Plan) -> Callable[[Path | None, str], Accounts] | None:
    """How the sites of a plan open their accounts; None where there is nothing to account for."""
    privacy, personal = plan.privacy, plan.personalise
    if not privacy.on and (personal is None or personal.release is None):
        return None

    def open_book(folder: Path | None, name: str) -> Accounts:
        budget, limit = privacy.budget, _limit(privacy)
        own = None if folder is None else folder / f"{name}.jsonl"
        shared = _shared(privacy, name)
        study = plan.name if budget is None or budget.study is None else budget.study
        run = run_id(folder, name) if shared is not None else ""
        return Book(shared or own, study=study, run=run, limit=limit)

    return open_book


def rehearsed_book(plan: Plan) -> Book | None:
    """The sites' book as it stands before a run, in memory: what is charged to it is forgotten."""
    if book(plan) is None:
        return None
    limit, shared = _limit(plan.privacy), _shared(plan.privacy, "privacy")
    found = Book(limit=limit)
    found.durable = False
    for path in _books(shared, None):
        found._read(path, path.read_bytes(), any_study=True)
    return found


def _limit(privacy: Privacy) -> Limit | None:
    budget = privacy.budget
    if budget is None:
        return None
    return Limit(budget.epsilon, budget.delta, privacy.neighbours, budget.trust_coordinator)


def _shared(privacy: Privacy, name: str) -> Path | None:
    """The file that outlives the run; separate sites have one each, with their name in it."""
    budget = privacy.budget
    if budget is None or budget.file is None:
        return None
    path = Path(budget.file)
    own = name.removeprefix("privacy")
    return path.with_name(f"{path.stem}{own}{path.suffix}")


def resolved(plan: Plan, host: TrainingHost) -> Privacy:
    """The plan's privacy with the noise that its epsilon needs."""
    if not plan.privacy.on or plan.privacy.epsilon is None:
        return plan.privacy
    return resolve(
        plan.privacy,
        plan.local,
        plan.participation,
        sites=len(host),
        rounds=training_rounds(plan.server.upcycle, plan.rounds),
        seed=plan.seed,
        sizes=host.sites.sizes(),
        problems=binary_problems(host.problem.classes),
    )


def promised(program: Training, host: TrainingHost) -> Guarantee | None:
    """What a plan promises at its end."""
    return guarantee(program, host.sites.sizes()) if program.privacy.on else None


def spent(
    program: Training,
    folder: Path,
    rounds: int,
    personal: bool = False,
    release: Release | None = None,
) -> dict[str, Any] | None:
    """What the sites have spent after so many rounds, by their own books; None without privacy."""
    if not program.privacy.on and release is None:
        return None
    groups, unprotected = _from_books(program, folder)
    found = accounted(program, groups, unprotected, rounds, personal, release)
    for group in found["groups"]:
        del group["members"]  # may be a million
    return found


def accounted(
    program: Training,
    groups: dict[History, list[int]],
    unprotected: dict[str, int],
    rounds: int,
    personal: bool = False,
    release: Release | None = None,
) -> dict[str, Any]:
    """What sites with these histories spend in so many rounds, for result.json and before.

    personal: groups trained as well. Then the coordinator's noise is accounted answer by answer,
    without the amplification by sampling sites that the training alone may claim. release: of
    sparsity vectors, which is all that is protected where there is no mechanism.
    """
    privacy, rounds = _whole(program.privacy, release), program.training_round(rounds)
    if privacy.by_coordinator and _shared(privacy, "privacy") is None and not personal:
        how, choice = mechanism_of(privacy), program.participation
        events = how.run_events(choice, program.sites, max(rounds, 1))
        groups = {events: list(range(program.sites))} if rounds else {}
    listed: list[dict[str, Any]] = [
        {
            "epsilon": _epsilon(privacy, events),
            "sites": len(sites),
            "first": sites[:10],
            "members": sites,
            "events": [event.as_dict() for event in events],
        }
        for events, sites in _worst(privacy, groups)
    ]
    listed.sort(key=lambda group: -group["epsilon"])
    return {
        "mechanism": privacy.mechanism if privacy.on else "release",
        "unit": "site" if privacy.of_sites else "example",
        "neighbours": privacy.neighbours,
        "delta": privacy.delta,
        "noise": privacy.noise_multiplier,
        "answer_epsilon": privacy.answer_epsilon,
        "clip": privacy.clip if privacy.on else None,
        "epsilon": max((group["epsilon"] for group in listed), default=0.0),
        "groups": listed,
        "course": course(privacy, max(listed, key=lambda g: g["epsilon"])) if listed else [],
        "unprotected_answers": unprotected,
        "status": SIMULATED,
    }


def _whole(privacy: Privacy, release: Release | None) -> Privacy:
    """By what all answers are accounted: the mechanism's delta and neighbours, or the release's."""
    if privacy.on or release is None:
        return privacy
    facts = {"delta": release.delta, "neighbours": release.neighbours}
    return privacy.model_copy(update={**facts, "noise_multiplier": noise_of(release)})


def _epsilon(privacy: Privacy, events: History) -> float:
    return epsilon(events, privacy.delta, neighbours=privacy.neighbours, method=privacy.accountant)


def course(privacy: Privacy, group: dict[str, Any]) -> list[tuple[float, float]]:
    """Epsilon after shares of the run, as if its charges came evenly."""
    events = [Event.from_dict(event) for event in group["events"]]
    whole = max(event.as_dict().get("count", 1) for event in events) if events else 0
    shares = sorted({round(whole * part / 8) / whole for part in range(1, 9)}) if whole else []
    found = []
    for share in shares:
        part = [e.counted(math.ceil(e.as_dict().get("count", 1) * share)) for e in events]
        found.append((share, _epsilon(privacy, tuple(part))))
    return found if len(found) > 1 else []


def _worst(
    privacy: Privacy, groups: Mapping[History, list[int]]
) -> list[tuple[History, list[int]]]:
    """Not more groups than are worth an exact account: those that may have spent most."""
    ranked = sorted(groups.items(), key=lambda item: -_spends(item[0]))
    shown, rest = ranked[:SHOWN], ranked[SHOWN:]
    if rest:
        most = max(_epsilon(privacy, events) for events, _ in shown)
        for events, sites in rest:
            if not within(events, most, privacy.delta, neighbours=privacy.neighbours):
                shown.append((events, sites))
    return shown


def _spends(events: History) -> float:
    """steps * (rate / noise)^2: a guess at who spent most, which others are held against."""
    total = 0.0
    for event in events:
        facts = event.as_dict()
        noise = facts.get("noise") or math.inf
        total += facts.get("count", 1) * 2 * facts.get("rho", 0.0)
        total += facts.get("count", 1) * (facts.get("rate", 1.0) / noise) ** 2
    return total


def _from_books(program: Training, folder: Path) -> tuple[dict[History, list[int]], dict[str, int]]:
    """Sites by what their books say, and answers that nothing protected."""
    groups: dict[History, list[int]] = {}
    unprotected: dict[str, int] = {}
    for path in _books(_shared(program.privacy, "privacy"), folder):
        book = Book.read(path)
        for events, sites in book.histories().items():
            groups.setdefault(events, []).extend(sites)
        for task, answers in book.unprotected.items():
            unprotected[task] = unprotected.get(task, 0) + answers
    return groups, unprotected


def _books(shared: Path | None, folder: Path | None) -> list[Path]:
    """Files in which the sites of a plan keep their accounts."""
    paths: list[Path] = []
    if shared is not None:
        paths = [shared, *shared.parent.glob(f"{shared.stem}-[0-9]*{shared.suffix}")]
    elif folder is not None:
        paths = [folder / "privacy.jsonl", *folder.glob("sites/privacy-*.jsonl")]
    return [path for path in paths if path.exists()]


def as_json(promise: Guarantee, published: str | None = None) -> dict[str, Any]:
    """A guarantee as plain values, with what a paper printed and what holds."""
    plain = asdict(promise)
    for group, made in zip(plain["groups"], promise.groups):
        group["events"] = [event.as_dict() for event in made.events]
    plain["published"] = [str(figure) for figure in figures(published)] if published else []
    return {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}
