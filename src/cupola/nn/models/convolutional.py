"""Convolutional networks without short cuts: the EMNIST CNNs and the VGG family."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from cupola.nn.activations import Activation
from cupola.nn.activations import activation as layer
from cupola.nn.models.blocks import Layers, Shape, Share, Size, head, image, image_model, pooled
from cupola.nn.models.building import model
from cupola.nn.models.mlp import dense


@image_model(
    "cnn", "two 5x5 convolutions and a dense layer of 512 (McMahan et al.; FedPT's EMNIST model)",
    least=4, bias=True, norm="group", init=None,
)  # fmt: skip
def cnn(
    make: Layers,
    shape: Shape,
    classes: int | None,
    *,
    hidden: Size = 512,
    dropout: Share = 0.0,
) -> nn.Module:
    """Images of at least 4x4; 1,690,174 parameters for 28x28x1 and 62 classes.

    Layers with parameters: conv1, conv2, norm2, dense (1,606,144 of them), head.
    norm: after the second convolution, as in FedPT; "none" is the model of McMahan et al. (2017).
    dropout: share of the dense layer's outputs.
    """
    channels, height, width = shape
    second = make.block(32, 64, 5)
    layers = {
        "conv1": nn.Conv2d(channels, 32, 5, padding=2),
        "act1": make.act(),
        "pool1": nn.MaxPool2d(2),
        **dict(zip(("conv2", "norm2", "act2") if len(second) > 2 else ("conv2", "act2"), second)),
        "pool2": nn.MaxPool2d(2),
        "flatten": nn.Flatten(),
        "dense": nn.Linear(64 * (height // 4) * (width // 4), hidden),
        "act3": make.act(),
        **({"dropout": nn.Dropout(dropout)} if dropout else {}),
        **dict(zip(("head", "number"), head(hidden, classes))),
    }
    return nn.Sequential(OrderedDict(layers))


@model(
    "small_cnn",
    "one 3x3 convolution of 3 channels, dense layers of 1000 and 100 with dropout (Upcycled-FL)",
)
def small_cnn(
    input_shape: Shape,
    classes: int | None,
    *,
    channels: Size = 3,
    hidden: list[Size] = [1000, 100],  # noqa: B006 (read only)
    activation: Activation = "relu",
    dropout: Share = 0.5,
) -> nn.Module:
    """Images of at least 3x3; 2,130,140 parameters for 28x28x1 and 10 classes.

    The paper names no padding, pooling or rate of dropout: there is none of the first two, and
    half of each dense layer's outputs are dropped, after the activation.
    """
    colours, height, width = image("small_cnn", input_shape, 3)
    layers = [nn.Conv2d(colours, channels, 3), layer(activation), nn.Flatten()]
    return nn.Sequential(
        *layers, *dense(channels * (height - 2) * (width - 2), hidden, activation, dropout, classes)
    )


#: Channels of convolutions, in multiples of the first one's; max-pooling.
_POOL = 0
_VGG6 = (1, _POOL, 2, _POOL, 4, _POOL, 8, 8)
_VGG11 = (1, _POOL, 2, _POOL, 4, 4, _POOL, 8, 8, _POOL, 8, 8, _POOL)


@image_model(
    "vgg6", "VGG-6: five 3x3 convolutions, average pooling (utility preservation, KernelNorm)",
    least=8, norm="none",
)  # fmt: skip
def vgg6(make: Layers, shape: Shape, classes: int | None, *, width: Size = 64) -> list[nn.Module]:
    """Images of at least 8x8; 3,915,914 parameters for CIFAR-10, 3,917,386 with group norm.

    width: channels of the first convolution; the others have two to eight times as many.
    """
    return [*_features(shape[0], _VGG6, make, width), *pooled(8 * width, classes)]


@image_model(
    "vgg11", "VGG-11 with global average pooling in place of its dense layers (PFA)",
    least=32, bias=True, norm="none", init="he",
)  # fmt: skip
def vgg11(make: Layers, shape: Shape, classes: int | None, *, width: Size = 64) -> list[nn.Module]:
    """Images of at least 32x32; 9,225,610 parameters for 10 classes, 9,231,114 with a norm.

    width: channels of the first convolution; the others have two to eight times as many.
    """
    return [*_features(shape[0], _VGG11, make, width), *pooled(8 * width, classes)]


def _features(channels: int, layout: Sequence[int], make: Layers, width: int) -> list[nn.Module]:
    """Convolution blocks, as the layout has them; max-pooling where it says `_POOL`."""
    layers: list[nn.Module] = []
    for times in layout:
        if times == _POOL:
            layers.append(nn.MaxPool2d(2))
        else:
            layers += make.block(channels, times * width)
            channels = times * width
    return layers
