"""Plans that come from a browser: checked by the plan's own rules, and by what a server may allow.

A plan may name code and files. On the command line they are the user's own; here they would be
the server's, so they are refused before anything looks at them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tomli_w
from pydantic import BaseModel, ValidationError

from cupola.analysis.explain import problems
from cupola.errors import CupolaError
from cupola.gwas.plan import StudyPlan
from cupola.learn.plan import Plan, changed, normal

TRAINING, PERSONALISATION, ASSOCIATION = "training", "personalisation", "association"
KINDS = {
    TRAINING: "One model, trained by all sites.",
    PERSONALISATION: "A model for every site: groups of similar sites adapt the common one.",
    ASSOCIATION: "Which variants go with a trait, over cohorts that keep their genotypes.",
}
ELSEWHERE = "elsewhere"  # data that only real sites hold
Problem = tuple[str, str]  # dotted key ('' for the whole), what is wrong
_SITES_CHOOSE = "sites choose their own files when they join"
_REFUSED = {
    ASSOCIATION: {
        "cohorts": f"leave it out: {_SITES_CHOOSE}",
        "folder": f"leave it out: {_SITES_CHOOSE}",
        "variants": "leave it out: it names a file of this server",
        "salt": "leave it out: what cohorts share must not be told to the coordinator",
        "workers": "leave it out: the server decides",
    },
    TRAINING: {
        "seeds": "a study is one run; give seed",
        "grid": "a study is one run; `cupola sweep` tries many settings",
        "task": "leave it out: it names code",
        "data.path": "names a file of this server",
        "data.folder": "names a folder of this server",
        "data.download": "this server downloads nothing; use `cupola data get` on it",
        "model.weights": "names a file of this server",
        "model.vectors": "names a file of this server",
        "privacy.budget.file": "leave it out: budgets are kept with the study",
        "engine.kind": "leave it out: the server decides",
        "engine.workers": "leave it out: the server decides",
    },
}
#: More than a demonstration needs; a study at real sites is not limited by this machine.
LIMITS = {
    "rounds": 10_000, "data.partition.sites": 10_000, "data.partition.sites_per_type": 10_000,
    "data.partition.parts": 1000, "personalise.rounds": 10_000,
}  # fmt: skip
LONGEST, DOTS, KEYS, NAME = 200_000, 250, 1000, 100  # characters; in a line; in all; of a name
_WORDS = {"device", "name", "data.class_names"}  # never looked up as code or a file


class Wrong(CupolaError):
    """A plan cannot be carried out. problems: by key."""

    def __init__(self, found: Sequence[Problem]) -> None:
        self.problems = list(found)
        super().__init__("; ".join(f"{key}: {said}" if key else said for key, said in found))


def parse(text: str) -> dict[str, Any]:
    """What a plan's text says."""
    if len(text) > LONGEST:
        raise Wrong([("", f"a plan has {LONGEST:,} characters at most")])
    if any(line.count(".") > DOTS for line in text.split("\n")):  # a key of many parts takes long
        raise Wrong([("", f"a line has {DOTS} dots at most; write long lists in several lines")])
    try:
        given = normal(tomllib.loads(text))
        if sum(1 for _ in _keys(given)) > KEYS:  # each that is unknown is compared with all others
            raise Wrong([("", f"a plan has {KEYS:,} keys at most")])
        return given
    except ValueError as error:  # TOMLDecodeError, or a number that is too long
        raise Wrong([("", f"not TOML: {error}")]) from None
    except RecursionError:
        raise Wrong([("", "not TOML: nested too deep")]) from None


def _keys(tree: Any) -> Iterator[str]:
    inner = tree.values() if isinstance(tree, Mapping) else tree
    if isinstance(tree, Mapping):
        yield from tree
    for value in inner:
        if isinstance(value, Mapping | list | tuple):
            yield from _keys(value)


_ARRAY = re.compile(r"\[\n((?:[ ]+[^\[\]\n]+,\n)+)[ ]*\]")


