"""How sums are made: a frozen value that plans, studies and code share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0)]


class Choice(BaseModel):
    """Base of all choices: immutable, nothing unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Sum(Choice):
    """How the sites' contributions are added.

    kind: 'plain', or 'masked': nobody sees a site's own numbers, only the total.
    protocol: of masked sums: a third party that sees masks only (the 'compensator'), or 'pairwise'
        keys between the sites. minimum: sites that a total must have; 2 needs both sites' consent.
    changes: whether sites may change from total to total, so that differences of totals can tell of
        single sites; by default where the plan has it so (see `cupola.training.changing_sites`).
    change: largest magnitude of one parameter in one answer (unless clipping bounds it); samples:
        most samples of a site. They decide the precision: larger bounds leave fewer fractional
        bits. bits: of a parameter on its way; default 32 where updates are clipped, else 64.
    """

    kind: Literal["plain", "masked"] = "plain"
    protocol: Literal["compensator", "pairwise"] = "compensator"
    minimum: Annotated[int, Field(ge=2)] = 3
    changes: bool | None = None
    change: Positive = 64.0
    samples: Annotated[int, Field(ge=1)] = 2**17
    bits: Literal[16, 32, 64] | None = None

    @property
    def masked(self) -> bool:
        return self.kind == "masked"
