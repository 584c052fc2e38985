"""A cohort's own picture of its people's first components; drawn where the scores are."""

from __future__ import annotations

import numpy as np

SIDE, EDGE = 420, 48


def scatter(scores: np.ndarray, name: str) -> bytes:
    """SVG: a dot a person, PC1 and PC2; with four components or more a second one, PC3 and PC4."""
    pairs = [(0, 1), (2, 3)] if scores.shape[1] >= 4 else [(0, min(1, scores.shape[1] - 1))]
    width = len(pairs) * (SIDE + EDGE) + EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {SIDE + 2 * EDGE}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{SIDE + 2 * EDGE}" fill="white"/>',
        f'<text x="{EDGE}" y="28">{_safe(name)}: {len(scores):,} people</text>',
    ]
    for i, (a, b) in enumerate(pairs):
        parts += _plot(scores[:, a], scores[:, b], f"PC{a + 1}", f"PC{b + 1}",
                       EDGE + i * (SIDE + EDGE))  # fmt: skip
    return ("\n".join([*parts, "</svg>"]) + "\n").encode()


def _plot(x: np.ndarray, y: np.ndarray, across: str, up: str, left: int) -> list[str]:
    (low, wide), (bottom, tall) = _range(x), _range(y)
    found = [
        f'<rect x="{left}" y="{EDGE}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#888"/>',
        f'<text x="{left + SIDE / 2}" y="{SIDE + EDGE + 32}" text-anchor="middle">{across}</text>',
        f'<text transform="translate({left - 8} {EDGE + SIDE / 2}) rotate(-90)" '
        f'text-anchor="middle">{up}</text>',
        f'<text x="{left}" y="{SIDE + EDGE + 16}" fill="#666">{low:.3g}</text>',
        f'<text x="{left + SIDE}" y="{SIDE + EDGE + 16}" fill="#666" text-anchor="end">'
        f"{low + wide:.3g}</text>",
    ]
    for a, b in zip(x.tolist(), y.tolist()):
        cx, cy = left + SIDE * (a - low) / wide, EDGE + SIDE * (1 - (b - bottom) / tall)
        found.append(
            f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="2.5" fill="#2a6fb0" fill-opacity="0.6"/>'
        )
    return found


def _range(x: np.ndarray) -> tuple[float, float]:
    low, high = float(x.min()), float(x.max())
    room = 0.05 * (high - low) or 1.0
    return low - room, high - low + 2 * room


def _safe(name: str) -> str:
    return name.replace("&", "&amp;").replace("<", "&lt;")
