"""Transforms: what is done to an update on its way, as one ordered list in the plan.

    transforms = [{ kind = "sparsify", share = 0.5 }, { kind = "quantise", bits = 8 }]

What happens to an update, in order: the mechanism at the site clips (and noises, where it does),
the transforms make it smaller, a masked sum hides it; the coordinator takes off masks, undoes the
transforms on the sum, and the mechanism's coordinator adds its noise. Noise that is
added before is covered by post-processing; noise that is added after rests on the clip, which no
transform may exceed (see `base`). A new one is a file here and a line below, or a user's own
subclass of `Transform` at `module:Class`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, SerializeAsAny

from cupola.base.importing import imported
from cupola.base.suggest import suggest
from cupola.errors import PlanError
from cupola.training.transforms.base import Transform as Transform
from cupola.training.transforms.base import Way as Way
from cupola.training.transforms.quantise import Quantise as Quantise
from cupola.training.transforms.sparsify import Sparsify as Sparsify
from cupola.training.transforms.top_k import TopK as TopK

TRANSFORMS: dict[str, type[Transform]] = {
    kind.model_fields["kind"].default: kind for kind in (Quantise, Sparsify, TopK)
}


def transform(given: Any) -> Transform:
    """A transform from its options; from itself, too.

    >>> transform({"kind": "quantise", "bits": 4}).describe()
    'rotated and rounded to 4 bits'
    """
    if isinstance(given, Transform):
        return given
    if not isinstance(given, Mapping) or not isinstance(given.get("kind"), str):
        raise ValueError(f"transforms: each has a kind ({', '.join(TRANSFORMS)}) and its options")
    kind = given["kind"]
    if kind in TRANSFORMS:
        return TRANSFORMS[kind].model_validate(dict(given))
    if ":" not in kind:
        raise ValueError(f"transforms: kind = '{kind}' is not known; {suggest(kind, TRANSFORMS)}")
    try:
        found = imported(kind, f"transforms: kind = '{kind}'")
    except PlanError as error:
        raise ValueError(str(error)) from None
    if not (isinstance(found, type) and issubclass(found, Transform)):
        raise ValueError(f"transforms: kind = '{kind}' is no subclass of cupola.training.Transform")
    return found.model_validate(dict(given))


#: One of a plan's transforms, as its own class.
AnyTransform = Annotated[SerializeAsAny[Transform], BeforeValidator(transform)]
