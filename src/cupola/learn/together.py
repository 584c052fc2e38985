"""The task 'train' for many sites in one computation, and the choice between its forms.

common:    one gradient at the common model (FedFGD, FedSMB): all sites' samples share its weights.
implicit:  dense networks and few samples a site: local models are never made (see `dense`).
compiled:  plain SGD on logistic regression, where numba is installed (see `compiled`).
explicit:  dense networks: hand-written gradients over a stack of models.
stacked:   any network that vmap can take: a stack of models, gradients traced once.
Each gives what training one by one gives, to rounding. Sites are sorted by their number of steps,
so that a stack shrinks as sites finish instead of computing masked steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from cupola.data import Dataset
from cupola.federation import Arrays, Partial, Question, SiteContext
from cupola.federation.inprocess import one_core_each
from cupola.learn.batches import Work, share_out
from cupola.learn.choices import Local, Privacy
from cupola.learn.local import accumulation_coefficients, kept_after
from cupola.learn.optimizers import effective_steps
from cupola.learn.private import privacy_of
from cupola.learn.workspace import Workspace, workspace_of

SMALL_MODEL = 500_000  # parameters up to which stacking beats one by one
CACHE_BYTES = 10 << 20  # a stack of models should stay in the processor's cache
CHUNKS_A_SUM = 4  # chunks whose sums one worker adds up before handing them over
KEPT_BYTES = 512 << 20  # samples are kept from round to round up to this size
GATHER_BYTES = 64 << 20  # batches of a whole round are laid out at once up to this size
COMPILED_SITES = 10  # sites in one call of the compiled form: a millisecond or two
IMPLICIT_SITES = 64  # sites in one step of the implicit form
IMPLICIT_SAMPLES = 64  # local samples up to which the implicit form is considered


@dataclass
class Cohort:
    """Sites that train together, most steps first, with all their batches as rectangles.

    x, y: all samples. index (steps, sites, batch): places in x; share (steps, sites, batch):
    1 / size of the batch, 0 where a batch is padded. active[t]: how many sites make step t.
    weight: of each site's answer. coefficient (sites, steps): of each gradient in an
    accumulated answer. halves: a half or minus a half for every update below or above the clip,
    written by the form that clips.
    """

    x: Tensor
    y: Tensor
    index: Tensor
    share: Tensor
    active: list[int]
    steps: list[int]
    weight: np.ndarray
    coefficient: np.ndarray
    lr: float
    local: Local
    sites: list[SiteContext] = field(default_factory=list)
    question: Question = field(default_factory=lambda: Question("train"))
    privacy: Privacy = field(default_factory=Privacy)
    halves: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.steps)

    def part(self, start: int, stop: int) -> Cohort:
        """Some of the sites; they stay sorted."""
        steps = self.steps[start:stop]
        return replace(
            self,
            index=self.index[: steps[0], start:stop],
            share=self.share[: steps[0], start:stop],
            active=[min(a, stop) - start for a in self.active[: steps[0]]],
            steps=steps,
            weight=self.weight[start:stop],
            coefficient=self.coefficient[start:stop, : steps[0]],
            sites=self.sites[start:stop],
            halves=[],
        )

    def batches(self, active: Sequence[int]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Inputs, targets and shares of every step, for its first `active` sites."""
        size = self.x[0].numel() * self.x.element_size() * self.index.numel()
        if size > GATHER_BYTES:
            for t, rows in enumerate(active):
                place = self.index[t, :rows]
                yield self.x[place], self.y[place], self.share[t, :rows]
            return
        place = self.index.reshape(-1)
        x = self.x.index_select(0, place).view(*self.index.shape, *self.x.shape[1:])
        y = self.y.index_select(0, place).view(*self.index.shape, *self.y.shape[1:])
        steps, width = zip(x.unbind(), y.unbind(), self.share.unbind()), len(self)
        for rows, batch in zip(active, steps):
            yield batch if rows == width else (batch[0][:rows], batch[1][:rows], batch[2][:rows])

    def effective(self) -> np.ndarray:
        """FedNova's effective number of steps of each site."""
        return np.array([effective_steps(self.local, s, self.lr) for s in self.steps])


