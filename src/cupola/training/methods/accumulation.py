"""Weighted gradient accumulation (WGA; Nasirigerdeh et al. 2023, and 004 chapter 5).

A site that sends the sum of the gradients it met (`local.send = 'gradients'`) may count early ones
more: those were taken nearest to the common model.
"""

from __future__ import annotations

from cupola.training.choices import Local


def accumulation_coefficients(local: Local, steps: int) -> list[float]:
    """Weights of a round's gradients: 1, or tau, tau/2, then linearly down to 1.

    The paper's formula divides by tau - 2, so tau = 2 is settled as (2, 1).
    """
    if local.accumulation == "plain" or steps == 1:
        return [1.0] * steps
    half = steps / 2
    slope = (1 - half) / (steps - 2) if steps > 2 else 0.0
    return [float(steps), *(half + i * slope for i in range(steps - 1))]
