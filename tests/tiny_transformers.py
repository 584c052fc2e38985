"""Tiny BERT and GPT-2 with random weights, saved as transformers does; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

TOKENS, WIDTH = 40, 16


def config(kind: str, **more: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    if kind == "bert":
        return transformers.BertConfig(
            vocab_size=TOKENS, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=32, max_position_embeddings=32, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0, **more,
        )  # fmt: skip
    return transformers.GPT2Config(
        vocab_size=TOKENS, n_embd=WIDTH, n_layer=2, n_head=2, n_positions=32, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2, **more,
    )  # fmt: skip


def save(folder: Path, kind: str, seed: int = 0) -> Path:
    """A pretrained base without a head, such as one downloads."""
    transformers = pytest.importorskip("transformers")
    made = {"bert": transformers.BertModel, "gpt2": transformers.GPT2Model}[kind]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made(config(kind)).save_pretrained(folder)
    return folder
