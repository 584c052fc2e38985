"""DP-SGD (Abadi et al. 2016) in a training loop of one's own: `make_private`.

The loop stays as it is. The loader draws Poisson samples; the model hands its input on; the loss,
any of torch with a `reduction`, is taken for each sample; `backward` computes clipped per-sample
gradients by book-keeping (`persample`), adds noise to their sum and leaves the noised mean in
`.grad`; the optimizer steps from it as ever. Nothing else may write a gradient: the optimizer
refuses it. Every `backward` needs a batch of its own from the loader and is charged before noise is
drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from cupola.errors import PlanError
from cupola.privacy import accounting
from cupola.privacy.dp_sgd_budget import noise_multiplier as least_noise
from cupola.privacy.events import SampledGaussian, check_number
from cupola.privacy.noise import Source, source
from cupola.privacy.persample.clipping import PerSample, noised_mean
from cupola.privacy.persample.trial import remembers, unsupported
from cupola.privacy.poisson_loader import PrivateLoader, Samples, require_rows
from cupola.privacy.private_model import WAY_OUT, PrivateModel, kind_of
from cupola.privacy.secret_draws import secret_draws


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    *,
    epsilon: float | None = None,
    epochs: int | None = None,
    delta: float = 1e-5,
    noise_multiplier: float | None = None,
    clip: float = 1.0,
    steps: int = 0,
    seed: int | None = None,
) -> Private:
    """Model, optimizer and loader of a plain loop, private: `model, optimizer, loader = ...`.

    epsilon: target at `delta` after `epochs` over the loader, from which the noise is found; more
    steps than that are refused. Or noise_multiplier itself. clip: L2 norm of one sample's gradient.
    steps: that were done before, by a loop that goes on from its checkpoint (`private.steps`).
    seed: noise and samples that can be repeated, for experiments: its epsilon is not valid for a
    release. Without it they come from the operating system, and so does what random layers, the
    data set and its loader draw: masks and augmentations must be secret for the clip to hold.

    One sample more or less (add-remove) is hidden from everybody who sees the gradients, so the
    model at every step. Losses that a loop prints are not noised.

    >>> x, y = torch.randn(600, 8), torch.arange(600) % 2
    >>> loader = DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=50)
    >>> model = nn.Linear(8, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    >>> private = make_private(model, optimizer, loader, epsilon=3.0, epochs=2)
    >>> model, optimizer, loader = private
    >>> for epoch in range(2):
    ...     for x, y in loader:
    ...         optimizer.zero_grad()
    ...         loss = nn.functional.cross_entropy(model(x), y)
    ...         loss.backward()
    ...         optimizer.step()
    >>> private.steps, round(private.epsilon(delta=1e-5), 1)
    (24, 3.0)
    """
    _require(model, optimizer, loader)
    clip = check_number("clip", clip, above=0)
    n, size = len(loader.dataset), loader.batch_size  # type: ignore[arg-type]
    rate = min(1.0, size / n)  # type: ignore[operator]
    each = math.ceil(n / size)  # type: ignore[operator]
    most = None
    if (epsilon is None) == (noise_multiplier is None):
        raise PlanError("give either epsilon (and epochs), or noise_multiplier")
    if noise_multiplier is None:
        if epochs is None or check_number("epochs", epochs, above=0) != int(epochs):
            raise PlanError(
                f"epochs = {epochs}: epsilon is kept for so many whole epochs; say how many"
            )
        most = int(epochs) * each
        target = check_number("epsilon", epsilon, above=0)
        noise = least_noise(epsilon=target, rate=rate, steps=most, delta=delta)
    else:
        noise = check_number("noise_multiplier", noise_multiplier, least=0)
    for name, whole in {"steps": steps, "seed": 0 if seed is None else seed}.items():
        if check_number(name, whole, least=0) != int(whole):
            raise PlanError(f"{name} = {whole}: a whole number is needed")
    check_number("delta", delta, above=0, below=1)
    samples = Samples(n, rate, each, source(seed, "privacy batches", steps))
    random = source(seed, "privacy noise", steps)
    spent = _Spent(rate, noise, clip, rate * n, random, most, delta, steps)
    return Private(model, optimizer, loader, samples, spent, simulated=seed is not None)


def _require(model: Any, optimizer: Any, loader: Any) -> None:
    """Refuse what would not be private, by what was passed."""
    if not isinstance(model, nn.Module):
        raise PlanError(f"model is {kind_of(model)}; pass a torch.nn.Module")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise PlanError(f"optimizer is {kind_of(optimizer)}; pass one of torch.optim")
    if not isinstance(loader, DataLoader):
        raise PlanError(f"loader is {kind_of(loader)}; pass a torch.utils.data.DataLoader")
    require_rows(loader)
    reason = unsupported(model) if model.training else _in_training(model, unsupported)
    if reason is not None:
        raise PlanError(f"model has no per-sample gradients: {reason}")
    own = {id(p) for p in model.parameters()}
    if any(id(p) not in own for group in optimizer.param_groups for p in group["params"]):
        raise PlanError(
            "optimizer steps parameters that are not the model's: their gradients would not be "
            "private"
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise PlanError("model has no trainable parameters")


def _in_training(model: nn.Module, look: Callable[[nn.Module], str | None]) -> str | None:
    """What is seen of a model in training mode, which it then leaves again, part by part."""
    modes = [(part, part.training) for part in model.modules()]
    try:
        return look(model.train())
    finally:
        for part, mode in modes:
            part.training = mode


@dataclass
class _Spent:
    """What steps do, how often they were done, and how often they may be."""

    rate: float
    noise: float
    clip: float
    expected: float
    random: Source
    most: int | None
    delta: float
    steps: int

    def charge(self) -> None:
        if self.most is not None and self.steps >= self.most:
            raise PlanError(
                f"{self.most} steps keep the epsilon that was asked for, and they are done; for "
                "more, give make_private more epochs"
            )
        self.steps += 1


#: Optimizers of private loops: their hook knows one loop's gradients.
_PRIVATE: WeakSet[torch.optim.Optimizer] = WeakSet()


class Private:
    """A loop's private model, optimizer and loader, and what their steps have spent.

    simulated: noise and samples come from a seed, so that no epsilon is valid for a release.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: DataLoader[Any],
        samples: Samples,
        spent: _Spent,
        simulated: bool,
    ) -> None:
        self._module, self._spent, self.simulated = model, spent, simulated
        self._engines: list[tuple[tuple[Any, ...], PerSample]] = []
        self._written: dict[int, tuple[Tensor, int]] = {}
        self._shapes: set[tuple[Any, ...]] = set()  # of inputs that the model was tried on
        if optimizer in _PRIVATE:
            raise PlanError(
                "optimizer is that of a private loop already, and a new one would forget what that "
                "has spent: give make_private all epochs, or a new optimizer and `steps`"
            )
        _PRIVATE.add(optimizer)
        self.optimizer = optimizer
        self.loader = PrivateLoader(loader, samples)
        self.model = PrivateModel(model, self)
        optimizer.register_step_pre_hook(self._only_noised)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.optimizer, self.loader))

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise on a sum of gradients, over the clip."""
        return self._spent.noise

    @property
    def steps(self) -> int:
        """Noised gradients so far."""
        return self._spent.steps

    def epsilon(self, delta: float | None = None) -> float:
        """What these steps have spent, for one sample more or less; delta: as it was asked for."""
        spent = self._spent
        done = SampledGaussian(spent.rate, spent.noise, spent.steps)
        return accounting.epsilon([done], spent.delta if delta is None else delta)

    def backward(self, x: Tensor, y: Any, loss: Callable[..., Tensor]) -> Tensor:
        """The noised mean of clipped gradients, added to `.grad`; the losses, (n,), which are not
        noised. loss: (outputs, y) -> one value per sample."""
        engine = self._engine((loss,), loss)
        return self._backward(engine, x, y)

    def _engine(self, key: tuple[Any, ...], loss: Callable[..., Tensor]) -> PerSample:
        """Made once for each loss that a loop uses."""
        for known, engine in self._engines:
            if len(known) == len(key) and all(_same(a, b) for a, b in zip(known, key)):
                return engine
        engine = PerSample(self._module, loss)
        self._engines = [(key, engine), *self._engines[:3]]
        return engine

    def _backward(self, engine: PerSample, x: Tensor, y: Tensor) -> Tensor:
        if not isinstance(x, Tensor) or not isinstance(y, Tensor) or len(x) != len(y):
            raise PlanError("a loss of samples needs inputs and targets, tensors of one length")
        self._require_forgetful(x)
        self.loader.use(len(x))
        spent = self._spent
        spent.charge()
        with nullcontext() if self.simulated else secret_draws():
            made = engine.clipped_sum(x, y, spent.clip, expected=spent.expected)
        trained = [p for p in self._module.parameters() if p.requires_grad]
        flat = torch.cat([total.reshape(-1) for total in made.sums]).cpu().numpy()
        noised = torch.from_numpy(
            noised_mean(flat, spent.clip, spent.noise, spent.expected, spent.random)
        )
        for p, part in zip(trained, noised.split([p.numel() for p in trained])):
            added = part.view(p.shape).to(p.device, p.dtype)
            self._only_noised_of(p)
            p.grad = added if p.grad is None else p.grad + added
            self._written[id(p)] = p.grad, p.grad._version
        return made.losses.detach()

    def _require_forgetful(self, x: Tensor) -> None:
        shape = (x.shape[1:], x.dtype)
        buffer = None if shape in self._shapes else remembers(self._module, x)
        if buffer is not None:
            raise PlanError(
                f"the model's buffer '{buffer}' changes with the samples that it sees, and no "
                "noise protects it; leave it out, or compute it on public data"
            )
        self._shapes.add(shape)

    def _only_noised(self, optimizer: Any, args: tuple[Any, ...], more: Mapping[str, Any]) -> None:
        """Before the optimizer steps: no gradient that somebody else has made or changed."""
        if any(one is not None for one in (*args[1:], *more.values())):  # args: the optimizer, ...
            raise PlanError(
                "optimizer.step(closure) would compute gradients of its own, which are not noised; "
                "take an optimizer that steps from .grad"
            )
        for group in optimizer.param_groups:
            for p in group["params"]:
                self._only_noised_of(p)

    def _only_noised_of(self, p: Tensor) -> None:
        if p.grad is None:
            return
        written, version = self._written.get(id(p), (None, 0))
        if p.grad is written and (p.grad._version == version or not bool(p.grad.any())):
            return
        if not bool(p.grad.any()):  # zero_grad(set_to_none=False)
            return
        raise PlanError(
            "a gradient is not the one that `backward` has noised: something else wrote to .grad "
            "(another loss, a gradient computed without the private model, or clipping after "
            f"noise); {WAY_OUT}"
        )


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and not isinstance(a, Tensor) and bool(a == b))
