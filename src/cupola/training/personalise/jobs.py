"""The jobs that follow a federated training, in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cupola.training.personalise.grouping import members_of
from cupola.training.personalise.personal_choices import FEDERATED, GROUPED, Personalise

AT_ONCE = 16  # sites that adapt alone in one step, at least; a crash loses no more
STEPS = 64  # of a method that sites carry out alone, at most


@dataclass(frozen=True)
class Job:
    """What comes next: 'vectors'; 'judge' a model at sites; 'train' a group; sites adapt 'alone'.

    group: -1 for the federated model, for all sites together, and for sites alone.
    """

    kind: str
    method: str = ""
    group: int = -1
    sites: tuple[int, ...] = ()


def jobs_of(choice: Personalise, sites: int, personal: Mapping[str, Any]) -> list[Job]:
    """All jobs that are known by now: those of groups only when there are groups."""
    everybody = tuple(range(sites))
    vectors = "pfa" in choice.methods
    found = [Job("vectors", sites=everybody)] if vectors else []
    found.append(Job("judge", "federated", sites=everybody))
    if vectors and not personal["groups"]:
        return found
    for method in choice.methods:
        if method in FEDERATED:
            found += [Job("train", method, -1, everybody), Job("judge", method, -1, everybody)]
            continue
        if method not in GROUPED:
            found += _alone(method, everybody)
            continue
        together = members_in(choice, personal, method)
        for group, members in together.items():
            found += [Job("train", method, group, members), Job("judge", method, group, members)]
        if choice.small == "finetune":
            trained = {site for members in together.values() for site in members}
            found += _alone(method, [s for s in everybody if s not in trained])
    return found


def members_in(
    choice: Personalise, personal: Mapping[str, Any], method: str
) -> dict[int, tuple[int, ...]]:
    """Sites of every group that trains together."""
    labels = personal["groups" if method == "pfa" else "random"]
    large = members_of(labels, choice.minimum)
    return {g: tuple(personal["answered"][i] for i in places) for g, places in large.items()}


def _alone(method: str, sites: Sequence[int]) -> list[Job]:
    each = max(AT_ONCE, -(-len(sites) // STEPS))
    parts = (sites[i : i + each] for i in range(0, len(sites), each))
    return [Job("alone", method, sites=tuple(part)) for part in parts]
