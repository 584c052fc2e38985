"""Kernel normalisation: the fused layers against the obvious reference, and what they promise."""

from __future__ import annotations

import copy
import inspect

import kernelnorm_reference as reference
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap

from cupola.errors import PlanError
from cupola.nn import fused, kernelnorm, properties
from cupola.nn.kernelnorm import (
    KernelNorm1d,
    KernelNorm2d,
    KernelNorm3d,
    KNConv1d,
    KNConv2d,
    KNConv3d,
)

CONV = {1: KNConv1d, 2: KNConv2d, 3: KNConv3d}
NORM = {1: KernelNorm1d, 2: KernelNorm2d, 3: KernelNorm3d}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


@st.composite
def cases(draw):
    """A layer's options, and an input that fits."""
    rank = draw(st.integers(1, 3))
    each = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(rank))  # noqa: E731
    kernel, stride, dilation = each(1, 3), each(1, 3), each(1, draw(st.integers(1, 3)))
    pairs = tuple(zip(each(0, 2), each(0, 2)))
    if draw(st.booleans()):
        pairs = tuple((a, a) for a, _ in pairs)
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    mode = draw(st.sampled_from(["zeros", "zeros", "reflect", "replicate", "circular"]))
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilation)]
    least = [
        max(1, span - sum(p), 0 if mode == "zeros" else max(p) + 1) for span, p in zip(spans, pairs)
    ]
    return {
        "rank": rank, "kernel": kernel, "stride": stride, "padding": pairs, "groups": groups,
        "dilation": dilation, "mode": mode,
        "sizes": tuple(a + b for a, b in zip(least, each(0, 3))),
        "channels": groups * draw(st.integers(1, 3)), "outputs": groups * draw(st.integers(1, 2)),
        "bias": draw(st.booleans()), "dropout": draw(st.sampled_from([0.0, 0.05, 0.5])),
        "dtype": draw(st.sampled_from([torch.float64, torch.float64, torch.float32])),
        "seed": draw(st.integers(0, 2**31)), "last": draw(st.booleans()),
        "expected": draw(st.booleans()),
    }  # fmt: skip


def close(found, expected, dtype: torch.dtype, scale: float = 1.0) -> None:
    """Relative to the largest value: gradients near zero are sums that cancel.

    scale: the largest 1 / std; windows with hardly any variance enlarge rounding by its square.
    """
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            a, b = a.detach(), b.detach()
            enlarged = max(1.0, scale) ** 2 if dtype == torch.float32 else 1.0
            bound = TOLERANCE[dtype] * max(1.0, float(b.abs().max())) * enlarged
            assert float((a.double() - b).abs().max()) <= bound


def noise(shape, case, offset: int = 0, dtype=None) -> Tensor:
    generator = torch.Generator().manual_seed(case["seed"] + offset)
    return torch.randn(shape, generator=generator, dtype=dtype or case["dtype"])


def gradients(out: Tensor, inputs: list[Tensor], case) -> list[Tensor]:
    return list(torch.autograd.grad(out, inputs, noise(out.shape, case, 9).to(out.dtype)))


def laid_out(x: Tensor, case) -> Tensor:
    if case["last"] and case["rank"] == 2:
        return x.contiguous(memory_format=torch.channels_last)
    return x


@given(cases())
@settings(max_examples=120, deadline=None)
def test_convolutions_equal_the_reference(case):
    p = case["dropout"]
    layer = CONV[case["rank"]](
        case["channels"], case["outputs"], case["kernel"], case["stride"], case["padding"],
        case["dilation"], case["groups"], case["bias"], case["mode"], dtype=case["dtype"],
    )  # fmt: skip
    layer.dropout = p
    with torch.no_grad():
        for t in layer.parameters():
            t.copy_(noise(t.shape, case, 1))
    x = laid_out(noise((2, case["channels"], *case["sizes"]), case), case).requires_grad_()
    inputs = [x, *layer.parameters()]
    drop = None
    if p and not case["expected"]:
        shape = layer.surrounded(x).shape if case["mode"] != "zeros" else x.shape
        drop = noise(shape, case, 3).abs() < 0.7 * p
    out, _, scale = layer.masked(x, drop)
    largest = float(scale.detach().max())
    exact = [t.detach().double().requires_grad_() for t in inputs]
    x, weight, *bias = exact
    keep = None if drop is None else (~drop).double()
    expected = reference.kn_conv(x, weight, *(bias or [None]), keep, case)
    close([out], [expected], case["dtype"], largest)
    close(gradients(out, inputs, case), gradients(expected, exact, case), case["dtype"], largest)


