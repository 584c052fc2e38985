# %% [markdown]
# A network of timm as a plan's model, with an adapter (LoRA) or a new head alone:
#
#     pip install 'cupola[timm]'
#     cupola run timm_network.toml --set model.weights=vit_tiny.safetensors
#
# Weights come from a file of yours. timm is never asked for any, so nothing is downloaded.

# %%
from typing import Any

from safetensors.torch import load_file
from torch import nn


def network(
    input_shape: tuple[int, ...],
    classes: int,
    name: str = "vit_tiny_patch16_224",
    weights: str | None = None,
    settings: dict[str, Any] | None = None,
) -> nn.Module:
    """One of timm's networks with a new last layer. settings: timm's own, such as img_size."""
    import timm

    made = timm.create_model(name, pretrained=False, in_chans=input_shape[0], **(settings or {}))
    if weights is not None:
        made.load_state_dict(load_file(weights))
    made.reset_classifier(classes)
    last = made.get_classifier()
    made.fresh = tuple(n for n, layer in made.named_modules() if layer is last)  # trained in full
    return made
