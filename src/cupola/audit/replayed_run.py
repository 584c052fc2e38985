"""What is audited: a finished run's own program, one of its sites, and two models it has sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file

from cupola.analysis.folder_lock import read_lines
from cupola.analysis.run_folder import Run
from cupola.base.chain import read_json
from cupola.base.randomness import generator
from cupola.data.dataset import SiteData
from cupola.errors import CupolaError
from cupola.federation.message import Arrays, Question
from cupola.federation.program import State
from cupola.federation.site import SiteContext, StateStore
from cupola.privacy.accounting import epsilon
from cupola.privacy.events import Event
from cupola.training import build
from cupola.training.choices import Privacy
from cupola.training.local import train
from cupola.training.loop import Training
from cupola.training.mechanisms.base import Mechanism
from cupola.training.participation import draw
from cupola.training.workspace import MODEL, TrainingHost, Workspace, frozen_part

Step = Callable[[str, int, int], None]  # what is done, how much of it, of how much
MARGIN = 1e-9  # relative; between a noise found twice


@dataclass
class Subject:
    """A run ready to be repeated in parts. Nothing here opens the sites' books for writing.

    models: what sites receive in repeated rounds, in turn: the first and the final model.
    rounds: how many training rounds are repeated.
    """

    run: Run
    host: TrainingHost
    program: Training
    models: tuple[Arrays, ...]
    rounds: int
    space: Workspace

    @classmethod
    def open(cls, folder: str | Path, rounds: int) -> Subject:
        run = Run.open(folder)
        if run.status != "finished":
            raise CupolaError(
                f"{folder} is not finished ({run.status}); finish it with `{run.resume}`"
            )
        plan = run.plan
        host = build.host(plan)
        host.book = None  # an audit is charged to nobody
        # A transform makes no update longer than its clip, and takes off none of the noise that is
        # in it: the mechanism is audited as if updates were sent as they are.
        program = replace(build.training(plan, host), transforms=(), label_map=None)
        start = program.start().arrays
        saved = load_file(run.folder / "model.safetensors")
        if program.levels is not None:
            raise CupolaError(
                f"{run.folder}: its sites train different parts of the model (trainable.level), "
                "which an audit does not repeat; audit a run where all train the same"
            )
        own = {name: saved[name.split("/", 1)[1]] for name in start if name.startswith(MODEL)}
        # Where labels move, the first map is not kept: the final one stands for it.
        final = frozen_part(start) | own
        first = {n: a for n, a in start.items() if _is_model(n)} | frozen_part(final)
        done = max(1, program.training_round(int(run.result["rounds"])))
        return cls(run, host, program, (first, final), min(rounds, done), program.space)

    @property
    def privacy(self) -> Privacy:
        return self.program.privacy

    @property
    def mechanism(self) -> Mechanism:
        return self.program.mechanism

    @property
    def done(self) -> int:
        """Training rounds that the run made."""
        return self.program.training_round(int(self.run.result["rounds"]))

    def question(self, round: int) -> Question:
        """What the coordinator asks in this training round, at a fixed model; nobody fails by
        chance."""
        models = self.models
        arrays = models[(round - 1) % len(models)]
        upcycled = self.program.server.upcycle is not None
        values: dict[str, Any] = {
            "round": 2 * (round - 1) if upcycled else round - 1,
            "record": None,
            "pending": [],
            "stopped": None,
        }
        ask = self.program.ask(State(round - 1, dict(arrays), values))
        assert ask is not None
        options = {k: v for k, v in ask.question.options.items() if k != "participation"}
        return replace(ask.question, options=options)

    def questions(self) -> list[Question]:
        """Those of the repeated rounds."""
        return [self.question(round) for round in range(1, self.rounds + 1)]

    def context(self, site: int, data: SiteData, seed: int, canary: Any = None) -> SiteContext:
        """A copy of a site with randomness of its own."""
        return SiteContext(site, data, self.space, StateStore(), seed, canary=canary)

    def some_sites(self) -> list[int]:
        """The first three that hold examples."""
        found = (i for i in range(len(self.host)) if len(self.host.data(i).train))
        return list(islice(found, 3))

    # Which site, and what is claimed for it

    def histories(self) -> dict[int, tuple[Event, ...]]:
        """What the run's ledger says that sites spent, for the first sites of every group."""
        found: dict[int, tuple[Event, ...]] = {}
        for group in (self.run.result.get("privacy") or {}).get("groups", ()):
            events = tuple(Event.from_dict(event) for event in group["events"])
            found |= {int(site): events for site in group["first"]}
        return found

    def site(self) -> int:
        """The audited site: where whole sites are hidden the one that is asked most often in the
        repeated rounds, else the one that spent most."""
        if self.mechanism.of_sites:
            asked = Counter(
                i
                for round in range(1, self.rounds + 1)
                for i in draw(
                    self.program.participation, self.program.sites, self.program.seed, round
                )
            )
            return min(asked, key=lambda i: (-asked[i], i)) if asked else 0
        spent = self.histories()
        if not spent:
            raise CupolaError(f"{self.run.folder}: no site spent anything; there is no claim")
        return next(iter(spent))  # groups are listed with the largest epsilon first

    def events(self, site: int) -> tuple[Event, ...]:
        """What the repeated rounds cost by the run's own charges, which must be in its ledger."""
        if self.mechanism.of_sites:
            return self.run_events(self.rounds)
        context = self.context(site, self.host.data(site), 0)
        events: list[Event] = []
        for round in range(1, self.rounds + 1):
            assert train.charge is not None
            charge = train.charge(context, self.question(round))
            assert charge is not None
            events += [event for event in charge.events if isinstance(event, Event)]
        booked = self.histories().get(site, ())
        for event in events:
            if not any(_same(event, other) for other in booked):
                raise CupolaError(
                    f"{self.run.folder}: the ledger of site {site} does not hold what its plan "
                    f"does ({event}); result.json or plan.toml was changed after the run"
                )
        return tuple(events)

    def run_events(self, rounds: int | None = None) -> tuple[Event, ...]:
        """What so many rounds, or the whole run, do to any one site, where sites are hidden."""
        program = self.program
        many = program.training_rounds if rounds is None else rounds
        return self.mechanism.run_events(program.participation, program.sites, many)

    def epsilon(self, events: tuple[Event, ...], delta: float | None = None) -> float:
        """Of these events, at the run's delta or another."""
        privacy = self.privacy
        return epsilon(
            events,
            privacy.delta if delta is None else delta,
            neighbours=privacy.neighbours,
            method=privacy.accountant,
        )

    # Members

    def asked(self) -> list[int]:
        """Sites that trained in the run, by its ledger."""
        path = self.run.folder / "ledger.jsonl"
        if not path.exists():
            return list(range(self.program.sites))
        found: set[int] = set()
        for entry in read_lines(path):
            if entry["task"] == self.program.task:
                found.update(entry["sites"])
        return sorted(found)


