"""Models of Hugging Face's transformers, as modules of one tensor of tokens to one of logits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn

from cupola.errors import PlanError
from cupola.nn.huggingface import HuggingFace
from cupola.nn.models.blocks import Shape, Share, needs_classes
from cupola.nn.models.building import model

Task = Literal["sequence-classification", "token-classification", "causal-lm"]
_AUTO = {
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "causal-lm": "AutoModelForCausalLM",
}


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
        with _quiet(transformers.utils.logging):
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
    if 2 * sum(made.get_parameter(str(n)).numel() for n in missing) > made.num_parameters():
        raise PlanError(f"model.path = '{path}' has no weights of a {type(made).__name__}")
    return HuggingFace(made, padding, tuple(fresh)).train()


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """No progress, and no report of missing weights: a model is built several times, and what it
    came without is trained."""
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def _logits(task: Task, classes: int | None) -> dict[str, Any]:
    if task == "causal-lm":
        return {}
    if classes is None:
        return {"num_labels": 1, "problem_type": "regression"}
    return {"num_labels": needs_classes("huggingface", classes)}
