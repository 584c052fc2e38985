"""What a party has decided for itself: cupola-site.toml and cupola-compensator.toml.

The files are the party's own. Nothing in them comes from the coordinator, and what they do not
allow does not happen.
"""

from __future__ import annotations

import tomllib
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cupola.analysis.explain import explain
from cupola.errors import DataError, PlanError

SITE, COMPENSATOR = "cupola-site.toml", "cupola-compensator.toml"
KEYS = "identity.json"
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Consent(_Settings):
    """A study that this party has joined."""

    plan: Digest
    """Hash of the plan or study, as `cupola site preview` shows it."""
    roster: Digest
    """Hash of the roster that was compared with the other parties."""
    data: str | None = None
    """Which of the site's data sets takes part."""


class Budget(_Settings):
    """What the site allows to be spent of a data set in all studies together."""

    epsilon: Annotated[float, Field(gt=0)]
    """The most, against everybody outside the site."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """Chance that the promise does not hold."""
    neighbours: Literal["add-remove", "replace-one"] = "add-remove"
    """Which data sets cannot be told apart."""
    trust_coordinator: bool = False
    """Whether noise that the coordinator adds counts as protection."""


class TotalLimits(_Settings):
    """What totals of association studies may tell of this site's people. A study whose own limits
    are weaker is not joined."""

    effective: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """The least limits.effective of a study."""
    least_cell: Annotated[int, Field(ge=0)] = 0
    """The least limits.least_cell of a study."""
    people: Annotated[int, Field(ge=1)] = 200
    """The least limits.people of a study with components or a mixed model."""
    directions: Annotated[float, Field(gt=0)] = 0.5
    """The largest limits.directions of a study with components."""
    carriers: Annotated[int, Field(ge=0)] = 10
    """The least limits.carriers of a study with components."""
    released: Annotated[float, Field(gt=0)] = 0.6
    """Numbers per variant and person that regressions and components on a data set may tell, all
    studies together: columns times iterations over people, directions over the site's people."""
    genome_people: Annotated[int, Field(ge=0)] = 1000
    """The least whole_genome.people of a study."""
    genome_own_people: Annotated[int, Field(ge=0)] = 200
    """The least whole_genome.own_people of a study."""
    genome_carriers: Annotated[int, Field(ge=0)] = 50
    """The least whole_genome.carriers of a study."""
    genome_people_per_marker: Annotated[float, Field(ge=0)] = 5.0
    """The least whole_genome.people_per_marker of a study."""


class PartySettings(_Settings):
    """What every party says."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    """As it stands in rosters."""
    studies: dict[str, Consent] = {}
    """What was joined; written by `join`. Without an entry nothing runs."""
    modules: tuple[str, ...] = ()
    """Installed Python modules that a plan may name ('module:name', or as the kind of analysis). No
    other code runs."""


class CompensatorSettings(PartySettings):
    """cupola-compensator.toml."""


class SiteSettings(PartySettings):
    """cupola-site.toml."""

    tasks: tuple[str, ...] = ("train", "evaluate")
    """What the site runs; 'gwas *' stands for all whose names begin so."""
    unmasked_tasks: tuple[str, ...] = ()
    """Tasks whose answers may leave as they are. All others leave in masked sums only."""
    minimum: Annotated[int, Field(ge=2)] = 3
    """No study whose totals may be of fewer sites."""
    budget: Budget | None = None
    """Of each data set. With it, answers that no mechanism protects are refused."""
    limits: TotalLimits = TotalLimits()
    """What totals of association studies may tell, below."""
    salt: str | None = None
    """For fingerprints of people in association studies; shared among cohorts only."""
    data: dict[str, dict[str, Any]] = {}
    """Data sets by name: 'loader' and its options, the files of a cohort, or what an analysis of
    your own wants to know."""

    @model_validator(mode="before")
    @classmethod
    def _old_names(cls, given: Any) -> Any:
        """'openly' is what unmasked_tasks was called before; for one release."""
        if not isinstance(given, dict) or "openly" not in given or "unmasked_tasks" in given:
            return given
        warnings.warn("openly is now called unmasked_tasks", FutureWarning, stacklevel=2)
        rest = {key: value for key, value in given.items() if key != "openly"}
        return {**rest, "unmasked_tasks": given["openly"]}


Kind = TypeVar("Kind", bound=PartySettings)


def read_settings(folder: Path, kind: type[Kind]) -> Kind:
    """The settings in a party's folder, checked."""
    path = folder / (SITE if kind is SiteSettings else COMPENSATOR)
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise DataError(f"{path} cannot be read; `init` makes one") from None
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise PlanError("\n".join(explain(error, str(path), (), kind))) from None
