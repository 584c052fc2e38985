"""Tokenised texts: a tokeniser's named fields as one tensor, since rows of data are tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cupola.errors import DataError
from cupola.nn.huggingface import FIELDS


def stacked(fields: Mapping[str, Any]) -> Tensor:
    """What a tokeniser gives, {"input_ids": (n, T), "attention_mask": (n, T), ...}, as int64 tokens
    (n, fields, T), or (n, T) of tokens alone.

    >>> stacked({"input_ids": [[5, 7, 0]], "attention_mask": [[1, 1, 0]]}).tolist()
    [[[5, 7, 0], [1, 1, 0]]]
    """
    unknown = [name for name in fields if name not in FIELDS]
    if unknown or "input_ids" not in fields:
        raise DataError(
            f"tokenised inputs have the fields {', '.join(fields) or 'none'}; taken are "
            f"{', '.join(FIELDS)}, the first at least"
        )
    given = {name: torch.as_tensor(values) for name, values in fields.items()}
    shape = given["input_ids"].shape
    for name, values in given.items():
        if values.dim() != 2 or values.shape != shape or values.is_floating_point():
            raise DataError(
                f"tokenised inputs: '{name}' is {list(values.shape)} of {values.dtype}; integers "
                "(texts, tokens) of one length are needed (padding='max_length')"
            )
    if len(given) == 1:
        return given["input_ids"].long()
    if "attention_mask" not in given:
        raise DataError("tokenised inputs with 'token_type_ids' need 'attention_mask', too")
    return torch.stack([given[name].long() for name in FIELDS if name in given], 1)
