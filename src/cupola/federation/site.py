"""Sites and the tasks they run: the code on the private side of the border."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from cupola.base.randomness import generator
from cupola.errors import FederationError
from cupola.federation.message import (
    Arrays,
    Contribution,
    Declined,
    Question,
    decode_contribution,
    encode_contribution,
)

if TYPE_CHECKING:
    from cupola.federation.stored import StoredAnswers

Plain = Callable[["SiteContext", Question], Contribution]
Rehearsed = Callable[[Sequence["SiteContext"], Question], "list[Arrays | str]"]
Batched = Callable[[Sequence["SiteContext"], Question], "list[Partial] | None"]
Mode = Literal["auto", "one-by-one", "together", "stacked", "explicit", "implicit", "compiled"]


class Host(Protocol):
    """What an engine needs in order to run tasks: the sites' data, and a place to work.

    data(i) is made when asked for, so a federation may have a million sites. workspace() makes
    what one worker reuses from site to site (a model, buffers). A workspace may say that its
    tasks are `serial` (they share process-wide state: one after another) or `light` (too little
    work for threads). A host may have `accounts(folder, name)`, which opens the book of what its
    sites spend (see `Accounts`); `effort(question, sites)`, how much work each of these sites would
    have, in any unit; and `remembers`, if a site's data change as it answers, so that it must be
    asked in one place.
    """

    def __len__(self) -> int: ...

    def data(self, site: int) -> Any: ...

    def workspace(self) -> Any: ...


class Encoded(Protocol):
    """How one array is encoded for a masked sum, as far as a task may care."""

    @property
    def name(self) -> str: ...

    @property
    def fraction(self) -> int:
        """Bits after the point."""

    @property
    def bound(self) -> float:
        """The largest magnitude of what one site adds."""


class Agreement(Protocol):
    """What a site pinned before a study of masked sums, as far as a task may care."""

    @property
    def minimum(self) -> int:
        """Sites that a total must have."""


class SumParty(Protocol):
    """A site's side of masked sums: its keys and what it has agreed to (see cupola.secure)."""

    @property
    def roster(self) -> Agreement: ...

    def answers(self, task: str) -> bool:
        """Whether a task may be asked as it is, without a protocol around it."""

    def witnessed(self, question: Question, answer: Contribution) -> Contribution:
        """An answer to `gather`, with the site's proof that it is its own."""


class Canary(Protocol):
    """An auditor's example among a site's own (see cupola.audit)."""

    def drawn(self, index: np.ndarray, round: int) -> tuple[np.ndarray, list[Any]]:
        """A batch without the canary's place, and the gradients of canaries that were drawn."""


class StateStore:
    """Arrays that sites keep between questions, versioned by the step that wrote them.

    A version stays until the coordinator has confirmed a later one, so that a step asked again
    after a crash starts from the same state as the first time.
    """

    def __init__(self) -> None:
        self._versions: dict[int, dict[int, Arrays]] = {}

    def read(self, site: int, step: int) -> Arrays:
        """The newest version written before `step`; empty if there is none."""
        versions = self._versions.get(site)
        if not versions:
            return {}
        newest = max((s for s in versions if s < step), default=None)
        return {} if newest is None else versions[newest]

    def write(self, site: int, step: int, arrays: Arrays, confirmed: int) -> None:
        versions = self._versions.setdefault(site, {})
        versions[step] = arrays
        base = max((s for s in versions if s <= confirmed), default=-1)
        for old in [s for s in versions if s < base or s > step]:
            del versions[old]

    def export(self, step: int) -> dict[str, np.ndarray]:
        """Every site's newest version up to `step`, named 'site/array', for a checkpoint."""
        return {
            f"{site}/{name}": array
            for site in self._versions
            for name, array in self.read(site, step + 1).items()
        }

    def restore(self, step: int, arrays: dict[str, np.ndarray]) -> None:
        self._versions = {}
        for path, array in arrays.items():
            site, name = path.split("/", 1)
            self._versions.setdefault(int(site), {}).setdefault(step, {})[name] = array


