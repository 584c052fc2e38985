"""The choices of the training loop, each a frozen value that plans and code share.

A published method is a set of these (see `recipes`). Unknown or misspelt fields are refused.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, model_validator

from cupola.secure.sum_choice import Choice as Choice
from cupola.secure.sum_choice import Positive as Positive
from cupola.secure.sum_choice import Sum as Sum
from cupola.training.adapter_choice import Adapter

Share = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
#: Written `noise_multiplier`; `noise` in questions and in what checkpoints and consents are of, as
#: in the first edition, whose plans (see `Plan.renamed`) and folders are still read.
NOISE = Field(
    validation_alias=AliasChoices("noise_multiplier", "noise"), serialization_alias="noise"
)
Copies = (
    Annotated[int, Field(ge=1)] | Annotated[tuple[str | dict[str, Any], ...], Field(min_length=1)]
)


class Schedule(Choice):
    """Learning-rate factor by training round (the first is 1).

    constant; step: times `gamma` after every `every` rounds, or after the rounds `at`; cosine: from
    1 to `floor` over all rounds; polynomial: (1 - share of the rounds done) ^ `power`. The first
    `warmup` rounds rise linearly to 1.
    """

    kind: Literal["constant", "step", "cosine", "polynomial"] = "constant"
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.99
    every: Annotated[int, Field(ge=1)] = 1
    at: tuple[Annotated[int, Field(ge=1)], ...] = ()
    power: Positive = 0.9
    floor: Share = 0.0
    warmup: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _steps_have_places(self) -> Schedule:
        if self.at and self.kind != "step":
            raise ValueError(f"schedule.at belongs to kind = 'step', not '{self.kind}'")
        return self

    @property
    def by_length(self) -> bool:
        """Whether the rate of a round depends on the number of rounds."""
        return self.kind in ("cosine", "polynomial")

    def factor(self, round: int, rounds: int) -> float:
        warm = min(1.0, round / (self.warmup + 1))
        if self.kind == "step":
            steps = sum(round > a for a in self.at) if self.at else (round - 1) // self.every
            return warm * self.gamma**steps
        if self.kind == "polynomial":
            return warm * (1 - (round - 1) / max(rounds, 1)) ** self.power
        if self.kind == "cosine":
            turn = 0.5 * (1 + math.cos(math.pi * (round - 1) / max(rounds, 1)))
            return warm * (self.floor + (1 - self.floor) * turn)
        return warm


class Participation(Choice):
    """Which sites take part in a round.

    all; fraction: a fixed share (or `count`) drawn without replacement; poisson: each site with
    probability `fraction`; at-most-once: `count` sites a round, nobody twice in the whole run;
    rotation: `count` sites a round in a fixed shuffled order, again and again, so that nobody comes
    twice within sites // count rounds (the sites that the division leaves over sit out).
    stragglers: share of the drawn sites that manage only part of their local work (uniform over
    1 .. epochs-1 epochs, or 1 .. n-1 of n mini-batches where there is one epoch or none; a single
    gradient has no part); they are dropped unless `keep_stragglers`.
    dropouts: probability that a drawn site gives no answer.
    """

    kind: Literal["all", "fraction", "poisson", "at-most-once", "rotation"] = "all"
    fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    count: Annotated[int, Field(ge=1)] | None = None
    stragglers: Share = 0.0
    keep_stragglers: bool = True
    dropouts: Share = 0.0

    @model_validator(mode="after")
    def _complete(self) -> Participation:
        given = (self.fraction is not None) + (self.count is not None)
        if self.kind == "all" and given:
            raise ValueError(
                "kind 'all' takes neither fraction nor count; did you mean 'fraction'?"
            )
        if self.kind == "fraction" and given != 1:
            raise ValueError("kind 'fraction' needs either fraction or count")
        if self.kind == "poisson" and (self.fraction is None or self.count is not None):
            raise ValueError("kind 'poisson' needs fraction (the probability of each site)")
        fixed = self.kind in ("at-most-once", "rotation")
        if fixed and (self.count is None or self.fraction is not None):
            raise ValueError(f"kind '{self.kind}' needs count (sites per round)")
        return self


class Local(Choice):
    """What a site does in a round.

    work: 'epochs' over its data (FedAvg); a fixed number of mini-'batches' from a reshuffled
        iterator that persists between rounds and drops the last short batch (FedCMB, FedSMB);
        one full 'gradient' over all its samples (FedFGD).
    send: the 'change' of the model; the sum of the 'gradients' met on the way; or the change
        'normalised' by the effective number of local steps (FedNova).
    accumulation: 'weighted' counts early gradients more (weighted gradient accumulation); only
        with send = 'gradients'.
    proximal: mu of FedProx's term mu/2 |w - w_global|^2.
    control_variates: SCAFFOLD's correction, kept at the site between rounds.
    weighting: of this site's contribution, by samples used or uniform.
    """

    work: Literal["epochs", "batches", "gradient"] = "epochs"
    epochs: Annotated[int, Field(ge=1)] = 1
    batches: Annotated[int, Field(ge=1)] = 1
    batch_size: Annotated[int, Field(ge=1)] = 32
    drop_last: bool = False
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: Positive = 0.1
    momentum: Momentum = 0.0
    nesterov: bool = False
    weight_decay: NonNegative = 0.0
    betas: tuple[Momentum, Momentum] = (0.9, 0.999)
    eps: Positive = 1e-8
    schedule: Schedule = Schedule()
    send: Literal["change", "gradients", "normalised"] = "change"
    accumulation: Literal["plain", "weighted"] = "plain"
    proximal: NonNegative = 0.0
    control_variates: bool = False
    weighting: Literal["samples", "uniform"] = "samples"

    @model_validator(mode="after")
    def _possible(self) -> Local:
        if self.accumulation == "weighted" and self.send != "gradients":
            raise ValueError("accumulation = 'weighted' needs send = 'gradients'")
        if self.send == "gradients" and self.optimizer != "sgd":
            raise ValueError("send = 'gradients' needs optimizer = 'sgd' at the site")
        if self.send == "gradients" and (self.momentum or self.weight_decay):
            raise ValueError(
                "send = 'gradients' takes momentum and weight decay at the server "
                "(server.momentum, server.weight_decay), not at the site"
            )
        if self.control_variates and (self.optimizer != "sgd" or self.momentum):
            raise ValueError("control_variates needs plain SGD at the site (no momentum)")
        if self.control_variates and self.send != "change":
            raise ValueError("control_variates needs send = 'change'")
        if self.control_variates and self.weighting != "uniform":
            raise ValueError("control_variates needs weighting = 'uniform' (a mean over sites)")
        if self.send == "normalised" and self.optimizer != "sgd":
            raise ValueError("send = 'normalised' needs optimizer = 'sgd' at the site")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs momentum above 0")
        return self


class Upcycle(Choice):
    """Upcycled-FL: every second round by the coordinator alone, from the last two models.

    w_even = w_odd + c (w_odd - w_before): no site is asked, and nothing is sent or spent. c is
    `factor`, or mu / (mu + damping): damping is the paper's lambda, mu by default local.proximal.
    growing: damping grows so that c falls as 1/sqrt(m) in the m-th such round.
    adaptive: sites report their loss at the model they received; c, which starts as above, grows
    while it falls and shrinks when it rises, one training round later. Not under privacy.
    """

    factor: Annotated[float, Field(gt=0, le=1)] | None = None
    damping: NonNegative | None = None
    mu: Positive | None = None
    growing: bool = False
    adaptive: bool = False

    @model_validator(mode="after")
    def _one_factor(self) -> Upcycle:
        if (self.factor is None) == (self.damping is None):
            raise ValueError(
                "upcycle needs either damping (lambda; c = mu / (mu + damping)) or factor (c)"
            )
        if self.mu is not None and self.damping is None:
            raise ValueError("upcycle.mu belongs to damping; factor is c itself")
        if self.growing and self.adaptive:
            raise ValueError("upcycle: choose growing or adaptive; each moves the factor")
        return self


class Server(Choice):
    """The coordinator's step from the mean update (a pseudo-gradient).

    sgd: u = momentum * u + g + weight_decay * w; w -= lr * u. adam, yogi, adagrad: as in Reddi et
    al. (2021), `eps` is their tau. lr defaults to 1, or to the sites' when they send gradients.
    upcycle: every second round without sites.
    """

    optimizer: Literal["sgd", "adam", "yogi", "adagrad"] = "sgd"
    lr: Positive | None = None
    momentum: Momentum = 0.0
    weight_decay: NonNegative = 0.0
    betas: tuple[Momentum, Momentum] = (0.9, 0.99)
    eps: Positive = 1e-3
    schedule: Schedule | None = None
    upcycle: Upcycle | None = None

    @model_validator(mode="after")
    def _possible(self) -> Server:
        if self.momentum and self.optimizer != "sgd":
            raise ValueError(
                f"server momentum needs optimizer 'sgd'; '{self.optimizer}' uses betas"
            )
        return self


class Evaluation(Choice):
    """When and on what the model is judged.

    on: 'public' data at the coordinator, or the held-out parts of the 'sites' (as sums), or both.
    train: also on what sites train on, as sums (how well the model fits, not how good it is).
    per_site: also gather each site's own metrics (opt-in: they show a site's own numbers).
    best: keep the model that is best on validation data by this metric. patience: stop when
    the metric has not improved for this many evaluations (0: never). Both need validation data;
    neither looks at test data.
    auroc: from summed score histograms with this many bins (0: off).
    metrics: the user's own, functions of (outputs, targets) at 'module:name' with one value per
    sample; a metric is their mean over all samples.
    """

    every: Annotated[int, Field(ge=1)] = 1
    on: Literal["public", "sites", "both"] = "public"
    train: bool = False
    per_site: bool = False
    metric: str = "accuracy"
    best: bool = False
    patience: Annotated[int, Field(ge=0)] = 0
    auroc: Annotated[int, Field(ge=0)] = 0
    batch_size: Annotated[int, Field(ge=1)] = 512
    metrics: dict[str, str] | None = None


class Subset(Choice):
    """Which parameters are trained, by patterns of their names or of modules that hold them.

    freeze: these are not trained ('features.*', 'layer4'); or only: nothing but these is.
    norms: whether normalisation layers may be frozen; else they are trained whatever patterns say.
    """

    freeze: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    norms: bool = False

    @model_validator(mode="after")
    def _one_way(self) -> Subset:
        if self.freeze and self.only:
            raise ValueError("give either freeze or only: what is in neither would be unclear")
        return self

    @property
    def on(self) -> bool:
        return bool(self.freeze or self.only)


class Level(Subset):
    """Sites that train less than the others: they receive the rest and send nothing for it.

    share: of the sites, drawn from the seed; or sites: their numbers.
    """

    share: Annotated[float, Field(gt=0, lt=1)] | None = None
    sites: tuple[Annotated[int, Field(ge=0)], ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Level:
        if (self.share is None) == (not self.sites):
            raise ValueError("a level needs either share (of the sites) or sites (their numbers)")
        if not self.on:
            raise ValueError("a level needs freeze or only: what its sites do not train")
        return self


class Trainable(Subset):
    """What is trained: all of the model, or a part; the rest is frozen, and public (FedPT).

    Frozen tensors are regenerated at the sites from a seed and their name, and never travel.
    seed: of the frozen part; default: drawn from the plan's. level: sites that train less, each by
    the first level that names it. adapter: in place of patterns, a small part that is put into a
    frozen base, whose weights are every site's own and the same.
    """

    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    level: tuple[Level, ...] = ()
    adapter: Adapter | None = None

    @property
    def on(self) -> bool:
        return super().on or self.adapter is not None

    @model_validator(mode="after")
    def _adapter_alone(self) -> Trainable:
        if self.adapter is not None and (self.freeze or self.only or self.norms):
            raise ValueError(
                "trainable.adapter freezes all but the adapter; freeze, only and norms do not go "
                "with it (adapter.modules_to_save names what else is trained)"
            )
        return self

    @model_validator(mode="after")
    def _shares_fit(self) -> Trainable:
        if sum(level.share or 0.0 for level in self.level) > 1 + 1e-9:
            raise ValueError("the shares of all levels together are above 1")
        return self


class Budget(Choice):
    """What every site allows in all, kept in a file that outlives the run.

    file: of this study's sites; default: in the run folder, so that only this run counts.
    study: whom the file belongs to; default: the plan's name. trust_coordinator: whether
    protection counts that rests on the coordinator's noise ('central', 'dp-ftrl').
    """

    epsilon: Positive
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    file: str | None = None
    study: str | None = None
    trust_coordinator: bool = False


class Privacy(Choice):
    """What keeps single examples, or whole sites, out of what is released.

    mechanism:
      dp-sgd: at the site, per example: Poisson batches of expected size local.batch_size, gradients
        clipped to `clip`, noise in every step. Protects examples from everybody else.
      central: every site's update is clipped to `clip`; the coordinator adds noise to the sum.
        Protects whole sites from those who see models, if the coordinator is trusted.
      dp-ftrl: like central, with noise that is correlated over rounds (see `matrix`); needs no
        sampling, but a participation pattern, which is enforced: participation.kind
        'at-most-once', 'rotation' or 'all'.
      distributed: like central, but every site adds a share of the noise itself, and sums are
        masked (sum = 'masked'). Protects whole sites from everybody, the coordinator included, if
        enough other sites add theirs.
      output, objective: noise on the exact solution of a convex local problem, or in its
        objective; linear models with logistic loss and local.proximal above 0.
    epsilon: target at `delta`, from which the noise is found; or noise_multiplier itself (standard
        deviation over `clip`; of dp-ftrl: of each independent draw; of output: over the solution's
        sensitivity). answer_epsilon: objective: of one answer, instead of a target.
    delta: default 1e-5. neighbours: data sets that must look alike, with one example (or site)
        more or less, or with one replaced. accountant: 'best' takes PLD where it applies.
    augmentations: dp-sgd: copies of each example whose gradients are averaged before clipping: a
        number (the first as it is, the others by the data's augmentation), or what is done to each,
        such as ["original", {"flip": 1}, {"crop": 4}].
    clip_shares: dp-sgd: blocks of parameters that are clipped apart, by patterns of their names,
        and the share of clip^2 that each has, {border = 0.5}; what is in none has the rest. One
        example's change of all together stays within `clip`.
    quantile: central: move `clip` towards this quantile of the updates' norms, from noised counts
        (counts_noise: their noise, by default a twentieth of the sites a round, at least the noise
        multiplier), at the speed clip_rate.
    colluders: distributed: sites in a total that may tell the adversary their shares of the noise
        (one that takes part and looks at models is one); sum.minimum less these must suffice.
    matrix: dp-ftrl: 'tree', 'tree-honaker' (same noise, less variance) or 'toeplitz' (less noise).
    restart: dp-ftrl: begin anew every so many rounds (0: never).
    feature_norm: output and objective: examples are scaled down to this norm, bias included.
    budget: what sites allow in all; a question that would exceed it is refused.
    published: a paper (000 Reprogrammable-FL, 001 FedPT, 003 Upcycled-FL, 004 the dissertation)
        whose printed figures `cupola check` shows beside the rigorous ones.
    """

    mechanism: Literal[
        "none", "dp-sgd", "central", "dp-ftrl", "distributed", "output", "objective"
    ] = "none"
    epsilon: Positive | None = None
    noise_multiplier: Annotated[NonNegative | None, NOISE] = None
    answer_epsilon: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    clip: Positive = 1.0
    neighbours: Literal["add-remove", "replace-one"] = "add-remove"
    accountant: Literal["best", "pld", "rdp"] = "best"
    augmentations: Copies = 1
    clip_shares: dict[str, Annotated[float, Field(gt=0, le=1)]] = {}  # noqa: RUF012 (frozen)
    quantile: Annotated[float, Field(gt=0, lt=1)] | None = None
    clip_rate: Positive = 0.2
    counts_noise: Positive | None = None
    colluders: Annotated[int, Field(ge=0)] = 0
    matrix: Literal["tree", "tree-honaker", "toeplitz"] = "toeplitz"
    restart: Annotated[int, Field(ge=0)] = 0
    feature_norm: Positive = 1.0
    budget: Budget | None = None
    published: Literal["000", "001", "003", "004"] | None = None

    @model_validator(mode="after")
    def _possible(self) -> Privacy:
        from cupola.training.mechanisms import OWNERS, mechanism_of

        how = mechanism_of(self)
        given = (self.epsilon is not None) + (getattr(self, how.strength) is not None)
        if not how.on and given:
            raise ValueError(
                "epsilon and noise_multiplier need a mechanism (mechanism = 'dp-sgd', say)"
            )
        if how.on and given != 1:
            wanted = f"either epsilon (a target) or {how.strength}"
            raise ValueError(f"mechanism '{how.name}' needs {wanted}")
        for key, (owner, default) in OWNERS.items():
            if key not in how.keys and getattr(self, key) != default:
                raise ValueError(f"{key} belongs to mechanism '{owner}', not '{how.name}'")
        how.check_options()
        return self

    @property
    def on(self) -> bool:
        return self._is("on")

    @property
    def by_coordinator(self) -> bool:
        """Whether the coordinator adds the noise, to clipped updates of whole sites."""
        return self._is("by_coordinator")

    @property
    def of_sites(self) -> bool:
        """Whether whole sites are hidden, not single examples."""
        return self._is("of_sites")

    def _is(self, fact: str) -> bool:
        """A fact of the chosen mechanism."""
        from cupola.training.mechanisms import mechanism_of

        return getattr(mechanism_of(self), fact)
