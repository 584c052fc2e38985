"""Recurrent networks for text: LEAF's character model and Upcycled-FL's tweet classifier."""

from __future__ import annotations

from torch import Tensor, nn

from cupola.nn.models.parts import Shape, Size, needs_classes, tokens
from cupola.nn.models.registry import model


class TextLSTM(nn.Module):
    """Embedding, LSTM layers, linear; `every` step is answered, or only the last one.

    Input: int64 tokens (n, T). Output: (n, T, outputs), or (n, outputs) for the last step.
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
        return self.linear(states if self.every else states[:, -1])


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
    embedding: Size = 300,
    hidden: Size = 128,
    layers: Size = 2,
) -> nn.Module:
    """Tokens (n, T) below `vocabulary`; logits (n, classes), read after the last token."""
    tokens("text_lstm", input_shape)
    outputs = needs_classes("text_lstm", classes)
    return TextLSTM(vocabulary, embedding, hidden, layers, outputs, every=False)
