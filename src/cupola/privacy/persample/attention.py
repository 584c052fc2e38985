"""Multi-head attention with its projections in view, equal to nn.MultiheadAttention."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cupola.privacy.persample.tape import NotCoveredError, Tape, cell


@cell(nn.MultiheadAttention)
def attention(
    layer: nn.MultiheadAttention,
    tape: Tape,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,  # a hint: the mask itself is given too
) -> tuple[Tensor, Tensor | None]:
    """The forward pass of nn.MultiheadAttention on batches, (n, T, E) or (T, n, E)."""
    unusual = layer.bias_k is not None or layer.add_zero_attn or not layer._qkv_same_embed_dim
    if unusual or query.dim() != 3:
        if tape.silent:
            return type(layer).forward(
                layer, query, key, value, key_padding_mask, need_weights, attn_mask,
                average_attn_weights, is_causal,
            )  # fmt: skip
        raise NotCoveredError("MultiheadAttention with unequal widths or extra keys")
    same = query is key and key is value
    if not layer.batch_first:
        query, key, value = (t.transpose(0, 1) for t in (query, key, value))
    weight, bias, width = layer.in_proj_weight, layer.in_proj_bias, layer.embed_dim
    if same:
        parts = tape.dense(query, weight, bias).chunk(3, -1)
    else:  # one matrix, three inputs: each is projected by all of it and keeps its third
        parts = tuple(
            tape.dense(t, weight, bias)[..., i * width : (i + 1) * width]
            for i, t in enumerate((query, key, value))
        )
    n, heads, size = len(query), layer.num_heads, layer.head_dim
    q, k, v = (t.reshape(n, -1, heads, size).transpose(1, 2) for t in parts)
    scores = (q / math.sqrt(size)) @ k.mT  # (n, heads, T, S)
    if attn_mask is not None:
        mask = _additive(attn_mask, scores)
        scores = scores + (mask.view(n, heads, *mask.shape[1:]) if mask.dim() == 3 else mask)
    if key_padding_mask is not None:
        scores = scores + _additive(key_padding_mask, scores)[:, None, None]
    weights = F.dropout(torch.softmax(scores, -1), layer.dropout, layer.training)
    joined = (weights @ v).transpose(1, 2).reshape(n, -1, width)
    output = tape.dense(joined, layer.out_proj.weight, layer.out_proj.bias)
    shown: Any = None
    if need_weights:
        shown = weights.mean(1) if average_attn_weights else weights
    return output if layer.batch_first else output.transpose(0, 1), shown


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """A mask to add: minus infinity where a boolean mask forbids."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)
