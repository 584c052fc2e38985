"""Plans: what is refused and how, short forms, settings, recipes, grids, round trip."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from samples import SMALL

from cupola.analysis.plan_file import load, parse_setting
from cupola.base.renaming import warn_once
from cupola.errors import PlanError
from cupola.training import Local, find_recipe
from cupola.training.plan import Plan


def problem(changes: dict[str, Any], *set_: str) -> str:
    plan = copy.deepcopy(SMALL)
    for key, value in changes.items():
        *path, last = key.split(".")
        place = plan
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    with pytest.raises(PlanError) as error:
        load(plan, set_)
    return str(error.value)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("local.learning_rate", "local.lr"),
        ("local.batchsize", "local.batch_size"),
        ("local.bs", "local.batch_size"),
        ("local.tau", "local.batches"),
        ("server.lrr", "server.lr"),
        ("round", "rounds"),
        ("proximal", "local.proximal"),
        ("data.partition.aplha", "data.partition.alpha"),
        ("data.partition.clients", "data.partition.sites"),
        ("data.tset", "data.test"),
        ("data.public_validation", "data.partition.public_validation"),
        ("local.schedule.gama", "local.schedule.gamma"),
        ("engine.quorm", "engine.quorum"),
    ],
)
def test_misspelt_keys_are_refused_with_a_suggestion(key: str, meant: str) -> None:
    assert problem({key: 1}) == f"plan: {key} is unknown; did you mean {meant}?"


def test_a_plan_is_checked_once_for_the_same_sites() -> None:
    plan = load(SMALL)
    assert load(plan) is plan
    assert load(plan, ["rounds=7"]).rounds == 7  # type: ignore[attr-defined]
    elsewhere = load(plan, elsewhere=True)
    assert elsewhere is not plan
    assert load(elsewhere, elsewhere=True) is elsewhere


def test_a_key_like_no_other_lists_what_there_is() -> None:
    assert "engine.zzz is unknown; there are: engine.kind, engine.mode" in problem(
        {"engine.zzz": 1}
    )


def test_options_of_models_are_checked() -> None:
    assert "model.hiden is unknown; did you mean model.hidden?" in problem(
        {"model": {"name": "mlp", "hiden": [3]}}
    )
    assert "takes no options" in problem({"model": {"name": "linear", "hidden": [3]}})


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("local.lr", -1, "local.lr = -1: must be greater than 0"),
        ("local.work", "epoch", "local.work = \"epoch\": must be 'epochs', 'batches' or"),
        ("local.work", "epoch", "did you mean 'epochs'?"),
        ("rounds", "many", 'rounds = "many": must be an integer'),
        ("rounds", 0, "rounds = 0: must be greater than or equal to 1"),
        ("local", 3, "local = 3: must be"),
        ("device", "gpu", 'device = "gpu": must be auto, cpu, cuda or mps'),
        ("data.partition.kind", "dirichle", "did you mean dirichlet?"),
        ("data.partition.alpha", "x", 'data.partition.alpha = "x": must be a number'),
        ("recipe", "fedvag", "recipe = 'fedvag' is unknown; did you mean 'fedavg'?"),
        ("data.name", "digit", "data.name = 'digit' is unknown; did you mean digits?"),
        ("model.name", "liner", "'liner' is not known; did you mean 'linear'?"),
        ("loss", "entropy", "loss = 'entropy' is not known"),
        ("local.accumulation", "weighted", "local: accumulation = 'weighted' needs send"),
        ("data.augment", ["flop"], "there is no transform 'flop'; did you mean 'flip'?"),
        ("seeds", [], "seeds = []: "),
        ("name", "a/b", 'name = "a/b": must begin with a letter or digit'),
    ],
)
def test_wrong_values_name_key_value_and_what_is_allowed(key: str, value: Any, said: str) -> None:
    changes = {"model": {"name": "linear"}} if key.startswith("model") else {}
    assert said in problem({**changes, key: value})


def test_all_problems_are_listed_one_per_line() -> None:
    text = problem({"local.lr": -1, "local.momentum": 2, "server.foo": 1})
    assert len(text.splitlines()) == 3


def test_missing_keys_are_named() -> None:
    with pytest.raises(PlanError, match="rounds is missing"):
        load({k: v for k, v in SMALL.items() if k != "rounds"})


def test_files_are_named_and_syntax_errors_have_a_line(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('name = "x"\nrounds 3\n')
    with pytest.raises(PlanError, match=r"x\.toml, line 2: not TOML"):
        load(path)
    path.write_text('name = "x"\nrounds = 3\nfoo = 1\nmodel="linear"\ndata="digits"\n')
    with pytest.raises(PlanError, match=r"x\.toml: foo is unknown"):
        load(path)
    with pytest.raises(PlanError, match=r"y\.toml: cannot be read \(No such file"):
        load(tmp_path / "y.toml")
    with pytest.raises(PlanError, match="is a folder"):
        load(tmp_path)


def test_settings_are_toml_values_or_bare_words() -> None:
    assert parse_setting("local.lr=0.2") == ("local.lr", 0.2)
    assert parse_setting("recipe=fedprox") == ("recipe", "fedprox")
    assert parse_setting("model.hidden=[1, 2]") == ("model.hidden", [1, 2])
    assert parse_setting("twin=true") == ("twin", True)
    assert parse_setting("data.path=a=b\nc=1") == ("data.path", "a=b\nc=1")
    with pytest.raises(PlanError, match="say key=value"):
        parse_setting("local.lr")


def test_settings_go_on_top_and_are_named_in_errors() -> None:
    plan = load(SMALL, ["local.lr=0.5", "model=mlp", "model.hidden=[7]"])
    assert plan.local.lr == 0.5
    assert plan.model.options == {"hidden": [7]}
    assert problem({}, "local.lr=-3").startswith("--set: local.lr = -3")
    assert load(SMALL, ["seeds=[1,2]", "seed=5"]).seed == 5


def test_recipe_settings_lie_below_the_plans_own() -> None:
    plan = load({**SMALL, "recipe": "fedadam", "server": {"lr": 0.5}})
    assert (plan.server.optimizer, plan.server.lr) == ("adam", 0.5)
    changed = plan.change({"recipe": "fedprox"})
    assert changed.server.optimizer == "sgd"
    assert changed.local.proximal == find_recipe("fedprox").local["proximal"]


def test_the_old_name_of_an_engine_is_taken_with_one_warning() -> None:
    warn_once.cache_clear()
    with pytest.warns(FutureWarning, match="'separate' is now 'processes'") as told:
        plans = [load(SMALL, ["engine.kind=separate"]) for _ in range(2)]
    assert len(told) == 1
    assert [plan.engine.kind for plan in plans] == ["processes"] * 2


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({"privacy": {"noise": 1.5}}, []),
        ({}, ["privacy.noise=1.5"]),
        ({"privacy": {"noise_multiplier": 1}, "grid": {"privacy.noise": [1.5]}}, []),
    ],
)
def test_the_old_name_of_the_noise_multiplier(given: dict, settings: list[str]) -> None:
    warn_once.cache_clear()
    with pytest.warns(FutureWarning, match=r"privacy.noise is now privacy.noise_multiplier"):
        plan = load({**SMALL, "recipe": "dp-sgd", **given}, settings)
    ((_, one),) = plan.expand()
    assert one.privacy.noise_multiplier == 1.5
    assert one.to_dict()["privacy"]["noise_multiplier"] == 1.5
    both = {**SMALL, "recipe": "dp-sgd", "privacy": {"noise": 1.5, "noise_multiplier": 1.5}}
    assert "are one option; give privacy.noise_multiplier" in problem(both)


def test_plans_are_made_in_python_with_the_same_names() -> None:
    plan = Plan(**{**SMALL, "recipe": "fedprox", "local": Local(lr=0.3)})
    assert (plan.local.lr, plan.local.proximal) == (0.3, 0.1)
    assert load(plan) == plan


def test_own_code_by_module_and_name() -> None:
    plan = load({**SMALL, "recipe": "samples:OWN", "model": {"name": "samples:net", "width": 3}})
    assert (plan.local.proximal, plan.server.momentum) == (0.7, 0.5)
    assert "is a int, not a cupola Recipe" in problem({"recipe": "samples:NOT_A_RECIPE"})
    assert "cannot import 'nowhere'" in problem({"recipe": "nowhere:OWN"})
    assert "has no nothing" in problem({"data.name": "samples:nothing"})
    assert "has no option 'm'" in problem({"data": {"name": "samples:source", "m": 3}})
    assert "needs the option 'n'" in problem({"data": "samples:rows"})


def test_expand_seeds_and_grid() -> None:
    plan = load({**SMALL, "seeds": [1, 2], "grid": {"local": {"lr": [0.1, 0.2]}}})
    labels = [label for label, _ in plan.expand()]
    assert labels == ["lr=0.1,seed=1", "lr=0.1,seed=2", "lr=0.2,seed=1", "lr=0.2,seed=2"]
    assert [(p.local.lr, p.seed) for _, p in plan.expand()][2] == (0.2, 1)
    assert not any(p.many for _, p in plan.expand())
    assert load(SMALL).expand() == [("", load(SMALL))]
    fixed = load(plan, ["local.lr=0.3"])
    assert [label for label, _ in fixed.expand()] == ["seed=1", "seed=2"]


def test_a_grid_over_recipes_gives_each_its_own_settings() -> None:
    plan = load({**SMALL, "grid": {"recipe": ["fedavg", "scaffold", "fedadam"]}})
    again = load(plan.to_toml())
    for one in (plan, again):
        runs = dict(one.expand())
        assert runs["recipe=scaffold"].local.control_variates
        assert not runs["recipe=fedadam"].local.control_variates
        assert runs["recipe=fedavg"].server.optimizer == "sgd"


def test_wrong_grids_are_refused_at_once() -> None:
    assert "(lrr=1): local.lrr is unknown" in problem({"grid": {"local.lrr": [1]}})
    assert "(lr=-1): local.lr = -1" in problem({"grid": {"local.lr": [0.1, -1]}})
    assert "either seed or seeds" in problem({"seeds": [1], "seed": 2})
    assert "cannot be varied" in problem({"grid": {"name": ["a"]}})


def test_labels_can_name_folders() -> None:
    plan = load({**SMALL, "grid": {"model": [{"name": "linear"}, {"name": "mlp", "hidden": [3]}],
                                   "data.partition": ["iid", "pooled"]}})  # fmt: skip
    labels = [label for label, _ in plan.expand()]
    assert labels[0] == "model=linear,partition=iid"
    assert all("/" not in label for label in labels)


VALUES = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["a", "x y", "fed+1"]),
        "rounds": st.integers(1, 10**6),
        "data": st.fixed_dictionaries(
            {"name": st.just("digits")},
            optional={
                "test": st.floats(0.1, 0.9),
                "augment": st.just(["flip", {"crop": 1}]),
                "partition": st.one_of(
                    st.just("iid"),
                    st.builds(
                        lambda a, n, v: {
                            "kind": "dirichlet", "alpha": a, "sites": n, "validation": v,
                        },
                        st.floats(1e-3, 1e3), st.integers(1, 99), st.floats(0, 0.5),
                    ),
                    st.builds(lambda r: {"kind": "quantity", "ratios": r},
                              st.lists(st.floats(0.1, 9), min_size=1)),
                ),
            },
        ),
        "model": st.sampled_from(["linear", {"name": "mlp", "hidden": [3, 4]}]),
    },
    optional={
        "seed": st.integers(0, 2**40),
        "recipe": st.sampled_from(["fedavg", "fedadam", "fedadagrad", "fedprox", "scaffold"]),
        "local": st.fixed_dictionaries(
            {}, optional={"lr": st.floats(1e-12, 1e12), "epochs": st.integers(1, 50)}
        ),
        "server": st.fixed_dictionaries({}, optional={"lr": st.floats(1e-9, 10)}),
        "loss": st.sampled_from(["cross_entropy", {"name": "focal", "gamma": 1.5}]),
        "dtype": st.sampled_from(["float32", "float64"]),
        "grid": st.dictionaries(
            st.sampled_from(["local.weight_decay", "engine.quorum"]),
            st.lists(st.floats(0, 0.9), min_size=1, max_size=3),
        ),
    },
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(VALUES)
def test_plans_survive_toml(values: dict[str, Any]) -> None:
    plan = load(values)
    assert load(plan.to_toml()) == plan
    assert load(load(plan.to_toml()).to_toml()).expand() == plan.expand()


def test_demo_plans_are_sound() -> None:
    folder = Path(sys.modules["cupola.training"].__file__ or "").parent / "plans" / "demo"
    assert len([load(path) for path in folder.glob("*.toml")]) == 7


def test_a_copy_with_other_values_is_checked_when_it_is_loaded():
    plan = load(SMALL)
    assert load(plan.model_copy(update={"rounds": 7})).rounds == 7
    with pytest.raises(PlanError, match="rounds"):
        load(plan.model_copy(update={"rounds": -1}))


def test_transforms_are_of_every_sites_own_update() -> None:
    given = {"name": "t", "rounds": 1, "data": "digits", "model": "mlp"}
    steps = [{"kind": "sparsify", "share": 0.5}, {"kind": "quantise", "bits": 6}]
    plan = Plan.model_validate({**given, "transforms": steps})
    assert load(plan.to_toml()) == plan
    assert [step.kind for step in plan.transforms] == ["sparsify", "quantise"]
    assert "transforms" not in Plan.model_validate(given).to_dict(), "hashes stay what they were"
    with pytest.raises(ValidationError, match=r"engine\.mode = .stacked.* transforms"):
        Plan.model_validate({**given, "transforms": steps, "engine": {"mode": "stacked"}})
    with pytest.raises(ValidationError, match="'quantize' is not known; did you mean 'quantise'"):
        Plan.model_validate({**given, "transforms": [{"kind": "quantize"}]})
