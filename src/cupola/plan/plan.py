"""The plan: everything that decides a run, as one frozen value.

A plan is written as TOML (see `cupola.plan.load`) or made in Python with the same names. Settings
of its recipe are defaults below its own. A plan with `seeds` or `[grid]` stands for many runs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from cupola.data import IID, Partition
from cupola.errors import CupolaError, PlanError
from cupola.learn.choices import (
    Choice,
    Evaluation,
    Local,
    Participation,
    Privacy,
    Server,
    Sum,
    Trainable,
)
from cupola.personalize.choices import Personalise, require_tellable
from cupola.plan import registries
from cupola.plan.changing import check_changes
from cupola.plan.engine import Engine
from cupola.plan.nested import changed as changed
from cupola.plan.nested import flat, plain
from cupola.plan.nested import normal as normal


class Named(BaseModel):
    """A thing by its name, or the user's own by 'module:name'; all other keys are its options."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Model(Named):
    @model_validator(mode="after")
    def _options_fit(self) -> Model:
        return _checked(self, registries.check_model)


class Loss(Named):
    @model_validator(mode="after")
    def _options_fit(self) -> Loss:
        return _checked(self, registries.check_loss)


class Data(Named):
    """A data set, how it is cut into sites, and augmentation; other keys go to its loader.

    partition_seed: of the cut; default: the plan's seed, so that every seed has its own sites.
    """

    partition: Partition = IID()
    partition_seed: int | None = None
    augment: tuple[str | dict[str, Any], ...] = ()

    @model_validator(mode="after")
    def _options_fit(self) -> Data:
        return _checked(self, registries.check_data)


class Link(Choice):
    """What sites are connected by, in MB/s: how long a round's messages would take, nothing else.

    The defaults are those that FedPT takes for phones (Wang et al. 2021).
    """

    down: Annotated[float, Field(gt=0)] = 0.75
    up: Annotated[float, Field(gt=0)] = 0.25

    def seconds(self, down: float, up: float) -> float:
        """For so many bytes to a site and from it, one after the other."""
        return down / (1e6 * self.down) + up / (1e6 * self.up)