Form = Callable[[Workspace, Cohort], list[Tensor]]


def train_many(sites: Sequence[SiteContext], question: Question) -> list[Partial] | None:
    """Sums over these sites, or None where one by one is the way."""
    from cupola.learn import compiled

    local = Local.model_validate(question.options["local"])
    space, mode = workspace_of(sites[0]), sites[0].mode
    privacy = privacy_of(question)
    if local.control_variates or not space.independent:
        return None
    if privacy.mechanism in ("output", "objective") or privacy.augmentations > 1:
        return None
    if any(site.data.train.transform is not None for site in sites):
        return None
    held = next((site.data.train for site in sites if len(site.data.train)), None)
    if held is None or not space.loss_is_per_sample(held):
        return None
    work = share_out(sites, question, local)
    form = _choose(space, local, work, mode, privacy)
    if form is None:
        return None
    failed = {s.index: w.declined for s, w in zip(sites, work) if w.declined is not None}
    able = [i for i, w in enumerate(work) if w.declined is None]
    for i in able:
        if kept := kept_after(sites[i], question, local, work[i]):
            sites[i].keep(question, kept)
    if not able:
        return [Partial({}, 0.0, [], failed, {})]
    space.load(question.arrays)
    able.sort(key=lambda i: -work[i].steps)
    lr = question.options["lr"]
    size = _chunk_size(space, form, len(able))
    # How sites are grouped must not depend on the number of workers: it orders the sums.
    width = size if form is compiled.compiled else size * CHUNKS_A_SUM
    numbers = [sites[i].index for i in able]

    @torch.no_grad()
    def compute(start: int) -> Partial:
        stop = min(start + width, len(cohort))
        parts = [cohort.part(i, min(i + size, stop)) for i in range(start, stop, size)]
        sums = [s.double() for s in form(space, parts[0])]
        for part in parts[1:]:
            for total, more in zip(sums, form(space, part)):
                total.add_(more)
        halves = sum(sum(part.halves) for part in parts)
        return _partial(space, cohort.part(start, stop), sums, numbers[start:stop], halves)

    with one_core_each():
        cohort = gather(space, [sites[i] for i in able], [work[i] for i in able], local, lr)
        cohort.question, cohort.privacy = question, privacy
        starts = range(0, len(able), width)
        partials = _side_by_side(compute, starts, sites[0].workers)
    partials[0].failed = failed
    return partials


