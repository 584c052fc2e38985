"""Who holds what: ways to cut a data set into sites, as values that a plan can hold.

Each way gives every training row an owner (or none), so no row is ever at two sites. All draws come
from the seed. More sites than rows leave some sites empty; what cannot be done is refused by field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from cupola.base.randomness import generator
from cupola.data.assignment import (
    Assignment,
    Cut,
    apportion,
    check_enough,
    class_number,
    deal,
    evenly,
    hand_out,
    lognormal_sizes,
    rank_at_owner,
    restricted,
    shuffle,
    site_sizes,
    unequal,
)
from cupola.data.dataset import Dataset, FederatedData, Source
from cupola.data.lazy import Owners, by_owner
from cupola.errors import DataError

Share = Annotated[float, Field(ge=0, lt=1)]
Ratio = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Class = NonNegativeInt | str


class Common(BaseModel):
    """What every partition can say.

    validation, test: share of each site's rows it holds out. Without `test`, a natural partition
        keeps the rows the data set itself reserves at their owner.
    public_validation: share of the public test set that becomes the public validation set.
    max_samples: a site keeps at most this many rows, to be split into its parts; test rows that
        the data set or the partition fixes are not counted.
    only: classes (numbers or names) that are kept, also in public data; they become 0, 1, ... in
        this order. Default: all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    validation: Share = 0.0
    test: Share | None = None
    public_validation: Share = 0.0
    max_samples: PositiveInt | None = None
    only: Annotated[tuple[Class, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _leaves_something(self) -> Common:
        if self.validation + (self.test or 0) >= 1:
            raise ValueError("validation + test must be below 1, or nothing is left to train on")
        return self

    def cut(self, source: Source, free: np.ndarray, rng: np.random.Generator) -> Cut:
        """Give the rows `free` (int64 indices of training rows) to sites."""
        raise NotImplementedError


class IID(Common):
    """Every site gets a random sample of the whole, without replacement.

    samples_per_site: rows of each site, one number or one for each; default: all rows, evenly.
    """

    kind: Literal["iid"] = "iid"
    sites: PositiveInt = 10
    samples_per_site: PositiveInt | tuple[NonNegativeInt, ...] | None = None

    def cut(self, source: Source, free: np.ndarray, rng: np.random.Generator) -> Cut:
        sizes = site_sizes(self.sites, self.samples_per_site, len(free))
        return Cut(shuffle(len(source.train), free, sizes, rng), self.sites)


class Dirichlet(Common):
    """Label skew with fixed site sizes (Hsu et al. 2019): a site draws its class shares from
    Dirichlet(alpha) and samples without replacement; used-up classes are renormalised away."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: Ratio
    sites: PositiveInt = 10
    samples_per_site: PositiveInt | tuple[NonNegativeInt, ...] | None = None

    def cut(self, source: Source, free: np.ndarray, rng: np.random.Generator) -> Cut:
        labels = _labels(source, self.kind)[free]
        sizes = site_sizes(self.sites, self.samples_per_site, len(free))
        left = np.bincount(labels, minlength=source.classes or 0)
        counts = np.zeros((self.sites, len(left)), np.int64)
        for site in np.flatnonzero(sizes):
            shares, need = rng.dirichlet(np.full(len(left), self.alpha)), int(sizes[site])
            while need:
                weights = np.where(left > 0, shares, 0.0)
                # With a tiny alpha no share may be left on what is left: then take what there is.
                weights = weights if weights.sum() > 1e-12 else left.astype(float)
                taken = np.minimum(rng.multinomial(need, weights / weights.sum()), left)
                counts[site] += taken
                left = left - taken
                need -= int(taken.sum())
        return Cut(deal(len(source.train), free, labels, counts, rng), self.sites)


class Classes(Common):
    """k classes at every site: classes are handed out so that each is at as many sites as any
    other (give or take one), and all sites are equal in size; what does not divide is left out.

    sigma: site sizes are lognormal with this deviation instead; samples_per_site is their mean.
    """

    kind: Literal["classes"] = "classes"
    k: PositiveInt
    sites: PositiveInt = 10
    samples_per_site: PositiveInt | None = None
    sigma: Ratio | None = None

    def cut(self, source: Source, free: np.ndarray, rng: np.random.Generator) -> Cut:
        labels = _labels(source, self.kind)[free]
        available = np.bincount(labels, minlength=source.classes or 0)
        _check_k(self.k, source)
        holds = hand_out(self.sites, len(available), self.k, rng)
        used = holds.sum(0)
        if (used > available).any() and self.samples_per_site is None:
            # fewer rows than places: the first takers get one each
            counts = holds * (holds.cumsum(0) <= available)
        elif self.sigma is not None:
            counts = unequal(holds, available, self.sigma, self.samples_per_site, rng)
        elif self.samples_per_site is None:
            counts = holds * int((available[used > 0] // used[used > 0]).min())
        else:
            counts = holds * (self.samples_per_site // self.k)
            for site in range(self.sites):
                extra = rng.permutation(np.flatnonzero(holds[site]))
                counts[site, extra[: self.samples_per_site % self.k]] += 1
        if self.samples_per_site is not None:
            check_enough(counts, available, "samples_per_site", self.samples_per_site)
        return Cut(deal(len(source.train), free, labels, counts, rng), self.sites)


class Quantity(Common):
    """Sites that differ only in size: by `ratios` (one per site, e.g. [45, 9, 1]), or lognormal
    with deviation `sigma` (every site keeps at least one row if there are enough)."""

    kind: Literal["quantity"] = "quantity"
    sites: PositiveInt | None = None
    ratios: tuple[Ratio, ...] | None = None
    sigma: Ratio | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Quantity:
        if (self.ratios is None) == (self.sigma is None):
            raise ValueError("give either ratios or sigma")
        return self

    def cut(self, source: Source, free: np.ndarray, rng: np.random.Generator) -> Cut:
        if self.ratios is not None:
            sites = self.sites or len(self.ratios)
            if sites != len(self.ratios):
                raise DataError(f"partition: {len(self.ratios)} ratios for sites = {sites}")
            sizes = apportion(np.array(self.ratios), len(free))
        else:
            sites = self.sites or 10
            sizes = lognormal_sizes(sites, self.sigma or 0.0, len(free), rng)
        return Cut(shuffle(len(source.train), free, sizes, rng), sites)


class Natural(Common):
    """One site for each owner in the data (writer, user, domain).

    min_samples: owners with fewer training rows are left out. max_sites: so many of the owners,
    drawn at random. merge: these owners are dealt at random to so many sites; sigma: how unevenly
    (lognormal; default: evenly). k: a site keeps the rows of k classes, handed out so that each
    class is at as many sites as any other. parts: each owner (or merged site) is cut into so many
    sites of the same distribution.
    """

    kind: Literal["natural"] = "natural"
    max_sites: PositiveInt | None = None
    min_samples: NonNegativeInt = 1
    merge: PositiveInt | None = None
    sigma: Ratio | None = None
    k: PositiveInt | None = None
    parts: PositiveInt = 1

    @model_validator(mode="after")
    def _sigma_of_merged(self) -> Natural:
        if self.sigma is not None and self.merge is None:
            raise ValueError("sigma says how unevenly owners are merged; give merge, too")
        return self

    def cut(self, source: Source, free: np.ndarray, rng: np.random.Generator) -> Cut:  # noqa: ARG002
        if source.groups is None:
            raise DataError(
                f"partition: kind = 'natural', but {source.name} does not say who owns a row"
            )
        groups = source.groups
        held = None if self.test is not None else source.local_test
        training = np.ones(len(groups), bool) if held is None else ~held
        counts = np.bincount(groups[training], minlength=int(groups.max(initial=-1)) + 1)
        kept = np.flatnonzero(counts >= self.min_samples)
        if not len(kept):
            raise DataError(f"partition: min_samples = {self.min_samples} leaves no owner")
        if self.max_sites is not None and self.max_sites < len(kept):
            kept = np.sort(rng.choice(kept, self.max_sites, replace=False))
        known = source.group_names or tuple(str(g) for g in range(len(counts)))
        names = [known[g] for g in kept]
        site_of = np.full(len(counts), -1, np.int64)
        site_of[kept] = np.arange(len(kept))
        types = kept
        if self.merge is not None:
            site_of[kept], names = self._merged(names, rng)
            types = np.arange(self.merge)
        owner = site_of[groups]
        if self.k is not None:
            labels = _labels(source, self.kind)
            _check_k(self.k, source)
            holds = hand_out(len(names), source.classes or 0, self.k, rng)
            owner = np.where((owner >= 0) & (holds[owner, labels] > 0), owner, -1)
        if self.parts > 1:
            rank = rank_at_owner(owner, training, rng)
            owner = np.where(owner < 0, -1, owner * self.parts + rank % self.parts)
            names = [f"{name} {p + 1}" for name in names for p in range(self.parts)]
            types = np.repeat(types, self.parts)
        return Cut(owner, len(names), held, tuple(names), types if self.parts > 1 else None)

    def _merged(self, owners: list[str], rng: np.random.Generator) -> tuple[np.ndarray, list[str]]:
        """Site of each owner, and the sites' names."""
        sites = self.merge or 1
        if sites > len(owners):
            raise DataError(f"partition: merge = {sites}, but there are {len(owners)} owners")
        if self.sigma is None:
            sizes = site_sizes(sites, None, len(owners))
        else:
            sizes = lognormal_sizes(sites, self.sigma, len(owners), rng)
        site = rng.permutation(np.repeat(np.arange(sites), sizes))
        first = {int(s): name for s, name in reversed(list(zip(site, owners)))}
        return site, [
            first[s] + (f" and {n - 1} more" if n > 1 else "") for s, n in enumerate(sizes)
        ]


class Types(Common):
    """Groups of sites that share a distribution (PFA): each type is a set of classes (numbers or
    names), with `sites_per_type` sites that draw the same number of rows from each class.

    samples_per_site, test_per_site: training and test rows of a site, both from the training rows.
    """

    kind: Literal["types"] = "types"
    types: Annotated[tuple[tuple[Class, ...], ...], Field(min_length=1)]
    sites_per_type: PositiveInt = 5
    samples_per_site: PositiveInt = 100
    test_per_site: NonNegativeInt = 100

    def cut(self, source: Source, free: np.ndarray, rng: np.random.Generator) -> Cut:
        if self.test is not None:
            raise DataError("partition: a partition by types takes test_per_site, not test")
        labels = _labels(source, self.kind)[free]
        available = np.bincount(labels, minlength=source.classes or 0)
        sites = len(self.types) * self.sites_per_type
        train = np.zeros((sites, len(available)), np.int64)
        test = np.zeros_like(train)
        for t, members in enumerate(self.types):
            chosen = np.array([class_number(source, c, "types") for c in members], np.int64)
            if not len(chosen) or len(set(chosen)) < len(chosen):
                raise DataError(f"partition: types[{t}] must name different classes, at least one")
            for site in range(t * self.sites_per_type, (t + 1) * self.sites_per_type):
                train[site, chosen] = evenly(self.samples_per_site, len(chosen), rng)
                test[site, chosen] = evenly(self.test_per_site, len(chosen), rng)
        check_enough(
            train + test,
            available,
            "samples_per_site + test_per_site",
            self.samples_per_site + self.test_per_site,
        )
        owner = deal(len(source.train), free, labels, np.concatenate([train, test]), rng)
        held = owner >= sites
        types = np.repeat(np.arange(len(self.types)), self.sites_per_type)
        names = tuple(f"type {t}, site {i}" for i, t in enumerate(types))
        return Cut(np.where(held, owner - sites, owner), sites, held, names, types)


class Pooled(Common):
    """One site with everything: centralised training."""

    kind: Literal["pooled"] = "pooled"

    def cut(self, source: Source, free: np.ndarray, rng: np.random.Generator) -> Cut:
        return Cut(
            shuffle(len(source.train), free, np.array([len(free)]), rng), 1, names=("pooled",)
        )


Partition = Annotated[
    IID | Dirichlet | Classes | Quantity | Natural | Types | Pooled, Field(discriminator="kind")
]
_ADAPTER: TypeAdapter[Any] = TypeAdapter(Partition)


def partition(
    source: Source | Owners, spec: Common | Mapping[str, Any] | str, seed: int
) -> FederatedData:
    """Cut a data set into sites. `spec` is one of the partitions, its mapping, or just its kind."""
    spec = _parsed(spec)
    if isinstance(source, Owners):
        return by_owner(source, spec, seed)
    if spec.only is not None:
        source = restricted(source, spec.only)
    rows = len(source.train)
    # Rows a data set reserves at their owner mean nothing once owners are dissolved: they are
    # the public test set if there is no other, and not trained on.
    dissolved = source.local_test if spec.kind != "natural" else None  # type: ignore[attr-defined]
    free = np.arange(rows) if dissolved is None else np.flatnonzero(~dissolved)
    cut = spec.cut(source, free, generator(seed, "partition"))
    owner = cut.owner
    if spec.max_samples is not None:
        counted = np.ones(rows, bool) if cut.held is None else ~cut.held
        rank = rank_at_owner(owner, counted, generator(seed, "partition/max_samples"))
        owner = np.where(counted & (rank >= spec.max_samples), -1, owner)
    made = Assignment(
        source.train, owner, cut.sites, cut.held, spec.test or 0.0, spec.validation, seed
    )
    names = cut.names
    return FederatedData(
        cut.sites,
        made.site,
        public=_public(source, spec, dissolved, seed),
        sizes=made.sizes,
        site_name=names.__getitem__ if names else "site {}".format,
        site_types=cut.types,
        **source.facts,
    )


def _public(
    source: Source, spec: Common, dissolved: np.ndarray | None, seed: int
) -> dict[str, Dataset]:
    test, validation = source.test, source.validation
    if test is None and dissolved is not None:
        test = source.train.subset(np.flatnonzero(dissolved)).plain()
    if spec.public_validation:
        if test is None:
            raise DataError(
                f"partition: public_validation = {spec.public_validation}, "
                f"but {source.name} has no public test set to take it from"
            )
        mixed = generator(seed, "partition/public").permutation(len(test))
        n = round(len(test) * spec.public_validation)
        validation, test = test.subset(np.sort(mixed[:n])), test.subset(np.sort(mixed[n:]))
    named = {"test": test, "validation": validation}
    return {key: value for key, value in named.items() if value is not None}


def _parsed(spec: Common | Mapping[str, Any] | str) -> Common:
    if isinstance(spec, Common):
        return spec
    try:
        return _ADAPTER.validate_python({"kind": spec} if isinstance(spec, str) else dict(spec))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(p) for p in first["loc"][1:]) or "kind"
        raise DataError(f"partition: {where}: {first['msg']}") from None


def _labels(source: Source, kind: str) -> np.ndarray:
    if source.kind != "classification":
        raise DataError(
            f"partition: kind = {kind!r} needs classes, but {source.name} is {source.kind}"
        )
    return source.train.y.numpy()


def _check_k(k: int, source: Source) -> None:
    if k > (source.classes or 0):
        raise DataError(f"partition: k = {k}, but {source.name} has {source.classes} classes")
