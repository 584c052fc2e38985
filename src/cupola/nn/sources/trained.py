"""Source models by name, with what their inputs must look like, and their weights from files.

    trained = load("resnet50", weights="resnet50.safetensors")
    trained.module, trained.preprocessing, trained.classes

A name is an ImageNet model of `imagenet`, or the folder of a finished run (`from_run`). Weights are
read once in a process; modules share them as long as nobody trains them.
"""

from __future__ import annotations

import importlib.util
import os
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cupola.base.registry import Registry
from cupola.base.suggest import suggest
from cupola.errors import PlanError
from cupola.nn.kernelnorm import KNConv2d


@dataclass(frozen=True)
class Preprocessing:
    """What a source's inputs are: images of `channels` x `size` x `size`, from pixels in 0..1 by
    (x - mean) / std, and `unit`: what one standard deviation of natural images is then worth, so
    that a border of +-unit means the same for every source."""

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    unit: float = 1.0

    @property
    def channels(self) -> int:
        return len(self.mean)


#: ImageNet's mean and deviation, as torchvision has them.
TORCHVISION = Preprocessing(224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True)
class Trained:
    """A source: its module with trained weights, and what it takes and gives."""

    name: str
    module: nn.Module
    preprocessing: Preprocessing
    classes: int


@dataclass(frozen=True)
class Entry:
    """A model of the registry.

    make: the module without trained weights; any multiple of 32 pixels will do. layers: names in
    the file of its convolutions, normalisations and linear layers, in the module's order. features:
    what the last layer sees. files: names to look for; where: else to get them from.
    package: (module, path within) of an installable package that carries the weights.
    """

    name: str
    about: str
    make: Callable[[], nn.Module]
    layers: Callable[[], list[str]]
    preprocessing: Preprocessing
    files: tuple[str, ...]
    where: str
    classes: int = 1000
    features: int = 2048
    least: int = 32
    package: tuple[str, str] | None = None


def _register() -> None:
    import cupola.nn.sources.imagenet
    import cupola.nn.sources.knresnets  # noqa: F401 (both register their models when imported)


_SOURCES: Registry[Entry] = Registry("model.source", kind=Entry, own=False, fill=_register)
names = _SOURCES.names


def add(entry: Entry) -> None:
    """Register a source."""
    _SOURCES.add(entry.name, entry.about)(entry)


def table() -> list[Entry]:
    """All entries, by name."""
    return [_SOURCES.find(name) for name in names()]


def load(source: str, weights: str | None = None, size: int | None = None) -> Trained:
    """A source with its trained weights; a module of its own whose tensors are shared.

    source: a registered name, or the folder of a finished run. weights: a .safetensors, .pth or
    .pt file; default: where the source's weights are usually kept. size: of input images, where
    another than the source was trained at is wanted.
    """
    if _is_run(source):
        if weights is not None:
            raise PlanError("model.weights is not for a run folder: it holds its own weights")
        from cupola.nn.sources.finished_run import from_run

        return from_run(Path(source).expanduser(), size)
    entry = find(source)
    path = _path(entry, weights)
    with Unfilled():  # every value comes from the file
        module = architecture(entry, size)
    _fill(module, entry, _tensors(path, path.stat().st_mtime_ns), path)
    return Trained(source, module, _sized(entry, size), entry.classes)


def fresh_source(source: str, size: int | None = None) -> Trained:
    """The same with untrained weights, drawn from torch's generator; no file is needed."""
    if _is_run(source):
        from cupola.nn.sources.finished_run import from_run

        seed = int(torch.randint(2**31, ()))
        return from_run(Path(source).expanduser(), size, fresh=seed)
    entry = find(source)
    return Trained(source, architecture(entry, size), _sized(entry, size), entry.classes)


def stamp(source: str, weights: str | None = None) -> tuple[str, int]:
    """Which file a source's weights come from, and when it was changed last."""
    run = Path(source).expanduser() / "model.safetensors"
    path = run if _is_run(source) else _path(find(source), weights)
    return str(path), path.stat().st_mtime_ns


def find(source: str) -> Entry:
    """A registered source; an unknown name is refused with a suggestion."""
    if source not in _SOURCES:
        raise PlanError(
            f"model.source = {source!r} is neither a known source nor the folder of a finished "
            f"run (with model.safetensors); {suggest(source, names())}"
        )
    return _SOURCES.find(source)


