"""Segmentation: a class for every pixel."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from cupola.nn.activations import Activation
from cupola.nn.models.knresnets import Plan, Stage, residual
from cupola.nn.models.parts import (
    Init,
    Layers,
    Shape,
    Share,
    Size,
    image,
    initialise,
    needs_classes,
)
from cupola.nn.models.registry import model
from cupola.nn.models.resnets import DEPTHS, trunk
from cupola.nn.normalisation import Norm


class FullyConvolutional(nn.Module):
    """Three scales, each scored by a 1x1 convolution; coarse scores are enlarged and added.

    Input: images (n, C, H, W). Output: logits (n, classes, H, W).
    """

    def __init__(self, channels: int, classes: int, width: int, make: Layers) -> None:
        super().__init__()
        self.scales, self.scores = nn.ModuleList(), nn.ModuleList()
        for scale, outputs in enumerate((width, 2 * width, 4 * width)):
            self.scales.append(
                nn.Sequential(
                    *([nn.MaxPool2d(2)] if scale else []),
                    *make.block(channels, outputs),
                    *make.block(outputs, outputs),
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
    kernel_dropout: Share = 0.1,
    always_drop: bool = False,
    init: Init = "he",
) -> nn.Module:
    """Images of at least 4x4; logits (n, classes, H, W). width: channels of the finest scale."""
    channels, _, _ = image("fcn", input_shape, 4)
    outputs = needs_classes("fcn", classes)
    make = Layers(
        norm, activation, group_size, bias=norm == "none", dropout=kernel_dropout,
        always=always_drop,
    )  # fmt: skip
    return initialise(FullyConvolutional(channels, outputs, width, make), init)


class Segmenting(nn.Module):
    """Class scores of a network's features, enlarged to the image (Long et al., 2015).

    Input: images (n, C, H, W). Output: logits (n, classes, H, W).
    """

    def __init__(self, features: nn.Module, scores: nn.Module) -> None:
        super().__init__()
        self.features, self.scores = features, scores

    def forward(self, x: Tensor) -> Tensor:
        scored = self.scores(self.features(x))
        return F.interpolate(scored, x.shape[-2:], mode="bilinear", align_corners=False)


def _scores(make: Layers, inputs: int, classes: int, dropout: float) -> list[nn.Module]:
    """The head: 3x3 convolution to 512, dropout, 1x1 convolution to classes."""
    end = [nn.Dropout(dropout)] if dropout else []
    return [*make.block(inputs, 512), *end, nn.Conv2d(512, classes, 1)]


def _fcn_resnet(number: int, parameters: str) -> None:
    """Register one depth."""
    name, depth = f"fcn_resnet{number}", DEPTHS[number]

    @model(name, f"segmentation by ResNet-{number} and a fully convolutional head")
    def make_fcn_resnet(
        input_shape: Shape,
        classes: int | None,
        *,
        norm: Norm = "group",
        activation: Activation = "relu",
        dropout: Share = 0.1,
        group_size: Size = 32,
        kernel_dropout: Share = 0.1,
        always_drop: bool = False,
        init: Init = "he",
    ) -> nn.Module:
        channels, _, _ = image(name, input_shape, 32)
        outputs = needs_classes(name, classes)
        make = Layers(norm, activation, group_size, dropout=kernel_dropout, always=always_drop)
        features = nn.Sequential(*trunk(depth, channels, make, low=False))
        scores = nn.Sequential(*_scores(make, depth.features, outputs, dropout))
        return initialise(Segmenting(features, scores), init)

    make_fcn_resnet.__doc__ = f"""Images of at least 32x32; {parameters} parameters for 19 classes.

    dropout: of the features that the last convolution sees.
    """


#: Widths of stages and of their blocks' middles. KNResNet-34 and -50: the publication gives the
#: middles and the number of parameters, which several layouts fit; these are our choice.
_SEGMENTATION = {
    18: Plan(
        (Stage(2, 64, 128), Stage(2, 128, 256), Stage(1, 256, 512), Stage(1, 512, 625)),
        False,
        None,
    ),
    34: Plan(
        (Stage(4, 64, 128), Stage(4, 128, 256), Stage(2, 256, 256), Stage(3, 512, 512)),
        False,
        None,
    ),
    50: Plan(
        (Stage(3, 256, 128), Stage(5, 512, 256), Stage(4, 512, 458), Stage(1, 2048, 512)),
        True,
        None,
    ),
}


def _fcn_knresnet(number: int, parameters: str) -> None:
    """Register one depth."""
    name, plan = f"fcn_knresnet{number}", _SEGMENTATION[number]

    @model(name, f"segmentation by KNResNet-{number} and a fully convolutional head")
    def make_fcn_knresnet(
        input_shape: Shape,
        classes: int | None,
        *,
        norm: Norm = "kernel",
        activation: Activation = "relu",
        group_size: Size = 32,
        kernel_dropout: Share = 0.1,
        last_dropout: Share = 0.5,
        always_drop: bool = False,
        init: Init = "he",
    ) -> nn.Module:
        channels, _, _ = image(name, input_shape, 32)
        outputs = needs_classes(name, classes)
        make = Layers(
            norm, activation, group_size, bias=norm == "none", dropout=kernel_dropout,
            always=always_drop,
        )  # fmt: skip
        width = plan.stages[0].width
        layers = [*make.bare(channels, width, 7, 2), nn.MaxPool2d(3, 2, padding=1)]
        for i, stage in enumerate(plan.stages):
            size = 1 if plan.bottleneck and i == 3 else 3
            if i:
                layers += [*make.pre(width, stage.width, size), nn.MaxPool2d(3, 2, padding=1)]
            width, outer = stage.width, 1 if plan.bottleneck else 3
            layers += [
                residual(make, stage, outer, bottleneck=plan.bottleneck)
                for _ in range(stage.blocks)
            ]
        scores = [*make.pre(width, 512), *make.last(512, last_dropout), make.act()]
        scores.append(nn.Conv2d(512, outputs, 1))
        module = Segmenting(nn.Sequential(*layers), nn.Sequential(*scores))
        return initialise(module, init)

    make_fcn_knresnet.__doc__ = (
        f"Images of at least 32x32; {parameters} parameters for 19 classes, with kernel norm."
    )


for _number, _parameters in ((18, "13,546,579"), (34, "23,654,739"), (50, "32,955,987")):
    _fcn_resnet(_number, _parameters)
for _number, _parameters in ((18, "13,525,124"), (34, "23,398,803"), (50, "32,874,099")):
    _fcn_knresnet(_number, _parameters)