@given(cases(), st.sampled_from(["input", "window"]))
@settings(max_examples=80, deadline=None)
def test_norms_equal_the_reference(case, per):
    p, drawn = case["dropout"], []
    layer = NORM[case["rank"]](
        case["kernel"], case["stride"], case["padding"], case["dilation"], case["mode"],
        dropout=p, per=per,
    ).train(not case["expected"])  # fmt: skip
    x = laid_out(noise((2, case["channels"], *case["sizes"]), case), case).requires_grad_()
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        torch.default_generator.manual_seed(case["seed"])
        draw = kernelnorm.drawn
        patch.setattr(kernelnorm, "drawn", lambda *a: drawn.append(draw(*a)) or drawn[-1])
        out = layer(x)
    exact = x.detach().double().requires_grad_()
    keep = (~drawn[0]).double() if p and not case["expected"] else None
    if keep is not None and keep.dim() == x.dim():  # single windows: the mask is the input's
        per = "input"
    expected = reference.kernel_norm(exact, keep, case, per)
    largest = reference.largest_scale(exact.detach(), keep, case, per)
    close([out], [expected], case["dtype"], largest)
    close(gradients(out, [x], case), gradients(expected, [exact], case), case["dtype"], largest)


@pytest.mark.parametrize("groups", [1, 2])
def test_window_dropout_is_a_convolution_of_the_normalised_windows(groups):
    x = torch.rand(2, 4, 5, 5, dtype=torch.float64)
    conv = KNConv2d(4, 6, 2, 1, 1, groups=groups, dropout=0.3, per="window").double()
    norm = KernelNorm2d(2, 1, 1, dropout=0.3)
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(1)
        found = conv(x)
        torch.default_generator.manual_seed(1)
        u = norm(x)
    expected = nn.functional.conv2d(u, conv.weight, conv.bias, stride=2, groups=groups)
    torch.testing.assert_close(found, expected)
    # Without draws both ways are the same function.
    torch.testing.assert_close(conv.eval()(x), KNConv2d.forward(_per_input(conv), x))


def _per_input(conv: KNConv2d) -> KNConv2d:
    other = copy.deepcopy(conv)
    other.per = "input"
    return other


class Masked(nn.Module):
    """A layer with a given mask: output and statistics."""

    def __init__(self, layer: nn.Module, drop: Tensor) -> None:
        super().__init__()
        self.layer, self.drop = layer, drop

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.layer.masked(x, self.drop)


