"""Per-sample gradients: norms, clipping and clipped sums, by book-keeping.

`PerSample` takes any module. Layers with a rule (dense, convolution, normalisation, embedding), and
recurrent and attention layers through equivalent cells, cost little more than plain SGD; a module
with anything else runs under `vmap`; layers that mix samples are refused (`unsupported`). A new
layer joins with `@rule(MyLayer)`; see `rules`.
"""

from cupola.privacy.persample.clipping import Clipped, PerSample
from cupola.privacy.persample.rules import ROUNDING, Rule, rule
from cupola.privacy.persample.trial import unsupported

from cupola.privacy.persample import (  # isort: skip  # noqa: F401
    attention,
    border,
    convolution,
    knconv,
    torch_layers,
    recurrent,
)

__all__ = ["ROUNDING", "Clipped", "PerSample", "Rule", "rule", "unsupported"]