class ReplayedSite:
    """The audited site of a run. seed: of what the audit draws."""

    def __init__(self, subject: Subject, seed: int) -> None:
        self.subject, self.seed, self.index = subject, seed, subject.site()
        self.data = subject.host.data(self.index)
        self.n = len(self.data.train)

    def context(
        self,
        seed: int,
        *,
        site: int | None = None,
        data: SiteData | None = None,
        real: bool = False,
    ) -> SiteContext:
        """This site, or another number or data, with randomness of its own or the system's."""
        number = self.index if site is None else site
        held = self.data if data is None else data
        return replace(self.subject.context(number, held, seed), real=real)


def _is_model(name: str) -> bool:
    return name.startswith(("model/", "buffer/"))


def _same(one: Event, other: Event) -> bool:
    """Equal but for how often, and for rounding."""
    a, b = one.as_dict(), other.as_dict()
    a.pop("count", None), b.pop("count", None)
    return a.keys() == b.keys() and all(
        np.isclose(a[k], b[k], rtol=MARGIN, atol=0) if isinstance(a[k], float) else a[k] == b[k]
        for k in a
    )


def flat(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The parameters of an answer or a model as one vector, float64."""
    parts = [a.reshape(-1) for n, a in arrays.items() if n.startswith("model/")]
    return np.concatenate(parts).astype(np.float64)


def together_less_alone(
    contexts: Callable[[], list[SiteContext]], question: Question
) -> np.ndarray | None:
    """What the form for many sites adds up to, less what the same sites answer one by one; None
    where there is no such form."""
    assert train.batched is not None
    together = train.batched(contexts(), question)
    if together is None:
        return None
    names = [n for n in question.arrays if n.startswith("model/")]
    total = sum(flat({n: part.arrays[n] for n in names}) for part in together)
    return np.asarray(total - sum(flat(train(c, question).arrays) for c in contexts()))


def state_of(question: Question) -> State:
    """The coordinator's state when it asks this."""
    return State(question.step, dict(question.arrays), {"round": question.round - 1})


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / max(float(np.linalg.norm(vector)), 1e-300)


def direction(seed: int, purpose: str, size: int) -> np.ndarray:
    """A direction drawn for this purpose."""
    return unit(generator(seed, purpose).standard_normal(size))


def as_tensor(vector: np.ndarray, space: Workspace) -> torch.Tensor:
    return torch.from_numpy(vector).to(space.device, space.problem.dtype)


def read(folder: str | Path) -> dict[str, Any]:
    """The findings of the last audit of a run."""
    return read_json(Path(folder) / "audit.json", "audit the run again")
