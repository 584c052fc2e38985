"""What a study decides about principal components."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field, model_validator

MOST_SUMS = 30


class _Choice(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Prune(_Choice):
    """Markers that have little in common with their neighbours, as PLINK's --indep-pairwise."""

    r2: float = Field(default=0.2, gt=0, lt=1)
    """Of two markers in a window whose genotypes' squared correlation is larger, one goes."""
    window: int = Field(default=50, ge=2, le=500)
    """Markers in a window. A cohort needs ten times as many people, less ten."""
    step: int = Field(default=5, ge=1)
    """Markers by which the window moves on."""

    @model_validator(mode="after")
    def _gapless(self) -> Prune:
        if self.step > self.window:
            raise ValueError("components.prune: step is larger than window, which leaves gaps")
        return self


class Components(_Choice):
    """Principal components of all loaded people's genotypes, by block Lanczos over sums."""

    count: int = Field(default=10, ge=1, le=50)
    """How many."""
    block: int = Field(default=12, ge=1, le=50)
    """Directions in one sum. Fewer need more sums, and tell less in all."""
    sums: int = Field(default=15, ge=1, le=MOST_SUMS)
    """The most sums that are made."""
    residual: float = Field(default=1.5e-3, gt=0, lt=0.1)
    """Stop when |A v - theta v| / theta of every component is smaller."""
    maf: float = Field(default=0.05, gt=0, le=0.5)
    """Least frequency of the minor allele of a marker, over all people."""
    variants: tuple[str, ...] = ()
    """Names of the markers, as on the list; without them all variants that pass the filters."""
    prune: Prune | None = None
    """Use only markers that have little in common, over all cohorts."""
    density: bool = False
    """Cohorts also count their people in squares of the first two components, for a picture of
    all."""

    @model_validator(mode="after")
    def _enough(self) -> Components:
        if self.sums * self.block <= self.count:
            raise ValueError(
                f"components: {self.sums} sums of {self.block} directions cannot find "
                f"{self.count} components; allow more sums, or a larger block"
            )
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"PC{i + 1}" for i in range(self.count))


def expanded(name: str) -> tuple[str, ...]:
    """PC1-10 and PC1-PC10 are ten names; any other is itself.

    >>> expanded("PC2-4"), expanded("AGE")
    (('PC2', 'PC3', 'PC4'), ('AGE',))
    """
    found = re.fullmatch(r"PC([1-9][0-9]{0,2})-(?:PC)?([1-9][0-9]{0,2})", name)
    if found is None or int(found[1]) > int(found[2]):
        return (name,)
    return tuple(f"PC{i}" for i in range(int(found[1]), int(found[2]) + 1))
