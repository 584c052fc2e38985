"""Which layers and losses keep federated training equal to centralised training: a table.

Every row is what `inspect` finds when it tries the layer or loss out, not what we believe of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cupola.nn.kernelnorm import KernelNorm2d, KNConv2d
from cupola.nn.losses import Loss, find_loss
from cupola.nn.module_probe import SEED, sandbox
from cupola.nn.module_properties import loss_is_batch_dependent, properties


@dataclass(frozen=True)
class Row:
    """A line of the table; `usable`: for training that equals the centralised one."""

    kind: Literal["layer", "loss"]
    name: str
    batch_independent: bool
    deterministic: bool

    @property
    def usable(self) -> bool:
        return self.batch_independent and self.deterministic


def suitability() -> list[Row]:
    """Try out well-known layers and losses; layers first."""
    with sandbox(SEED):  # layers initialise themselves
        layers = [_layer(name, make(), shape) for name, make, shape in _layers()]
    return layers + [_loss(*case) for case in _losses()]


def _layer(name: str, module: nn.Module, shape: tuple[int, ...]) -> Row:
    generator = torch.Generator().manual_seed(0)
    if shape == _TOKENS:
        example = torch.randint(0, 7, (4, *shape), generator=generator)
    else:
        example = torch.randn(4, *shape, generator=generator)
    found = properties(module, example)
    return Row("layer", name, not found.batch_dependent, not found.random)


def _loss(name: str, loss: Loss, output: Tensor, y: Tensor) -> Row:
    return Row("loss", name, not loss_is_batch_dependent(loss, output, y), True)


_FLAT, _LINE, _IMAGE, _STEPS, _TOKENS = (8,), (4, 9), (4, 6, 6), (6, 8), (11,)


def _layers() -> list[tuple[str, Callable[[], nn.Module], tuple[int, ...]]]:
    activations = [
        nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus,
    ]  # fmt: skip
    return [
        ("Linear", lambda: nn.Linear(8, 3), _FLAT),
        ("Conv1d", lambda: nn.Conv1d(4, 3, 3), _LINE),
        ("Conv2d", lambda: nn.Conv2d(4, 3, 3), _IMAGE),
        ("ConvTranspose2d", lambda: nn.ConvTranspose2d(4, 3, 3), _IMAGE),
        ("MaxPool2d", lambda: nn.MaxPool2d(2), _IMAGE),
        ("AvgPool2d", lambda: nn.AvgPool2d(2), _IMAGE),
        ("AdaptiveAvgPool2d", lambda: nn.AdaptiveAvgPool2d(1), _IMAGE),
        ("Upsample", lambda: nn.Upsample(scale_factor=2, mode="bilinear"), _IMAGE),
        ("Flatten", lambda: nn.Flatten(), _IMAGE),
        *((a.__name__, a, _FLAT) for a in activations),
        ("PReLU", lambda: nn.PReLU(), _FLAT),
        ("RReLU", lambda: nn.RReLU(), _FLAT),
        ("Softmax", lambda: nn.Softmax(dim=1), _FLAT),
        ("GroupNorm", lambda: nn.GroupNorm(2, 4), _IMAGE),
        ("LayerNorm", lambda: nn.LayerNorm(8), _FLAT),
        ("RMSNorm", lambda: nn.RMSNorm(8), _FLAT),
        ("InstanceNorm2d", lambda: nn.InstanceNorm2d(4, affine=True), _IMAGE),
        ("KNConv2d, dropout .05", lambda: KNConv2d(4, 3, 3), _IMAGE),
        ("KNConv2d, no dropout", lambda: KNConv2d(4, 3, 3, dropout=0.0), _IMAGE),
        ("KernelNorm2d, dropout .1", lambda: KernelNorm2d(3), _IMAGE),
        ("KernelNorm2d, no dropout", lambda: KernelNorm2d(3, dropout=0.0), _IMAGE),
        ("LocalResponseNorm", lambda: nn.LocalResponseNorm(3), _IMAGE),
        ("BatchNorm1d", lambda: nn.BatchNorm1d(8), _FLAT),
        ("BatchNorm2d", lambda: nn.BatchNorm2d(4), _IMAGE),
        ("SyncBatchNorm", lambda: nn.SyncBatchNorm(4), _IMAGE),
        ("BatchNorm2d, frozen", lambda: _Frozen(nn.BatchNorm2d(4)), _IMAGE),
        ("Dropout", lambda: nn.Dropout(0.5), _FLAT),
        ("Dropout2d", lambda: nn.Dropout2d(0.5), _IMAGE),
        ("AlphaDropout", lambda: nn.AlphaDropout(0.5), _FLAT),
        ("Embedding", lambda: nn.Embedding(7, 5), _TOKENS),
        ("RNN", lambda: nn.RNN(8, 3, batch_first=True), _STEPS),
        ("GRU", lambda: nn.GRU(8, 3, batch_first=True), _STEPS),
        ("LSTM", lambda: nn.LSTM(8, 3, batch_first=True), _STEPS),
        ("LSTM, dropout .1", lambda: nn.LSTM(8, 3, 2, batch_first=True, dropout=0.1), _STEPS),
        ("MultiheadAttention", lambda: _SelfAttention(batch_first=True), _STEPS),
        ("MultiheadAttention, batch second", lambda: _SelfAttention(batch_first=False), _STEPS),
        ("TransformerEncoderLayer, dropout .1", lambda: _transformer(0.1), _STEPS),
        ("TransformerEncoderLayer, no dropout", lambda: _transformer(0.0), _STEPS),
    ]


def _losses() -> list[tuple[str, Loss, Tensor, Tensor]]:
    logits, classes = torch.zeros(4, 5), torch.arange(4)
    pixels, labels = torch.zeros(4, 5, 3, 3), torch.zeros(4, 3, 3, dtype=torch.int64)
    number = torch.zeros(4)
    ignored = labels.clone()
    ignored[0] = 255  # one image without a label
    smoothed = find_loss("cross_entropy", label_smoothing=0.1)
    return [
        ("cross-entropy", find_loss("cross_entropy"), logits, classes),
        ("cross-entropy, smoothed labels", smoothed, logits, classes),
        ("cross-entropy per pixel", find_loss("cross_entropy", ignore_index=255), pixels, ignored),
        ("cross-entropy over all counted pixels of the batch", _all_pixels, pixels, ignored),
        ("focal", find_loss("focal"), logits, classes),
        ("log", find_loss("log"), number, classes % 2),
        ("squared error", find_loss("squared_error"), number, number),
        ("cross-entropy weighted by the batch's class frequencies", _balanced, logits, classes),
        ("supervised contrastive", _contrastive, logits, classes),
        ("triplet, hardest in the batch", _hardest_triplet, logits, classes % 2),
    ]  # fmt: skip


class _Frozen(nn.Module):
    """A layer that stays in evaluation mode, as pre-trained BatchNorm often does."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def train(self, mode: bool = True) -> _Frozen:
        super().train(mode)
        self.layer.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class _SelfAttention(nn.Module):
    """Attention of a sequence (n, T, 8) to itself; `batch_first` False takes n for time."""

    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


