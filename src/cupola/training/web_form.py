"""The forms for trainings and personalisation: which keys of a plan they ask for, and when."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, get_args

from cupola import data, nn
from cupola.analysis.forms import Entry, Form, When
from cupola.data.dataset import Kind
from cupola.training.meanings import meanings
from cupola.training.recipes import RECIPES

ELSEWHERE = "elsewhere"  # data that only real sites hold
_MECHANISMS = ["dp-sgd", "central", "dp-ftrl", "distributed", "output", "objective"]
#: Where the plan's schema does not say it: kind, sentence, values of a choice.
_LOADERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "model.hidden": ("list", "Units of each hidden layer.", ()),
    "data.called": ("text", "What every site calls these data in its settings.", ()),
    "data.kind": ("choice", "What is predicted.", get_args(Kind)),
    "data.shape": ("list", "Numbers that describe one sample: how many columns a table has beside "
                   "the one to predict; of images channels, height, width.", ()),
    "data.class_names": ("words", "Labels of the column to predict, in the model's order; not for "
                         "regression.", ()),
    "personalise.methods": ("list", "", ()),
}  # fmt: skip
_NEEDED = ("name", "rounds", "data.name", "model.name")
_DEFAULTS = {"recipe": "fedavg", "data.partition.kind": "iid"}
_BEGIN: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [64]}, "local": {"lr": 0.3, "batch_size": 16},
    "recipe": "fedavg",
}  # fmt: skip


def _local(key: str, value: str) -> When:
    """Recipes under which a local setting counts."""
    return {"recipe": [n for n, r in RECIPES.items() if r.local.get(key, "epochs") == value]}


def _entry(key: str, label: str, when: When | None = None, needed: bool = False) -> Entry:
    kind, about, values = _LOADERS.get(key, ("", "", ()))
    options = tuple((v, v) for v in values) or _CHOICES.get(key, tuple)()
    default = _DEFAULTS.get(key)
    if key == "model.hidden":
        default = ", ".join(map(str, nn.options("mlp")["hidden"]))
    needed = needed or key in _NEEDED
    return Entry(key, label, when or {}, about or _meaning(key), kind, options, default, needed)


def _meaning(key: str) -> str:
    *outer, last = key.split(".")
    return str(meanings()[outer[-1] if outer else "plan"][last])


def _recipes() -> tuple[tuple[str, str], ...]:
    return tuple((r.name, f"{r.name}: {r.summary}") for r in RECIPES.values())


def _data_sets() -> tuple[tuple[str, str], ...]:
    plain = [n for n in data.names() if inspect.Parameter.empty not in data.options(n).values()]
    return tuple((n, f"{n}: {_first(data.describe(n))}") for n in [*plain, ELSEWHERE])


def _models() -> tuple[tuple[str, str], ...]:
    told = nn.describe()
    plain = [n for n in nn.names() if inspect.Parameter.empty not in nn.options(n).values()]
    return tuple((n, f"{n}: {_first(told[n])}") for n in plain)


def _first(text: str) -> str:
    line = " ".join(text.partition("\n\n")[0].split())
    return line if len(line) <= 90 else line[:87] + "..."


_CHOICES: Mapping[str, Callable[[], tuple[tuple[str, str], ...]]] = {
    "recipe": _recipes, "data.name": _data_sets, "model.name": _models,
}  # fmt: skip


def _groups() -> list[tuple[str, tuple[Entry, ...]]]:
    proximal = [n for n, r in RECIPES.items() if "proximal" in r.local or "proximal" in n]
    who, part, mechanism = "participation.kind", "data.partition.kind", "privacy.mechanism"
    private: When = {mechanism: _MECHANISMS}
    masked: When = {"sum.kind": ["masked"]}
    away: When = {"data.name": [ELSEWHERE]}
    spread = ["iid", "dirichlet", "classes", "quantity"]
    return [
        ("The study", (_entry("name", "Name"), _entry("rounds", "Rounds"), _entry("seed", "Seed"))),
        ("Data", (
            _entry("data.name", "Data set"), _entry("data.called", "Called at the sites", away),
            _entry("data.kind", "Task", away), _entry("data.shape", "Shape of a sample", away),
            _entry("data.class_names", "Classes", away),
            _entry(part, "How data are spread", {"!data.name": [ELSEWHERE]}),
            _entry("data.partition.sites", "Sites", {part: spread}),
            _entry("data.partition.alpha", "Concentration (alpha)", {part: ["dirichlet"]}),
            _entry("data.partition.k", "Classes at a site", {part: ["classes"]}),
            _entry("data.partition.merge", "Sites", {part: ["natural"]}),
            _entry("data.partition.test", "Held out for testing"),
        )),
        ("Model", (
            _entry("model.name", "Model"),
            _entry("model.hidden", "Hidden layers", {"model.name": ["mlp"]}),
        )),
        ("Method", (
            _entry("recipe", "Method"), _entry("local.lr", "Learning rate"),
            _entry("local.epochs", "Epochs", _local("work", "epochs")),
            _entry("local.batches", "Mini-batches", _local("work", "batches")),
            _entry("local.batch_size", "Batch size"),
            _entry("local.proximal", "Proximal term (mu)", {"recipe": proximal}),
            _entry(who, "Who takes part in a round"),
            _entry("participation.fraction", "Share of sites", {who: ["fraction", "poisson"]}),
            _entry("participation.count", "Sites a round", {who: ["at-most-once", "rotation"]}),
        )),
        ("Privacy", (
            _entry(mechanism, "Mechanism"),
            _entry("privacy.epsilon", "Epsilon, at the end", private),
            _entry("privacy.noise_multiplier", "Noise, instead of epsilon", private),
            _entry("privacy.delta", "Delta", private),
            _entry("privacy.clip", "Clipping norm", private),
            _entry("privacy.budget.epsilon", "Budget of every site", private),
        )),
        ("Sums", (
            _entry("sum.kind", "Sums"), _entry("sum.protocol", "Protocol", masked),
            _entry("sum.minimum", "Fewest sites in a sum", masked),
        )),
        ("Evaluation", (
            _entry("evaluation.on", "Judged on"),
            _entry("evaluation.every", "Rounds between evaluations"),
            _entry("twin", "Centralised twin"),
        )),
    ]  # fmt: skip


def _brings() -> dict[str, dict[str, dict[str, str]]]:
    """A recipe may bring its own mechanism or masked sums: then their settings apply, too."""
    found = {}
    for name, recipe in RECIPES.items():
        more = {
            "privacy.mechanism": recipe.privacy.get("mechanism"),
            "sum.kind": recipe.sum.get("kind"),
        }
        found[name] = {key: str(value) for key, value in more.items() if value}
    return {"recipe": found}


class _Training(Form):
    def refuses(self, plan: Any) -> tuple[str, str] | None:
        if plan.personalise is not None:
            return "", "the plan makes models personal: choose that kind of study"
        return None


class _Personalisation(Form):
    def refuses(self, plan: Any) -> tuple[str, str] | None:
        if plan.personalise is None:
            return "personalise.rounds", "say how the model is made personal"
        return None


@cache
def forms() -> dict[str, Form]:
    digits = {"kind": "dirichlet", "alpha": 0.3, "sites": 5}
    training = _Training(
        "One model, trained by all sites.",
        {"name": "digits", "rounds": 20, "data": {"name": "digits", "partition": digits}, **_BEGIN},
        tuple(_groups()),
        brings=_brings(),
    )
    personal = (
        _entry("personalise.methods", "Methods"),
        _entry("personalise.rounds", "Rounds of adaptation", needed=True),
        _entry("personalise.groups", "Groups"),
        _entry("personalise.minimum", "Fewest sites in a group"),
        _entry("personalise.release.epsilon", "Epsilon of what makes the groups"),
    )
    groups, spread = _groups(), {"kind": "classes", "k": 4, "sites": 9, "test": 0.2}
    personalisation = _Personalisation(
        "A model for every site: groups of similar sites adapt the common one.",
        {
            "name": "personal digits", "rounds": 15,
            "data": {"name": "digits", "partition": spread}, **_BEGIN,
            "evaluation": {"on": "both"},
            "personalise": {"methods": ["pfa", "finetune"], "rounds": 5},
        },
        (*groups[:4], ("Personalisation", personal), *groups[4:]),
        mark="personalise",
        brings=_brings(),
    )  # fmt: skip
    return {"training": training, "personalisation": personalisation}
