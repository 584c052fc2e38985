"""`[trainable] adapter`: which part of a frozen model is trained (see `cupola.nn.adapters`)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

LOW_RANK = ("lora", "ffa-lora", "lora-sb")  # nothing is imported: chains of imports are short


class Adapter(BaseModel):
    """A frozen base with a small trained part.

    kind: lora trains A and B of W + alpha / rank B A; ffa-lora B alone; lora-sb a rank x rank
        matrix between fixed factors; prompt vectors before the tokens; bitfit the biases; head the
        last layer.
    rank, alpha: of the factors; alpha: default the rank (a factor 1).
    targets: layers that are adapted, by patterns of their names; default: dense layers but the last
        (without any: convolutions). modules_to_save: modules trained in full beside it.
    length: of the prompt, in tokens.
    base: a run's folder, or a file of safetensors, with the base's weights; default: as the
        model's code makes them. base_dtype: of the frozen part.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["lora", "ffa-lora", "lora-sb", "prompt", "bitfit", "head"]
    rank: Annotated[int, Field(ge=1)] = 8
    alpha: Annotated[float, Field(gt=0)] | None = None
    targets: tuple[str, ...] = ()
    modules_to_save: tuple[str, ...] = ()
    length: Annotated[int, Field(ge=1)] = 20
    base: str | None = None
    base_dtype: Literal["float32", "bfloat16"] | None = None

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Adapter:
        # A plan that was written out has the defaults in it, too.
        given = {k for k, f in Adapter.model_fields.items() if getattr(self, k) != f.default}
        if self.kind not in LOW_RANK and given & {"rank", "alpha"}:
            raise ValueError(f"adapter.rank and alpha are of low-rank kinds, not '{self.kind}'")
        if self.kind != "prompt" and "length" in given:
            raise ValueError(f"adapter.length is of kind = 'prompt', not '{self.kind}'")
        if self.kind == "prompt" and self.targets:
            raise ValueError("adapter.targets: a prompt stands before the tokens, not in layers")
        if self.kind == "bitfit" and self.base_dtype == "bfloat16":
            raise ValueError(
                "adapter.base_dtype = 'bfloat16': bitfit trains biases inside the base's layers, "
                "which have one type; take another kind, or leave base_dtype out"
            )
        return self
