"""What data looks like: rows (`Dataset`), a loaded set (`Source`), a site's share (`SiteData`) and
all sites together (`FederatedData`). Sites are made when asked for, so a million cost nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from cupola.data.stored_rows import Index, Rows, first_unusable, joined_rows
from cupola.data.tokenised import stacked
from cupola.errors import DataError

Kind = Literal["classification", "regression", "segmentation", "language"]
Transform = Callable[[Tensor, torch.Generator], Tensor]

#: What is said of data as a whole, besides their kind, classes and shape.
_TOKENS = ("vocabulary", "words", "padding", "uncounted")
_FACTS = ("name", "kind", "classes", "class_names", "input_shape", *_TOKENS)

#: Label of a pixel that belongs to no class (segmentation only).
NO_LABEL = 255


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows of inputs and targets, on the CPU; whoever computes moves them.

    x: uint8 images (n, C, H, W), float features (n, d) or int64 tokens (n, T); a tokeniser's
       fields {"input_ids": ..., "attention_mask": ...} are stacked to (n, fields, T); `Rows` where
       they stay in their files and are read batch by batch.
    y: int64 classes (n,), int64 (n, H, W) segmentation, int64 (n, T) next tokens, or float32 (n,)
       or (n, k) regression.
    transform: random augmentation, for training only: `transform(inputs, generator)`.
    prepare: what every input goes through, in training and evaluation (resize, normalise).
    """

    x: Tensor | Rows
    y: Tensor
    transform: Transform | None = None
    prepare: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.x, Mapping):
            object.__setattr__(self, "x", stacked(self.x))
        if len(self.x) != len(self.y):
            raise DataError(
                f"{len(self.x)} inputs but {len(self.y)} targets: one for each is needed"
            )

    def __len__(self) -> int:
        return self.x.shape[0]  # ten times as fast as len(), and asked for every site and round

    @property
    def in_memory(self) -> bool:
        """Whether inputs are a tensor, and not read from their files when asked for."""
        return isinstance(self.x, Tensor)

    def subset(self, index: Index) -> Dataset:
        """The rows at `index` (integers, a mask or a slice), in that order; of inputs in files it
        is a view."""
        index = _index(index)
        return replace(self, x=self.x[index], y=self.y[index])

    def inputs(self, index: Index = None) -> Tensor:
        """Model-ready inputs: uint8 images as float32 / 255, floats and tokens as they are."""
        if isinstance(self.x, Rows):
            x = self.x.read(index)
        else:
            x = self.x if index is None else self.x[_index(index)]
        if x.dtype == torch.uint8:
            x = x.to(torch.float32).div_(255)
        return x if self.prepare is None else self.prepare(x)

    def soon(self, batches: Iterable[Index]) -> None:
        """Inputs of these batches will be wanted, one after the other: those in files are read
        while the batch before them is used. Changes no result."""
        if isinstance(self.x, Rows):
            self.x.soon(batches)

    def plain(self) -> Dataset:
        """The same rows as evaluation sees them: not augmented, cropped in the centre if at all."""
        evaluate = getattr(self.transform, "evaluate", None)
        if evaluate is None:
            return replace(self, transform=None)
        before = self.prepare
        return replace(
            self, transform=None, prepare=lambda x: evaluate(x if before is None else before(x))
        )


def joined(parts: Sequence[Dataset]) -> Dataset:
    """The rows of all parts, in their order."""
    held = [d.x for d in parts if isinstance(d.x, Tensor)]
    x = torch.cat(held) if len(held) == len(parts) else joined_rows([d.x for d in parts])
    return replace(parts[0], x=x, y=torch.cat([d.y for d in parts]))


def _index(index: Index) -> Any:
    if isinstance(index, np.ndarray):
        return torch.from_numpy(index)
    if index is None:
        return slice(None)
    if isinstance(index, Tensor | slice):
        return index
    return torch.as_tensor(index, dtype=torch.int64)


