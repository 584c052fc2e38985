"""Recurrent networks for text: LEAF's character model and Upcycled-FL's tweet classifier."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from cupola.errors import PlanError
from cupola.nn.models.blocks import Shape, Size, needs_classes, tokens
from cupola.nn.models.building import model
from cupola.nn.models.vectors import word_vectors

PADDING = 0  # token of no word


class TextLSTM(nn.Module):
    """Embedding, LSTM layers, linear; `every` step is answered, or only the last word.

    Input: int64 tokens (n, T). Output: (n, T, outputs), or (n, outputs) for the last word: token 0
    pads, and what it would add to the state after the last word is not read.
    """

    def __init__(
        self,
        vocabulary: int,
        embedding: int,
        hidden: int,
        layers: int,
        outputs: int,
        *,
        every: bool,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.linear = nn.Linear(hidden, outputs)
        self.every = every

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x))
        if self.every:
            return self.linear(states)
        places = torch.arange(x.shape[1], device=x.device)
        last = torch.where(x != PADDING, places, 0).amax(1)
        picked = last[:, None, None].expand(-1, 1, states.shape[2])
        return self.linear(states.gather(1, picked).squeeze(1))


@model(
    "char_lstm", "next character: embedding 8, two LSTM layers of 256 (LEAF's Shakespeare model)"
)
def char_lstm(
    input_shape: Shape,
    classes: int | None,
    *,
    embedding: Size = 8,
    hidden: Size = 256,
    layers: Size = 2,
) -> nn.Module:
    """Tokens (n, T) below `classes`, the vocabulary; logits (n, T, classes) of the next ones."""
    tokens("char_lstm", input_shape)
    vocabulary = needs_classes("char_lstm", classes)
    return TextLSTM(vocabulary, embedding, hidden, layers, vocabulary, every=True)


@model("text_lstm", "one label per text: embedding 300, two LSTM layers of 128 (Sent140)")
def text_lstm(
    input_shape: Shape,
    classes: int | None,
    *,
    vocabulary: Size,
    words: tuple[str, ...] = (),
    vectors: str | Path | None = None,
    frozen: bool = False,
    embedding: Size | None = None,
    hidden: Size = 128,
    layers: Size = 2,
) -> nn.Module:
    """Tokens (n, T) below `vocabulary`; logits (n, classes), read after the last word (0 pads).

    vocabulary, words: how many tokens there are, and what they stand for; a plan takes both from
        the data set.
    vectors: text file in GloVe's layout, the start of the embedding; words without a vector start
        at random. Default: all do.
    frozen: the embedding is not trained and does not travel: every site makes it from the file and
        the seed.
    embedding: width; default: the file's, else 300.
    """
    tokens("text_lstm", input_shape)
    outputs = needs_classes("text_lstm", classes)
    table = None
    if vectors is not None:
        table = _table(vectors, words, vocabulary, embedding)
        embedding = table.shape[1]
    net = TextLSTM(vocabulary, embedding or 300, hidden, layers, outputs, every=False)
    if table is not None:
        net.embedding.weight.data = table
    net.embedding.weight.requires_grad_(not frozen)
    return net


def _table(
    path: str | Path, words: tuple[str, ...], vocabulary: int, embedding: int | None
) -> Tensor:
    if not words:
        raise PlanError(f"model.vectors = '{path}': the data set does not say its words")
    if len(words) != vocabulary:
        raise PlanError(f"model.words: {len(words)} words, but model.vocabulary = {vocabulary}")
    table = word_vectors(path, words)
    if embedding is not None and table.shape[1] != embedding:
        raise PlanError(
            f"model.embedding = {embedding}, but the vectors in '{path}' have {table.shape[1]} "
            "numbers; leave it out to take theirs"
        )
    return table
