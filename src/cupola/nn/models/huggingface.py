"""Models of Hugging Face's transformers, as modules of one tensor of tokens to one of logits."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from cupola.data.tokenised import FIELDS
from cupola.errors import PlanError
from cupola.nn.models.blocks import Shape, Share, needs_classes
from cupola.nn.models.building import model

Task = Literal["sequence-classification", "token-classification", "causal-lm"]
_AUTO = {
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "causal-lm": "AutoModelForCausalLM",
}


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
        config: Any = inner.config
        self.padding = getattr(config, "pad_token_id", None) if padding is None else padding
        self.fresh = tuple(f"model.{name}" for name in fresh)
        self.tokens = int(config.get_text_config().vocab_size)
        config.use_cache = False
        if hasattr(inner, "set_attn_implementation"):
            inner.set_attn_implementation("eager")

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


def is_transformers(module: nn.Module) -> bool:
    """Whether a module is one of transformers', or peft's around one: found by names, so that
    neither is imported for it."""
    roots = {f"{c.__module__}.{c.__name__}" for c in type(module).__mro__}
    ours = {"transformers.modeling_utils.PreTrainedModel", "peft.peft_model.PeftModel"}
    return bool(roots & ours)


@model("huggingface", "a pretrained model of Hugging Face's transformers, from a folder or cache")
def huggingface(
    input_shape: Shape,
    classes: int | None,
    *,
    path: str,
    task: Task = "sequence-classification",
    padding: int | None = None,
    dropout: Share | None = None,
    download: bool = False,
    vocabulary: int | None = None,
) -> nn.Module:
    """Tokens (n, T), or (n, fields, T), to logits (n, classes), or (n, T, classes) of tokens.

    path: a folder, or a name in the user's own cache; nothing is downloaded unless download = true.
    padding: the token that fills texts up; default: the data's, or the model's own.
    dropout: of all its dropout layers, in place of its own.
    vocabulary: of the data; it must be within the model's.
    """
    try:
        import transformers
    except ImportError:
        raise PlanError(
            "model = 'huggingface' needs transformers: pip install 'cupola[adapters]'"
        ) from None
    given = _logits(task, classes)
    try:
        made, loaded = getattr(transformers, _AUTO[task]).from_pretrained(
            path,
            local_files_only=not download,
            use_safetensors=True,  # no pickles
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            dtype=torch.float32,
            **given,
        )
    except (OSError, ValueError) as error:
        raise PlanError(
            f"model.path = '{path}' is no model of transformers in a folder or in this user's "
            f"cache ({str(error).splitlines()[0]}); nothing is downloaded without "
            "model.download = true"
        ) from None
    known = made.config.get_text_config().vocab_size
    if vocabulary is not None and vocabulary > known:
        raise PlanError(
            f"model.path = '{path}' knows {known:,} tokens, the data have {vocabulary:,}: tokenise "
            "them with the model's own tokeniser"
        )
    if task == "causal-lm" and classes is not None and classes != known:
        raise PlanError(
            f"model.path = '{path}' gives scores of {known:,} tokens, the data have {classes:,}"
        )
    most = getattr(made.config, "max_position_embeddings", None)
    if most is not None and input_shape[-1] > most:
        raise PlanError(
            f"texts of {input_shape[-1]} tokens, but model.path = '{path}' takes {most} at most"
        )
    if dropout is not None:
        for part in made.modules():
            if isinstance(part, nn.Dropout):
                part.p = dropout
    missing = [*loaded["missing_keys"], *(key[0] for key in loaded["mismatched_keys"])]
    fresh = dict.fromkeys(str(name).rpartition(".")[0] for name in missing)
    return HuggingFace(made, padding, tuple(fresh)).train()


def _logits(task: Task, classes: int | None) -> dict[str, Any]:
    if task == "causal-lm":
        return {}
    if classes is None:
        return {"num_labels": 1, "problem_type": "regression"}
    return {"num_labels": needs_classes("huggingface", classes)}