@dataclass(frozen=True, eq=False)
class Source:
    """A loaded data set before it is cut into sites. Checked when made: finite, labels in range.

    Inputs in files are checked by their loaders, which say what it costs.
    """

    name: str
    kind: Kind
    train: Dataset
    test: Dataset | None = None  # public: held by the coordinator
    classes: int | None = None  # None for regression; number of tokens for language
    class_names: tuple[str, ...] = ()
    groups: np.ndarray | None = None  # natural owner of each training row, 0..len(group_names)-1
    group_names: tuple[str, ...] = ()
    local_test: np.ndarray | None = None  # training rows the set itself holds out at their owner
    validation: Dataset | None = None  # public, if the set comes with one
    vocabulary: int | None = None  # token ids are below this (text only)
    words: tuple[str, ...] = ()  # what each token id stands for, where ids are words
    padding: int | None = None  # token that counts in no loss and no metric when it is the target
    uncounted: tuple[int, ...] = ()  # further targets that accuracy leaves out

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one model-ready input."""
        return tuple(self.train.x.shape[1:])

    @property
    def facts(self) -> dict[str, Any]:
        """What it says of itself, as keyword arguments for its federation."""
        return {key: getattr(self, key) for key in _FACTS}

    def __post_init__(self) -> None:
        if (self.kind == "regression") != (self.classes is None):
            raise DataError(f"{self.name}: classes are for every kind but regression")
        for part in ("train", "validation", "test"):
            data = getattr(self, part)
            if data is not None:
                self._check(part, data)
        for what in ("groups", "local_test"):
            values = getattr(self, what)
            if values is not None and len(values) != len(self.train):
                raise DataError(
                    f"{self.name}: {what} has {len(values)} rows, train has {len(self.train)}"
                )

    def _check(self, part: str, data: Dataset) -> None:
        for what, values in (("inputs", data.x), ("targets", data.y)):
            row = None if isinstance(values, Rows) else first_unusable(values)
            if row is not None:
                raise DataError(
                    f"{self.name}: {part} {what} hold NaN or infinity, first in row {row}"
                )
        if self.classes is None or not len(data):
            return
        y = data.y
        if y.is_floating_point():
            raise DataError(f"{self.name}: {self.kind} needs integer targets, not {y.dtype}")
        y = y[y != NO_LABEL] if self.kind == "segmentation" else y
        if y.numel() and not 0 <= int(y.min()) <= int(y.max()) < self.classes:
            raise DataError(
                f"{self.name}: {part} labels run from {int(y.min())} to {int(y.max())}, "
                f"but must lie in 0..{self.classes - 1}"
            )


@dataclass(frozen=True, eq=False)
class SiteData:
    """What one site holds. Parts that are not given are empty."""

    train: Dataset
    validation: Dataset = field(default=None)  # type: ignore[assignment]
    test: Dataset = field(default=None)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for part in ("validation", "test"):
            if getattr(self, part) is None:
                object.__setattr__(self, part, self.train.subset(slice(0, 0)).plain())


class FederatedData:
    """All sites, made one by one when asked for, and what the coordinator holds (`public`)."""

    def __init__(
        self,
        n: int,
        make_site: Callable[[int], SiteData],
        *,
        kind: Kind,
        classes: int | None,
        input_shape: tuple[int, ...],
        class_names: Sequence[str] = (),
        public: Mapping[str, Dataset] | None = None,
        sizes: Callable[[np.ndarray], np.ndarray] | None = None,
        site_name: Callable[[int], str] = "site {}".format,
        site_types: np.ndarray | None = None,
        vocabulary: int | None = None,
        words: Sequence[str] = (),
        padding: int | None = None,
        uncounted: Sequence[int] = (),
        name: str = "data",
    ) -> None:
        self._n, self._make_site, self._sizes, self._site_name = n, make_site, sizes, site_name
        self.kind, self.classes, self.input_shape = kind, classes, tuple(input_shape)
        self.class_names, self.vocabulary, self.name = tuple(class_names), vocabulary, name
        self.words, self.padding, self.uncounted = tuple(words), padding, tuple(uncounted)
        self.public: dict[str, Dataset] = dict(public or {})
        self.site_types = site_types  # true distribution of each site where it is known (PFA)

    def __len__(self) -> int:
        return self._n

    def site(self, i: int) -> SiteData:
        """Data of site i, made now; keep it if you need it again."""
        return self._make_site(self._checked(i))

    def site_name(self, i: int) -> str:
        """What people call site i: its writer, domain, type, or just its number."""
        return self._site_name(self._checked(i))

    def sizes(self, sites: Sequence[int] | np.ndarray | None = None) -> np.ndarray:
        """Training samples at each of `sites` (default: all); makes no site if it need not."""
        index = np.arange(self._n) if sites is None else np.asarray(sites, np.int64)
        if self._sizes is not None:
            return self._sizes(index)
        return np.array([len(self.site(int(i)).train) for i in index], np.int64)

    @property
    def knows_sizes(self) -> bool:
        """Whether `sizes` is cheap, that is, makes no site."""
        return self._sizes is not None

    @property
    def token_facts(self) -> dict[str, Any]:
        """What tokens mean, as keyword arguments for another federation of the same task."""
        return {key: getattr(self, key) for key in _TOKENS}

    @property
    def facts(self) -> dict[str, Any]:
        """All that is said of the task, and public data: the same for another federation."""
        return {key: getattr(self, key) for key in (*_FACTS, "public")}

    def _checked(self, i: int) -> int:
        if not 0 <= i < self._n:
            raise DataError(f"site {i} does not exist: there are {self._n}, counted from 0")
        return i

    @classmethod
    def lazy(
        cls,
        n: int,
        make_site: Callable[[int], SiteData],
        *,
        input_shape: tuple[int, ...],
        classes: int | None,
        kind: Kind | None = None,
        **facts: Any,
    ) -> FederatedData:
        """n sites made by a function of the site's number; the same number must give the same data.

        Without `kind` it is regression if there are no classes, else classification. `facts` are
        the other keyword arguments of the class.
        """
        kind = kind or ("regression" if classes is None else "classification")
        return cls(n, make_site, kind=kind, classes=classes, input_shape=input_shape, **facts)

    @classmethod
    def from_arrays(cls, sites: Sequence[SiteData], **facts: Any) -> FederatedData:
        """Sites composed by hand. Kind, classes and input shape are read off if not given."""
        if not sites:
            raise DataError("a federation needs at least one site")
        sites = list(sites)
        parts = [d for s in sites for d in (s.train, s.validation, s.test) if len(d)]
        first = parts[0] if parts else sites[0].train
        kind = facts.setdefault("kind", kind_of(first))
        if "classes" not in facts:
            highest = max((_top(d, kind) for d in parts), default=-1)
            facts["classes"] = None if kind == "regression" else highest + 1
        facts.setdefault("input_shape", tuple(first.inputs(slice(0, 1)).shape[1:]))
        lengths = np.array([len(s.train) for s in sites], np.int64)
        return cls(len(sites), sites.__getitem__, sizes=lengths.__getitem__, **facts)


def pool(data: FederatedData) -> FederatedData:
    """The centralised twin: one site that holds what all sites of `data` hold, in their order."""
    sites = [data.site(i) for i in range(len(data))]

    parts = ("train", "validation", "test")
    site = SiteData(*(joined([getattr(s, part) for s in sites]) for part in parts))
    return FederatedData.from_arrays([site], site_name=lambda _: "pooled", **data.facts)


def kind_of(data: Dataset) -> Kind:
    """The task that types and shapes suggest."""
    if data.y.is_floating_point():
        return "regression"
    if data.y.ndim == 1:
        return "classification"
    return "language" if data.x.dtype == torch.int64 else "segmentation"


def _top(data: Dataset, kind: Kind) -> int:
    """Highest label in use."""
    y = data.y[data.y != NO_LABEL] if kind == "segmentation" else data.y
    return int(y.max()) if y.numel() else -1
