"""The plan of a training: everything that decides a run, as one frozen value.

A plan is written as TOML (see `cupola.analysis.plan_file`) or made in Python with the same names.
Settings of its recipe are defaults below its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from cupola.analysis.header import PlanHeader
from cupola.analysis.header import checked as _checked
from cupola.analysis.overrides import changed as changed
from cupola.analysis.overrides import flat, merge, plain
from cupola.analysis.overrides import normal as normal
from cupola.base.held_objects import named_objects, word_of
from cupola.data.partition import IID, Partition
from cupola.errors import CupolaError, PlanError
from cupola.training import plan_names
from cupola.training.changing_sites import check_changes
from cupola.training.choices import (
    Choice,
    Evaluation,
    Local,
    Participation,
    Privacy,
    Server,
    Trainable,
)
from cupola.training.personalise.personal_choices import Personalise, require_tellable
from cupola.training.precision import Precision
from cupola.training.transforms import AnyTransform


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
        return _checked(self, plan_names.check_model)


class Loss(Named):
    @model_validator(mode="after")
    def _options_fit(self) -> Loss:
        return _checked(self, plan_names.check_loss)


class MethodChoice(Named):
    @model_validator(mode="after")
    def _options_fit(self) -> MethodChoice:
        return _checked(self, plan_names.check_method)


class Data(Named):
    """A data set, how it is cut into sites, and augmentation; other keys go to its loader.

    partition_seed: of the cut; default: the plan's seed, so that every seed has its own sites.
    """

    partition: Partition = IID()
    partition_seed: int | None = None
    augment: tuple[str | dict[str, Any], ...] = ()

    @model_validator(mode="after")
    def _options_fit(self) -> Data:
        return _checked(self, plan_names.check_data)


class Link(Choice):
    """What sites are connected by, in MB/s: how long a round's messages would take, nothing else.

    The defaults are those that FedPT takes for phones (Wang et al. 2021).
    """

    down: Annotated[float, Field(gt=0)] = 0.75
    up: Annotated[float, Field(gt=0)] = 0.25

    def seconds(self, down: float, up: float) -> float:
        """For so many bytes to a site and from it, one after the other."""
        return down / (1e6 * self.down) + up / (1e6 * self.up)


_ALTERNATIVES = ({"factor", "damping"},)  # of what a recipe sets, the user's choice of the other


class Plan(PlanHeader):
    """One training experiment. Unknown keys are refused.

    twin: also run the centralised twin. transforms: what is done to an update on its way, in order.
    """

    key_order: ClassVar[tuple[str, ...]] = (
        "kind", "name", "seed", "rounds", "recipe", "method", "task", "device", "device_noise",
        "dtype", "precision", "twin",
        "checkpoint_seconds", "data", "model", "loss", "trainable", "local", "server",
        "participation", "evaluation", "privacy", "sum", "transforms", "engine", "track", "link",
        "personalise", "seeds",
    )  # fmt: skip
    own_affair: ClassVar[tuple[str, ...]] = (
        "engine", "track", "device", "device_noise", "twin", "checkpoint_seconds",
    )  # fmt: skip
    renamed: ClassVar[Mapping[str, str]] = {
        "model.always_drop": "model.kernel_evaluation",
        "privacy.noise": "privacy.noise_multiplier",
        "personalise.release.noise": "personalise.release.noise_multiplier",
    }

    later: ClassVar[Mapping[str, Any]] = {
        "device_noise": False, "precision": "full", "transforms": [], "privacy.clip_shares": {},
        "personalise.options": {},
    }  # fmt: skip

    kind: Literal["training"] = "training"
    name: Annotated[str, Field(pattern=r"^[\w][\w .,+=@-]*$")]
    rounds: Annotated[int, Field(ge=1)]
    recipe: str = "fedavg"
    method: MethodChoice | None = None
    task: Annotated[str, Field(pattern=r"^(train|[\w.]+:\w+)$")] = "train"
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?|mps)$")] = "auto"
    device_noise: bool = False
    dtype: Literal["float32", "float64"] = "float32"
    precision: Precision = "full"
    twin: bool = False
    data: Data
    model: Model
    loss: Loss | None = None
    trainable: Trainable = Trainable()
    local: Local = Local()
    server: Server = Server()
    participation: Participation = Participation()
    evaluation: Evaluation = Evaluation()
    privacy: Privacy = Privacy()
    transforms: tuple[AnyTransform, ...] = ()
    link: Link = Link()
    personalise: Personalise | None = None

    @classmethod
    def with_defaults(cls, given: Any) -> Any:
        """`given` on top of its recipe's settings, table by table."""
        recipe = given.get("recipe", "fedavg") if isinstance(given, dict) else None
        if not isinstance(recipe, str):
            return given
        try:
            method = plan_names.recipe(recipe)
        except CupolaError as error:
            raise PydanticCustomError("plan", "{text}", {"text": str(error)}) from error
        merged = dict(given)
        for section in ("local", "server", "participation", "privacy", "sum"):
            own = merged.get(section, {})
            if isinstance(own, dict) and (defaults := getattr(method, section)):
                merged[section] = merge(plain(defaults), own, _ALTERNATIVES)
        own, defaults = merged.get("method", {}), method.method
        if defaults and isinstance(own, dict) and own.get("name") in (None, defaults["name"]):
            merged["method"] = merge(plain(defaults), own)
        return merged

    def require_possible(self) -> None:
        if self.personalise is not None:
            _checked(self, _adaptable)

    @model_validator(mode="after")
    def _together(self) -> Plan:
        if self.twin and self.privacy.budget is not None:
            raise ValueError("twin trains on pooled data without privacy; a budget forbids that")
        if self.sum.masked and self.engine.mode not in ("auto", "one-by-one"):
            raise ValueError(
                f"engine.mode = '{self.engine.mode}' adds up sites before they answer; masked sums "
                "need every site's own answer: use 'auto'"
            )
        if self.transforms and self.engine.mode not in ("auto", "one-by-one"):
            raise ValueError(
                f"engine.mode = '{self.engine.mode}' adds up sites before they answer; transforms "
                "are of every site's own update: use 'auto'"
            )
        check_changes(self)
        _checked(self, plan_names.check_copies)
        _checked(self.evaluation, plan_names.check_metrics)
        _checked(self, _reaches_objects)
        if self.device == "mps" and self.dtype == "float64":
            raise ValueError("device 'mps' has no float64; use device = 'cpu'")
        if self.dtype == "float64" and self.precision != "full":
            raise ValueError(f"precision = '{self.precision}' is for dtype = 'float32'")
        if self.device_noise and self.device in ("cpu", "mps"):
            raise ValueError(
                "device_noise draws noise on a CUDA device (the CPU draws its own, MPS has no "
                f"float64); device = '{self.device}' has none: leave device_noise out"
            )
        if self.personalise is not None:
            require_tellable(self.personalise, self.privacy, self.sum, self.task)
        return self

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


def _reaches_objects(plan: Plan) -> None:
    """Refuse engines whose sites are in other processes, where objects of this one are not."""
    found = next(named_objects(plan.model_dump(mode="json")), None)
    if found is not None and plan.engine.kind != "in-process":
        key = found[0].removesuffix(".name")
        raise PlanError(
            f"engine.kind = '{plan.engine.kind}': {key} ({word_of(found[1])}) is an object of this "
            "Python program, and neither code nor pickles cross to another process; use "
            "engine.kind = 'in-process', or name it as 'module:name'"
        )


def _adaptable(plan: Plan) -> None:
    """Refuse settings of the adaptation that no plan could have."""
    try:
        plan.adaptation()
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise PlanError(f"personalise.adapt: {key + ': ' if key else ''}{said}") from None
