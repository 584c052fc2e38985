"""Precision of matrix products and convolutions: full, TF32, or bfloat16 by autocast.

Parameters, losses, optimizers and updates keep the plan's dtype; what is lost is in the products.
Mechanisms that clip single examples take full precision only: their bound is a proof about float32
and float64 arithmetic (see `cupola.privacy.persample.rules`).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

Precision = Literal["full", "tf32", "bfloat16"]


def set_products(device: torch.device, precision: Precision) -> None:
    """Let NVIDIA GPUs round the factors of float32 products to TF32's 10 bits, or not.

    torch's own default lets convolutions do so, and matrix products not. It is a switch of the
    process: whoever computes sets it before every question.
    """
    if device.type != "cuda":
        return
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")


def autocast(module: nn.Module) -> nn.Module:
    """The same module, with a forward pass in bfloat16 where torch takes that to be safe and an
    output in float32. A class of its own: a module around it would rename the parameters."""
    kind = type(module)
    module.__class__ = type(kind.__name__, (_Autocast, kind), {})
    return module


class _Autocast(nn.Module):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        device = next(self.parameters()).device.type
        with torch.autocast(device, torch.bfloat16):
            made = super().forward(*args, **kwargs)
        return made.float() if isinstance(made, Tensor) and made.is_floating_point() else made