def _transformer(dropout: float) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)


def _all_pixels(output: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(output, y, ignore_index=255)


def _balanced(output: Tensor, y: Tensor) -> Tensor:
    """Rare classes of this very batch count more."""
    frequency = torch.bincount(y, minlength=output.shape[1])[y] / len(y)
    return F.cross_entropy(output, y, reduction="none") / frequency


def _contrastive(output: Tensor, y: Tensor) -> Tensor:
    """Supervised contrastive loss (Khosla et al., 2020) of the outputs as representations."""
    z = F.normalize(output, dim=1)
    others = ~torch.eye(len(y), dtype=torch.bool)
    similarity = (z @ z.T / 0.5).masked_fill(~others, -1e9)
    same = (y[:, None] == y[None]) & others
    log_share = similarity.log_softmax(1)
    return -(log_share * same).sum(1) / same.sum(1).clamp_min(1)


def _hardest_triplet(output: Tensor, y: Tensor) -> Tensor:
    """Batch-hard triplet loss (Hermans et al., 2017)."""
    distance = (output[:, None] - output[None]).square().sum(2)
    same = y[:, None] == y[None]
    farthest = distance.masked_fill(~same, 0).amax(1)
    nearest = distance.masked_fill(same, 1e9).amin(1)
    return (1 + farthest - nearest).clamp_min(0)
