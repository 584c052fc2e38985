"""Plans with an adapter: a base that is named and hashed, what travels, what averaging makes."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import eight_bits
import numpy as np
import pytest
import tiny_transformers
import torch
from choice_pairs import carry_out
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from test_run import checked, go, same, stop_after

import cupola
from cupola.analysis.plan_file import load
from cupola.data import Dataset, FederatedData, SiteData
from cupola.errors import CupolaError, FederationError, PlanError
from cupola.nn import adapters
from cupola.nn.adapters import low_rank, merge, product
from cupola.nn.quantised import unpack
from cupola.training import adapter_choice, build
from cupola.training.adapter_choice import Adapter
from cupola.training.adapters import averaging
from cupola.training.forecast import foresee
from cupola.training.workspace import Workspace

SMALL = {"name": "transformer", "width": 16, "heads": 2, "hidden": 24, "layers": 1, "dropout": 0.0}
PLAN: dict[str, Any] = {
    "name": "adapter",
    "rounds": 2,
    "data": "choice_pairs:words",
    "model": SMALL,
    "local": {"lr": 0.3, "batch_size": 4},
    "engine": {"workers": 1},
}
KINDS: dict[str, dict[str, Any]] = {
    "lora": {"rank": 2},
    "ffa-lora": {"rank": 2},
    "lora-sb": {"rank": 2},
    "prompt": {"length": 3},
    "bitfit": {},
    "head": {"targets": ["leave"]},
}


def texts() -> FederatedData:
    """As a tokeniser gives them: tokens and what to attend to."""

    def rows(n: int, seed: int) -> Dataset:
        chance = torch.Generator().manual_seed(seed)
        x = torch.randint(3, tiny_transformers.TOKENS, (n, 9), generator=chance)
        mask = torch.ones_like(x)
        mask[::2, 6:] = 0
        return Dataset({"input_ids": x, "attention_mask": mask}, x[:, 0] % 2)  # type: ignore[arg-type]

    held = [SiteData(rows(16, i)) for i in range(3)]
    public = {"test": rows(40, 99)}
    return FederatedData.from_arrays(held, classes=2, kind="classification", public=public)


def plan(kind: str = "lora", base: Path | None = None, **more: Any) -> dict[str, Any]:
    adapter = {"kind": kind, **KINDS[kind], **({"base": str(base)} if base else {}), **more}
    return {**PLAN, "trainable": {"adapter": adapter}}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, whose model others build on."""
    return go(tmp_path_factory.mktemp("base") / "run", plan=PLAN).folder


@pytest.mark.parametrize("kind", KINDS)
def test_the_base_stays_what_it_was_and_only_the_adapter_is_sent(
    kind: str, base: Path, tmp_path: Path
) -> None:
    run = go(tmp_path / "run", plan=plan(kind, base))
    cost, result = foresee(run.plan), run.result
    assert (result["bytes_down"], result["bytes_up"]) == (cost.down, cost.up)
    saved, frozen = (
        load_file(run.folder / "model.safetensors"),
        load_file(base / "model.safetensors"),
    )
    trained = {n for n, p in run.model().named_parameters() if p.requires_grad}
    assert trained <= set(saved)
    assert result["base"] == str(base)
    with safe_open(run.folder / "model.safetensors", "np") as file:
        told = json.loads(file.metadata()["base"])
    assert told == {"name": str(base), "checksum": result["source"]}
    held = dict(run.model().named_parameters())
    same_still = [n for n in frozen if n not in trained]
    assert all(np.array_equal(held[n].detach().numpy(), frozen[n]) for n in same_still)
    assert len(same_still) >= len(frozen) / 2
    assert any(not np.array_equal(saved[n], s) for n, s in go(
        tmp_path / "shorter", "rounds=1", plan=plan(kind, base)
    ).model().state_dict().items() if n in trained)  # fmt: skip


