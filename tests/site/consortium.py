"""Three sites and a compensator in folders of their own, and engines that reach them as bytes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from cupola.analysis.plan_file import load
from cupola.federation import Answering, Contribution, Failure, Federation, Question, read_answer
from cupola.federation.message import encode_question
from cupola.federation.receipts import Receipts
from cupola.secure.roster import Roster
from cupola.site import join_compensator, join_site, make_keys, open_compensator, open_site
from cupola.training import build
from cupola.training.changing_sites import may_change
from cupola.training.plan import Plan

PLAN: dict[str, Any] = {
    "name": "trial",
    "rounds": 2,
    "recipe": "fedavg",
    "sum": "masked",
    "data": {
        "name": "elsewhere",
        "called": "patients",
        "kind": "classification",
        "shape": [4],
        "class_names": ["0", "1"],
        "partition": {"kind": "iid", "sites": 3},
    },
    "model": "linear",
    "local": {"lr": 0.1, "epochs": 1, "batch_size": 8},
}
DIGITS = {**PLAN, "data": {"name": "digits", "partition": {"kind": "iid", "sites": 3}}}
PRIVATE = {**PLAN, "privacy": {"mechanism": "dp-sgd", "noise_multiplier": 1.0, "clip": 1.0}}


@dataclass
class Consortium:
    """Folders of the parties. study: the name in the roster."""

    base: Path
    plan: Plan
    roster: Roster
    opened: list[Answering] = field(default_factory=list)

    @property
    def study(self) -> str:
        return self.roster.study

    def site(self, i: int) -> Path:
        return self.base / f"site-{i}"

    @property
    def compensator(self) -> Path:
        return self.base / "compensator"

    def open(self) -> tuple[Wire, Wire]:
        """Everybody, as if started anew."""
        self.close()
        sites = [open_site(self.site(i), self.study) for i in range(len(self.roster.sites))]
        third = [open_compensator(self.compensator, self.study)]
        self.opened = [*sites, *third]
        return Wire(sites), Wire(third)

    def close(self) -> None:
        for party in self.opened:
            party.close()
        self.opened = []

    def training(self) -> Any:
        return build.training(self.plan, build.host(self.plan))


class Wire(Federation):
    """Carries bytes to parties in this process. change: what happens to bytes on their way."""

    def __init__(self, parties: Sequence[Answering], quorum: float = 0.0) -> None:
        super().__init__(len(parties), quorum=quorum)
        self.parties = parties
        self.seen: list[tuple[int, bytes, bytes]] = []
        self.change: Callable[[int, bytes], bytes] = lambda _, data: data
        self.away: set[int] = set()
        self.receipts: Receipts | None = None
        self.label = "site"

    def ask(
        self, question: Question, sites: Sequence[int]
    ) -> Iterator[tuple[int, Contribution | Failure]]:
        data = encode_question(question)
        for site in sites:
            if site in self.away:
                yield site, Failure("late")
                continue
            answer = self.parties[site].answer(data)
            self.seen.append((site, data, answer))
            told = self.change(site, answer)
            yield site, read_answer(told, self.receipts, f"{self.label} {site}")


def settings(i: int, **more: Any) -> dict[str, Any]:
    own = {"loader": "npz", "path": "rows.npz", "test": 0.0}
    data = {"patients": own, "digits": {"part": i}}
    return {"name": f"clinic {i}", "data": data, **more}


def rows(i: int) -> dict[str, np.ndarray]:
    """The private data of site i."""
    random = np.random.Generator(np.random.PCG64(i))
    x = random.normal(size=(24, 4)).astype(np.float32)
    return {"x": x, "y": (x[:, 0] + 0.3 * i > 0).astype(np.int64)}


def of_sites(count: int, **changes: Any) -> dict[str, Any]:
    """The plan for so many sites."""
    partition = {"kind": "iid", "sites": count}
    return {**PLAN, "data": {**PLAN["data"], "partition": partition}, **changes}


def consortium(
    base: Path,
    plan: dict[str, Any],
    join: bool = True,
    third: bool = True,
    sites: int = 3,
    **more: Any,
) -> Consortium:
    """Parties with fresh keys, who have joined (or not yet)."""
    whole = load(plan)
    folders = [base / f"site-{i}" for i in range(sites)]
    for i, folder in enumerate(folders):
        folder.mkdir(parents=True)
        (folder / "cupola-site.toml").write_text(tomli_w.dumps(settings(i, **more)))
        np.savez(folder / "rows.npz", **rows(i))
    trustee = base / "compensator"
    trustee.mkdir()
    (trustee / "cupola-compensator.toml").write_text('name = "trustee"\n')
    clinics = tuple(make_keys(f, f"clinic {i}").public for i, f in enumerate(folders))
    keys = make_keys(trustee, "trustee").public if third else None
    roster = Roster("trial 1", clinics, keys, changes=may_change(whole))
    (base / "plan.toml").write_text(whole.to_toml())
    (base / "roster.json").write_text(roster.to_json())
    if join:
        for folder in folders:
            join_site(folder, base / "plan.toml", base / "roster.json")
        if third:
            join_compensator(trustee, base / "plan.toml", base / "roster.json")
    return Consortium(base, whole, roster)


def copied(made: Consortium, base: Path) -> Consortium:
    """The same parties in other folders."""
    shutil.copytree(made.base, base)
    return Consortium(base, made.plan, made.roster)