@dataclass
class SiteContext:
    """One site as its tasks see it.

    seed: of what need not be secret, such as the order of batches. real: whether this is a real
    site; there, what privacy rests on is the operating system's, and nothing can seed it.
    workers and mode are the engine's wishes for computations over many sites at once.
    party: the site's keys and what it has agreed to, where sums are masked (see cupola.secure).
    hidden: how this answer will be encoded, while it is made for a masked sum; else None.
    canary: an auditor's mark (see cupola.audit). Engines leave it out, and no question or plan can
    set it.
    answers: those it gave, where it stores them (see cupola.federation.stored).
    """

    index: int
    data: Any
    workspace: Any
    store: StateStore
    seed: int | None
    workers: int = 1
    mode: str = "auto"
    party: SumParty | None = None
    hidden: Sequence[Encoded] | None = None
    canary: Canary | None = None
    answers: StoredAnswers | None = None
    real: bool = False

    @property
    def secret_seed(self) -> int | None:
        """For noise, private sampling, and whatever else must not be known outside: None (the
        operating system's randomness) at a real site."""
        return None if self.real else self.seed

    def generator(self, purpose: str, round: int, secret: bool = False) -> np.random.Generator:
        seed = self.secret_seed if secret else self.seed
        if seed is None:
            return np.random.default_rng()
        return generator(seed, purpose, round, self.index)

    def recall(self, question: Question) -> Arrays:
        """What this site kept before this step."""
        return self.store.read(self.index, question.step)

    def keep(self, question: Question, arrays: Arrays) -> None:
        """Keep arrays for later steps; written again if the same step is asked again."""
        self.store.write(self.index, question.step, arrays, question.confirmed)

    def once(
        self, question: Question, compute: Callable[[], Contribution], form: str = ""
    ) -> bytes:
        """The answer as bytes: the stored one, or a new one, stored before it is handed on.
        form: of a question that can be asked in several."""

        def encoded() -> bytes:
            return encode_contribution(compute())

        return encoded() if self.answers is None else self.answers.once(question, form, encoded)

    def contribution_once(
        self, question: Question, compute: Callable[[], Contribution], form: str
    ) -> Contribution:
        """Like `once`, not as bytes."""
        if self.answers is None:
            return compute()
        return decode_contribution(self.once(question, compute, form))


@dataclass(frozen=True)
class Charge:
    """What an answer costs a site's privacy.

    events: what its mechanism does, for an accountant (see cupola.privacy.events). unit: whose
    presence is hidden, an 'example' or the whole 'site'. trusts: whose word the promise needs
    ('nobody', 'coordinator', '2 other sites').
    """

    events: tuple[Hashable, ...]
    unit: str = "example"
    trusts: str = "nobody"


class Accounts(Protocol):
    """The book of what sites have spent."""

    def charge(self, question: Question, charges: Mapping[int, Charge | None]) -> dict[int, str]:
        """Write down what these sites are about to spend, before they touch data.

        None: the answer is unprotected. Gives the sites that refuse, with their reason. The same
        question under the same step is charged once.
        """


@dataclass
class Partial:
    """A sum over several sites computed in one go: sum of weight * array, and what each added.

    arrays: sums, float64. weights: per array, the sum of weights. answered: the sites in it,
    whose answers had, each, the layout `sample`. failed: site -> code. broken: those of them that
    sent what cannot be used.
    """

    arrays: Arrays
    weight: float
    answered: list[int]
    failed: dict[int, str]
    sample: Arrays
    broken: list[int] = field(default_factory=list)

    def add(self, other: Partial) -> None:
        """Add a sum of answers of the same layout."""
        add_arrays(self.arrays, other.arrays)
        self.weight += other.weight
        self.answered += other.answered
        self.failed |= other.failed
        self.broken += other.broken


def add_arrays(sums: Arrays, arrays: Arrays) -> None:
    """Add to sums, in place. Arrays that are new are taken over, not copied."""
    for name, array in arrays.items():
        if name in sums:
            sums[name] += array
        else:
            sums[name] = array


