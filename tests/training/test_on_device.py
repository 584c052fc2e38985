"""Nothing stays on the CPU by mistake: trainings on a pretended GPU, equal to the CPU's.

`test_on_gpu.py` runs the like on a real one.
"""

import pytest
import small
import torch
from pretended_gpu import GPU, OnDevice, pretended_gpu
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from cupola.nn import KNConv2d
from cupola.nn.quantised import QuantisedLinear
from cupola.privacy import make_private
from cupola.training import Evaluation, Local, Participation, Privacy, Server, Trainable
from cupola.training.adapter_choice import Adapter
from cupola.training.frozen import partly
from cupola.training.mechanisms import dp_sgd
from cupola.training.methods.ditto import Ditto
from cupola.training.methods.feddyn import FedDyn
from cupola.training.methods.fedntd import FedNtd
from cupola.training.methods.local_parts import FedPer
from cupola.training.methods.moon import Moon
from cupola.training.transforms import Quantise, TopK

UNIFORM = Local(lr=0.1, weighting="uniform")
PRIVATE = Privacy(mechanism="dp-sgd", clip=1.0, noise_multiplier=1.0)


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(4),
        nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip


def normalised():
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))


def kernel_normalised():
    return nn.Sequential(KNConv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))


def quantised():
    """A base with a layer in 8 bits."""
    between = QuantisedLinear(torch.randint(-127, 128, (8, 64)), torch.rand(8) / 500)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), between, nn.Linear(8, 10))


def adapter(**how):
    return {"trainable": Trainable(adapter=Adapter(**how))}


CASES = {
    "sgd": ("one-by-one", None, {}),
    "adam": ("one-by-one", None, {"local": Local(lr=0.01, optimizer="adam")}),
    "fedprox": ("one-by-one", None, {"local": Local(lr=0.1, proximal=0.1, momentum=0.9)}),
    "scaffold": (
        "one-by-one",
        None,
        {"local": Local(lr=0.1, control_variates=True, weighting="uniform")},
    ),
    "batch normalisation": ("one-by-one", normalised, {}),
    "gradient": ("one-by-one", convolutional, {"local": Local(lr=0.1, work="gradient")}),
    "common": ("together", None, {"local": Local(lr=0.1, work="gradient", send="gradients")}),
    "explicit": ("explicit", None, {}),
    "implicit": ("implicit", None, {}),
    "fedadam": ("auto", None, {"server": Server(optimizer="adam", lr=0.01)}),
    "dp-sgd": ("one-by-one", convolutional, {"privacy": PRIVATE}),
    "dp-sgd, linear": ("together", linear, {"privacy": PRIVATE}),
    "central": (
        "explicit",
        None,
        {
            "privacy": Privacy(mechanism="central", clip=1.0, noise_multiplier=1.0),
            "local": Local(lr=0.1, weighting="uniform"),
            "participation": Participation(kind="poisson", fraction=0.8),
        },
    ),
    "feddyn": ("one-by-one", None, {"local": UNIFORM, "method": FedDyn(alpha=0.2)}),
    "moon": ("one-by-one", None, {"local": UNIFORM, "method": Moon()}),
    "fedntd": ("one-by-one", None, {"local": UNIFORM, "method": FedNtd()}),
    "ditto": ("one-by-one", None, {"local": UNIFORM, "method": Ditto()}),
    "fedper": (
        "one-by-one",
        None,
        {"local": UNIFORM, "method": FedPer(), "evaluation": Evaluation(on="sites"), "public": {}},
    ),
    "quantise": ("one-by-one", None, {"transforms": (Quantise(bits=8, download=8),)}),
    "top-k": ("one-by-one", None, {"transforms": (TopK(share=0.1),)}),
    "lora": ("one-by-one", None, adapter(kind="lora", rank=2, modules_to_save=("3",))),
    "lora-sb, dp-sgd": (
        "one-by-one",
        None,
        {**adapter(kind="lora-sb", rank=2), "privacy": PRIVATE},
    ),
    "lora, half the bits": (
        "one-by-one",
        None,
        adapter(kind="lora", rank=2, base_dtype="bfloat16"),
    ),
    "lora, 8 bits": ("one-by-one", quantised, adapter(kind="lora", rank=2)),
    "kernel normalisation": ("one-by-one", kernel_normalised, {}),
    "kernel normalisation, dp-sgd": ("one-by-one", kernel_normalised, {"privacy": PRIVATE}),
    "frozen, from a seed": ("one-by-one", None, {"trainable": Trainable(freeze=("1",))}),
}


