"""Adapters in the format of Hugging Face's peft: adapter_config.json, adapter_model.safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save
from torch import nn

from cupola.base.files import write_atomically
from cupola.nn.adapters import FACTORS, is_transposed, low_rank
from cupola.nn.huggingface import HuggingFace

FILES = ("adapter_config.json", "adapter_model.safetensors")
_PREFIX = "base_model.model."
_TASKS = {
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForCausalLM": "CAUSAL_LM",
    "LMHeadModel": "CAUSAL_LM",
}


def write_peft(
    module: nn.Module, arrays: Mapping[str, np.ndarray], folder: Path, base: str | None = None
) -> bool:
    """An adapter with factors as peft loads it; False, and nothing written, for other kinds.

    module: with the adapter. arrays: its trained tensors and fixed factors, by name. base: the name
    of the base. lora-sb is written as the lora of the same rank that it is, with B R for B.
    """
    layers = dict(low_rank(module))
    if not layers:
        return False
    own = "model." if isinstance(module, HuggingFace) else ""
    tensors: dict[str, np.ndarray] = {}
    for name in layers:
        a, r, b = (arrays.get(f"{name}.{factor}.weight") for factor in FACTORS)
        assert a is not None
        assert b is not None
        if r is not None:
            b = (b.reshape(len(b), -1) @ r.reshape(len(r), -1)).reshape(b.shape)
        place = _PREFIX + name.removeprefix(own)
        tensors |= {f"{place}.lora_A.weight": a, f"{place}.lora_B.weight": b}
    factors = {f"{name}.{factor}.weight" for name in layers for factor in FACTORS}
    whole = {n: array for n, array in arrays.items() if n not in factors}
    tensors |= {_PREFIX + n.removeprefix(own): array for n, array in whole.items()}
    first = next(iter(layers.values()))
    rank = int(first.lora_A.weight.shape[0])
    settings = {
        "peft_type": "LORA",
        "task_type": _task(module),
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": first.scaling * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": is_transposed(first),
        "target_modules": [name.removeprefix(own) for name in layers],
        "modules_to_save": sorted({n.removeprefix(own).rpartition(".")[0] for n in whole}) or None,
        "inference_mode": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    packed = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    write_atomically(folder / FILES[1], save(packed, metadata={"format": "pt"}))
    write_atomically(folder / FILES[0], (json.dumps(settings, indent=2) + "\n").encode())
    return True


def _task(module: nn.Module) -> str | None:
    inner: Any = module.model if isinstance(module, HuggingFace) else module
    name = type(inner).__name__
    return next((task for part, task in _TASKS.items() if name.endswith(part)), None)
