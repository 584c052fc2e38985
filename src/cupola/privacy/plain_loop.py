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
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from cupola.errors import PlanError
from cupola.privacy import accounting
from cupola.privacy.dp_sgd_budget import noise_multiplier as least_noise
from cupola.privacy.events import SampledGaussian, check_number
from cupola.privacy.noise import Source, source
from cupola.privacy.persample.clipping import PerSample, noised_mean
from cupola.privacy.persample.trial import unsupported
from cupola.privacy.poisson_loader import PrivateLoader, Samples

#: Losses of torch that can be taken for each sample.
LOSSES = frozenset(
    {
        *(F.cross_entropy, F.nll_loss, F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss),
        *(F.binary_cross_entropy, F.binary_cross_entropy_with_logits, F.soft_margin_loss),
        *(F.kl_div, F.poisson_nll_loss, F.multi_margin_loss, F.multilabel_margin_loss),
        F.multilabel_soft_margin_loss,
    }
)
#: Of these, whose `weight` is one of classes; elsewhere it would be one of samples.
_BY_CLASS = frozenset({F.cross_entropy, F.nll_loss, F.multi_margin_loss})
_WAY_OUT = (
    "give the model's output to one loss of torch.nn.functional (or its module), or use "
    "`private.backward(x, y, loss)` with a loss that has one value per sample"
)


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
    seed: int | None = None,
) -> Private:
    """Model, optimizer and loader of a plain loop, private: `model, optimizer, loader = ...`.

    epsilon: target at `delta` after `epochs` over the loader, from which the noise is found; more
    steps than that are refused. Or noise_multiplier itself. clip: L2 norm of one sample's gradient.
    seed: noise and samples that can be repeated, for experiments: its epsilon is not valid for a
    release. Without it they come from the operating system.

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
    ...         loss = F.cross_entropy(model(x), y)
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
    samples = Samples(n, rate, each, source(seed, "privacy batches", 0))
    spent = _Spent(rate, noise, clip, rate * n, source(seed, "privacy noise", 0), most)
    return Private(model, optimizer, loader, samples, spent, simulated=seed is not None)


def _require(model: Any, optimizer: Any, loader: Any) -> None:
    """Refuse what would not be private, by what was passed."""
    if not isinstance(model, nn.Module):
        raise PlanError(f"model is {_a(model)}; pass a torch.nn.Module")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise PlanError(f"optimizer is {_a(optimizer)}; pass one of torch.optim")
    if not isinstance(loader, DataLoader):
        raise PlanError(f"loader is {_a(loader)}; pass a torch.utils.data.DataLoader")
    if loader.batch_size is None:
        raise PlanError("loader has no batch_size, which says how large samples are to be")
    if not hasattr(loader.dataset, "__len__") or not hasattr(loader.dataset, "__getitem__"):
        raise PlanError("loader reads a stream; Poisson samples need rows by number")
    if not len(loader.dataset):
        raise PlanError("loader holds no rows")
    was = model.training
    model.train()
    reason = unsupported(model)
    model.train(was)
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


def _a(thing: Any) -> str:
    word = type(thing).__name__
    return f"{'an' if word[0].lower() in 'aeiou' else 'a'} {word}"


@dataclass
class _Spent:
    """What steps do, how often they were done, and how often they may be."""

    rate: float
    noise: float
    clip: float
    expected: float
    random: Source
    most: int | None
    steps: int = 0

    def charge(self) -> None:
        if self.most is not None and self.steps >= self.most:
            raise PlanError(
                f"{self.most} steps keep the epsilon that was asked for, and they are done; for "
                "more, give make_private more epochs"
            )
        self.steps += 1


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

    def epsilon(self, delta: float = 1e-5) -> float:
        """What these steps have spent, for one sample more or less."""
        spent = self._spent
        return accounting.epsilon([SampledGaussian(spent.rate, spent.noise, spent.steps)], delta)

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
        self.loader.use(len(x))
        spent = self._spent
        spent.charge()
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
            f"noise); {_WAY_OUT}"
        )


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and not isinstance(a, Tensor) and bool(a == b))


# Models and losses


class PrivateModel:
    """The model in a private loop. In training it hands its input on, and computes with the loss;
    in evaluation mode, and without gradients, it is the module itself."""

    def __init__(self, module: nn.Module, private: Private) -> None:
        self.module, self._private = module, private

    def __call__(self, *args: Any, **more: Any) -> Any:
        if not self.module.training or not torch.is_grad_enabled():
            return self.module(*args, **more)
        if len(args) != 1 or more or not isinstance(args[0], Tensor):
            raise PlanError(
                "a private model takes one tensor with a row for each sample; wrap a model of "
                "several inputs in one that takes them as one"
            )
        return Output(args[0], self._private)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.module, name)

    def train(self, mode: bool = True) -> PrivateModel:
        self.module.train(mode)
        return self

    def eval(self) -> PrivateModel:
        return self.train(False)

    def to(self, *args: Any, **more: Any) -> PrivateModel:
        self.module.to(*args, **more)
        return self


class Output:
    """What a private model gives in training: its output, when a loss asks for it.

    Given to a loss of torch it becomes a `BatchLoss`. Anything else sees the output without its
    gradient (for the accuracy of a batch, say).
    """

    def __init__(self, x: Tensor, private: Private) -> None:
        self._x, self._private = x, private
        self._value: Tensor | None = None

    @property
    def value(self) -> Tensor:
        """The output; gradients through it are refused."""
        if self._value is None:
            with torch.no_grad():
                made = self._private._module(self._x)
            self._value = made.requires_grad_()
            self._value.register_hook(_refuse_gradient)
        return self._value

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: Any) -> Tensor:
        return self.value[index]

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        more = dict(kwargs or {})
        if function in LOSSES and args and isinstance(args[0], Output):
            return args[0]._loss(function, args[1:], more)
        shown = [a.value if isinstance(a, Output) else a for a in args]
        return function(
            *shown, **{k: v.value if isinstance(v, Output) else v for k, v in more.items()}
        )

    def _loss(
        self, function: Callable[..., Any], args: tuple[Any, ...], more: dict[str, Any]
    ) -> BatchLoss:
        target = args[0] if args else more.pop("target", None)
        if len(args) > 1:
            raise PlanError(f"{function.__name__}: give options by name; {_WAY_OUT}")
        if more.pop("reduction", "mean") != "mean":
            raise PlanError(f"{function.__name__}: reduction must be 'mean' (the default)")
        if not isinstance(target, Tensor):
            raise PlanError(f"{function.__name__}: targets are {_a(target)}, not a tensor")
        if more.get("weight") is not None and function not in _BY_CLASS:
            raise PlanError(f"{function.__name__}: weight is of a batch's samples; leave it out")
        for old in ("size_average", "reduce"):
            if more.pop(old, None) is not None:
                raise PlanError(f"{function.__name__}: {old} is of old versions; leave it out")
        names = sorted(more)
        key = (function, *names, *(more[name] for name in names))
        engine = self._private._engine(key, partial(_each, function, more))
        return BatchLoss(self._private, engine, self._x, target)


def _each(
    function: Callable[..., Tensor], options: Mapping[str, Any], output: Tensor, y: Tensor
) -> Tensor:
    """A loss of torch with one value per sample: the mean over its own elements."""
    values = function(output, y, reduction="none", **options)
    if values.dim() < 2:
        return values
    ignored = options.get("ignore_index")
    if ignored is None or values.shape != y.shape:
        return values.flatten(1).mean(1)
    return values.flatten(1).sum(1) / (y != ignored).flatten(1).sum(1).clamp_min(1)


def _refuse_gradient(gradient: Tensor) -> None:  # noqa: ARG001
    raise PlanError(f"this loss would give gradients that are not private; {_WAY_OUT}")


class BatchLoss:
    """The mean loss of a batch, not computed yet: `backward` does it, and `item` tells it after."""

    def __init__(self, private: Private, engine: PerSample, x: Tensor, y: Tensor) -> None:
        self._private, self._engine, self._x, self._y = private, engine, x, y
        self._losses: Tensor | None = None

    def backward(self) -> None:
        """Add the noised mean of clipped gradients to `.grad`."""
        self._losses = self._private._backward(self._engine, self._x, self._y)

    def item(self) -> float:
        """The mean loss: computed from the samples, and not noised. nan of an empty batch."""
        if self._losses is None:
            with torch.no_grad():
                made = self._engine.loss(self._private._module(self._x), self._y)
            return float(made.mean()) if len(made) else math.nan
        return float(self._losses.mean()) if len(self._losses) else math.nan

    def __float__(self) -> float:
        return self.item()

    def detach(self) -> Tensor:
        return torch.tensor(self.item())

    def __getattr__(self, name: str) -> Any:
        raise PlanError(
            f"a private loss has backward() and item(), and no '{name}': its gradient is that of "
            f"one loss of torch; {_WAY_OUT}"
        )

    def __add__(self, other: Any) -> Any:
        raise PlanError(f"a private loss cannot be added to another; {_WAY_OUT}")

    __radd__ = __sub__ = __rsub__ = __truediv__ = __mul__ = __rmul__ = __add__