def trained(device, mode, make, choices, **more):
    data = small.digits((20, 30, 7), held=5)
    what = small.problem(data, make, device=device, dtype=torch.float32, **more)
    choices = {"rounds": 2, "evaluation": Evaluation(on="both"), **choices}
    what = partly(what, choices.pop("trainable", Trainable()), seed=5)
    program = small.training(data, what=what, site_splits=frozenset({"test"}), **choices)
    return small.run(program, data, mode)


@pytest.mark.parametrize("name", CASES)
def test_what_a_device_trains_stays_there(name, monkeypatch):
    expected = trained("cpu", *CASES[name])
    with pretended_gpu(monkeypatch) as computed:
        found = trained("cuda", *CASES[name])
    assert computed.total() > 100
    # Layouts in memory, and with them the order of sums, need not be the CPU's.
    assert small.largest_difference(found.arrays, expected.arrays) < 1e-6


def test_a_plain_loop_stays_there(monkeypatch):
    """`make_private`: gradients are clipped on the device; their sum is noised outside, and goes
    back."""

    def looped(device):
        rows = small.source().train
        x, y = rows.inputs(slice(0, 30)), rows.y[:30]
        net = small.seeded(small.perceptron(nn.Tanh))().to(device)
        sgd = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
        loader = DataLoader(TensorDataset(x, y), batch_size=10)
        made = make_private(net, sgd, loader, noise_multiplier=1.0, seed=1)
        model, optimizer, loader = made
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            assert loss.item() > 0
            optimizer.step()
        return {str(i): p.detach().cpu().numpy() for i, p in enumerate(net.parameters())}

    expected = looped(torch.device("cpu"))
    with pretended_gpu(monkeypatch) as computed:
        found = looped(GPU)
    assert computed.total() > 100
    assert small.largest_difference(found, expected) < 1e-6


def test_noise_is_drawn_where_the_gradients_are(monkeypatch):
    """With the device's own generator; of real sites it is the system's whatever the plan says."""
    made = []

    def generator(device, *named):
        made.append((device, named))
        return torch.Generator().manual_seed(len(made))

    monkeypatch.setattr(dp_sgd, "device_generator", generator)
    mode, make, choices = CASES["dp-sgd"]
    monkeypatch.setattr(dp_sgd, "noised_mean", None)  # the CPU's is not called
    with pretended_gpu(monkeypatch):
        trained("cuda", mode, make, choices, device_noise=True)
    rounds_and_sites = [named[2:] for _, named in made]
    assert sorted(set(rounds_and_sites)) == sorted(rounds_and_sites)
    assert {device for device, _ in made} == {GPU}
    monkeypatch.undo()
    on = trained("cpu", mode, make, choices, device_noise=True)
    assert small.largest_difference(on.arrays, trained("cpu", mode, make, choices).arrays) == 0


def test_the_pretended_device_refuses_what_a_real_one_does(monkeypatch):
    with pretended_gpu(monkeypatch):
        there, here = torch.ones(3).to(GPU), torch.ones(3)
        assert isinstance(there, OnDevice)
        assert (there * 2).cpu().tolist() == [2, 2, 2]
        for wrong in (torch.add, torch.Tensor.add_, lambda *both: torch.cat(both)):
            for both in ((there, here), (here, there)):
                with pytest.raises(RuntimeError, match="on both devices"):
                    wrong(*both)
        with pytest.raises(TypeError, match=r"use \.cpu"):
            there.numpy()
        parameter = nn.Parameter(there)
        with pytest.raises(TypeError, match="data of a parameter there"):
            parameter.data = here
        assert torch.zeros(2, device=there.device).device == GPU
