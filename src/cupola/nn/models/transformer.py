"""The Transformer for next words of FedPT: causal attention, tied input and output embedding."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from cupola.errors import PlanError
from cupola.nn.models.blocks import Shape, Share, Size, needs_classes, tokens
from cupola.nn.models.building import model

LONGEST_WAVE = 10_000  # of the positions' sines


class Attention(nn.Module):
    """Multi-head attention of each place (n, T, width) to itself and those before it.

    Written out, since sequences are short: matrices of T x T numbers cost nothing, `vmap` can
    follow, and per-sample gradients are those of two dense layers.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)  # queries, keys, values
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        # (3, n, heads, T, size)
        q, k, v = self.inputs(x).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.mT).mul(self.heads**0.5 / width**0.5).masked_fill(later, -math.inf)
        seen = torch.softmax(scores, -1) @ v
        return self.output(seen.transpose(1, 2).reshape(n, length, width))


class Layer(nn.Module):
    """Attention, then two dense layers, each added to its input and normalised after."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.dense1 = nn.Linear(width, hidden)
        self.dense2 = nn.Linear(hidden, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.drop(self.attention(x)))
        return self.norm2(x + self.drop(self.dense2(torch.relu(self.dense1(x)))))


class NextWords(nn.Module):
    """Tokens (n, T) below `vocabulary`, T at most `length`; logits (n, T, vocabulary).

    The logits at a place depend on the tokens up to it; so padding after a text changes nothing
    before it. Output and input embedding are one parameter, `embedding.weight`.
    """

    def __init__(
        self,
        vocabulary: int,
        length: int,
        width: int,
        heads: int,
        hidden: int,
        layers: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.enter = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()
        self.layers = nn.ModuleList(Layer(width, heads, hidden, dropout) for _ in range(layers))
        self.leave = nn.Linear(width, width)
        self.output = nn.Linear(width, vocabulary, bias=False)
        self.output.weight = self.embedding.weight
        # No buffer: what follows from the shape need not travel.
        self._positions = positions(length, width)
        for part in self.modules():
            if isinstance(part, nn.Linear) and part is not self.output:
                nn.init.xavier_normal_(part.weight)
                nn.init.zeros_(part.bias)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)

    def forward(self, x: Tensor, prompt: Tensor | None = None) -> Tensor:
        """prompt: trained vectors (n, length, width) before the embedded tokens (prompt tuning)."""
        weight, h = self.embedding.weight, self.embedding(x)
        h = h if prompt is None else torch.cat([prompt.to(h.dtype), h], 1)
        place = self._positions[: h.shape[1]].to(weight.device, weight.dtype)
        h = self.drop(self.enter(h * weight.shape[1] ** 0.5 + place))
        for layer in self.layers:
            h = layer(h)
        return self.output(self.leave(h if prompt is None else h[:, prompt.shape[1] :]))

    takes_prompts = True

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def require_prompt(self, length: int) -> None:
        """Make places for a prompt."""
        self._positions = positions(len(self._positions) + length, self._positions.shape[1])


def positions(length: int, width: int) -> Tensor:
    """Sines and cosines in turn (length, width), of wave lengths from 2 pi up (Vaswani et al.)."""
    place = torch.arange(length, dtype=torch.float64)[:, None]
    step = torch.arange(width)
    angle = place / LONGEST_WAVE ** (step // 2 * 2 / width)
    return torch.where(step % 2 == 0, angle.sin(), angle.cos())


@model("transformer", "next word: three causal Transformer layers of width 96 (FedPT)")
def transformer(
    input_shape: Shape,
    classes: int | None,
    *,
    width: Size = 96,
    heads: Size = 8,
    hidden: Size = 2048,
    layers: Size = 3,
    dropout: Share = 0.1,
) -> nn.Module:
    """Tokens (n, T) below `classes`, the vocabulary; logits (n, T, classes) of the next ones.

    2,277,984 parameters for 10,000 words and four other tokens. `layers.0.dense1` is the first
    dense layer of the first Transformer layer, of `hidden` units.
    dropout: of the first input and of what each layer adds. With it, sites run one by one.
    """
    length = tokens("transformer", input_shape)
    vocabulary = needs_classes("transformer", classes)
    if width % heads:
        raise PlanError(f"model.heads = {heads} does not divide model.width = {width}")
    return NextWords(vocabulary, length, width, heads, hidden, layers, dropout)
