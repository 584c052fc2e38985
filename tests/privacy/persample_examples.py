"""Layers, a loss and inputs that tests of per-sample gradients share."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

MARKS = [
    pytest.mark.usefixtures("small_layers_count_as_large"),
    pytest.mark.filterwarnings("ignore:Using padding='same'"),  # torch's words on what is slow
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def loss(output: Tensor, y: Tensor) -> Tensor:
    """A smooth loss of everything a sample puts out, in numbers of its own scale."""
    return (output.flatten(1).sin() * y[:, None]).sum(1)


def ready(module: nn.Module, seed: int = 1) -> nn.Module:
    """The module in float64, with parameters in no special position (no ones, no zeros)."""
    module = module.double()
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(0.5 * draw(*p.shape, seed=100 * seed + i))
    return module


def tokens(*shape: int, below: int = 7) -> Tensor:
    return torch.randint(0, below, shape, generator=generator(3))


class Output(nn.Module):
    """The output of a layer that returns more than that."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class SelfAttention(nn.Module):
    def __init__(self, *, crossed: bool = False, masked: bool = False, **options) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True, **options)
        self.crossed, self.masked = crossed, masked

    def forward(self, x: Tensor) -> Tensor:
        memory = x[:, :3].cos() if self.crossed else x
        mask = None
        if self.masked:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
        return self.attention(x, memory, memory, attn_mask=mask, need_weights=False)[0]


