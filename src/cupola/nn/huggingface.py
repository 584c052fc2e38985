"""A model of Hugging Face's transformers as a module of one tensor of tokens to one of logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from cupola.errors import PlanError

#: Fields of a tokeniser, in the order in which `cupola.data.tokenised` stacks them.
FIELDS = ("input_ids", "attention_mask", "token_type_ids")


class HuggingFace(nn.Module):
    """A transformers model (or peft's around one): tokens (n, T), or (n, fields, T) of a tokenised
    data set (see `cupola.data.tokenised`), to its logits.

    Where no mask is given, tokens that pad are not attended to. padding: their id. Attention is
    computed in transformers' plain form: the others choose their way by what the batch holds, so
    that a sample's bits would depend on its company.
    """

    takes_prompts = True

    def __init__(
        self, inner: nn.Module, padding: int | None = None, fresh: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self.model = inner
        made: Any = inner
        config = made.config
        self.padding = getattr(config, "pad_token_id", None) if padding is None else padding
        self.fresh = tuple(f"model.{name}" for name in fresh)
        self.tokens = int(config.get_text_config().vocab_size)
        config.use_cache = False
        if hasattr(made, "set_attn_implementation"):
            made.set_attn_implementation("eager")

    def forward(self, x: Tensor, prompt: Tensor | None = None) -> Tensor:
        given = self.fields(x)
        if prompt is None:
            return self.model(**given).logits
        words = self.get_input_embeddings()(given.pop("input_ids"))
        given["inputs_embeds"] = torch.cat([prompt.to(words.dtype), words], 1)
        mask, length = given["attention_mask"], prompt.shape[1]
        given["attention_mask"] = torch.cat([mask.new_ones(len(x), length), mask], 1)
        if "token_type_ids" in given:
            kinds = given["token_type_ids"]
            given["token_type_ids"] = torch.cat([kinds.new_zeros(len(x), length), kinds], 1)
        logits = self.model(**given).logits
        return logits[:, length:] if logits.dim() == 3 else logits

    def fields(self, x: Tensor) -> dict[str, Tensor]:
        """The model's arguments."""
        if x.dim() == 2:
            mask = torch.ones_like(x) if self.padding is None else (x != self.padding).to(x.dtype)
            return {"input_ids": x, "attention_mask": mask}
        given = dict(zip(FIELDS, x.unbind(1)))
        # What is no mask, or no kind of token, comes from probes with random numbers.
        given["attention_mask"] = (given["attention_mask"] != 0).to(x.dtype)
        if "token_type_ids" in given:
            kinds = getattr(self.model.config, "type_vocab_size", 2)
            given["token_type_ids"] = given["token_type_ids"].clamp(0, max(kinds - 1, 0))
        return given

    def get_input_embeddings(self) -> nn.Module:
        inner: Any = self.model
        return inner.get_input_embeddings()

    def require_prompt(self, length: int) -> None:
        """Refuse a prompt where the model would read its result at a wrong place."""
        config: Any = self.model.config
        if not hasattr(config, "type_vocab_size") and _classifies(self.model):
            raise PlanError(
                "trainable.adapter.kind = 'prompt': this model classifies by its last token, which "
                "it cannot find among embedded inputs; take kind = 'lora' or 'ffa-lora'"
            )
        most = getattr(config, "max_position_embeddings", None)
        if most is not None and length >= most:
            raise PlanError(
                f"trainable.adapter.length = {length}: the model has {most} places in all"
            )


def _classifies(inner: nn.Module) -> bool:
    return "ForSequenceClassification" in type(inner).__name__


def with_logits(module: nn.Module) -> nn.Module:
    """A module of transformers, or peft's, wrapped so that it gives its logits; others as they
    are."""
    return HuggingFace(module) if is_transformers(module) else module


def is_transformers(module: nn.Module) -> bool:
    """Whether a module is one of transformers', or peft's around one: found by names, so that
    neither is imported for it."""
    roots = {f"{c.__module__}.{c.__name__}" for c in type(module).__mro__}
    ours = {"transformers.modeling_utils.PreTrainedModel", "peft.peft_model.PeftModel"}
    return bool(roots & ours)
