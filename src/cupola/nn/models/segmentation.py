"""Segmentation: a class for every pixel."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from cupola.nn.activations import Activation
from cupola.nn.models.parts import Init, Shape, Size, block, image, initialise, needs_classes
from cupola.nn.models.registry import model
from cupola.nn.normalisation import Norm


class FullyConvolutional(nn.Module):
    """Three scales, each scored by a 1x1 convolution; coarse scores are enlarged and added.

    Input: images (n, C, H, W). Output: logits (n, classes, H, W).
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        width: int,
        norm: Norm,
        activation: Activation,
        group_size: int,
    ) -> None:
        super().__init__()
        self.scales, self.scores = nn.ModuleList(), nn.ModuleList()
        for scale, outputs in enumerate((width, 2 * width, 4 * width)):
            self.scales.append(
                nn.Sequential(
                    *([nn.MaxPool2d(2)] if scale else []),
                    *block(channels, outputs, norm, activation, group_size, bias=norm == "none"),
                    *block(outputs, outputs, norm, activation, group_size, bias=norm == "none"),
                )
            )
            self.scores.append(nn.Conv2d(outputs, classes, 1))
            channels = outputs

    def forward(self, x: Tensor) -> Tensor:
        size, total = x.shape[-2:], None
        for scale, score in zip(self.scales, self.scores):
            x = scale(x)
            scored = score(x)
            if total is None:
                total = scored
            else:
                total = total + F.interpolate(scored, size, mode="bilinear", align_corners=False)
        assert total is not None
        return total


@model("fcn", "small fully convolutional network for segmentation, three scales")
def fcn(
    input_shape: Shape,
    classes: int | None,
    *,
    width: Size = 32,
    norm: Norm = "group",
    activation: Activation = "relu",
    group_size: Size = 32,
    init: Init = "he",
) -> nn.Module:
    """Images of at least 4x4; logits (n, classes, H, W). width: channels of the finest scale."""
    channels, _, _ = image("fcn", input_shape, 4)
    outputs = needs_classes("fcn", classes)
    module = FullyConvolutional(channels, outputs, width, norm, activation, group_size)
    return initialise(module, init)