def test_another_base_is_refused(base: Path, tmp_path: Path) -> None:
    """By the model of a finished run, and by a run that is resumed."""
    held = load_file(base / "model.safetensors")
    weights, saving = tmp_path / "base.safetensors", "checkpoint_seconds=0"
    save_file(held, weights)
    run = go(tmp_path / "whole", saving, plan=plan("ffa-lora", weights))
    for name in ("same", "other"):
        with pytest.raises(SystemExit):
            go(tmp_path / name, saving, plan=plan("ffa-lora", weights), progress=stop_after(1))
    cupola.resume(tmp_path / "same", report=False)
    same(tmp_path / "whole", tmp_path / "same")
    save_file({n: a + np.float32(n == "leave.bias") for n, a in held.items()}, weights)
    with pytest.raises(CupolaError, match=r"adapter's base '.*base\.safetensors' are not those"):
        run.model()
    with pytest.raises(FederationError, match="the adapter's base here is not the coordinator's"):
        cupola.resume(tmp_path / "other", report=False)


def test_a_site_with_another_base_is_refused(base: Path, tmp_path: Path) -> None:
    weights = tmp_path / "base.safetensors"
    held = load_file(base / "model.safetensors")
    save_file(held, weights)
    coordinator = Workspace(build.problem(load(plan("lora", weights))))
    save_file({n: a * np.float32(1 + (n == "enter.weight")) for n, a in held.items()}, weights)
    site = Workspace(build.problem(load(plan("lora", weights))))
    with pytest.raises(FederationError, match="the adapter's base here is not"):
        site.load(coordinator.arrays())


@pytest.mark.parametrize("kind", ["lora", "ffa-lora", "lora-sb"])
def test_check_says_whether_the_mean_is_the_mean_of_the_models(kind: str, tmp_path: Path) -> None:
    facts = json.loads(checked(plan(kind), tmp_path, "--json"))["model"]["adapter"]
    said = checked(plan(kind), tmp_path)
    assert facts["base"] == "transformer, untrained"
    assert facts["exact"] is (kind != "lora")
    if kind == "lora":
        assert 1e-8 < facts["difference"] < 1
        assert "the mean of A times the mean of B is not the mean of the models" in said
    else:
        assert "the mean of what is trained is the mean of the models" in said


@pytest.mark.parametrize("kind", ["lora", "ffa-lora", "lora-sb"])
def test_what_is_called_exact_is(kind: str) -> None:
    """Two models with factors of their own: the mean of factors against the mean of products."""
    space = Workspace(build.problem(load({**plan(kind), "dtype": "float64"})))
    models, products = [], []
    for seed in (1, 2):
        space.flat.copy_(
            torch.randn(space.flat.shape, generator=torch.Generator().manual_seed(seed))
        )
        models.append(space.flat.clone())
        products.append([product(layer).detach() for _, layer in low_rank(space.module)])
    space.flat.copy_((models[0] + models[1]) / 2)
    apart = max(
        float((product(layer).detach() - (a + b) / 2).abs().max())
        for (_, layer), a, b in zip(low_rank(space.module), *products)
    )
    assert (apart > 0.1) if kind == "lora" else (apart < 1e-12)


def test_the_probe_is_the_difference_by_hand() -> None:
    """In a model without a path around its one factor, from the formulas."""
    given = load({**plan("lora", targets=["leave"]), "local": {"lr": 0.3}})
    host = build.host(given)
    found = averaging(host.problem, 0.3, host.sites)
    assert found is not None
    again = averaging(host.problem, 0.03, host.sites)
    assert again is not None
    assert found.difference is not None
    assert again.difference is not None
    # The error is of second order in the step: a tenth of the rate, at most a tenth of it.
    assert again.difference < 0.2 * found.difference


def test_layers_that_the_model_goes_round_are_named() -> None:
    given = {**plan("lora"), "model": {"name": "test_adapter_plans:Roundabout"}}
    host = build.host(load(given))
    found = averaging(host.problem, 0.3, host.sites)
    assert found is not None
    assert found.idle == ("unused",)


