"""Segmentation: a class for every pixel."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from cupola.nn.models.blocks import Layers, Shape, Share, Size, image_model, needs_classes
from cupola.nn.models.knresnets import Architecture, Stage, residual
from cupola.nn.models.resnets import DEPTHS, trunk


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


@image_model(
    "fcn", "small fully convolutional network for segmentation, three scales",
    least=4, norm="group", init="he",
)  # fmt: skip
def fcn(make: Layers, shape: Shape, classes: int | None, *, width: Size = 32) -> nn.Module:
    """Images of at least 4x4; logits (n, classes, H, W). width: channels of the finest scale."""
    return FullyConvolutional(shape[0], needs_classes("fcn", classes), width, make)


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


def _fcn_resnet(number: int) -> None:
    """Register one depth."""
    name, depth = f"fcn_resnet{number}", DEPTHS[number]

    @image_model(
        name, f"segmentation by ResNet-{number} and a fully convolutional head",
        least=32, bias=False, norm="group", init="he",
    )  # fmt: skip
    def fcn_resnet(
        make: Layers, shape: Shape, classes: int | None, *, dropout: Share = 0.1
    ) -> nn.Module:
        """Images of at least 32x32. dropout: of the features that the last convolution sees."""
        outputs = needs_classes(name, classes)
        features = nn.Sequential(*trunk(depth, shape[0], make))
        scores = nn.Sequential(*_scores(make, depth.features, outputs, dropout))
        return Segmenting(features, scores)


#: Widths of stages and of their blocks' middles. KNResNet-34 and -50: the publication gives the
#: middles and the number of parameters, which several layouts fit; these are our choice.
_SEGMENTATION = {
    18: Architecture(
        (Stage(2, 64, 128), Stage(2, 128, 256), Stage(1, 256, 512), Stage(1, 512, 625)),
    ),
    34: Architecture(
        (Stage(4, 64, 128), Stage(4, 128, 256), Stage(2, 256, 256), Stage(3, 512, 512)),
    ),
    50: Architecture(
        (Stage(3, 256, 128), Stage(5, 512, 256), Stage(4, 512, 458), Stage(1, 2048, 512)),
        bottleneck=True,
    ),
}


def _fcn_knresnet(number: int) -> None:
    """Register one depth."""
    name, plan = f"fcn_knresnet{number}", _SEGMENTATION[number]

    @image_model(
        name, f"segmentation by KNResNet-{number} and a fully convolutional head",
        least=32, norm="kernel", last_dropout=0.5, init="he",
    )  # fmt: skip
    def fcn_knresnet(make: Layers, shape: Shape, classes: int | None) -> nn.Module:
        """Images of at least 32x32."""
        outputs = needs_classes(name, classes)
        width = plan.stages[0].width
        layers = [*make.bare(shape[0], width, 7, 2), nn.MaxPool2d(3, 2, padding=1)]
        for i, stage in enumerate(plan.stages):
            size = 1 if plan.bottleneck and i == 3 else 3
            if i:
                layers += [*make.pre(width, stage.width, size), nn.MaxPool2d(3, 2, padding=1)]
            width, outer = stage.width, 1 if plan.bottleneck else 3
            layers += [
                residual(make, stage, outer, bottleneck=plan.bottleneck)
                for _ in range(stage.blocks)
            ]
        scores = [*make.pre(width, 512), *make.last(512), make.act()]
        scores.append(nn.Conv2d(512, outputs, 1))
        return Segmenting(nn.Sequential(*layers), nn.Sequential(*scores))


# Parameters for 19 classes: 13,546,579, 23,654,739 and 32,955,987; of KNResNets with kernel norm
# 13,525,124, 23,398,803 and 32,874,099.
for _number in DEPTHS:
    _fcn_resnet(_number)
    _fcn_knresnet(_number)
