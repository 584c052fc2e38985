"""How a plan's sites are reached."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from cupola.federation.site import Mode
from cupola.learn.choices import Choice

Share = Annotated[float, Field(ge=0, le=1)]


class Engine(Choice):
    """How sites are reached: all in this process, over a Ray cluster, or each in a process of its
    own (for trials).

    mode: whether sites are computed together. workers: threads for sites that run one by one, or
    Ray's processes. quorum: share of the asked sites that must answer. timeout: seconds a separate
    site has, or a Ray worker for a site. address: of a running Ray cluster; else one is started.
    """

    kind: Literal["in-process", "ray", "separate"] = "in-process"
    mode: Mode = "auto"
    workers: Annotated[int, Field(ge=1)] | None = None
    quorum: Share = 0.0
    timeout: Annotated[float, Field(gt=0)] = 120.0
    address: str | None = None

    @model_validator(mode="after")
    def _address_of_ray(self) -> Engine:
        if self.address is not None and self.kind != "ray":
            raise ValueError("engine.address is where a Ray cluster is: set engine.kind = 'ray'")
        return self
