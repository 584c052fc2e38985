"""Parameters of the models that kernel normalisation was published with."""

from __future__ import annotations

import torch

from cupola.nn.models import building
from parts.markdown import table

_SMALL, _MIDDLE, _LARGE = (3, 32, 32), (3, 96, 96), (3, 224, 224)
_KERNEL = {"norm": "kernel"}

#: name, input, classes, options, published (millions where the source rounds)
_MODELS = [
    ("vgg6", _SMALL, 10, _KERNEL, "3,915,914"),
    ("vgg11", _SMALL, 10, _KERNEL, ""),
    ("resnet8", _SMALL, 10, _KERNEL, "1,856,394"),
    ("resnet9", _SMALL, 10, {"norm": "group"}, "2,448,714"),
    ("resnet9", _SMALL, 10, _KERNEL, "ours"),
    ("knresnet13", _SMALL, 10, _KERNEL, "2,041,034"),
    ("knresnet13", _MIDDLE, 10, _KERNEL, "2,048,714"),
    ("densenet20x16", _SMALL, 10, {"norm": "group"}, "764,778"),
    ("densenet20x16", _SMALL, 10, _KERNEL, "759,882"),
    ("preactresnet18", _SMALL, 10, _KERNEL, "11,169,162"),
    ("preactresnet18", _SMALL, 100, _KERNEL | {"shortcut": 2}, "11,731,428"),
    ("preactresnet18", _SMALL, 100, {"norm": "group", "last_norm": False}, "11,217,316"),
    ("knresnet18", _SMALL, 100, _KERNEL, "11.216 M"),
    ("knresnet34", _SMALL, 100, _KERNEL, "21.323 M"),
    ("knresnet50", _SMALL, 100, _KERNEL, "23.682 M"),
    ("knresnet18", _LARGE, 1000, _KERNEL, "11.685 M"),
    ("knresnet34", _LARGE, 1000, _KERNEL, "21.793 M"),
    ("knresnet50", _LARGE, 1000, _KERNEL, "25.556 M"),
    ("knresnet18", _SMALL, 1000, _KERNEL, "11.678 M"),
    ("convnext_tiny", _LARGE, 1000, _KERNEL, "28,587,784"),
    ("fcn_resnet18", _LARGE, 19, {"norm": "group"}, "13.547 M"),
    ("fcn_resnet34", _LARGE, 19, {"norm": "group"}, "23.655 M"),
    ("fcn_resnet50", _LARGE, 19, {"norm": "group"}, "32.955 M"),
    ("fcn_knresnet18", _LARGE, 19, _KERNEL, "13.525 M"),
    ("fcn_knresnet34", _LARGE, 19, _KERNEL, "23.399 M"),
    ("fcn_knresnet50", _LARGE, 19, _KERNEL, "32.874 M"),
]


def models() -> str:
    """Models with their parameters here and as published."""
    rows = []
    for name, shape, classes, options, published in _MODELS:
        with torch.device("meta"):
            module = building._MODELS.find(name)(shape, classes, **options)
        count = sum(p.numel() for p in module.parameters())
        given = ", ".join(f"{key} = {value}" for key, value in options.items())
        rows.append([f"`{name}`", given, f"{shape[1]}", f"{classes}", f"{count:,}", published])
    return table(["model", "options", "pixels", "classes", "parameters", "published"], rows)


PARTS = {"kernel-models": models}
