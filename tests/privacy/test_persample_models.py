"""Per-sample gradients of every registered model; later models join by themselves."""

from __future__ import annotations

import inspect
from typing import Any, get_args

import persample_oracles as oracles
import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from cupola import nn as cupola_nn
from cupola.errors import PlanError
from cupola.nn.kernelnorm import KernelNorm, KNConv
from cupola.nn.models import building, options
from cupola.nn.normalisation import Norm
from cupola.privacy.persample import PerSample, unsupported
from cupola.privacy.persample.tape import layout

CLASSES = 4
SAMPLES = 3
LARGE = 5_000_000  # parameters above which one normalisation must do
HUGE = 10_000_000  # the same layers once more: with the models' own normalisation, as slow tests
#: Values of options that a model cannot do without.
NEEDED = {"vocabulary": 20}
#: Models built on another one: test_nn_reprogram.py and test_persample_adapters.py have theirs.
ELSEWHERE = {"pretrained", "huggingface"}
#: Small inputs, tried in turn.
SHAPES = [(3, 8, 8), (3, 16, 16), (3, 32, 32), (3, 64, 64), (6,)]

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


def variants() -> list[Any]:
    """Every model with every normalisation it takes."""
    found: list[Any] = []
    for name in sorted(set(cupola_nn.names()) - ELSEWHERE):
        taken = options(name)
        needed = {k: NEEDED[k] for k, v in taken.items() if v is inspect.Parameter.empty}
        if "norm" in taken and size(name, needed) > HUGE:
            own = taken["norm"] if taken["norm"] != "batch" else "group"
            found.append(pytest.param((name, {**needed, "norm": own}), marks=pytest.mark.slow))
            continue
        if "norm" in taken and size(name, needed) > LARGE:
            found += [(name, {**needed, "norm": norm}) for norm in ("group", "batch")]
        elif "norm" in taken:
            found += [(name, {**needed, "norm": norm}) for norm in get_args(Norm)]
        else:
            found.append((name, needed))
        if "dropout" in taken:
            found.append((name, {**needed, "dropout": 0.2}))
    return found


def size(name: str, given: dict[str, Any]) -> int:
    """Parameters of a model for the smallest input it takes, without its memory."""
    for shape in SHAPES:
        try:
            with torch.device("meta"):
                module = building._MODELS.find(name)(shape, CLASSES, **given)
        except PlanError:
            continue
        return sum(p.numel() for p in module.parameters())
    raise AssertionError(f"{name} takes none of the inputs {SHAPES}: add one")


def prepared(name: str, given: dict[str, Any]) -> tuple[nn.Module, Any, Tensor, Tensor]:
    """The model in float64, its loss, and samples it takes."""
    generator = torch.Generator().manual_seed(1)
    for shape in SHAPES:
        try:
            module = cupola_nn.build(name, shape, CLASSES, 0, **given).double()
        except PlanError:
            continue
        if any(isinstance(part, nn.Embedding) for part in module.modules()):
            x = torch.randint(0, CLASSES, (SAMPLES, *shape), generator=generator)
        else:
            x = torch.randn((SAMPLES, *shape), generator=generator, dtype=torch.float64)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            # one class for each place of the output but its own dimension
            out = module(x).shape
        size = (out[0], *out[2:]) if len(out) == 4 else out[:-1]
        y = torch.randint(0, CLASSES, size, generator=generator)
        return module, cupola_nn.find_loss("cross_entropy"), x, y
    raise AssertionError(f"{name} takes none of the inputs {SHAPES}: add one")


def ids(variant: tuple[str, dict[str, Any]]) -> str:
    return " ".join([variant[0], *(f"{k}={v}" for k, v in variant[1].items())])


@pytest.mark.parametrize("variant", variants(), ids=ids)
def test_every_model_equals_its_samples_alone_and_opacus(variant):
    name, given = variant
    if given.get("norm") == "batch":
        module = cupola_nn.build(name, (3, 32, 32), CLASSES, 0, **given)
        assert "BatchNorm" in (unsupported(module) or "")
        with pytest.raises(PlanError, match="mixes the samples"):
            PerSample(module, cupola_nn.find_loss("cross_entropy"))
        return
    module, loss, x, y = prepared(name, given)
    for part in module.modules():
        if isinstance(part, _DropoutNd):
            part.eval()  # the oracles draw in another order
        elif isinstance(part, KernelNorm | KNConv):
            part.dropout = 0.0
    gradients = oracles.alone(module, loss, x, y)
    clip = float(oracles.norms(gradients).median())
    persample = PerSample(module, loss, microbatch=4)
    found = persample.clipped_sum(x, y, clip)
    assert persample.fallback is None, persample.fallback
    oracles.assert_equal(found, gradients, clip)
    recurrent = any(isinstance(part, nn.RNNBase) for part in module.modules())
    if not recurrent:
        oracles.assert_equal(found, oracles.mapped(module, loss, x, y), clip)
    twin = with_opacus_layers(module)
    oracles.assert_equal(found, oracles.by_opacus(twin, loss, x, y), clip, ordered=not recurrent)


@pytest.mark.parametrize("name", [n for n in cupola_nn.names() if "norm" in options(n)])
def test_every_layer_of_every_model_has_a_rule(name):
    norms = ["layer", "kernel"] if name == "convnext_tiny" else get_args(Norm)
    for norm in norms:
        with torch.device("meta"):
            module = building._MODELS.find(name)((3, 96, 96), CLASSES, norm=norm)
        assert layout(module).missing is None


def with_opacus_layers(module: nn.Module) -> nn.Module:
    """The module with Opacus' own LSTM in place of torch's, with the same weights."""
    from opacus.layers import DPLSTM

    for parent in list(module.modules()):
        for name, part in list(parent.named_children()):
            if isinstance(part, nn.LSTM):
                twin = DPLSTM(part.input_size, part.hidden_size, part.num_layers, batch_first=True)
                twin.double().load_state_dict(part.state_dict())
                setattr(parent, name, twin)
    return module
