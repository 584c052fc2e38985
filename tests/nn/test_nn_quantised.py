"""Quantised dense layers: torch's weight, the right gradient, 8 bits kept; and what is refused."""

from __future__ import annotations

from typing import Any

import eight_bits
import pytest
import torch
from torch import nn

from cupola.errors import PlanError
from cupola.nn import build
from cupola.nn.adapters import LOW_RANK, adapt, low_rank, merge
from cupola.nn.quantised import QuantisedLinear, unpack
from cupola.nn.user_objects import held_model
from cupola.training.frozen import FrozenPart

TOKENS = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 0], [6, 6, 1, 2]])


def unpacked(**how: Any) -> tuple[list[torch.Tensor], nn.Sequential]:
    """A base's weights as torch gives them back, and the base unpacked."""
    module = eight_bits.base(**how)
    weights = [module[i].weight().dequantize() for i in (2, 4, 6)]
    assert unpack(module) is module
    return weights, module


@pytest.mark.parametrize("rows", [False, True])
def test_the_weight_is_torchs(rows: bool) -> None:
    """Outputs are as near as torch's rounding of inputs allows."""
    expected = eight_bits.base(rows=rows)(TOKENS)
    weights, module = unpacked(rows=rows)
    for i, weight in zip((2, 4, 6), weights):
        assert torch.equal(module[i].weight * module[i].scale, weight)
        assert module[i].weight.dtype == torch.int8
    assert torch.allclose(module(TOKENS), expected, atol=0.1)
    assert not torch.equal(expected, eight_bits.plain()(TOKENS))


def test_who_holds_or_watches_a_layer_still_does() -> None:
    module, seen = eight_bits.base(), []
    layer = module[2]
    layer.register_forward_hook(lambda *call: seen.append(call))
    unpack(module)
    module(TOKENS)
    assert module[2] is layer
    assert type(layer) is QuantisedLinear
    assert len(seen) == 1


@pytest.mark.parametrize("rows", [False, True])
def test_the_gradient_is_that_of_the_weight_in_full(rows: bool) -> None:
    _, module = unpacked(rows=rows)
    twin = eight_bits.plain().double()
    with torch.no_grad():
        for own, held in zip(twin[2::2], module.double()[2::2]):
            own.weight.copy_(held.weight * held.scale)
            own.bias.copy_(held.bias)
    found = []
    for net in (module, twin):
        net[0].weight.requires_grad_(True)
        net(TOKENS).square().sum().backward()
        found.append(net[0].weight.grad)
    assert torch.allclose(*found, rtol=1e-12, atol=1e-15)
    x = torch.randn(2, 24, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(module[2], (x,))
    each = torch.func.vmap(torch.func.grad(lambda row: module[2](row).square().sum()))(x.detach())
    together = torch.autograd.grad(module[2](x).square().sum(), x)
    assert torch.allclose(each, *together)


def test_what_waits_for_the_backward_pass_are_8_bits() -> None:
    _, module = unpacked()
    x = torch.randn(5, 24, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        module[2](x)
    assert {t.dtype for t in kept if t.numel() >= 240} == {torch.int8}


class Bits(nn.Linear):
    """Stands for a layer of bitsandbytes, which is not installed here."""


Bits.__module__ = "bitsandbytes.nn.modules"


def shifted() -> nn.Module:
    from torch.ao.quantization import MinMaxObserver, QConfig, default_dynamic_qconfig

    lopsided = MinMaxObserver.with_args(dtype=torch.qint8, qscheme=torch.per_tensor_affine)
    how = QConfig(activation=default_dynamic_qconfig.activation, weight=lopsided)
    net = eight_bits.plain()
    with torch.no_grad():
        net[2].weight.add_(1)
    return eight_bits.quantised(net, qconfig=how)


def halves() -> nn.Module:
    from torch.ao.quantization import float16_dynamic_qconfig

    return eight_bits.quantised(eight_bits.plain(), qconfig=float16_dynamic_qconfig)


def recurrent() -> nn.Module:
    from torch.ao.nn.quantized.dynamic import LSTM

    return nn.Sequential(LSTM(4, 3))


def bits() -> nn.Module:
    return nn.Sequential(Bits(3, 3), nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (shifted, "'2' is quantised around another number than 0"),
        (halves, "'2' is quantised to float16"),
        (recurrent, "rnn.LSTM.* keeps its weight where no checksum sees"),
        (bits, "'0' .bitsandbytes.nn.modules.Bits. keeps its weight.*base_dtype = 'bfloat16'"),
    ],
)
def test_other_forms_are_refused_with_a_way_out(make: Any, said: str) -> None:
    for use in (unpack, lambda module: adapt(module, "lora", rank=2), held_model):
        with pytest.raises(PlanError, match=said):
            use(make())


def test_sums_of_floats_are_no_quantised_layers() -> None:
    """`FloatFunctional` stands in models that are still to be quantised."""
    unpack(nn.Sequential(torch.ao.nn.quantized.FloatFunctional(), nn.Linear(2, 2)))


def test_a_users_model_is_unpacked_wherever_it_comes_from() -> None:
    named = build("eight_bits:base", (4,), 3, 0)
    held = held_model(eight_bits.base())
    assert all(isinstance(m[2], QuantisedLinear) for m in (named, held.value()))
    assert held.name != held_model(eight_bits.base(seed=1)).name


# With adapters


@pytest.mark.parametrize("kind", [*LOW_RANK, "bitfit"])
def test_all_of_a_quantised_base_is_hashed(kind: Any) -> None:
    rank = {"rank": 2} if kind in LOW_RANK else {}
    first, same, other = (
        FrozenPart(adapt(eight_bits.base(seed=seed), kind, **rank)).installed for seed in (0, 0, 1)
    )
    assert first == same != other
    for change in ("weight", "scale", "bias"):
        module = unpack(eight_bits.base())
        with torch.no_grad():
            getattr(module[4], change).view(-1)[3].add_(1)
        trained = kind == "bitfit" and change == "bias"  # then it is sent
        assert (FrozenPart(adapt(module, kind, **rank)).installed == first) is trained


def test_the_last_layer_is_not_adapted_and_not_trained() -> None:
    module = adapt(eight_bits.base(), "lora", rank=2)
    assert [name for name, _ in low_rank(module)] == ["2", "4"]
    with pytest.raises(PlanError, match="'6' is quantised to 8 bits and cannot be trained"):
        adapt(eight_bits.base(), "head")
    with pytest.raises(PlanError, match="'6' is quantised to 8 bits"):
        adapt(eight_bits.base(), "lora", rank=2, modules_to_save=["6"])


def test_nothing_is_merged_where_something_cannot_be() -> None:
    """One layer in 8 bits among others, and one that shares its weight."""
    mixed = eight_bits.plain()
    mixed[4] = unpack(eight_bits.base())[4]
    adapt(mixed, "lora", rank=2)
    tied = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 5))
    tied[2].weight = tied[1].weight
    adapt(tied, "lora", rank=2, patterns=["0", "1"])
    for module, said in ((mixed, "'4' is quantised"), (tied, "'1' shares its weight")):
        before = {n: t.clone() for n, t in module.state_dict().items()}
        with pytest.raises(PlanError, match=said):
            merge(module)
        after = module.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(t, after[n]) for n, t in before.items())