class Task:
    """A named piece of code that sites may run, with an optional form for many sites at once.

    random: whether the answer to a question is drawn anew in another round. Where it is not,
    masked sums tell the total of one cohort only: two would tell their difference.
    about: of a task that hands on another's answer in another form, the question inside.
    protocol: a message about keys and masks: what is answered twice is its party's own rule.
    """

    def __init__(
        self, name: str, plain: Plain, random: Callable[[Question], bool] | None = None
    ) -> None:
        self.name = name
        self.plain = plain
        self.random = random or (lambda _: False)
        self.batched: Batched | None = None
        self.charge: Callable[[SiteContext, Question], Charge | None] | None = None
        self.rehearsed: Rehearsed | None = None
        self.about: Callable[[Question], Question] | None = None
        self.protocol = False

    def charges(
        self, function: Callable[[SiteContext, Question], Charge | None]
    ) -> Callable[[SiteContext, Question], Charge | None]:
        """Decorator: what an answer will cost, found out without touching data (None, or without
        this: it is unprotected). Raises Declined where the site must not answer at all."""
        self.charge = function
        return function

    def rehearses(self, function: Rehearsed) -> Rehearsed:
        """Decorator: what these sites' answers will look like (names, types, shapes), or why one
        gives none, from the sizes of their data alone. Without it: as the question allows."""
        self.rehearsed = function
        return function

    def many(self, function: Batched) -> Batched:
        """Decorator: the same task for many sites in one computation (None: does not pay)."""
        self.batched = function
        return function

    def refuse_unmasked(self, site: SiteContext) -> None:
        """Declined if the site hides its answers to this task in masked sums."""
        if site.party is not None and site.hidden is None and not site.party.answers(self.name):
            raise Declined("this site answers in masked sums only")

    def __call__(self, site: SiteContext, question: Question) -> Contribution:
        self.refuse_unmasked(site)
        return self.plain(site, question)


def admit(
    accounts: Accounts | None, task: Task, sites: Sequence[SiteContext], question: Question
) -> dict[int, str]:
    """Charge sites for an answer; those that may not give it, with the reason."""
    if accounts is None:
        return {}
    if task.about is not None:
        question = task.about(question)
        task = find_task(question.task)
    refused: dict[int, str] = {}
    charges: dict[int, Charge | None] = {}
    for site in sites:
        charge = charge_of(task, site, question)
        if isinstance(charge, str):
            refused[site.index] = charge
        else:
            charges[site.index] = charge
    return refused | accounts.charge(question, charges)


def charge_of(task: Task, site: SiteContext, question: Question) -> Charge | str | None:
    """What an answer costs a site (None: it is unprotected), or why it may give none."""
    try:
        return None if task.charge is None else task.charge(site, question)
    except Declined as declined:
        return declined.code


_TASKS: dict[str, Task] = {}


def task(name: str, random: Callable[[Question], bool] | None = None) -> Callable[[Plain], Task]:
    """Register a task by name. A site runs registered tasks and nothing else."""

    def register(function: Plain) -> Task:
        _TASKS[name] = Task(name, function, random)
        return _TASKS[name]

    return register


def find_task(name: str) -> Task:
    if name not in _TASKS:
        known = ", ".join(sorted(_TASKS)) or "none"
        raise FederationError(f"no task is named '{name}'; registered tasks: {known}")
    return _TASKS[name]


def is_known(name: str) -> bool:
    """Whether there is such a task."""
    return name in _TASKS


def task_modules() -> list[str]:
    """Modules that register tasks when they are imported."""
    return sorted({task.plain.__module__ for task in _TASKS.values()} - {"__main__"})


def unnamed_tasks() -> list[Task]:
    """Tasks of the script that runs, which another process cannot import."""
    return [task for task in _TASKS.values() if task.plain.__module__ == "__main__"]


def register(tasks: Iterable[Task]) -> None:
    """Know tasks that were made in another process."""
    _TASKS.update((task.name, task) for task in tasks)
