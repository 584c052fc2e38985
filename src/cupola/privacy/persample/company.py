"""Whether the bits of a sample's gradient depend on its company: a self-test of this machine.

The clip holds for a sum only if a sample's numbers are its own. In exact arithmetic they are; in
floating point a library may take another kernel for another number of rows, or finish the last few
numbers of an array by other instructions than the rest, and crafted weights can turn one different
bit into a different gradient. So every micro-batch has one fixed shape, and here it is tried
whether at that shape place and company of a sample change any bit of what is computed from it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Numbers = Callable[[Tensor, Tensor], list[Tensor]]
DRAWS = "the model draws random numbers in a way that cannot be switched off for a test"


def depends_on_company(numbers: Numbers, x: Tensor, y: Tensor, copies: int) -> str | None:
    """What is wrong with micro-batches of this shape; None if a sample's bits are its own.

    numbers: all that clipping takes from a micro-batch, (samples, ...) each. x, y: random samples,
    of `copies` rows each, as many as a micro-batch has. Three of them fill a micro-batch of their
    own, each, in which all samples must have the bits that it had among the others.
    """
    samples = len(x) // copies
    start = torch.default_generator.get_state()
    among = [_bits(t) for t in numbers(x, y)]
    if not torch.equal(start, torch.default_generator.get_state()):
        return DRAWS
    for i in sorted({0, samples // 2, samples - 1}):
        own = torch.arange(i * copies, (i + 1) * copies, device=x.device).repeat(samples)
        alone = [_bits(t) for t in numbers(x[own], y[own.to(y.device)])]
        different = torch.zeros(samples, dtype=torch.bool)
        for a, b in zip(among, alone):
            different |= (b != a[i]).any(1)
        if bool(different.any()):
            return (
                f"the bits of a sample change with its place among {samples} "
                f"(at {int(different.sum())} of them)"
            )
    return None


def _bits(t: Tensor) -> Tensor:
    """(samples, bytes): so that 0 and -0, or two NaN, are told apart or not as memory has them."""
    return t.detach().cpu().contiguous().view(len(t), -1).view(torch.uint8)
