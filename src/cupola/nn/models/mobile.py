"""MobileNetV2 (Sandler et al. 2018) at any width; PFA's small model is its width 0.25."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from cupola.nn.models.blocks import Layers, Shape, image_model, pooled

Width = Annotated[float, Field(gt=0, le=4)]

#: expansion, channels, blocks, stride of the first
_STAGES = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
    (6, 320, 1, 1),
)  # fmt: skip


def _channels(wanted: float) -> int:
    """The nearest multiple of 8, but at least nine tenths of what is wanted."""
    made = max(8, int(wanted + 4) // 8 * 8)
    return made + 8 if made < 0.9 * wanted else made


class _Inverted(nn.Module):
    """Wider by 1x1, depthwise 3x3, narrower by 1x1 without activation; plus x if shapes agree."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, expansion: int, make: Layers
    ) -> None:
        super().__init__()
        wide = inputs * expansion
        layers = make.block(inputs, wide, 1) if expansion > 1 else []
        layers += make.block(wide, wide, 3, stride, groups=wide)
        self.layers = nn.Sequential(*layers, *make.conv(wide, outputs, 1))
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        made = self.layers(x)
        return x + made if self.shortcut else made


@image_model(
    "mobilenet_v2", "MobileNetV2 of any width, without its last 1x1 convolution at 0.25 (PFA)",
    least=16, norm="batch", activation="relu6", group_size=8, stem="auto", init="he",
)  # fmt: skip
def mobilenet_v2(
    make: Layers,
    shape: Shape,
    classes: int | None,
    *,
    width: Width = 0.25,
    last: bool = False,
) -> list[nn.Module]:
    """Images of at least 16x16; at width 0.25 its features have 133,152 parameters (the paper's
    0.13 M), 133,962 with a head for 10 classes.

    last: also the last 1x1 convolution, to 1280 channels.
    stem: low: no down-sampling before the third stage, for small images; auto: low below 64 pixels.
    """
    now = _channels(32 * width)
    layers = make.block(shape[0], now, 3, 1 if make.low else 2)
    for stage, (expansion, wanted, blocks, stride) in enumerate(_STAGES):
        outputs = _channels(wanted * width)
        for i in range(blocks):
            step = stride if i == 0 and not (make.low and stage == 1) else 1
            layers.append(_Inverted(now, outputs, step, expansion, make))
            now = outputs
    if last:
        wide = max(1280, _channels(1280 * width))
        layers += make.block(now, wide, 1)
        now = wide
    return [*layers, *pooled(now, classes)]
