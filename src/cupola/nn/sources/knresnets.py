"""KNResNet-18/34/50 with the weights that their author trained on ImageNet, from the user's file.

The names are those of the published code (Nasirigerdeh et al., TMLR 2024). Its checkpoints hold the
optimizer and the command line, too; only weights are taken.
"""

from __future__ import annotations

from functools import partial

from torch import nn

from cupola.nn.models.blocks import Layers, initialise
from cupola.nn.models.knresnets import ARCHITECTURES, HIGH, Architecture, knresnet_layers
from cupola.nn.sources.trained import TORCHVISION, Entry, add

_ACCURACY = {18: "71.2", 34: "74.6", 50: "76.5"}


def _made(plan: Architecture) -> nn.Module:
    make = Layers("kernel", dropout=0.05, last_dropout=0.25)
    return initialise(nn.Sequential(*knresnet_layers(plan, 3, 1000, make)), "he-zero")


def _layers(plan: Architecture) -> list[str]:
    """Names of the published code, in the order in which the module has its layers."""
    found, block = ["block0.0"], 0
    for i, stage in enumerate(plan.stages):
        inner = ".conv1x1" if plan.bottleneck and i == 3 else ""  # of kernels of one pixel
        if i:
            found.append(f"trans_block{i}.conv{inner}")
        for _ in range(stage.blocks):
            block += 1
            place = f"res_block{block}.conv"
            if plan.bottleneck:
                found += [f"{place}1{inner}", f"{place}2", f"{place}3{inner}"]
            else:
                found += [f"{place}1", f"{place}2"]
    return [*found, *(["conv_block_f.conv"] if plan.end else []), "fc"]


for _number, _plan in ARCHITECTURES.items():
    add(
        Entry(
            f"knresnet{_number}",
            f"KNResNet-{_number} with its author's weights, top-1 {_ACCURACY[_number]} %",
            partial(_made, _plan),
            partial(_layers, _plan),
            TORCHVISION,
            (f"knresnet{_number}_imagenet.pth", f"knresnet{_number}_imagenet.safetensors"),
            "the author links to them in the README of reza-nasirigerdeh/norm-torch on GitHub",
            features=_plan.features,
            least=HIGH,
        )
    )
