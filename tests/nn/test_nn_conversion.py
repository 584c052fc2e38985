"""`kernel_normalise`: our networks and others' become what the recipe says, or are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cupola.errors import PlanError
from cupola.nn import build, kernel_normalise
from cupola.nn.kernelnorm import KernelNorm, KNConv

SIZES = {"vgg11": 32, "vgg6": 8, "densenet20x16": 8}
WIDTHS = {"vgg6": 4, "vgg11": 4, "resnet8": 4, "resnet9": 4, "knresnet13": 4}


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize(
    "name", [*WIDTHS, "densenet20x16", pytest.param("preactresnet18", marks=pytest.mark.slow)]
)
def test_our_networks_become_their_own_kernel_form(name, norm):
    if norm == "none" and name in ("knresnet13", "preactresnet18", "densenet20x16"):
        pytest.skip("without a last norm there is no telling that one stands before the activation")
    size = SIZES.get(name, 16)
    options = {"width": WIDTHS[name]} if name in WIDTHS else {}
    last = {} if name.startswith("vgg") else {"last_dropout": 0.25}
    plain = build(name, (3, size, size), 10, 0, norm=norm, **options)
    before = {k: v.clone() for k, v in plain.state_dict().items()}
    state = torch.get_rng_state()
    found = kernel_normalise(plain, 0.1, 0.25).eval()
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[k], v) for k, v in plain.state_dict().items())
    wanted = build(
        name, (3, size, size), 10, 1, norm="kernel", kernel_dropout=0.1, **last, **options
    ).eval()
    x = torch.rand(2, 3, size, size)
    with torch.no_grad():
        for a, b in zip(wanted.parameters(), found.parameters(), strict=True):
            a.copy_(b)
        assert torch.equal(found(x), wanted(x))


class Block(nn.Module):
    """As torchvision has it: layers are attributes, activations are shared."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, pooling: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(Block(8, 8), Block(8, 8))
        self.layer2 = nn.Sequential(Block(8, 16, 2), Block(16, 16))
        self.avgpool = nn.AdaptiveAvgPool2d(1) if pooling else None
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer2(self.layer1(x))
        x = F.adaptive_avg_pool2d(x, 1) if self.avgpool is None else self.avgpool(x)
        return self.fc(torch.flatten(x, 1))


def by_hand(module: ResNet, x: Tensor) -> Tensor:
    """The recipe applied to the forward pass, statistics of the input itself."""

    def conv(layer: nn.Conv2d, x: Tensor) -> Tensor:
        places = {"kernel_size": layer.kernel_size, "stride": layer.stride}
        rows = F.unfold(x, padding=layer.padding, **places)
        variance, mean = torch.var_mean(rows, 1, correction=0, keepdim=True)
        out = layer.weight.flatten(1) @ ((rows - mean) / (variance + 1e-5).sqrt())
        return out.unflatten(2, (-1, (x.shape[-1] - 1) // layer.stride[0] + 1))

    def block(b: Block, x: Tensor) -> Tensor:
        out = conv(b.conv2, conv(b.conv1, x).relu())
        return (out + (x if b.downsample is None else conv(b.downsample[0], x))).relu()

    x = F.max_pool2d(conv(module.conv1, x).relu(), 3, 2, 1)
    for b in (*module.layer1, *module.layer2):
        x = block(b, x)
    variance, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
    x = (x - mean) / (variance + 1e-5).sqrt()
    return module.fc(x.mean((2, 3)))


def test_a_resnet_with_torchvisions_layout():
    plain = ResNet().double()
    found = kernel_normalise(plain, evaluation="off").eval()
    x = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(found(x), by_hand(plain, x))
    assert {k for k in found.state_dict() if not k.endswith("bias")} == {
        k for k in plain.state_dict() if "conv" in k or "downsample.0" in k or k == "fc.weight"
    }
    layers = [m for m in found.modules() if isinstance(m, KNConv | KernelNorm)]
    assert [m.dropout for m in layers] == [0.1] * 10 + [0.5]
    found.train()(x).sum().backward()
    assert all(p.grad is not None for p in found.parameters())


def test_a_vgg_with_torchvisions_layout():
    plain = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 5)),
    )
    found = kernel_normalise(plain)
    assert not any(isinstance(m, KernelNorm | nn.BatchNorm2d) for m in found.modules())
    assert torch.equal(found[0][0].bias, plain[0][0].bias)
    assert found(torch.rand(2, 3, 8, 8)).shape == (2, 5)


def test_torchvisions_own_networks():
    models = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    found = kernel_normalise(models.resnet18(weights=None))
    assert found(torch.rand(1, 3, 64, 64)).shape == (1, 1000)


def test_a_last_convolution_that_gives_the_scores_stays():
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 1))
    found = kernel_normalise(plain)
    assert isinstance(found[0], KNConv)
    assert type(found[2]) is nn.Conv2d


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.Linear(3, 4)), "no convolutions"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.LayerNorm(4)), r"1 \(LayerNorm\)"),
        (nn.Sequential(nn.ConvTranspose2d(3, 4, 3)), "ConvTranspose2d"),
        (Branching(), "cannot follow .*by hand"),
        (ResNet(pooling=False), "is a function.*nn.AdaptiveAvgPool2d.*last_dropout = None"),
    ],
)
def test_refusals_tell_the_way_out(model, words):
    with pytest.raises(PlanError, match=words):
        kernel_normalise(model)
