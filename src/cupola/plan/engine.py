"""How a plan's sites are reached."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from cupola.base.renaming import warn_renamed
from cupola.federation.site import Mode
from cupola.learn.choices import Choice

Share = Annotated[float, Field(ge=0, le=1)]


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
