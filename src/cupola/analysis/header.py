"""The plan header: keys that every plan has, whatever it analyses.

A kind of analysis adds its own keys by subclassing `PlanHeader`. A plan is frozen, refuses unknown
keys, remembers what was written (`given`), and may stand for many runs (`seeds`, `grid`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from cupola.analysis.overrides import changed, normal, with_new_names
from cupola.base.held_objects import Held, keep
from cupola.base.renaming import warn_renamed
from cupola.errors import CupolaError
from cupola.federation.site import Mode
from cupola.secure.sum_choice import Choice, Sum

Share = Annotated[float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=0)]


class Engine(Choice):
    """How sites are reached: all in this process, over a Ray cluster, or each in a process of its
    own (for trials).

    mode: whether sites are computed together. workers: threads for sites that run one by one, or
    Ray's. quorum: share of the asked sites that must answer. timeout: seconds a site in its own
    process has, or a Ray worker for a site. address: of a running Ray cluster; else one is started.
    """

    kind: Literal["in-process", "ray", "processes"] = "in-process"
    mode: Mode = "auto"
    workers: Annotated[int, Field(ge=1)] | None = None
    quorum: Share = 0.0
    timeout: Annotated[float, Field(gt=0)] = 120.0
    address: str | None = None

    @field_validator("kind", mode="before")
    @classmethod
    def _renamed(cls, kind: Any) -> Any:
        if kind != "separate":
            return kind
        warn_renamed("engine.kind = 'separate'", "'processes'")
        return "processes"

    @model_validator(mode="after")
    def _address_of_ray(self) -> Engine:
        if self.address is not None and self.kind != "ray":
            raise ValueError("engine.address is where a Ray cluster is: set engine.kind = 'ray'")
        return self


class Track(Choice):
    """Trackers that whoever runs the plan also writes to (see `cupola.analysis.tracking`).

    mlflow: a tracking URI. wandb: whether its files are sent or stay here. project: in them;
    default: the plan's name. artifacts: 'summary' (plan, history, result), or 'results', too: the
    report, the model, tables.
    """

    mlflow: Annotated[str, Field(min_length=1)] | None = None
    wandb: Literal["offline", "online"] | None = None
    project: Annotated[str, Field(pattern=r"^[\w][\w .-]{0,100}$")] | None = None
    artifacts: Literal["summary", "results"] = "summary"

    @field_validator("mlflow")
    @classmethod
    def _no_password(cls, uri: str | None) -> str | None:
        if uri is not None and "@" in uri.partition("://")[2].partition("/")[0]:
            raise ValueError(
                "a plan is kept and shown: leave user and password out of the address, and set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            )
        return uri

    @model_validator(mode="after")
    def _somewhere(self) -> Track:
        if self.mlflow is None and self.wandb is None:
            raise ValueError("say where to: mlflow = 'sqlite:///mlflow.db' or wandb = 'offline'")
        return self


class PlanHeader(BaseModel):
    """What every plan says.

    checkpoint_seconds: at most this much work is lost in a crash (0: save every step; else saving
        takes at most a tenth of the time).
    seeds, grid ({"local.lr": [0.1, 0.2]}): many runs in one plan, see `expand`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    #: Which keys are written first, in which order; checkpoints know a plan by it.
    key_order: ClassVar[tuple[str, ...]] = ("kind", "name", "seed")
    #: Keys that each party settles for itself: no part of what parties agree on.
    own_affair: ClassVar[tuple[str, ...]] = ("engine", "track", "checkpoint_seconds")
    #: Dotted keys by the names they had before. Old ones work for one release, with a warning.
    renamed: ClassVar[Mapping[str, str]] = {}
    #: Dotted keys that earlier versions had not, with their defaults: where these stand, nothing is
    #: written, so that a plan keeps its hash.
    later: ClassVar[Mapping[str, Any]] = {}

    kind: str
    name: Annotated[str, Field(pattern=r"^[\w][\w .,+=@-]*$")] = "study"
    seed: Seed = 1
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 10.0
    sum: Sum = Sum()
    engine: Engine = Engine()
    track: Track | None = None
    seeds: Annotated[tuple[Seed, ...], Field(min_length=1)] | None = None
    grid: dict[str, Annotated[list[Any], Field(min_length=1)]] = {}

    _given: dict[str, Any] = PrivateAttr(default_factory=dict)
    _elsewhere: bool = PrivateAttr(default=False)
    _copied: bool = PrivateAttr(default=False)  # with other values, which nobody has checked
    _objects: tuple[Held, ...] = PrivateAttr(default=())  # that it names: there while it is

    @model_validator(mode="wrap")
    @classmethod
    def _remember(cls, value: Any, handler: Any, info: ValidationInfo) -> Self:
        if isinstance(value, cls):
            return value
        given = with_new_names(normal(value), cls.renamed)
        plan: Self = handler(cls.with_defaults(given))
        plan._given = given
        plan._objects = keep(given)
        plan._elsewhere = is_elsewhere(info)
        plan.require_possible()
        return plan

    @classmethod
    def with_defaults(cls, given: Any) -> Any:
        """What was written, on top of defaults that depend on it (those of a recipe, say)."""
        return given

    def require_possible(self) -> None:
        """Refuse choices that do not go together, when all of the plan is known."""

    @field_validator("grid", mode="after")
    @classmethod
    def _no_seed_twice(cls, grid: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for key in ("seeds", "grid", "name", "kind"):
            if key in grid:
                raise ValueError(f"'{key}' cannot be varied in a grid")
        return grid

    @model_validator(mode="after")
    def _one_kind_of_seed(self) -> Self:
        if self.seeds and ("seed" in self.model_fields_set or "seed" in self.grid):
            raise ValueError("give either seed or seeds")
        return self

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.model_dump() == other.model_dump()

    __hash__ = None  # type: ignore[assignment]

    @property
    def many(self) -> bool:
        """Whether this plan stands for many runs."""
        return bool(self.seeds or self.grid)

    def is_checked(self, elsewhere: bool) -> bool:
        """Whether it need not be checked again, for sites here or elsewhere. Runs of a plan for
        many are checked one by one when it is loaded."""
        known = bool(self._given) and not self._copied
        return known and not self.many and self._elsewhere == elsewhere

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """pydantic checks no `update`: whoever loads the copy does."""
        copy = super().model_copy(update=update, deep=deep)
        copy._copied = self._copied or bool(update)
        return copy

    def given(self) -> dict[str, Any]:
        """What was written, without defaults; all of it, of a copy with other values."""
        if self._copied:
            return normal(self.model_dump(mode="json", exclude_none=True, exclude={"grid"}))
        return normal(self._given)

    def change(self, settings: Mapping[str, Any]) -> Self:
        """The same plan with other values for dotted keys; what it fixes is no longer varied."""
        context = {"elsewhere": self._elsewhere}
        return type(self).model_validate(changed(self._given, settings), context=context)

    def expand(self) -> list[tuple[str, Self]]:
        """Every run of this plan with its label ('lr=0.1,seed=2'); one without label if single."""
        return [(label, self.change(settings)) for label, settings in self.settings()]

    def settings(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Label and settings of every run, grid first, seeds innermost."""
        axes: dict[str, list[Any]] = dict(self.grid)
        if self.seeds:
            axes["seed"] = list(self.seeds)
        leaves = [key.rsplit(".", 1)[-1] for key in axes]
        words = [leaf if leaves.count(leaf) == 1 else key for key, leaf in zip(axes, leaves)]
        for place in itertools.product(*(range(len(values)) for values in axes.values())):
            chosen = {key: axes[key][i] for key, i in zip(axes, place)}
            parts = [f"{w}={folder_word(v, i)}" for w, v, i in zip(words, chosen.values(), place)]
            yield ",".join(parts), chosen

    def to_dict(self, *, lasting: bool = False) -> dict[str, Any]:
        """Plain values: defaults written out, or for many runs only what was said. lasting: by
        names that stay as they are in every version, for hashes."""
        if self.many:
            return self.given()
        dump = self.model_dump(mode="json", exclude_none=True, exclude={"grid"}, by_alias=lasting)
        found = normal(dump)
        for key, default in self.later.items():
            *path, last = key.split(".")
            place = found
            for part in path:
                place = place.get(part, {})
            if place.get(last) == default:
                del place[last]
        return {key: found[key] for key in (*self.key_order, *found) if key in found}

    def to_toml(self) -> str:
        """TOML that loads to an equal plan."""
        return tomli_w.dumps(self.to_dict())


def is_elsewhere(info: ValidationInfo) -> bool:
    """Whether a plan is read for real sites, which have files of their own."""
    return bool(info.context and info.context.get("elsewhere"))


def checked(thing: Any, check: Any) -> Any:
    """Our own errors as problems of a plan."""
    try:
        check(thing)
    except CupolaError as error:
        raise PydanticCustomError("plan", "{text}", {"text": str(error)}) from error
    return thing


def folder_word(value: Any, place: int) -> str:
    """A value as part of a folder's name; tables and long lists by their place."""
    if isinstance(value, dict):
        value = value.get("name", value.get("kind", place))
    elif isinstance(value, list):
        value = "x".join(str(v) for v in value)
    elif isinstance(value, bool):
        value = str(value).lower()
    text = re.sub(r"[^\w.+-]+", "_", str(value))
    return text if 0 < len(text) <= 40 else str(place)