def _choose(
    space: Workspace, local: Local, work: Sequence[Work], mode: str, privacy: Privacy
) -> Form | None:
    from cupola.learn import compiled, dense, private_linear, stacked

    if privacy.mechanism == "dp-sgd":
        possible = private_linear.possible(space) and mode in ("auto", "together", "explicit")
        return private_linear.private_linear if possible else None
    if privacy.by_coordinator:  # updates are clipped one by one: they must be there
        return _clippable(space, local, mode)
    longest = max((w.steps for w in work), default=0)
    if local.send == "gradients" and longest <= 1:
        return common if mode in ("auto", "together") else None
    if local.work == "gradient":
        return None
    visited = max((w.used for w in work), default=0) * (
        local.epochs if local.work == "epochs" else 1
    )
    layers = dense.layers_of(space)
    if mode in ("auto", "together", "compiled") and compiled.possible(space, local):
        return compiled.compiled
    if mode == "auto" and space.flat.numel() > SMALL_MODEL and layers is None:
        return None
    if layers is not None and mode in ("auto", "together"):
        wide = min(layer.in_features for layer in layers[:1])
        few = visited <= min(IMPLICIT_SAMPLES, wide // 4) and local.optimizer == "sgd"
        return dense.implicit if few else dense.explicit
    if mode in ("implicit", "explicit"):
        possible = layers is not None and (mode == "explicit" or local.optimizer == "sgd")
        return getattr(dense, mode) if possible else None
    if space.properties.stackable and (mode in ("stacked", "together") or space.is_dense_only):
        return stacked.stacked
    return None


def _clippable(space: Workspace, local: Local, mode: str) -> Form | None:
    """A form that holds every site's update."""
    from cupola.learn import dense, stacked

    if local.work == "gradient" or (mode == "auto" and space.flat.numel() > SMALL_MODEL):
        return None
    if dense.layers_of(space) is not None and mode in ("auto", "together", "explicit"):
        return dense.explicit
    wanted = mode in ("stacked", "together") or (mode == "auto" and space.is_dense_only)
    return stacked.stacked if space.properties.stackable and wanted else None


def _chunk_size(space: Workspace, form: Form, sites: int) -> int:
    from cupola.learn import compiled, dense

    if form is common or form is dense.implicit:
        return IMPLICIT_SITES
    if form is compiled.compiled:
        return COMPILED_SITES
    return max(1, min(sites, CACHE_BYTES // (space.flat.numel() * space.flat.element_size())))


def gather(
    space: Workspace,
    sites: Sequence[SiteContext],
    work: Sequence[Work],
    local: Local,
    lr: float,
) -> Cohort:
    """Lay out the batches of sites (sorted by steps, most first) as rectangles."""
    data = [site.data.train for site in sites]
    x, y, first = _samples(space, data)
    steps = [w.steps for w in work]
    lengths = np.concatenate([w.sizes for w in work])
    places = np.concatenate([w.order for w in work])
    places += np.repeat(first, [len(w.order) for w in work])
    longest, widest = steps[0], max(1, int(lengths.max()))  # private batches may be empty
    made = np.array(steps)
    step = np.arange(len(lengths)) - np.repeat(np.cumsum(made) - made, made)
    rows = np.repeat(np.arange(len(sites)), made) + len(sites) * step
    columns = np.arange(len(places)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    cells = np.repeat(rows, lengths) * widest + columns
    index = np.zeros(len(sites) * longest * widest, np.int64)
    share = np.zeros(len(sites) * longest * widest)
    index[cells] = places
    share[cells] = np.repeat(1 / np.maximum(lengths, 1), lengths)
    shape = (longest, len(sites), widest)
    makes = np.arange(longest) < made[:, None]
    coefficient = makes.astype(float)
    if local.accumulation == "weighted":
        for k, count in enumerate(steps):
            coefficient[k, :count] = accumulation_coefficients(local, count)
    return Cohort(
        x=x,
        y=y,
        index=torch.from_numpy(index.reshape(shape)).to(space.device),
        share=torch.from_numpy(share.reshape(shape)).to(space.device, space.problem.dtype),
        active=makes.sum(0).tolist(),
        steps=steps,
        weight=np.array([w.used if local.weighting == "samples" else 1.0 for w in work], float),
        coefficient=coefficient,
        lr=lr,
        local=local,
        sites=list(sites),
    )


def _samples(space: Workspace, data: Sequence[Dataset]) -> tuple[Tensor, Tensor, list[int]]:
    """Samples, model-ready, that hold those of these sites, and where each site's begin.

    They are kept, so that sites which come again in a later round are not prepared again.
    """
    pool: Pool = space.cache.setdefault("samples", Pool())
    if not all(id(d) in pool.first for d in data):
        new = [d for d in data if id(d) not in pool.first]
        if not pool.add(space, new, KEPT_BYTES):
            pool = space.cache["samples"] = Pool()  # too much to keep: this cohort's alone
            pool.add(space, data, math.inf)
            if pool.bytes > KEPT_BYTES:
                del space.cache["samples"]
    return pool.x, pool.y, [pool.first[id(d)] for d in data]


class Pool:
    """Samples of many sites one after the other. data keeps them alive, so that ids stay theirs."""

    def __init__(self) -> None:
        self.x, self.y = torch.empty(0), torch.empty(0)
        self.data: list[Dataset] = []
        self.first: dict[int, int] = {}

    @property
    def bytes(self) -> int:
        return self.x.numel() * self.x.element_size()

    def add(self, space: Workspace, data: Sequence[Dataset], limit: float) -> bool:
        """Take these in, unless it becomes too much."""
        pairs = [space.batch(d, slice(None)) for d in data]
        more = sum(x.numel() * x.element_size() for x, _ in pairs)
        if self.bytes + more > limit:
            return False
        places = np.cumsum([len(self.x), *(len(x) for x, _ in pairs)])
        kept = [(self.x, self.y)] if self.data else []
        self.x = torch.cat([x for x, _ in (*kept, *pairs)])
        self.y = torch.cat([y for _, y in (*kept, *pairs)])
        self.data += data
        self.first |= {id(d): int(place) for d, place in zip(data, places)}
        return True


def common(space: Workspace, cohort: Cohort) -> list[Tensor]:
    """sum over sites of weight * gradient at the common model, in passes of bounded size."""
    from cupola.learn.local import MICRO_BATCH

    weight = torch.from_numpy(cohort.weight).to(cohort.share)
    each = (cohort.share[0] * weight[:, None]).reshape(-1)
    places = cohort.index[0].reshape(-1)
    kept = each > 0
    each, places = each[kept], places[kept]
    total = [torch.zeros_like(p) for p in space.params]
    for part, scale in zip(places.split(MICRO_BATCH), each.split(MICRO_BATCH)):
        with torch.enable_grad():
            losses = space.problem.loss(space.module(cohort.x[part]), cohort.y[part])
            loss = (losses * scale).sum()
            grads = torch.autograd.grad(loss, space.params, materialize_grads=True)
        torch._foreach_add_(total, list(grads))
    return total


def answer_weights(cohort: Cohort) -> np.ndarray:
    """Each site's weight, divided by its effective steps where changes are normalised."""
    if cohort.local.send == "normalised":
        return cohort.weight / cohort.effective()
    return cohort.weight


def _partial(
    space: Workspace, cohort: Cohort, sums: list[Tensor], sites: list[int], halves: float
) -> Partial:
    arrays = space.named("model", sums)
    sample: Arrays = {f"model/{n}": _blank(p) for n, p in space.pairs()}
    if cohort.local.send == "normalised":
        arrays["steps"] = np.array(float(cohort.weight @ cohort.effective()))
        sample["steps"] = np.zeros(())
    if cohort.privacy.quantile is not None:
        arrays["below"], sample["below"] = np.array(halves), np.zeros(())
    return Partial(arrays, float(cohort.weight.sum()), sites, {}, sample)


def _blank(parameter: Tensor) -> np.ndarray:
    """An array with the layout of a parameter that takes no memory."""
    kind = np.float64 if parameter.dtype == torch.float64 else np.float32
    return np.broadcast_to(kind(0), tuple(parameter.shape))


def _side_by_side(
    compute: Callable[[int], Partial], starts: Sequence[int], workers: int
) -> list[Partial]:
    if workers == 1 or len(starts) == 1:
        return [compute(start) for start in starts]
    if len(starts) <= workers:  # this thread takes a share, too, instead of waiting
        others = [_pool(workers).submit(compute, start) for start in starts[1:]]
        return [compute(starts[0]), *(other.result() for other in others)]
    return list(_pool(workers).map(compute, starts))


@lru_cache(maxsize=4)
def _pool(workers: int) -> ThreadPoolExecutor:
    """Threads kept for the next round: starting them takes as long as a small round."""
    return ThreadPoolExecutor(workers, thread_name_prefix="together")