@pytest.mark.filterwarnings("ignore:.*jit.script.*:DeprecationWarning")
def test_second_derivatives_are_right():
    x = torch.randn(1, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    layer = KNConv2d(2, 3, 2, padding=((1, 0), (0, 1)), dropout=0.0).double()
    assert torch.autograd.gradcheck(layer, x)
    assert torch.autograd.gradgradcheck(layer, x)
    assert torch.autograd.gradgradcheck(KernelNorm2d(2, dropout=0.0), x)
    drop, layer.dropout = torch.rand_like(x) < 0.3, 0.3

    def masked(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        named = {"layer.weight": weight, "layer.bias": bias}
        return functional_call(Masked(layer, drop), named, (x,))

    assert torch.autograd.gradgradcheck(masked, (x, layer.weight, layer.bias))
    layer.dropout = 0.0
    assert jacrev(grad(lambda v: layer(v).sin().sum()))(x.detach()).abs().sum() > 0


@pytest.mark.parametrize("ratio", [10.0, 1000.0])
def test_single_precision_bears_large_means(ratio):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 16, 8, 8, generator=generator) + ratio
    layer = KNConv2d(16, 8, 3, dropout=0.0)
    inputs = [x.requires_grad_(), *layer.parameters()]
    out, mu, scale = layer.masked(x, None)
    wider = copy.deepcopy(layer).double()
    exact = [x.detach().double().requires_grad_(), *wider.parameters()]
    wide, mean, spread = wider.masked(exact[0], None)
    mu, scale, mean, spread = (t.detach() for t in (mu, scale, mean, spread))
    assert float((scale / spread - 1).abs().max()) < 3e-8 * ratio
    assert float((mu / mean - 1).abs().max()) < 3e-7
    case = {"seed": 5, "dtype": torch.float32}
    rounding = ratio * 1e-6
    found, expected = gradients(out, inputs, case), gradients(wide, exact, case)
    for a, b in zip([out.detach(), *found], [wide.detach(), *expected], strict=True):
        assert float((a - b).abs().max()) < rounding * float(b.abs().max())
    normal, x = KernelNorm2d(3, dropout=0.0), x.detach()
    assert float((normal(x) - normal(x.double())).abs().max()) < rounding


def test_constant_windows_have_no_infinite_results():
    x = torch.full((2, 3, 6, 6), 5.0, requires_grad=True)
    out = KNConv2d(3, 4, 3, padding=1)(x)
    out.square().sum().backward()
    assert out.isfinite().all()
    assert x.grad.isfinite().all()


def test_low_precision():
    x = torch.randn(2, 8, 6, 6) + 3
    layer = KNConv2d(8, 4, 3, padding=1, dropout=0.0)
    expected = layer(x)
    low = copy.deepcopy(layer).bfloat16()
    found = low(x.bfloat16().requires_grad_())
    assert found.dtype == torch.bfloat16
    assert float((found - expected).detach().abs().max()) < 0.1
    found.float().square().sum().backward()
    assert low.weight.grad.dtype == torch.bfloat16
    assert KernelNorm2d(1)(x.bfloat16()).dtype == torch.bfloat16


def test_dropout_follows_the_generator_and_the_mode():
    x = torch.rand(2, 3, 8, 8)
    layer = KNConv2d(3, 4, 3, dropout=0.2)
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(3)
        a = layer(x)
        torch.default_generator.manual_seed(3)
        assert torch.equal(layer(x), a)
        assert not torch.equal(layer(x), a)
        layer.eval()
        before = torch.get_rng_state()
        assert torch.equal(layer(x), layer(x))
        assert torch.equal(torch.get_rng_state(), before)
        layer.evaluation = "random"
        assert not torch.equal(layer(x), layer(x))


@pytest.mark.parametrize("dropout", [0.0, 0.05, 0.5, 0.999])
def test_masks_have_the_asked_share(dropout):
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        mask = fused.drawn((3, 100_003), dropout, torch.device("cpu"))
    assert mask.shape == (3, 100_003)
    deviation = (dropout * (1 - dropout) / mask.numel()) ** 0.5
    assert abs(float(mask.double().mean()) - dropout) < 4 * deviation + 2**-16
    columns = [mask.flatten()[i::4].double().mean() for i in range(4)]  # the four of a number
    assert max(abs(float(c) - dropout) for c in columns) < 8 * deviation + 2**-16


def model(dropout: float) -> nn.Module:
    return nn.Sequential(
        KNConv2d(2, 4, 3, padding=((1, 0), (1, 0)), dropout=dropout),
        nn.ReLU(),
        KNConv2d(4, 4, 2, dropout=dropout),
        KernelNorm2d(dropout=dropout),
        nn.Flatten(),
    )


def test_function_transforms():
    module = model(0.0).double()
    parameters = {k: v.detach() for k, v in module.named_parameters()}
    x = torch.rand(5, 2, 4, 4, dtype=torch.float64)

    def loss(parameters, x):
        return functional_call(module, parameters, (x[None],)).square().sin().sum()

    found = vmap(grad(loss), (None, 0))(parameters, x)
    for i in range(5):
        expected = grad(loss)(parameters, x[i])
        for name in parameters:
            torch.testing.assert_close(found[name][i], expected[name])
    stacked = {k: torch.stack([v, 2 * v]) for k, v in parameters.items()}
    each = vmap(grad(loss), (0, None))(stacked, x[0])
    expected = grad(loss)({k: v[1] for k, v in stacked.items()}, x[0])
    for name in parameters:
        torch.testing.assert_close(each[name][1], expected[name])
    only = {k: v for k, v in stacked.items() if k == "0.bias"}
    rest = {k: v for k, v in parameters.items() if k != "0.bias"}
    assert vmap(lambda b: grad(loss)(rest | b, x[0]))(only)["0.bias"].shape == (2, 4)


def test_draws_under_vmap():
    module = model(0.5)
    parameters = {k: v.detach() for k, v in module.named_parameters()}
    x = torch.rand(1, 2, 4, 4).expand(3, -1, -1, -1)

    def loss(parameters, x):
        return functional_call(module, parameters, (x[None],)).square().sin().sum()

    over = vmap(grad(loss), (None, 0), randomness="different")(parameters, x)
    assert not torch.equal(over["0.weight"][0], over["0.weight"][1])
    same = vmap(grad(loss), (None, 0), randomness="same")(parameters, x)
    torch.testing.assert_close(same["0.weight"][0], same["0.weight"][1])
    with pytest.raises(RuntimeError, match="random"):
        vmap(grad(loss), (None, 0))(parameters, x)


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_arguments_are_those_of_torchs_layers(kind):
    torchs = inspect.signature([nn.Conv1d, nn.Conv2d, nn.Conv3d][kind - 1]).parameters
    ours = inspect.signature(CONV[kind]).parameters
    assert list(ours)[: len(torchs)] == list(torchs)
    assert all(ours[name].default == p.default for name, p in torchs.items())
    places = ["kernel_size", "stride", "padding", "dilation", "padding_mode"]
    assert list(inspect.signature(NORM[kind]).parameters)[:5] == places


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
@pytest.mark.parametrize("padding", ["same", "valid", 2])
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_windows_lie_where_torchs_convolution_has_them(padding, mode):
    plain = nn.Conv2d(2, 3, (4, 3), padding=padding, dilation=(1, 2), padding_mode=mode)
    layer = KNConv2d(2, 3, (4, 3), 1, padding, (1, 2), padding_mode=mode, dropout=0.0)
    layer.load_state_dict(plain.state_dict())
    x = torch.rand(2, 2, 9, 8)
    out, mu, scale = layer.masked(x, None)
    total = plain.weight.sum((1, 2, 3)).view(-1, 1, 1)
    bias = plain.bias.view(-1, 1, 1)
    torch.testing.assert_close((plain(x) - bias - mu * total) * scale + bias, out)
    torch.testing.assert_close(layer(x[0]), layer(x)[0])
    assert KernelNorm2d((4, 3), 1, padding, (1, 2), mode)(x[0]).dim() == 3


def test_layers_are_made_where_they_are_wanted():
    layer = KNConv2d(3, 4, 3, device="meta", dtype=torch.float64)
    assert layer.weight.is_meta
    assert layer.weight.dtype == layer.bias.dtype == torch.float64


def test_evaluation_has_the_statistics_expected_of_the_dropped_copy():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1, 64, 6, 6, dtype=torch.float64, generator=generator)
    layer = KNConv2d(64, 3, 3, dropout=0.3, dtype=torch.float64).train()
    with torch.random.fork_rng(), torch.no_grad():
        torch.default_generator.manual_seed(1)
        scales = [layer.masked(x, layer._drawn(x))[2] for _ in range(400)]
        drawn = torch.stack(scales).square().reciprocal().mean(0)  # variance + eps
        layer.eval()
        found = layer.masked(x, None)[2].square().reciprocal()
        assert float((found / drawn - 1).abs().max()) < 0.02
        assert torch.equal(layer(x), layer(x))
        expected, layer.evaluation = layer(x), "off"
        plain = KNConv2d(64, 3, 3, dropout=0.0, dtype=torch.float64)
        plain.load_state_dict(layer.state_dict())
        assert torch.equal(layer(x), plain(x))
        assert not torch.allclose(expected, plain(x))
        plain.dropout, layer.evaluation = 0.3, "random"
        assert layer.random
        torch.default_generator.manual_seed(2)
        random = layer(x)
        torch.default_generator.manual_seed(2)
        assert torch.equal(plain.train()(x), random)