def to_text(given: Mapping[str, Any]) -> str:
    """As TOML, short lists in one line."""
    text = tomli_w.dumps(dict(given))

    def joined(found: re.Match[str]) -> str:
        line = "[" + ", ".join(part.strip()[:-1] for part in found[1].splitlines()) + "]"
        return line if len(line) <= 80 else found[0]

    short = _ARRAY.sub(joined, text)
    return short if tomllib.loads(short) == tomllib.loads(text) else text


def check(kind: str, given: dict[str, Any], sites: Sequence[str] = ()) -> Plan | StudyPlan:
    """The plan, if this server may carry it out; sites: names of those who joined."""
    if found := list(_not_here(kind, given)):
        raise Wrong(found)
    whole: type[BaseModel] = StudyPlan if kind == ASSOCIATION else Plan
    if kind == ASSOCIATION:
        names = list(sites) or [f"site {i + 1}" for i in range(3)]
        given = {**given, "cohorts": [{"name": n, "bfile": "not-chosen"} for n in names]}
    elif sites and "sites" in _partition(given):
        given = changed(given, {"data.partition.sites": len(sites)})
    try:
        plan = whole.model_validate(given)
    except ValidationError as error:
        found = list(problems(error, whole))
        raise Wrong([(key, said.removeprefix(f"{key}: ")) for key, said in found]) from None
    if isinstance(plan, Plan) and kind == PERSONALISATION and plan.personalise is None:
        raise Wrong([("personalise.rounds", "say how the model is made personal")])
    if isinstance(plan, Plan) and kind == TRAINING and plan.personalise is not None:
        raise Wrong([("", "the plan makes models personal: choose that kind of study")])
    assert isinstance(plan, Plan | StudyPlan)
    return plan


def kind_of(given: Mapping[str, Any]) -> str:
    """Which kind of study a plan describes."""
    if "test" in given:
        return ASSOCIATION
    return PERSONALISATION if "personalise" in given else TRAINING


def asks_sites(kind: str, given: dict[str, Any]) -> bool:
    """Whether the plan leaves open how many sites take part, so that some can be invited."""
    return kind == ASSOCIATION or "sites" in _partition(given)


def _partition(given: Mapping[str, Any]) -> set[str]:
    """The keys that the plan's partition takes."""
    from cupola.analysis.explain import _partitions

    data = given.get("data")
    part = data.get("partition") if isinstance(data, dict) else None
    kind = part.get("kind", "iid") if isinstance(part, dict) else "iid"
    model = _partitions().get(str(kind))
    return set(model.model_fields) if model else set()


def _not_here(kind: str, given: Mapping[str, Any]) -> Iterator[Problem]:
    refused = _REFUSED[ASSOCIATION if kind == ASSOCIATION else TRAINING]
    for key, value in leaves(given):
        for name, why in refused.items():
            if key == name or key.startswith(name + "."):
                yield key, why
        if key == "name" and isinstance(value, str) and len(value) > NAME:
            yield key, f"has {NAME} characters at most"
        if isinstance(value, str) and key not in _WORDS:
            if ":" in value:
                yield key, f"'{value}' may name code; a plan from a browser cannot"
            elif any(mark in value for mark in ("/", "\\", "..", "~")):
                yield key, f"'{value}' may name a file; a plan from a browser cannot"
        most = LIMITS.get(key)
        if most is not None and isinstance(value, int | float) and value > most:
            yield key, f"is {most:,} at most here"


def leaves(tree: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of everything below; of lists, every entry under the list's key."""
    if isinstance(tree, Mapping):
        if not tree and key:
            yield key, None
        for name, value in tree.items():
            yield from leaves(value, f"{key}.{name}" if key else str(name))
    elif isinstance(tree, list | tuple):
        if not tree:
            yield key, None
        for value in tree:
            yield from leaves(value, key)
    else:
        yield key, tree
