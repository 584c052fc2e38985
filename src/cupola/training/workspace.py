"""What is learned, and the one reused model that a worker learns it on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cupola.data.dataset import Dataset, FederatedData, SiteData
from cupola.errors import FederationError, PlanError
from cupola.federation.message import Arrays, Question
from cupola.federation.site import Accounts, SiteContext
from cupola.nn.adapters import settle
from cupola.nn.losses import Loss, NamedLoss
from cupola.nn.memory_saving import make_lean
from cupola.nn.module_properties import Properties, loss_is_batch_dependent, properties
from cupola.nn.reprogram import Adapted, Labels
from cupola.training.choices import Trainable
from cupola.training.features import Features
from cupola.training.frozen import FrozenPart, frozen_names, level_of
from cupola.training.precision import Precision, autocast, set_products

Example = tuple[Tensor, Tensor]
#: What a finished model is made of, by how its arrays' names begin.
MODEL = ("model/", "buffer/", "map/")
LIGHT = 1_000_000  # parameters below which a network without convolutions is light


def pick_device(name: str, dtype: torch.dtype = torch.float32) -> torch.device:
    """'auto' takes what CUPOLA_DEVICE says on this machine, or else CUDA, then Apple's MPS (which
    has no float64), then the CPU; others must be present."""
    if name == "auto":
        name = os.environ.get("CUPOLA_DEVICE", "auto")
    mps = bool(torch.backends.mps.is_available())
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": mps}
    double = dtype == torch.float64
    if name == "auto":
        usable = mps and not double
        return torch.device("cuda" if present["cuda"] else "mps" if usable else "cpu")
    kind = name.split(":")[0]
    if kind not in present:
        raise PlanError(f"device = '{name}' is not one of auto, cpu, cuda, mps")
    if not present[kind]:
        raise PlanError(f"device = '{name}' is not present on this machine; use device = 'auto'")
    if kind == "mps" and double:
        raise PlanError("device = 'mps' has no float64; use device = 'cpu' or dtype = 'float32'")
    return torch.device(name)


@dataclass(frozen=True)
class Problem:
    """A model, its loss and the kind of task.

    build: makes the module with its initial weights (the same every time). loss: one value per
    sample. kind: 'classification', 'regression', 'segmentation' or 'language'; classes: of
    targets, None for regression. input_shape: of one model-ready input. ignore: labels that do
    not count in metrics. tokens: how many token ids there are, where inputs are tokens.
    metrics: the user's own, (outputs, targets) -> one value per sample, by name.
    precision: of products. device_noise: simulated noise of single steps is drawn on the device.
    trainable, frozen_seed: what of the model is trained, and what the rest is made of; set by
    `frozen.partly`, which also wraps `build`.
    """

    build: Callable[[], nn.Module]
    loss: Loss
    kind: str
    classes: int | None
    input_shape: tuple[int, ...]
    device: str = "auto"
    dtype: torch.dtype = torch.float32
    ignore: tuple[int, ...] = ()
    tokens: int | None = None
    metrics: Mapping[str, Callable[[Tensor, Tensor], Any]] = field(default_factory=dict)
    trainable: Trainable = field(default_factory=Trainable)
    frozen_seed: int = 0
    precision: Precision = "full"
    device_noise: bool = False

    def module(self) -> nn.Module:
        module = settle(self.build().to(pick_device(self.device, self.dtype), self.dtype))
        return autocast(module) if self.precision == "bfloat16" else module

    @cached_property
    def properties(self) -> Properties:
        """Whether the model is random, batch-dependent or stackable; found out once."""
        return properties(self.build().to(self.dtype), probe_inputs(self, 4))


class Workspace:
    """One model, reused for site after site: parameters are views into one flat vector.

    Arrays that cross the border are named 'model/<parameter>' and 'buffer/<buffer>'; where a part
    is frozen, also 'frozen/seed' and 'frozen/checksum', and 'map/<index>' where labels move.
    level: of sites that train less. received: parameters that others train. maps: labels that move.
    """

    def __init__(self, problem: Problem, level: int | None = None) -> None:
        self.problem = problem
        self.device = pick_device(problem.device, problem.dtype)
        self.module = problem.module().train()
        self.frozen = FrozenPart(self.module)
        self.frozen.regenerate(problem.frozen_seed)
        self.received: dict[str, Tensor] = {}
        if level is not None:
            own = problem.trainable.level[level]
            for name in frozen_names(own, self.module, f"trainable.level[{level}]"):
                self.received[name] = self.module.get_parameter(name).requires_grad_(False)
            make_lean(self.module)
        self._features: Features | None = None
        if isinstance(self.module, Adapted) and self.module.fixed:
            self._features = Features(self.module, self.device, problem.dtype)
        self._levels: dict[int, Workspace] = {}
        self._sites: dict[int, int | None] = {}
        self.names = [name for name, p in self.module.named_parameters() if p.requires_grad]
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        if not parameters:
            raise PlanError("the model has no trainable parameters")
        self.flat = torch.cat([p.detach().reshape(-1) for p in parameters])
        self.params: list[Tensor] = []
        start = 0
        for parameter in parameters:
            view = self.flat[start : start + parameter.numel()].view(parameter.shape)
            parameter.data = view
            self.params.append(parameter)
            start += parameter.numel()
        moving = {n: b for n, b in self.module.named_buffers() if n not in self.frozen.resting}
        self.buffers = {name: b for name, b in moving.items() if b.is_floating_point()}
        counters = (b for b in moving.values() if not b.is_floating_point())
        self._counters = [(b, b.clone()) for b in counters]
        self.maps = {
            f"map/{name}.index": layer
            for name, layer in self.module.named_modules()
            if isinstance(layer, Labels) and layer.moves
        }
        self.start = self.flat.clone()
        self.lock = Lock()
        self.cache: dict[str, Any] = {}

    def of_site(self, site: int) -> Workspace:
        """The workspace for a site, which may train less than others."""
        if not self.problem.trainable.level:
            return self
        if site not in self._sites:
            self._sites[site] = level_of(self.problem.trainable, self.problem.frozen_seed, site)
        level = self._sites[site]
        if level is None:
            return self
        if level not in self._levels:
            self._levels[level] = Workspace(self.problem, level)
        return self._levels[level]

    @property
    def properties(self) -> Properties:
        return self.problem.properties

    @property
    def serial(self) -> bool:
        """Random layers draw from the process-wide generator, so their sites run one by one."""
        return bool(self.properties.random)

    @property
    def light(self) -> bool:
        """So little work per operation that threads would only wait for each other."""
        return self.is_dense_only and sum(p.numel() for p in self.module.parameters()) < LIGHT

    @property
    def independent(self) -> bool:
        """Samples neither see each other nor chance, so they can be computed in any company."""
        found = self.properties
        return not (found.random or found.batch_dependent or self.buffers)

    @property
    def plain_cross_entropy(self) -> bool:
        """Cross-entropy without options, whose gradient is known in closed form."""
        loss = self.problem.loss
        return isinstance(loss, NamedLoss) and loss.name == "cross_entropy" and not loss.options

    def loss_is_per_sample(self, data: Dataset) -> bool:
        """Whether the loss gives each sample its own value; found out once, on a few samples."""
        if "per sample" not in self.cache:
            x, y = self.batch(data, slice(0, 4))
            self.module.eval()  # a look in between draws nothing and moves no buffers
            with torch.no_grad():
                output = self.module(x)
                own = self.problem.loss(output, y).shape == (len(x),)
            self.module.train()
            with torch.enable_grad():
                dependent = own and loss_is_batch_dependent(
                    self.problem.loss, output.cpu(), y.cpu()
                )
            self.cache["per sample"] = own and not dependent
        return self.cache["per sample"]

    @property
    def is_dense_only(self) -> bool:
        """No convolutions: those gain nothing from stacking."""
        return not any(isinstance(m, nn.modules.conv._ConvNd) for m in self.module.modules())

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set parameters and buffers from the coordinator's arrays; remember them as `start`.

        The frozen part is made here, from its seed; nobody else's values are taken for it.
        """
        set_products(self.device, self.problem.precision)
        theirs = {n[6:] for n in arrays if n.startswith("model/")}
        if more := theirs.difference(self.names, self.received):
            raise FederationError(f"'model/{min(more)}' is no trainable parameter of this model")
        self.frozen.receive(arrays)
        with torch.no_grad():
            for name, array in self._held().items():
                array.copy_(torch.from_numpy(arrays[name]))
            for counter, first in self._counters:  # they stay here: no trace of the last site
                counter.copy_(first)
            for name, layer in self.maps.items():
                if name not in arrays or not layer.fits(arrays[name]):
                    raise FederationError(f"'{name}', the map of labels, is missing or ill-formed")
                layer.index.copy_(torch.from_numpy(arrays[name]))
            self.start.copy_(self.flat)

    def put(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set those parameters and buffers that are named; `start` stays."""
        with torch.no_grad():
            for name, array in self._held().items():
                if name in arrays:
                    array.copy_(torch.from_numpy(arrays[name]))

    def _held(self) -> dict[str, Tensor]:
        """All that is received, by its name in messages."""
        return {
            **{f"model/{n}": p for n, p in (*self.pairs(), *self.received.items())},
            **{f"buffer/{n}": b for n, b in self.buffers.items()},
        }

    def arrays(self) -> Arrays:
        """The model as named arrays (copies), for the coordinator's initial state."""
        return {
            **{f"model/{n}": p.detach().cpu().numpy().copy() for n, p in self.pairs()},
            **{f"buffer/{n}": b.cpu().numpy().copy() for n, b in self.buffers.items()},
            **{name: layer.index.cpu().numpy().copy() for name, layer in self.maps.items()},
            **self.frozen.broadcast(self.problem.frozen_seed),
        }

    def trained(self) -> Arrays:
        """The model as it is now, without what is frozen."""
        return {n: a for n, a in self.arrays().items() if n.startswith(("model/", "buffer/"))}

    def snapshot(self) -> dict[str, Tensor]:
        """What `restore` takes back: 'flat', and 'buffer/...'."""
        buffers = {f"buffer/{name}": buffer.clone() for name, buffer in self.buffers.items()}
        return {"flat": self.flat.clone(), **buffers}

    def restore(self, model: Mapping[str, Tensor]) -> None:
        self.flat.copy_(model["flat"])
        for name, buffer in self.buffers.items():
            buffer.copy_(model[f"buffer/{name}"])

    def pairs(self) -> list[tuple[str, Tensor]]:
        return list(zip(self.names, self.params))

    def split(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat vector in the shapes of the parameters."""
        views = flat.split([p.numel() for p in self.params])
        return [v.view(p.shape) for v, p in zip(views, self.params)]

    def named(self, prefix: str, tensors: Sequence[Tensor]) -> Arrays:
        return {f"{prefix}/{n}": t.detach().cpu().numpy() for n, t in zip(self.names, tensors)}

    def batch(
        self,
        data: Dataset,
        index: Any,
        generator: torch.Generator | None = None,
        whole: bool = False,
    ) -> Example:
        """Model-ready inputs and targets on the device; augmented if a generator is given. Where
        only what follows a frozen source is trained: what the source makes of the inputs, unless
        they are to go through the whole model."""
        if self._features is not None and generator is None and not whole:
            data = self._features.of(data)
        if (
            isinstance(index, slice)
            and index == slice(None)
            and generator is None
            and self._is_ready(data)
        ):
            assert isinstance(data.x, Tensor)
            return data.x, data.y  # thousands of small sites pass here every round
        x, y = data.inputs(index), data.y[index]
        if generator is not None and data.transform is not None:
            x = data.transform(x, generator)
        if x.is_floating_point():
            x = x.to(self.device, self.problem.dtype)
            if x.dim() == 4 and x.shape[1] == 1 and x.dtype == torch.float32:
                # Grey images are channels-last by a word; small CNNs gain a tenth from it.
                x = x.to(memory_format=torch.channels_last)
        else:
            x = x.to(self.device)
        y = y.to(self.device, self.problem.dtype) if y.is_floating_point() else y.to(self.device)
        return x, y

    def soon(self, data: Dataset, batches: Iterable[Any]) -> None:
        """These batches are wanted next, one after the other."""
        if self._features is None:
            data.soon(batches)

    def _is_ready(self, data: Dataset) -> bool:
        """Whether the model takes the data set's tensors as they are."""
        x, y, dtype = data.x, data.y, self.flat.dtype
        if not isinstance(x, Tensor):
            return False
        same_type = x.dtype == dtype and (y.dtype == dtype or not y.is_floating_point())
        return same_type and data.prepare is None and x.device == y.device == self.flat.device

    def gradient(
        self,
        x: Tensor,
        y: Tensor,
        loss: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None,
    ) -> list[Tensor]:
        """Gradient of the mean loss over a batch, one tensor per parameter; or of another loss."""
        with torch.enable_grad():
            if loss is None:
                value = self.problem.loss(self.module(x), y).mean()
            else:
                value = loss(self.module, x, y)
            return list(torch.autograd.grad(value, self.params, materialize_grads=True))


def frozen_part(arrays: Mapping[str, np.ndarray]) -> Arrays:
    """What a model needs beside what is trained: what stands for its frozen part, its labels."""
    return {n: a for n, a in arrays.items() if n.startswith(("frozen/", "map/"))}


def probe_inputs(problem: Problem, n: int) -> Tensor:
    """Random inputs that the model accepts, for probes: tokens for language, else normal."""
    generator = torch.Generator().manual_seed(0)
    if problem.tokens is not None:
        return torch.randint(0, problem.tokens, (n, *problem.input_shape), generator=generator)
    return torch.randn((n, *problem.input_shape), generator=generator).to(problem.dtype)


@dataclass
class TrainingHost:
    """The sites of a federated data set, and the workspace their tasks share.

    book: opens the accounts of these sites in a folder, under a name; without it they keep none.
    """

    problem: Problem
    sites: FederatedData
    book: Callable[[Path | None, str], Accounts] | None = None

    def accounts(self, folder: Path | None, name: str) -> Accounts | None:
        return None if self.book is None else self.book(folder, name)

    def __len__(self) -> int:
        return len(self.sites)

    def data(self, site: int) -> SiteData:
        return self.sites.site(site)

    def workspace(self) -> Workspace:
        return Workspace(self.problem)

    def effort(self, question: Question, sites: Sequence[int]) -> np.ndarray:
        """Samples of each site, if its work grows with them and they are known; else all alike."""
        local = question.options.get("local", {})
        if local.get("work") == "batches" or not self.sites.knows_sizes:
            return np.ones(len(sites))
        return 1.0 + self.sites.sizes(sites)


def workspace_of(site: SiteContext) -> Workspace:
    workspace = site.workspace
    assert isinstance(workspace, Workspace)
    return workspace.of_site(site.index)
