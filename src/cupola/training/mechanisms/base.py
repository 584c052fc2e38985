"""Privacy mechanism: the hooks by which training asks one, and what most of them do.

Nobody else asks for a mechanism's name: training, its batched forms, plans and audits ask for these
facts and call these hooks, in the order in which a run does:

    check_options, check      what is refused, before anything runs
    answer_events, run_events what an answer, or a whole run, costs: from it noise is found
    options, expects, bounds  what a question says beside the plain training's
    charge                    what a site books before it touches its data
    batches, gradient, solved how a site trains
    at_site, kept             what leaves the site, and what it keeps
    coordinator               what the coordinator makes of the total (see `coordinator`)
    describe, against, warnings   the promise in words
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from cupola.federation.message import Arrays, Question, Spec
from cupola.federation.site import Charge
from cupola.privacy.events import Event
from cupola.training.choices import Local, Participation, Privacy
from cupola.training.masking_bounds import bounded_training
from cupola.training.mechanisms.coordinator import Coordinator
from cupola.training.turn import Turn

if TYPE_CHECKING:
    from cupola.training.loop import Training

Gradient = Callable[[np.ndarray, torch.Generator | None], list[Tensor]]


@dataclass(frozen=True)
class Mechanism:
    """A mechanism with a plan's settings. The defaults claim nothing: what hides, and what may be
    computed together, each says itself.

    name: in plans. keys: of [privacy] that not every mechanism takes; strength: the one of them
    that says how well a single answer is hidden, where no epsilon is given. unit: whose presence is
    hidden. noised_at_site: whether an answer holds noise before it leaves its site.
    by_coordinator: whether sites clip their updates and the coordinator, who is trusted, adds noise
    to the sum. per_example: whether examples are drawn by chance and clipped one by one. stackable:
    whether many sites may be computed at once. with_methods: whether a method of the plan may
    change how sites train and the model moves. sends, sends_alone: what the coordinator gets, in
    words, and what it gets where masks fail. hides: what, from whom, in a report's words.
    coordinator: its part of the mechanism.
    """

    privacy: Privacy

    name: ClassVar[str]
    on: ClassVar[bool] = True
    keys: ClassVar[frozenset[str]] = frozenset({"noise_multiplier"})
    strength: ClassVar[str] = "noise_multiplier"
    unit: ClassVar[str] = "example"
    noised_at_site: ClassVar[bool] = False
    by_coordinator: ClassVar[bool] = False
    per_example: ClassVar[bool] = False
    stackable: ClassVar[bool] = False
    with_methods: ClassVar[bool] = True
    sends: ClassVar[str] = "updates"
    sends_alone: ClassVar[str] = "updates"
    hides: ClassVar[str] = "every single example at a site, from everybody outside it"
    coordinator: ClassVar[type[Coordinator]] = Coordinator

    @property
    def key(self) -> str:
        """How a plan chooses it, for messages."""
        return f"privacy.mechanism = '{self.name}'"

    @property
    def of_sites(self) -> bool:
        """Whether whole sites are hidden, not single examples."""
        return self.unit == "site"

    @property
    def noise(self) -> float:
        """The noise multiplier."""
        found = self.privacy.noise_multiplier
        assert found is not None, "the coordinator finds the noise before it asks"
        return found

    # Before a run

    def check_options(self) -> None:
        """Refuse settings that do not go together, with a ValueError."""

    def check(self, training: Training) -> None:
        """Refuse trainings that this mechanism cannot protect, with the way out."""

    def with_noise(self, noise: float) -> Privacy:
        """The same choice with its noise found."""
        return self.privacy.model_copy(update={"epsilon": None, self.strength: noise})

    def answer_events(self, local: Local, n: int, problems: int = 1) -> tuple[Event, ...]:
        """What one answer of a site with n examples does to them. problems: binary ones that it
        solves, where it does."""
        raise NotImplementedError

    def run_events(self, choice: Participation, sites: int, rounds: int) -> tuple[Event, ...]:
        """What a run tells about any one site, where whole sites are hidden."""
        raise NotImplementedError

    def spends(self, local: Local, n: int, answers: int) -> float:  # noqa: ARG002
        """Grows with what a site of n examples spends in so many answers: a guess at the order."""
        return answers

    # Questions

    def options(self, training: Training, round: int) -> dict[str, Any]:  # noqa: ARG002
        """What a question says beside 'privacy'. round: of training."""
        return {}

    def expects(self) -> dict[str, Spec]:
        """What is answered beside the update."""
        return {}

    def bounds(self, question: Question, training: Training, clip: float) -> Question:  # noqa: ARG002
        """The question of a masked sum, with the most that one site may add."""
        choice = training.sum
        return bounded_training(question, choice, training.local, choice.change, choice.bits or 64)

    # At the site

    def charge(self, turn: Turn) -> Charge | None:
        """What this site's answer costs; None if nothing protects it."""
        problems = binary_problems(len(turn.space.params[0]))
        return Charge(self.answer_events(turn.local, len(turn.site.data.train), problems))

    def batches(self, turn: Turn, epochs: int) -> list[np.ndarray]:
        """Batches drawn by chance, where examples are clipped one by one."""
        raise NotImplementedError

    def gradient(self, turn: Turn) -> Gradient | None:
        """The gradient of a batch, where it is not the plain mean."""

    def solved(self, turn: Turn) -> list[Tensor] | None:
        """The change of every parameter, where the site's problem is solved instead of trained."""

    def at_site(self, turn: Turn, update: list[Tensor]) -> Arrays:
        """What leaves the site. Buffers are statistics that no mechanism noises: they go back as
        they came."""
        space, received = turn.space, turn.question.arrays
        buffers = {f"buffer/{name}": received[f"buffer/{name}"].copy() for name in space.buffers}
        return space.named("model", update) | buffers

    def kept(self, turn: Turn) -> Arrays:  # noqa: ARG002
        """What the site keeps of this answer."""
        return {}

    # In words

    def describe(self, clip: float) -> str:
        """A few words for the ledger."""
        return f"{self.name}, noise {self.privacy.noise_multiplier:.4g}, clip {clip:.4g}"

    def against(self, training: Training) -> str:  # noqa: ARG002
        """From whom it hides."""
        return "everybody outside the site"

    def warnings(self, training: Training) -> list[str]:  # noqa: ARG002
        """What a reader of the promise should know."""
        return []


def binary_problems(classes: int | None) -> int:
    """Problems that a convex mechanism solves: one against the rest beyond two classes."""
    return classes if classes is not None and classes > 2 else 1
