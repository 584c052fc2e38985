"""A network of timm as a user's own model: with the real package where it loads, else a stand-in
for what is asked of it."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import timm_network
import torch
from safetensors.torch import save_file
from torch import nn

import cupola
from cupola.analysis.plan_file import load
from cupola.nn import find_loss
from cupola.privacy.persample import PerSample
from cupola.training import build

PLAN = Path(timm_network.__file__).with_name("timm_network.toml")
MISSING = (
    "timm does not load here: it needs torchvision, and PyPI's does not load beside the CPU build "
    "of torch (docs/adapters.md has the line that installs both)"
)


class Small(nn.Module):
    def __init__(self, channels, classes=7):
        super().__init__()
        self.body, self.head = nn.Linear(channels * 64, 5), nn.Linear(5, classes)

    def forward(self, x):
        return self.head(self.body(x.flatten(1)).relu())

    def reset_classifier(self, classes):
        self.head = nn.Linear(5, classes)

    def get_classifier(self):
        return self.head


@pytest.fixture
def asked(monkeypatch):
    """What timm is asked for, in the place of timm."""
    found = []

    def create_model(name, **options):
        found.append({"name": name, **options})
        return Small(options["in_chans"])

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    return found


def test_nothing_is_downloaded_and_weights_are_the_users(asked, tmp_path):
    held, file = Small(1).state_dict(), str(tmp_path / "weights.safetensors")
    save_file(held, file)
    found = timm_network.network((1, 8, 8), 10, weights=file, settings={"img_size": 8})
    assert asked == [
        {"name": "vit_tiny_patch16_224", "pretrained": False, "in_chans": 1, "img_size": 8}
    ]
    assert torch.equal(found.body.weight, held["body.weight"])
    assert found(torch.rand(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.usefixtures("asked")
def test_a_plan_adapts_it_and_trains_its_new_head():
    options = ["trainable.adapter.targets=['body']"]
    names = dict(build.problem(load(PLAN, options)).build().named_parameters())
    trained = {name for name, p in names.items() if p.requires_grad}
    assert {"head.weight", "head.bias"} < trained
    assert {name.split(".")[0] for name in trained} == {"body", "head"}
    assert not any(p.requires_grad for n, p in names.items() if n.endswith("body.weight"))


@pytest.mark.parametrize("kind", ["lora", "head"])
def test_the_real_one_trains_privately_by_its_layers_rules(kind, tmp_path):
    try:
        import timm  # noqa: F401
    except Exception as error:
        pytest.skip(f"{MISSING}: {error}")
    own = ["trainable.adapter={kind='head'}"] if kind == "head" else []
    plan = load(PLAN, [*own, "privacy.mechanism=dp-sgd", "privacy.noise_multiplier=1", "rounds=1"])
    module = build.problem(plan).build().eval()
    engine = PerSample(module, find_loss("cross_entropy"))
    engine.clipped_sum(torch.rand(3, 1, 8, 8), torch.tensor([1, 2, 3]), 1.0)
    assert engine.fallback is None
    run = cupola.run(plan, tmp_path / "run", report=False)
    assert run.result["trainable"] < run.result["parameters"]
