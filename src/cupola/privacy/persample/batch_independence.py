"""Whether the bits of a sample's gradient depend on its company: a self-test of this machine.

The clip holds for a sum only if a sample's numbers are its own. In exact arithmetic they are; in
floating point a library may take another kernel for another number of rows, or finish the last few
numbers of an array by other instructions than the rest, and crafted weights can turn one different
bit into a different gradient. So every micro-batch has one fixed shape, and here it is found out
whether at that shape place and company of a sample change any bit of what is computed from it:

- by trial: samples are computed among others, and in a micro-batch of their own in every place.
  Another kernel changes many numbers, and shows;
- by shape: where a function of single numbers is not rounded correctly (SiLU, exp), it may differ
  in the rest of an array, a few numbers that a trial can miss. There must be no rest: threads share
  an array in parts, and a part must be a multiple of what vector instructions take at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Numbers = Callable[[Tensor, Tensor], list[Tensor]]
DRAWS = "the model draws random numbers in a way that cannot be switched off for a test"
LANES = 32  # numbers that vector instructions take at a time: an array's rest is computed otherwise
GRAIN = 32768  # numbers of an array below which torch does not share it among threads
#: Functions of single numbers that are rounded once, and so the same by any instructions.
EXACT = {
    *("abs", "add", "bitwise_and", "bitwise_not", "bitwise_or", "ceil", "clamp", "clamp_max"),
    *("clamp_min", "clone", "copy", "div", "eq", "fill", "floor", "ge", "gt", "isfinite", "isinf"),
    *("isnan", "le", "logical_and", "logical_not", "logical_or", "lt", "masked_fill", "maximum"),
    *("minimum", "mul", "ne", "neg", "reciprocal", "relu", "round", "rsqrt", "rsub", "sgn", "sign"),
    *("sqrt", "sub", "threshold", "threshold_backward", "_to_copy", "where"),
}
#: Functions of single numbers that torch does not tag as such.
UNTAGGED = {
    *("elu_backward", "glu", "glu_backward", "hardsigmoid", "hardsigmoid_backward", "hardswish"),
    *("hardswish_backward", "log_sigmoid_backward", "log_sigmoid_forward", "mish_backward"),
    *("rrelu_with_noise", "selu", "softplus_backward"),
}


def depends_on_company(numbers: Numbers, x: Tensor, y: Tensor, copies: int) -> str | None:
    """What is wrong with micro-batches of this shape; None if a sample's bits are its own.

    numbers: all that clipping takes from a micro-batch, (samples, ...) each. x, y: random samples,
    of `copies` rows each, as many as a micro-batch has. Three of them fill a micro-batch of their
    own, each, in which all samples must have the bits that it had among the others.
    """
    samples = len(x) // copies
    start = torch.default_generator.get_state()
    with _Rests(len(x)) as rests:
        among = [_bits(t) for t in numbers(x, y)]
    if not torch.equal(start, torch.default_generator.get_state()):
        return DRAWS
    if samples > 1 and rests.found:
        return rests.found
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


def threads_without_rest(compute: Callable[[], object], rows: int) -> int:
    """As many threads, of those that are there, as leave no rest in the arrays of `compute`."""
    before = torch.get_num_threads()
    try:
        for threads in sorted({before, min(before, 2)}, reverse=True):
            torch.set_num_threads(threads)
            with _Rests(rows) as rests:
                compute()
            if not rests.found:
                return threads
        return 1
    finally:
        torch.set_num_threads(before)


class _Rests(TorchDispatchMode):
    """Notes functions of single numbers whose arrays leave a rest; rows: of a micro-batch."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows, self.found = rows, ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        made = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.rstrip("_")
        single = torch.Tag.pointwise in func.tags or name in UNTAGGED
        squares = name == "pow" and args[1:] == (2,)
        scaled = (kwargs or {}).get("alpha", 1) != 1  # a + alpha b: rounded once or twice
        inexact = single and not squares and (scaled or name not in EXACT)
        if inexact and isinstance(made, Tensor) and made.is_floating_point() and self._rest(made):
            self.found = (
                f"{name} of {made.numel():,} numbers leaves a rest, which is computed otherwise: "
                "the bits of a sample may change with its place"
            )
        return made

    def _rest(self, made: Tensor) -> bool:
        size = made.numel()
        if size == 0 or made.device.type != "cpu":
            return False
        threads = min(torch.get_num_threads(), -(-size // GRAIN))
        part = -(-size // threads)
        if made.is_contiguous() or made.is_contiguous(memory_format=_last(made)):
            return part % LANES != 0
        # Row by row: rows are alike if no two threads share one.
        return threads > 1 and part % max(1, size // max(1, self.rows)) != 0


def _last(t: Tensor) -> torch.memory_format:
    return {4: torch.channels_last, 5: torch.channels_last_3d}.get(t.dim(), torch.contiguous_format)


def _bits(t: Tensor) -> Tensor:
    """(samples, bytes), a copy: so that 0 and -0, or two NaN, are told apart as memory has them."""
    held = torch.empty(t.shape, dtype=t.dtype).copy_(t.detach())
    return held.view(len(t), -1).view(torch.uint8)