IMAGES = (5, 4, 9, 7)
LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), (5, 6)),
    "linear, no bias": (lambda: nn.Linear(6, 4, bias=False), (5, 6)),
    "linear, sequences": (lambda: nn.Linear(6, 4), (5, 8, 6)),
    "linear, short sequences, wide": (lambda: nn.Linear(40, 40), (5, 3, 40)),
    "linear, grids": (lambda: nn.Linear(6, 4), (5, 2, 3, 6)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3), (5, 4, 9)),
    "conv1d, stride, same": (lambda: nn.Conv1d(4, 6, 4, padding="same", dilation=2), (5, 4, 9)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3), IMAGES),
    "conv2d, no bias": (lambda: nn.Conv2d(4, 6, 3, padding=1, bias=False), IMAGES),
    "conv2d, stride, dilation": (lambda: nn.Conv2d(4, 6, (3, 2), (2, 3), (2, 1), (2, 1)), IMAGES),
    "conv2d, groups": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), IMAGES),
    "conv2d, depthwise": (lambda: nn.Conv2d(4, 8, 3, stride=2, groups=4), IMAGES),
    "conv2d, same": (lambda: nn.Conv2d(4, 6, (4, 3), padding="same"), IMAGES),
    "conv2d, valid": (lambda: nn.Conv2d(4, 6, 3, padding="valid"), IMAGES),
    "conv2d, circular": (lambda: nn.Conv2d(4, 6, 3, padding=2, padding_mode="circular"), IMAGES),
    "conv2d, reflect": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), IMAGES),
    "conv2d, replicate": (
        lambda: nn.Conv2d(4, 6, 3, padding="same", padding_mode="replicate"),
        IMAGES,
    ),
    "conv2d, few positions": (lambda: nn.Conv2d(48, 64, 3, padding=1), (4, 48, 3, 4)),
    "conv2d, few positions, stride, dilation": (
        lambda: nn.Conv2d(64, 64, 3, (2, 1), (2, 1), (2, 1), bias=False),
        (4, 64, 5, 3),
    ),
    "conv1d, few positions": (lambda: nn.Conv1d(64, 64, 3, 2, padding="valid"), (4, 64, 5)),
    "conv3d, few positions": (lambda: nn.Conv3d(32, 48, 2, (1, 1, 2), 1), (4, 32, 2, 1, 2)),
    "conv2d, large": (lambda: nn.Conv2d(40, 48, 3, padding=1), (3, 40, 9, 7)),
    "conv2d, large, stride, dilation": (
        lambda: nn.Conv2d(30, 64, (3, 2), (2, 1), (2, 1), (1, 2)),
        (5, 30, 8, 7),
    ),
    "conv2d, large, circular": (
        lambda: nn.Conv2d(3, 64, 3, padding=1, padding_mode="circular", bias=False),
        (5, 3, 8, 7),
    ),
    "conv1d, large": (lambda: nn.Conv1d(3, 64, 4, 3, padding=1), (5, 3, 40)),
    "conv3d, large": (lambda: nn.Conv3d(3, 64, 2, stride=(1, 2, 1), padding=1), (4, 3, 6, 5, 7)),
    "conv3d": (lambda: nn.Conv3d(2, 4, 2, stride=(1, 2, 1), padding=1, groups=2), (4, 2, 4, 5, 3)),
    "group norm": (lambda: nn.GroupNorm(2, 4), IMAGES),
    "group norm, features": (lambda: nn.GroupNorm(2, 4), (5, 4)),
    "layer norm": (lambda: nn.LayerNorm(6), (5, 6)),
    "layer norm, sequences": (lambda: nn.LayerNorm(6), (5, 8, 6)),
    "layer norm, images": (lambda: nn.LayerNorm((4, 9, 7)), IMAGES),
    "layer norm, no bias": (lambda: nn.LayerNorm(6, bias=False), (5, 3, 6)),
    "rms norm": (lambda: nn.RMSNorm(6), (5, 8, 6)),
    "instance norm": (lambda: nn.InstanceNorm2d(4, affine=True), IMAGES),
    "batch norm, fixed": (lambda: nn.BatchNorm2d(4).eval(), IMAGES),
    "prelu": (lambda: nn.PReLU(), IMAGES),
    "prelu, channels": (lambda: nn.PReLU(4), IMAGES),
    "embedding": (lambda: nn.Embedding(7, 3), tokens(5, 8)),
    "embedding, padding": (lambda: nn.Embedding(7, 3, padding_idx=2), tokens(5, 8)),
    "embedding, one token": (lambda: nn.Embedding(7, 3), tokens(5)),
    "embedding, sparse": (lambda: nn.Embedding(7, 3, sparse=True), tokens(5, 8)),
    "lstm": (lambda: Output(nn.LSTM(3, 4, batch_first=True)), (4, 6, 3)),
    "lstm, two ways, two layers": (
        lambda: Output(nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True)),
        (4, 5, 3),
    ),
    "lstm, no bias": (lambda: Output(nn.LSTM(3, 4, batch_first=True, bias=False)), (4, 6, 3)),
    "lstm, projected": (lambda: Output(nn.LSTM(3, 5, batch_first=True, proj_size=2)), (4, 6, 3)),
    "gru": (lambda: Output(nn.GRU(3, 4, 2, batch_first=True)), (4, 6, 3)),
    "rnn": (lambda: Output(nn.RNN(3, 4, batch_first=True)), (4, 6, 3)),
    "rnn, relu, two ways": (
        lambda: Output(nn.RNN(3, 4, nonlinearity="relu", batch_first=True, bidirectional=True)),
        (4, 6, 3),
    ),
    "attention": (lambda: SelfAttention(), (4, 5, 4)),
    "attention, masked, no bias": (lambda: SelfAttention(masked=True, bias=False), (4, 5, 4)),
    "attention, crossed": (lambda: SelfAttention(crossed=True), (4, 5, 4)),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True),
        (4, 5, 4),
    ),
    "no parameters around": (
        lambda: nn.Sequential(nn.Flatten(), nn.Identity(), nn.Linear(8, 3), nn.Softmax(1)),
        (5, 2, 4),
    ),
}
#: No rule in Opacus 1.6 under the layer's own type.
NOT_OPACUS = {"rms norm", "prelu", "prelu, channels", "transformer", "batch norm, fixed"}
#: Wrong in Opacus 1.6, which disagrees with vmap and with samples alone: padding modes and
#: padding_idx are ignored, a layer norm without bias fails, and so do sparse gradients.
NOT_OPACUS |= {
    "conv2d, large, circular",
    "conv2d, circular",
    "conv2d, reflect",
    "conv2d, replicate",
    "embedding, padding",
}
NOT_OPACUS |= {"layer norm, no bias", "embedding, sparse"}
NOT_OPACUS |= {name for name in LAYERS if name.startswith(("lstm", "gru", "rnn", "attention"))}
NOT_MAPPED = {name for name in LAYERS if name.startswith(("lstm", "gru", "rnn"))}
NOT_MAPPED |= {"embedding, sparse"}


def example(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    make, x = LAYERS[name]
    x = x if isinstance(x, Tensor) else draw(*x, seed=7)
    y = 1 + torch.arange(len(x), dtype=torch.float64)  # samples of very different weight
    module = ready(make())
    if name == "batch norm, fixed":
        module.running_mean.copy_(draw(4, seed=8))
        module.running_var.copy_(draw(4, seed=9).square() + 0.1)
    return module, x, y


class Raw(nn.Module):
    """A parameter that belongs to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x * self.scale)


class SwappedLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        start = (x[:, 0, :2][None].contiguous(), x[:, 1, :2][None].contiguous())
        output, (h, c) = self.lstm(x.transpose(0, 1), start)
        return torch.cat([output[-1], h[0], c[0]], 1)