def architecture(entry: Entry, size: int | None = None) -> nn.Module:
    """The model without trained weights."""
    wanted = entry.preprocessing.size if size is None else size
    if wanted < entry.least or wanted % 32:
        raise PlanError(
            f"model.size = {wanted}: {entry.name} takes images of {entry.least} pixels or more, "
            "in steps of 32"
        )
    return entry.make()


_DRAWS = ("uniform_", "normal_", "kaiming_uniform_", "kaiming_normal_")


class Unfilled(TorchFunctionMode):
    """Layers made meanwhile, by this thread, draw no initial weights, which takes most of the time
    (the device 'meta' would take longer still)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def _sized(entry: Entry, size: int | None) -> Preprocessing:
    return entry.preprocessing if size is None else replace(entry.preprocessing, size=size)


def _is_run(source: str) -> bool:
    return (Path(source).expanduser() / "model.safetensors").is_file()


def _path(entry: Entry, weights: str | None) -> Path:
    """The file of the weights, or where to get it."""
    if weights is not None:
        path = Path(weights).expanduser()
        if not path.is_file():
            raise PlanError(f"model.weights = '{weights}' is no file; {_hint(entry)}")
        return path
    found = weights_file(entry)
    if found is None:
        raise PlanError(f"the weights of {entry.name} are not here; {_hint(entry)}")
    return found


def weights_file(entry: Entry) -> Path | None:
    """The file of a source's weights, if it is in one of the usual places."""
    folders = [os.environ.get(key) for key in ("CUPOLA_WEIGHTS", "CUPOLA_DATA")]
    for folder in (Path(f).expanduser() for f in folders if f):
        for name in entry.files:
            if (folder / name).is_file():
                return folder / name
    if entry.package is not None:
        found = importlib.util.find_spec(entry.package[0])
        for place in (found.submodule_search_locations or ()) if found else ():
            for path in sorted(Path(place).glob(entry.package[1])):
                return path
    return None


def _hint(entry: Entry) -> str:
    return (
        f"{entry.where}. Then name the file as model.weights, or put it as '{entry.files[0]}' "
        "into the folder CUPOLA_WEIGHTS (or CUPOLA_DATA)"
    )


@lru_cache(maxsize=8)
def _tensors(path: Path, changed: int) -> Mapping[str, Tensor]:
    """A file's tensors in float32. changed: so that another file of the same name is read."""
    del changed
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            found: dict[str, Any] = load_file(path)
        else:
            with torch.serialization.safe_globals([Namespace]):  # of a training script
                found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise PlanError(f"{path} cannot be read as weights: {reason}") from None
    for key in ("state_dict", "model"):  # a checkpoint, with an optimizer and its command line
        found = found[key] if isinstance(found.get(key), Mapping) else found
    return {n: t.float() for n, t in found.items() if isinstance(t, Tensor) and t.dim()}


_KINDS = (nn.Conv2d, KNConv2d, nn.BatchNorm2d, nn.Linear)
_PARTS = ("weight", "bias", "running_mean", "running_var")


def _fill(module: nn.Module, entry: Entry, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Put tensors into the layers they belong to; every one must be there and fit."""
    layers = [layer for layer in module.modules() if isinstance(layer, _KINDS)]
    places = entry.layers()
    assert len(layers) == len(places), (len(layers), len(places))
    for layer, place in zip(layers, places):
        for part in _PARTS:
            own = getattr(layer, part, None)
            if own is None:
                continue
            given = tensors.get(f"{place}.{part}")
            if given is None or given.shape != own.shape:
                said = "is missing" if given is None else f"has shape {tuple(given.shape)}"
                raise PlanError(
                    f"{path} does not hold {entry.name}: {place}.{part} {said}, "
                    f"{tuple(own.shape)} is needed"
                )
            if isinstance(own, nn.Parameter):
                setattr(layer, part, nn.Parameter(given.detach()))
            else:
                setattr(layer, part, given)
        if isinstance(layer, nn.BatchNorm2d):
            layer.num_batches_tracked = torch.zeros((), dtype=torch.int64)