@pytest.mark.filterwarnings("ignore:.*jit.script.*:DeprecationWarning")
def test_expected_statistics_have_the_right_derivatives():
    x = torch.randn(1, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    layer = KNConv2d(2, 3, 2, dilation=2, stride=2, padding=1, dropout=0.4).double().eval()
    for module in (layer, KernelNorm2d(2, dropout=0.4).eval()):
        assert torch.autograd.gradcheck(module, x)
        assert torch.autograd.gradgradcheck(module, x)


def test_inspection_names_draws_and_nothing_else():
    x = torch.rand(3, 2, 4, 4)
    found = properties(model(0.2), x)
    assert found.random == ("0 (KNConv2d)", "2 (KNConv2d)", "3 (KernelNorm2d)")
    assert found.batch_dependent == ()
    clean = properties(model(0.0), x)
    assert clean.utility_preserving
    assert clean.stackable, clean.obstacle
    always = model(0.2)
    always[3].evaluation = "random"
    mixed = nn.Sequential(KNConv2d(2, 4, 3, dropout=0.5), nn.BatchNorm2d(4))
    assert properties(mixed, x).batch_dependent == ("1 (BatchNorm2d)",)
    assert properties(always, x).batch_dependent == ()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: KNConv2d(3, 4, 3, dropout=1.0), "dropout = 1.0"),
        (lambda: KNConv2d(3, 4, (3, 3, 3)), "kernel_size"),
        (lambda: KNConv2d(3, 4, 3, 0), "stride = 0"),
        (lambda: KNConv2d(3, 4, 3, padding=((1, 0),)), "pairs"),
        (lambda: KernelNorm2d(1, per="pixel"), "'window'"),
        (lambda: KernelNorm2d(1, evaluation="on"), "evaluation = 'on': one of 'expected'"),
        (lambda: KNConv2d(3, 4, 3, padding="full"), "'same', 'valid'"),
        (lambda: KNConv2d(3, 4, 3, 2, "same"), "stride 1, not \\(2, 2\\)"),
        (lambda: KNConv2d(3, 4, 3, dilation=0), "dilation = 0"),
        (lambda: KNConv2d(3, 4, 3, groups=2), "groups = 2 does not divide in_channels = 3"),
        (lambda: KNConv2d(3, 4, 3, padding_mode="mirror"), "padding_mode = 'mirror'"),
        (
            lambda: KNConv2d(3, 4, 3, dilation=2)(torch.rand(2, 3, 4, 9)),
            "KNConv2d: inputs of 4x9, padded to 4x9, are smaller than a window of 5x5 .* enlarge",
        ),
        (lambda: KernelNorm2d(3, padding=((1, 0), (0, 0)))(torch.rand(3, 1, 4)), "padded to 2x4"),
        (lambda: KNConv2d(3, 4, 3)(torch.rand(2, 4, 9, 9)), "made for 3 channels.* have 4"),
        (lambda: KNConv2d(3, 4, 3)(torch.rand(9, 9)), "one without n, not of shape \\(9, 9\\)"),
        (
            lambda: KNConv2d(3, 4, 3, padding=2, padding_mode="reflect")(torch.rand(1, 3, 2, 9)),
            "cannot pad 2x9 by",
        ),
    ],
)
def test_refusals(make, words):
    with pytest.raises(PlanError, match=words):
        make()


def test_words():
    layer = KNConv2d(3, 4, 2, padding=((1, 0), (0, 2)), bias=False, evaluation="random")
    assert "padding=[(1, 0), (0, 2)]" in repr(layer)
    assert "bias=False, padding" in repr(layer)
    assert "dropout=0.05, evaluation='random'" in repr(layer)
    assert "per='window'" in repr(KernelNorm2d(1))
