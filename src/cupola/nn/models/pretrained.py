"""A trained source model, adapted to another task: by reprogramming, or as 000's baselines do."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from torch import nn

from cupola.errors import PlanError
from cupola.nn.frozen_batchnorm import Standardise, fold, fresh_groups, still
from cupola.nn.memory_saving import make_all_lean
from cupola.nn.models.blocks import Shape, Size, needs_classes
from cupola.nn.models.building import model
from cupola.nn.reprogram import (
    INSTALLED,
    Adapted,
    Begin,
    Border,
    Counted,
    Labels,
    Narrow,
    Pad,
    Placement,
    require_enough,
)
from cupola.nn.sources.trained import Trained, fresh_source, load, stamp
from cupola.nn.trained_size import Around, Resized

#: reprogram: border and map; labels: border, classes by a fixed mapping; map: the map alone; head:
#: a new last layer; full: that and all of the source; scratch: the same from fresh weights.
Adapt = Literal["reprogram", "labels", "map", "head", "full", "scratch"]

#: What becomes of trained BatchNorm. folded: into convolutions; still: layers in evaluation mode
#: whose scale and shift may be trained; fresh: thrown away for untrained GroupNorm, as 000's
#: baselines do; auto: folded where the source is frozen, still where it is trained.
Norms = Literal["auto", "folded", "still", "fresh"]

SHARE = 200 / 224  # of the source's input that the target image fills, in 000


@model("pretrained", "A trained source model: reprogrammed, with a new head, or trained on")
def pretrained(
    input_shape: Shape,
    classes: int | None,
    *,
    source: str,
    weights: str | None = None,
    adapt: Adapt = "reprogram",
    size: Size | None = None,
    inner: Size | None = None,
    least_inner: Size | None = None,
    pad: Pad = "zero",
    begin: Begin = "random",
    relu: bool = False,
    labels: list[int] | list[list[int]] | None = None,
    per_class: Size = 1,
    relabel: Size | None = None,
    relabel_by: Counted = "auto",
    norms: Norms = "auto",
    compute: Literal["float32", "bfloat16"] = "float32",
) -> nn.Module:
    """Around a source of 224 x 224 x 3 and 1,000 classes `reprogram` trains 150,528 + 1,001 K
    parameters for K classes: 160,538 for 10.

    source: a name (see `cupola sources`) or the folder of a finished run; weights: its file.
    size: of the source's input. inner: of the target image within it; default 200 / 224 of it
        where a border is trained, else all of it. least_inner: the size is trained with the border,
        from `inner` on, between this and the source's (see `cupola.nn.trained_size`).
    pad, relu: as 000's code has it: a black border, a ReLU before the map. begin: of the border:
        'random' as published, or 'zero': empty.
    labels: source classes that stand for each target class; default: the most frequent ones on
        public validation data, `per_class` of them. relabel: they are chosen anew before every so
        many training rounds, as the border learns; relabel_by: by 'public' data, or by counts that
        'sites' add up; 'auto' takes public data if there are any.
    compute: bfloat16 runs a frozen source in half the bits.
    """
    wanted = needs_classes("pretrained", classes)
    bordered, frozen = adapt in ("reprogram", "labels"), adapt not in ("full", "scratch")
    _require_possible(adapt, labels, norms, compute, relu)
    _require_labels(adapt, labels, relabel, relabel_by)
    for key, chosen in (("begin", begin != "random"), ("least_inner", least_inner is not None)):
        if chosen and not bordered:
            raise PlanError(f"model.{key} is for a trained border; adapt = '{adapt}' has none")
    headless = adapt in ("head", "full", "scratch")
    if adapt == "scratch":
        given = _split(_untrained(source, size), headless)
    else:
        norms = ("folded" if frozen else "still") if norms == "auto" else norms
        given = _adapted(source, weights, size, norms, headless, stamp(source, weights))
    to = given.preprocessing
    inner = (round(SHARE * to.size) if bordered else to.size) if inner is None else inner
    place: Placement
    border: Border | None
    if least_inner is None:
        place = Placement(input_shape, to, inner, pad)
        border = Border(to, inner, begin) if bordered else None
    else:
        place = Resized(input_shape, to, inner, pad, least_inner)
        border = Around(to, least_inner, begin)
    trunk = _shared(given.module) if frozen else copy.deepcopy(given.module)
    for name, p in trunk.named_parameters():
        p.requires_grad_(not frozen and not _is_statistic(trunk, name))
    output: nn.Module
    if adapt == "labels":
        require_enough(wanted, given.classes, per_class)
        first = _given_labels(labels) if relabel is None else _any_labels(wanted, per_class)
        output = Labels(first, wanted, given.classes, moves=relabel is not None)
    else:
        output = nn.Linear(given.width, wanted)
        output = nn.Sequential(nn.ReLU(), output) if relu else output
    trunk = Narrow(trunk) if compute == "bfloat16" else trunk
    made = Adapted(place, border, trunk, output, given.width)
    made.from_file = adapt != "scratch"
    if frozen:
        make_all_lean(trunk)
    made.train()
    if any(b.is_floating_point() for b in trunk.buffers()):
        raise PlanError(
            f"model.source = '{source}' keeps numbers besides its weights (buffers), which would "
            "travel and could be changed on the way; take a source without"
        )
    kept = [name for name, p in made.named_parameters() if not p.requires_grad]
    fixed = ["output.index"] if adapt == "labels" and relabel is None else []
    setattr(made, INSTALLED, (*kept, *fixed))
    return made


def _require_possible(adapt: Adapt, labels: object, norms: Norms, compute: str, relu: bool) -> None:
    if labels is not None and adapt != "labels":
        raise PlanError(f"model.labels is for model.adapt = 'labels', not '{adapt}'")
    if relu and adapt == "labels":
        raise PlanError("model.relu stands before a trained map; adapt = 'labels' has none")
    if norms in ("folded", "still") and adapt == "scratch":
        raise PlanError(f"model.norms = '{norms}': from scratch there is no trained BatchNorm")
    if compute == "bfloat16" and adapt in ("full", "scratch"):
        raise PlanError(f"model.compute = 'bfloat16' is for a frozen source, not adapt = '{adapt}'")
    if norms == "fresh" and adapt in ("reprogram", "labels", "map"):
        raise PlanError(
            f"model.norms = 'fresh' destroys what the source has learnt; with adapt = '{adapt}' "
            "nothing is left to use (000 does so in its baselines only)"
        )


def _require_labels(adapt: Adapt, labels: object, relabel: int | None, by: Counted) -> None:
    if relabel is None and by != "auto":
        raise PlanError(
            f"model.relabel_by = '{by}' says how labels are chosen anew: set model.relabel = 5, say"
        )
    if relabel is not None and adapt != "labels":
        raise PlanError(
            f"model.relabel is for a map of labels that is not trained (model.adapt = 'labels'); "
            f"adapt = '{adapt}' has none"
        )
    if relabel is not None and labels is not None:
        raise PlanError("model.labels fixes the source classes, model.relabel chooses them anew")


def _any_labels(classes: int, per_class: int) -> list[list[int]]:
    """Until the first are chosen."""
    return [[i * per_class + k for k in range(per_class)] for i in range(classes)]


def _given_labels(labels: list[int] | list[list[int]] | None) -> list[list[int]]:
    if labels is None:
        raise PlanError(
            "model.adapt = 'labels' chooses source classes by how often they are predicted. That "
            "looks at labels, so it needs public data: set data.partition.public_validation, list "
            "source classes in model.labels, or let sites add up counts (model.relabel)"
        )
    return [[row] if isinstance(row, int) else row for row in labels]


@dataclass(frozen=True)
class Trunk(Trained):
    """A source, whole or without its last layer; width: of what it gives."""

    width: int


@lru_cache(maxsize=4)
def _adapted(
    source: str,
    weights: str | None,
    size: int | None,
    norms: Norms,
    headless: bool,
    made: tuple[str, int],
) -> Trunk:
    """The source as it is used; made once for a file, whose state `made` tells."""
    del made
    found = _split(load(source, weights, size), headless)
    change = {"folded": fold, "still": still, "fresh": fresh_groups}[norms]
    return replace(found, module=change(found.module.eval()))


def _untrained(source: str, size: int | None) -> Trained:
    """The same architecture with fresh weights; normalisation that a private run can train."""
    found = fresh_source(source, size)
    return replace(found, module=fresh_groups(found.module))


def _split(given: Trained, headless: bool) -> Trunk:
    """Without its last linear layer if asked."""
    whole, width = given.module, given.classes
    if headless:
        place: nn.Module = whole
        while isinstance(place, nn.Sequential) and isinstance(place[-1], nn.Sequential):
            place = place[-1]
        if not isinstance(place, nn.Sequential) or not isinstance(place[-1], nn.Linear):
            raise PlanError(
                f"model.source = '{given.name}' does not end in a linear layer that could be "
                "replaced; adapt it by 'reprogram', 'labels' or 'map'"
            )
        width = place[-1].in_features
        del place[-1]
    return Trunk(given.name, whole, given.preprocessing, given.classes, width)


def _shared(module: nn.Module) -> nn.Module:
    """A module of its own whose parameters have the same memory: nobody writes to it."""
    memo = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in module.parameters()}
    return copy.deepcopy(module, memo)


def _is_statistic(module: nn.Module, name: str) -> bool:
    return isinstance(module.get_submodule(name.rpartition(".")[0]), Standardise)