class Plan(BaseModel):
    """One experiment. Unknown keys are refused.

    checkpoint_seconds: at most this much work is lost in a crash (0: save every step; else saving
        takes at most a tenth of the time). twin: also run the centralised twin.
    seeds, grid ({"local.lr": [0.1, 0.2]}): many runs in one plan, see `expand`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern=r"^[\w][\w .,+=@-]*$")]
    seed: Annotated[int, Field(ge=0)] = 1
    rounds: Annotated[int, Field(ge=1)]
    recipe: str = "fedavg"
    task: Annotated[str, Field(pattern=r"^(train|[\w.]+:\w+)$")] = "train"
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?|mps)$")] = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    twin: bool = False
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 10.0
    data: Data
    model: Model
    loss: Loss | None = None
    trainable: Trainable = Trainable()
    local: Local = Local()
    server: Server = Server()
    participation: Participation = Participation()
    evaluation: Evaluation = Evaluation()
    privacy: Privacy = Privacy()
    sum: Sum = Sum()
    engine: Engine = Engine()
    link: Link = Link()
    personalise: Personalise | None = None
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}

    _given: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _with_recipe(cls, value: Any, handler: Any) -> Plan:
        if isinstance(value, Plan):
            return value
        given = normal(value)
        plan: Plan = handler(_under(given))
        plan._given = given
        if plan.personalise is not None:
            _checked(plan, _adaptable)
        return plan

    @field_validator("grid", mode="after")
    @classmethod
    def _no_seed_twice(cls, grid: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for key in ("seeds", "grid", "name"):
            if key in grid:
                raise ValueError(f"'{key}' cannot be varied in a grid")
        return grid

    @model_validator(mode="after")
    def _one_kind_of_seed(self) -> Plan:
        if self.seeds and ("seed" in self.model_fields_set or "seed" in self.grid):
            raise ValueError("give either seed or seeds")
        if self.twin and self.privacy.budget is not None:
            raise ValueError("twin trains on pooled data without privacy; a budget forbids that")
        if self.sum.masked and self.engine.mode not in ("auto", "one-by-one"):
            raise ValueError(
                f"engine.mode = '{self.engine.mode}' adds up sites before they answer; masked sums "
                "need every site's own answer: use 'auto'"
            )
        check_changes(self)
        _checked(self, registries.check_copies)
        if self.device == "mps" and self.dtype == "float64":
            raise ValueError("device 'mps' has no float64; use device = 'cpu'")
        if self.personalise is not None:
            require_tellable(self.personalise, self.privacy, self.sum, self.task)
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.model_dump() == other.model_dump()

    __hash__ = None  # type: ignore[assignment]

    @property
    def many(self) -> bool:
        """Whether this plan stands for many runs."""
        return bool(self.seeds or self.grid)

    def given(self) -> dict[str, Any]:
        """What was said, without defaults and without the recipe's settings."""
        return normal(self._given)

    def change(self, settings: Mapping[str, Any]) -> Plan:
        """The same plan with other values for dotted keys; what it fixes is no longer varied."""
        return Plan.model_validate(changed(self._given, settings))

    def expand(self) -> list[tuple[str, Plan]]:
        """Every run of this plan with its label ('lr=0.1,seed=2'); one without label if single."""
        return [(label, self.change(settings)) for label, settings in self.settings()]

    def adaptation(self) -> Plan:
        """The plan by which groups train: the same with other rounds, and what `adapt` changes."""
        choice = self.personalise
        assert choice is not None
        given = {k: v for k, v in self._given.items() if k not in ("personalise", "seeds", "grid")}
        changes = dict(flat(choice.adapt))
        if "participation.kind" in changes and "participation" in given:
            own = dict(given["participation"])  # what belongs to another kind does not stay
            given["participation"] = {k: own[k] for k in own if k not in ("fraction", "count")}
        settings = {"rounds": choice.rounds, "twin": False, **changes}
        return Plan.model_validate(changed(given, settings))

    def settings(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Label and settings of every run, grid first, seeds innermost."""
        axes: dict[str, list[Any]] = dict(self.grid)
        if self.seeds:
            axes["seed"] = list(self.seeds)
        leaves = [key.rsplit(".", 1)[-1] for key in axes]
        words = [leaf if leaves.count(leaf) == 1 else key for key, leaf in zip(axes, leaves)]
        for place in itertools.product(*(range(len(values)) for values in axes.values())):
            chosen = {key: axes[key][i] for key, i in zip(axes, place)}
            parts = [f"{w}={_word(v, i)}" for w, v, i in zip(words, chosen.values(), place)]
            yield ",".join(parts), chosen

    def to_dict(self) -> dict[str, Any]:
        """Plain values: all defaults written out, or for many runs only what was said."""
        if self.many:
            return self.given()
        return normal(self.model_dump(mode="json", exclude_none=True, exclude={"grid"}))

    def to_toml(self) -> str:
        """TOML that loads to an equal plan."""
        return tomli_w.dumps(self.to_dict())


def _adaptable(plan: Plan) -> None:
    """Refuse settings of the adaptation that no plan could have."""
    try:
        plan.adaptation()
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise PlanError(f"personalise.adapt: {key + ': ' if key else ''}{said}") from None


def _under(given: Any) -> Any:
    """`given` on top of its recipe's settings."""
    if not isinstance(given, dict):
        return given
    recipe = given.get("recipe", "fedavg")
    if not isinstance(recipe, str):
        return given
    try:
        method = registries.recipe(recipe)
    except CupolaError as error:
        raise PydanticCustomError("plan", "{text}", {"text": str(error)}) from error
    merged = dict(given)
    for section in ("local", "server", "participation", "privacy", "sum"):
        own = merged.get(section, {})
        if isinstance(own, dict) and (defaults := getattr(method, section)):
            merged[section] = {**plain(defaults), **own}
    return merged


def _checked(thing: Any, check: Any) -> Any:
    try:
        check(thing)
    except CupolaError as error:
        raise PydanticCustomError("plan", "{text}", {"text": str(error)}) from error
    return thing


def _word(value: Any, place: int) -> str:
    """A value as part of a folder's name; tables and long lists by their place."""
    if isinstance(value, dict):
        value = value.get("name", value.get("kind", place))
    elif isinstance(value, list):
        value = "x".join(str(v) for v in value)
    elif isinstance(value, bool):
        value = str(value).lower()
    text = re.sub(r"[^\w.+-]+", "_", str(value))
    return text if 0 < len(text) <= 40 else str(place)