class Roundabout(torch.nn.Module):
    """Takes a layer's weight, not its output."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(classes, 8)
        self.unused, self.used = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.out = torch.nn.Linear(8, classes)
        self.takes = classes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.linear(self.words(x), self.unused.weight)
        return self.out(torch.relu(self.used(h)))


@pytest.mark.parametrize(
    "settings",
    [
        ["privacy.mechanism=dp-sgd", "privacy.noise_multiplier=0.8"],
        ["privacy.mechanism=central", "privacy.noise_multiplier=0.8", "local.weighting=uniform",
         "recipe=upcycled-fedavg"],
        ["sum.kind=masked", "participation.kind=fraction", "participation.count=4"],
        ["personalise.rounds=2", "personalise.methods=['pfa']"],
    ],
    ids=["dp-sgd", "central, upcycled", "masked", "pfa"],
)  # fmt: skip
@pytest.mark.parametrize("kind", KINDS)
def test_with_everything_else(kind: str, settings: list[str], tmp_path: Path) -> None:
    more = {"prompt": ",length=3", "bitfit": "", "head": ""}.get(kind, ",rank=2")
    own = [f"trainable.adapter={{kind='{kind}'{more}}}"]
    if kind == "prompt":  # it needs tokens; of a transformer PFA is told which layer to look at
        small = ",".join(f"{key}={value!r}" for key, value in SMALL.items())
        own += ["data={name='choice_pairs:words'}", f"model={{{small}}}"]
        own += ["personalise.layers=['enter']"] if "personalise.rounds=2" in settings else []
    carry_out([*own, *settings], tmp_path / "run")


def test_sites_that_train_less(tmp_path: Path) -> None:
    adapter = "trainable.adapter={kind='lora',rank=2,modules_to_save=['3']}"
    carry_out([adapter, "trainable.level=[{sites=[0,3],freeze=['3']}]"], tmp_path / "run")


@pytest.mark.slow
def test_sites_of_their_own_processes_make_the_same(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]  # where plans name code
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    chosen = plan("lora-sb", base)
    here = go(tmp_path / "here", "engine.mode=one-by-one", plan=chosen)
    there = go(tmp_path / "there", "engine.kind=processes", "engine.timeout=900", plan=chosen)
    same_model = load_file(there.folder / "model.safetensors")
    for name, array in load_file(here.folder / "model.safetensors").items():
        assert np.array_equal(array, same_model[name])


@pytest.mark.slow
def test_merged_into_the_base(base: Path, tmp_path: Path) -> None:
    model = go(tmp_path / "run", plan=plan("lora-sb", base)).model()
    x = torch.randint(0, 7, (3, 4))
    before = model(x)
    names = {n for n, _ in merge(model).named_parameters()}
    assert names == set(load_file(base / "model.safetensors")) - {"output.weight"}
    assert torch.allclose(model(x), before, atol=1e-6)


def test_a_base_in_half_the_bits(base: Path, tmp_path: Path) -> None:
    run = go(tmp_path / "run", plan=plan("lora", base, base_dtype="bfloat16"))
    model = run.model()
    kept = {n: p.dtype for n, p in model.named_parameters()}
    assert {d for n, d in kept.items() if "lora" in n} == {torch.float32}
    assert {d for n, d in kept.items() if "lora" not in n} == {torch.bfloat16}
    assert model(torch.zeros(1, 4, dtype=torch.int64)).dtype == torch.float32
    whole = go(tmp_path / "whole", plan=plan("lora", base))
    apart = abs(run.result.final.test.loss - whole.result.final.test.loss)
    assert 0 < apart < 0.02


def test_a_base_in_8_bits(tmp_path: Path) -> None:
    """As torch's dynamic quantisation packs it: hashed, left as it is, and never merged."""
    tagger = {"name": "eight_bits:tagger", "draw": 3}
    given = {**plan("lora"), "model": tagger}
    run = go(tmp_path / "run", plan=given)
    factors = {f"{i}.lora_{f}.weight" for i in (1, 3) for f in "AB"}
    assert set(load_file(run.folder / "model.safetensors")) == factors
    held, base = run.model(), unpack(eight_bits.tagger(7, 3))
    assert all(torch.equal(t, held.state_dict()[n]) for n, t in base.state_dict().items())
    with pytest.raises(PlanError, match="'1' is quantised"):
        merge(held)
    coordinator = Workspace(build.problem(load(given)))
    site = Workspace(build.problem(load({**given, "model": {**tagger, "draw": 4}})))
    with pytest.raises(FederationError, match="the adapter's base here is not"):
        site.load(coordinator.arrays())
    private = ["privacy.mechanism=dp-sgd", "privacy.noise_multiplier=0.8"]
    assert go(tmp_path / "private", *private, plan=given).status == "finished"
    weights = tmp_path / "whole.safetensors"
    save_file({n: a.float().numpy() for n, a in base.state_dict().items()}, weights)
    with pytest.raises(PlanError, match=r"'1.weight' is \[10, 6\] there, \[10, 6\] of int8 in"):
        build.training(load({**plan("lora", weights), "model": tagger}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"trainable.freeze": ["leave"]}, "trainable.adapter freezes all but the adapter"),
        ({"trainable.adapter.length": 4}, "adapter.length is of kind = 'prompt'"),
        ({"trainable.adapter.rank": 17}, r"rank = 17: 'enter' is 16 x 16"),
        ({"trainable.adapter.targets": ["lave"]}, "'lave' names no layer.*did you mean 'leave'"),
        ({"trainable.adapter.base": "nowhere"}, "base = 'nowhere' holds no weights"),
        ({"model.width": 32}, r"is \[\d+, 16\] there, \[\d+, 32\] in the model"),
        ({"trainable.adapter": {"kind": "head"}}, "shares its weight with another one"),
        ({"trainable.adapter": {"kind": "bitfit", "rank": 2}}, "of low-rank kinds"),
        ({"privacy.mechanism": "output", "privacy.noise_multiplier": 1, "local.proximal": 0.1},
         "there is no part to freeze"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(
    base: Path, change: dict[str, Any], said: str
) -> None:
    with pytest.raises((PlanError, ValueError), match=said):
        build.training(load(plan("lora", base)).change(change))


def test_plans_name_the_kinds_that_there_are() -> None:
    assert Adapter.model_fields["kind"].annotation == adapters.Kind
    assert adapter_choice.LOW_RANK == adapters.LOW_RANK


def test_prompts_are_for_tokens() -> None:
    given = {**plan("prompt"), "data": "digits", "model": "cnn"}
    with pytest.raises(PlanError, match="of images the trained border is the prompt"):
        build.training(load(given))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "lora-sb"])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_peft_loads_an_adapter_that_was_trained_here(name: str, kind: str, tmp_path: Path) -> None:
    """On the same base it gives the same logits, bit for bit but for the order of products."""
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    model = {"name": "huggingface", "path": str(tiny_transformers.save(tmp_path / "base", name))}
    data = "test_adapter_plans:texts"
    run = go(tmp_path / "run", plan={**plan(kind), "data": data, "model": model})
    assert run.result["base"] == model["path"]
    x = texts().site(0).train.x
    fields = {"input_ids": x[:, 0], "attention_mask": x[:, 1]}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of theirs
        auto = transformers.AutoModelForSequenceClassification
        made = auto.from_pretrained(model["path"], num_labels=2)
        theirs = peft.PeftModel.from_pretrained(made, run.folder / "adapter").eval()
        expected = theirs(**fields).logits
    assert torch.allclose(run.model()(x), expected, atol=1e-6)
    assert any(
        "classifier" in n or "score" in n for n in load_file(run.folder / "model.safetensors")
    )


@pytest.mark.slow
def test_nothing_is_downloaded_unasked() -> None:
    pytest.importorskip("transformers")
    model = {"name": "huggingface", "path": "bert-base-uncased"}
    given = {**plan("lora"), "data": "test_adapter_plans:texts", "model": model}
    with pytest.raises(PlanError, match=r"nothing is downloaded without model.download = true"):
        build.training(load(given))


def test_a_model_of_transformers_as_ones_own(tmp_path: Path) -> None:
    """'module:name' may give it as it is: it takes tokens and gives its logits."""
    pytest.importorskip("transformers")
    given = {
        **plan("ffa-lora", modules_to_save=["classifier"]),
        "data": "test_adapter_plans:texts",
        "model": {"name": "test_adapter_plans:own_bert"},
    }
    run = go(tmp_path / "run", "rounds=1", plan=given)
    assert run.result.final.test.accuracy is not None


def own_bert() -> torch.nn.Module:
    import transformers

    return transformers.BertForSequenceClassification(tiny_transformers.config("bert"))
