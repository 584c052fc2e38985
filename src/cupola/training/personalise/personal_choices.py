"""The choices of personalisation, as frozen values that plans and code share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cupola.errors import PlanError
from cupola.training.choices import (
    NOISE,
    Choice,
    Evaluation,
    NonNegative,
    Positive,
    Privacy,
    Share,
    Sum,
)
from cupola.training.methods import Method as TrainingMethod
from cupola.training.methods import method_of

Method = Literal[
    "pfa", "random", "finetune", "distill", "ewc", "scratch", "ditto", "pfedme", "fedper", "fedrep",
    "fedbn",
]  # fmt: skip
GROUPED = ("pfa", "random")
FEDERATED = ("ditto", "pfedme", "fedper", "fedrep", "fedbn")
ADAPTABLE = ("recipe", "local", "server", "participation")


class Release(Choice):
    """Differential privacy of the sparsity vectors: noise that the site adds itself.

    epsilon: of one site's vectors at `delta`, from which the noise is found; or noise_multiplier
    (standard deviation over the sensitivity with one example more or less). neighbours: data sets
    that must look alike; the size of a site is taken as public.
    """

    epsilon: Positive | None = None
    noise_multiplier: Annotated[Positive | None, NOISE] = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    neighbours: Literal["add-remove", "replace-one"] = "replace-one"

    @model_validator(mode="after")
    def _one_size(self) -> Release:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ValueError("release needs either epsilon or noise_multiplier")
        return self


class Personalise(Choice):
    """From the federated model to one for every site: PFA (Liu et al. 2021) and its rivals.

    methods: what is tried, each from the federated model. The federated model itself is always
        judged. 'pfa': federated training within groups of similar sites; 'random': the same in
        random groups of the same sizes; 'finetune', 'distill', 'ewc': each site alone; 'scratch':
        each site alone, from the initial weights; 'ditto', 'pfedme', 'fedper', 'fedrep', 'fedbn':
        all sites together, each with a model or parts of its own (see `cupola.training.methods`).
    options: of the last five, by name.
    rounds: of adaptation, each with the local work of a training round. adapt: other settings for
        them, of the sections recipe, local, server and participation.
    layers: whose sparsity is told, by name or by place among the activations (0: the first); the
        first of them makes the groups, the others are for the report. channels: so many of each,
        drawn by the seed, the same for all sites.
    groups: their number, or 'found': the largest gap decides. references: 0 compares every pair of
        sites; else every site with so many reference sites, for large federations.
    minimum: sites of a group that trains together. small: what sites of smaller groups get: the
        'federated' model as it is, or 'finetune'.
    release: differential privacy of the vectors; without it they are exact.
    alpha, temperature: of distillation: alpha T^2 KL(teacher, student) + (1 - alpha) loss.
    strength: of EWC's quadratic penalty (lambda).
    curve: also see what releases with these epsilons would do to the groups (in simulation, where
        vectors are exact and the true types known).
    """

    methods: Annotated[tuple[Method, ...], Field(min_length=1)] = ("pfa", "finetune")
    rounds: Annotated[int, Field(ge=1)] = 30
    adapt: Annotated[dict[str, Any], Field(default_factory=dict)]
    layers: Annotated[tuple[int | str, ...], Field(min_length=1)] = (0,)
    channels: Annotated[int, Field(ge=1)] = 30
    groups: Annotated[int, Field(ge=1)] | Literal["found"] = "found"
    references: Annotated[int, Field(ge=0)] = 0
    minimum: Annotated[int, Field(ge=2)] = 3
    small: Literal["federated", "finetune"] = "federated"
    release: Release | None = None
    alpha: Share = 0.95
    temperature: Positive = 6.0
    strength: NonNegative = 5000.0
    curve: tuple[Positive, ...] = ()
    options: Annotated[dict[str, dict[str, Any]], Field(default_factory=dict)]

    @model_validator(mode="after")
    def _possible(self) -> Personalise:
        if len(set(self.methods)) < len(self.methods):
            raise ValueError("a method is named twice in methods")
        if "random" in self.methods and "pfa" not in self.methods:
            raise ValueError("method 'random' takes the group sizes of 'pfa': name both")
        for key in self.adapt:
            if key.split(".")[0] not in ADAPTABLE:
                raise ValueError(f"adapt.{key}: adaptation can change {', '.join(ADAPTABLE)} only")
        for name in self.options:
            if name not in FEDERATED or name not in self.methods:
                raise ValueError(
                    f"options.{name}: options are of those of {', '.join(FEDERATED)} that methods "
                    "names"
                )
        try:
            self.federated()
        except PlanError as error:
            raise ValueError(f"options: {error}") from None
        if self.curve and self.release is not None:
            raise ValueError("curve needs exact vectors: leave release out")
        return self

    def federated(self) -> dict[str, TrainingMethod]:
        """The methods by which all sites train on together, with their options."""
        named = [name for name in self.methods if name in FEDERATED]
        return {n: method_of({"name": n, **self.options.get(n, {})}) for n in named}

    def alone(self, judge: Evaluation) -> dict[str, Any]:
        """What every site that adapts alone is told, whatever the method."""
        told = {key: getattr(self, key) for key in ("rounds", "alpha", "temperature", "strength")}
        return {**told, "every": judge.every, "metric": judge.metric, "split": "test"}


def require_tellable(choice: Personalise, privacy: Privacy, sums: Sum, task: str) -> None:
    """Refuse what personalisation would tell beyond what a plan promises."""
    private = privacy.budget is not None
    if task != "train":
        raise ValueError("personalise adapts by the task 'train', not by one of your own")
    if privacy.epsilon is not None or privacy.answer_epsilon is not None:
        raise ValueError(
            "privacy.epsilon promises a total for the training, and personalise adds answers: "
            "give privacy.noise_multiplier and read the total in the result"
        )
    if privacy.of_sites and choice.release is not None:
        raise ValueError(
            f"personalise.release hides examples, privacy.mechanism = '{privacy.mechanism}' whole "
            "sites: the two make no common epsilon"
        )
    if private and "pfa" in choice.methods and choice.release is None:
        raise ValueError("privacy.budget: sites refuse exact vectors; set personalise.release")
    if private and set(choice.methods) - {"pfa"}:
        raise ValueError(
            "privacy.budget: rivals are there to be measured at sites, which is refused under a "
            "budget; use methods = ['pfa']"
        )
    if sums.masked and "random" in choice.methods:
        raise ValueError(
            "personalise.methods: random groups overlap those of 'pfa', and both begin with one "
            "model: differences of their masked totals would tell of single sites"
        )
    together = [method for method in choice.methods if method in FEDERATED]
    if sums.masked and "pfa" in choice.methods and together and choice.groups != 1:
        raise ValueError(
            f"personalise.methods: '{together[0]}' trains over all sites and 'pfa' over groups of "
            "them, from one model: differences of their masked totals would tell of sites that are "
            "in no group; try them in two runs"
        )
    if sums.masked and choice.minimum < sums.minimum:
        raise ValueError(
            f"personalise.minimum = {choice.minimum} is below sum.minimum = {sums.minimum}"
        )
