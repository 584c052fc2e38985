"""The public names of every layer, and the commands."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import typer

from parts.markdown import first_sentence, meanings, table

LAYERS = {
    "cupola": "Plans in, runs out.",
    "cupola.analysis": "Analyses: plan headers, programs with a plan, results.",
    "cupola.testing": "Tests that every analysis must pass.",
    "cupola.training.plan": "The plan of a training, and its sections.",
    "cupola.training.build": "From a training plan to the objects it stands for.",
    "cupola.report": "Reports and pictures of runs.",
    "cupola.sweep": "Hyperparameter search: sweeps over a plan's settings.",
    "cupola.training.personalise": "One model for every site: PFA and its rivals.",
    "cupola.training": "Training: the loop and its choices.",
    "cupola.training.utility": "Whether a training equals centralised training.",
    "cupola.training.privacy_promise": "What a training promises, and the noise it needs.",
    "cupola.training.mechanisms": "Privacy mechanisms: one object each.",
    "cupola.privacy": "Pieces to use alone: a private loop, the accountant.",
    "cupola.privacy.events": "What mechanisms did, as values that add up.",
    "cupola.privacy.accounting": "Epsilon, delta and noise of lists of events.",
    "cupola.privacy.budget": "The book of what sites have spent, and their limit.",
    "cupola.privacy.noise": "Randomness for privacy, and noise on a grid.",
    "cupola.privacy.persample": "Gradients of single samples, clipped and added.",
    "cupola.privacy.matrix": "Noise for running sums, correlated over steps.",
    "cupola.privacy.perturbation": "Output and objective perturbation.",
    "cupola.secure": "Masked sums: parties, rosters, protocols.",
    "cupola.nn": "Models, losses, and what can be said of them before training.",
    "cupola.nn.sources": "Trained models to build on.",
    "cupola.data": "Data sets, partitions, transforms.",
    "cupola.engines": "In this process, in processes, over Ray: how questions reach sites.",
    "cupola.federation": "Sites, tasks, sum and gather, ledger.",
    "cupola.base.randomness": "Counter-based randomness.",
    "cupola.errors": "Errors that reach a person.",
}


def api() -> str:
    """All public names, layer by layer, with a line each."""
    text = []
    for place, about in LAYERS.items():
        module = importlib.import_module(place)
        rows = [
            [f"`{name}`", _line(place, name, getattr(module, name))] for name in _public(module)
        ]
        text += [f"## {place}", "", about, "", table(["name", "what it is"], rows), ""]
    return "\n".join(text)


def _public(module: Any) -> list[str]:
    """What a layer exports; for a module without a list, what it defines."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__, key=str.lower)
    own = (n for n, value in vars(module).items() if _defined_in(module, value))
    return sorted((n for n in own if not n.startswith("_")), key=str.lower)


def _defined_in(module: Any, value: Any) -> bool:
    home = getattr(value, "__module__", None)
    return home == module.__name__ and (inspect.isclass(value) or inspect.isfunction(value))


def _line(place: str, name: str, value: Any) -> str:
    told = meanings()["api"].get(place, {})
    if name in told:
        return told[name]
    documented = inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)
    own = (value.__doc__ or "") if documented else ""
    about = first_sentence(inspect.cleandoc(own))
    if not about or own.startswith(f"{name}("):  # none, or the one that dataclasses make
        raise SystemExit(f"meanings.toml: [api.{place}] says nothing about '{name}'")
    if inspect.isfunction(value):
        return f"`({', '.join(_parameters(value))})` {about}"
    return about


def _parameters(function: Any) -> list[str]:
    """Names of the parameters; optional ones with '=...'."""
    found = []
    for p in inspect.signature(function).parameters.values():
        star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        found.append(star + p.name + ("" if p.default is p.empty else "=…"))
    return found


def commands() -> str:
    """Every command with the first line of its help."""
    from cupola.cli import app

    order = ("demo", "run", "check", "resume", "sweep", "reproduce", "compare", "report", "export")
    group = typer.main.get_command(app)
    found = group.commands  # type: ignore[attr-defined]
    rows = []
    for name in sorted(found, key=lambda n: (order.index(n) if n in order else len(order), n)):
        rows.append([f"`cupola {_usage(name, found[name])}`", first_sentence(found[name].help)])
        for inner, command in getattr(found[name], "commands", {}).items():
            usage = f"{name} {_usage(inner, command)}"
            rows.append([f"`cupola {usage}`", first_sentence(command.help)])
    return table(["command", "what it does"], rows)


def _usage(name: str, command: Any) -> str:
    """The command with its arguments; options are left to --help."""
    words = [name]
    for p in command.params:
        if p.param_type_name == "argument":
            words.append(p.metavar or p.name.upper())
    return " ".join(words)


PARTS = {"api": api, "commands": commands}
