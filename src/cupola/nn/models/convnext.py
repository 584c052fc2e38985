"""ConvNeXt-Tiny (Liu et al., 2022), with layer normalisation or kernel-normalised down-sampling."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from cupola.nn.kernelnorm import KNConv2d
from cupola.nn.models.blocks import KernelEvaluation, Shape, Share, head, image
from cupola.nn.models.building import model
from cupola.nn.normalisation import Affine, PositionalNorm


class _Block(nn.Module):
    """x + scale * (7x7 depthwise, norm, 1x1 to four times the width, GELU, 1x1).

    depth: share of the samples for which a pass in training leaves the block out (Huang et al.,
    2016); the others' sums are larger in turn.
    """

    def __init__(self, width: int, depth: float = 0.0) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = Affine(width, scale=1e-6, bias=False)
        self.left_out = nn.Dropout(depth) if depth else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).movedim(1, -1))
        y = self.narrow(nn.functional.gelu(self.wide(y)))
        y = self.scale(y.movedim(-1, 1))
        if self.left_out is not None:
            y = y * self.left_out(torch.ones_like(y[:, :1, :1, :1]))
        return x + y


def _norm(width: int) -> nn.Module:
    return PositionalNorm(width, eps=1e-6)


@model(
    "convnext_tiny", "ConvNeXt-Tiny, with kernel or layer normalisation in its three down-samplers"
)
def convnext_tiny(
    input_shape: Shape,
    classes: int | None,
    *,
    norm: Literal["layer", "kernel"] = "kernel",
    kernel_dropout: Share = 0.1,
    kernel_evaluation: KernelEvaluation = "expected",
    stochastic_depth: Share = 0.0,
) -> nn.Module:
    """Images of at least 32x32; 28,587,784 parameters for ImageNet, 28,589,128 with layer norm.

    norm: of the down-samplers only, as published: layer: norm, then a 2x2 convolution of stride 2;
        kernel: ReLU, then the same of normalised windows. All else keeps the norms it is made with.
    stochastic_depth: share of the samples for which training leaves out the last block, and by its
        place less of those before it; published: 0.1.
    """
    channels, _, _ = image("convnext_tiny", input_shape, 32)
    width, layers = 96, [nn.Conv2d(channels, 96, 4, 4), _norm(96)]
    stages = ((3, 96), (3, 192), (9, 384), (3, 768))
    depths = iter(stochastic_depth * i / 17 for i in range(18))
    for blocks, outputs in stages:
        if outputs != width and norm == "kernel":
            layers += [
                nn.ReLU(),
                KNConv2d(
                    width, outputs, 2, 2, dropout=kernel_dropout, evaluation=kernel_evaluation
                ),
            ]
        elif outputs != width:
            layers += [_norm(width), nn.Conv2d(width, outputs, 2, 2)]
        width = outputs
        layers += [_Block(width, next(depths)) for _ in range(blocks)]
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(768, eps=1e-6), *head(768, classes)]
    module = nn.Sequential(*layers, *end)
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.modules.conv._ConvNd):
            nn.init.trunc_normal_(part.weight, std=0.02)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
    return module
