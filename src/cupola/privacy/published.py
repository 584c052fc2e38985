"""Privacy figures that the papers print, as they were made and as they hold rigorously.

Nothing in Cupola relies on the figures "as published": they are shown beside the rigorous ones,
with the reason for the difference in a sentence. Paper numbers: 000 Reprogrammable-FL, 001 FedPT
with DP-FTRL, 003 Upcycled-FL, 004 kernel normalisation (appendix B, the CUP experiment).
`experiments/reproduce/paper_figures.py` computes them all anew; a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cupola.errors import PlanError

Unit = Literal["epsilon", "noise"]


@dataclass(frozen=True)
class Figure:
    """One figure of a paper both ways."""

    paper: str
    what: str  # the setting, in words
    unit: Unit  # what is compared: an epsilon, or the noise multiplier that an epsilon needs
    printed: float | None  # None: the paper gives a formula and no number
    published: float  # recomputed as the paper did
    rigorous: float  # for the same mechanism, by loss distributions
    reason: str  # of the difference, in a sentence
    rdp: float | None = None  # rigorous too, by Renyi divergences, as papers usually report

    def __str__(self) -> str:
        return (
            f"{self.paper}, {self.what}: {self.unit} {self.published:.2f} as published, "
            f"{self.rigorous:.2f} rigorous. {self.reason}"
        )


_RATE = (
    "The paper samples a batch of each site's third and accounts it as one of the whole data, a "
    "third of the true rate, with a round too many and an early conversion."
)
_ONCE = (
    "Sound if nobody takes part twice, which the coordinator must enforce; the exact epsilon of "
    "this noise is smaller than the paper's bound by Renyi divergences."
)
_MOVES = (
    "The theorem takes a clipped minimiser for an average of clipped terms, so that one record "
    "would move it by clip/n; it can move it by {}. The formula also has a bracket in the wrong "
    "place."
)
_EPOCHS = (
    "Counted in epochs a round has {} steps; it makes {} whole ones, and Cupola counts the steps "
    "it makes."
)
#: Setting, printed, as published, rigorous, rigorous by Renyi divergences, reason.
_FIGURES: dict[str, tuple[tuple[str, float | None, float, float, float | None, str], ...]] = {
    "000": (
        ("CIFAR-10, 3 sites, 100 rounds", 1.04, 1.04069, 0.86209, 1.21419, _RATE),
        ("Oxford pets, 3 sites, 100 rounds", 5.29, 5.28615, 12.91829, 14.31634, _RATE),
        ("BloodMNIST, 3 sites, 100 rounds", 1.96, 1.95513, 3.73413, 4.23766, _RATE),
    ),
    "001": (
        ("DP-FTRL, noise 1.13, 1600 rounds", 18.71, 18.70961, 17.66675, 18.70961, _ONCE),
        ("DP-FTRL, noise 2.33, 1600 rounds", 7.83, 7.82517, 7.34171, 7.82517, _ONCE),
        ("DP-FTRL, noise 4.03, 1600 rounds", 4.19, 4.19436, 3.92020, 4.19436, _ONCE),
        ("DP-FTRL, noise 6.21, 1600 rounds", 2.60, 2.60005, 2.42364, 2.60005, _ONCE),
        ("DP-FTRL, noise 8.83, 1600 rounds", 1.77, 1.77319, 1.64866, 1.77319, _ONCE),
    ),
    "003": (
        ("output perturbation, any model", None, 1.0, 6692.29582, None, _MOVES.format("2 clip")),
        (
            "output perturbation, convex and solved exactly", None, 1.0, 27.41074, None,
            _MOVES.format("min(2 clip, 2 G/(n mu))"),
        ),
        (
            "objective perturbation, 2 classes", None, 1.64732, 0.80110, None,
            "Sound for exact minimisers; it counts a release and a constant too many.",
        ),
        (
            "objective perturbation, 10 classes", None, 1.64732, 8.01099, None,
            "The theorem does not cover a softmax; one problem per class composes ten times.",
        ),
    ),
    "004": (
        (
            "GroupNorm, batch 2048, epsilon 8, 100 rounds", None, 4.19184, 4.34398, 4.62472,
            _EPOCHS.format("2.44", 3),
        ),
        (
            "KernelNorm, batch 3072, epsilon 7, 100 rounds", None, 5.67020, 5.88726, 6.27144,
            _EPOCHS.format("1.63", 2),
        ),
    ),
}  # fmt: skip


def figures(paper: str) -> tuple[Figure, ...]:
    """The figures of one paper, both ways."""
    if paper not in _FIGURES:
        raise PlanError(f"No privacy figures of paper {paper!r}; there are {', '.join(_FIGURES)}.")
    unit: Unit = "noise" if paper == "004" else "epsilon"
    return tuple(
        Figure(paper, what, unit, printed, published, rigorous, reason, rdp)
        for what, printed, published, rigorous, rdp, reason in _FIGURES[paper]
    )


def papers() -> tuple[str, ...]:
    """The papers that `figures` knows."""
    return tuple(_FIGURES)
