"""Plans that come from a browser: checked by the plan's own rules, and by what a server may allow.

A plan may name code and files. On the command line they are the user's own; here they would be
the server's, so they are refused before anything looks at them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tomli_w
from pydantic import ValidationError

from cupola.analysis.explain import problems
from cupola.analysis.overrides import normal
from cupola.web.kinds import Problem, Wrong, analysis_named, forms, registered

if TYPE_CHECKING:
    from cupola.analysis.protocol import Analysis
    from cupola.web.models import Study

LONGEST, DOTS, KEYS, NAME = 200_000, 250, 1000, 100  # characters; in a line; in all; of a name
_REFUSED = {  # of every plan
    "seeds": "a study is one run; give seed",
    "grid": "a study is one run; `cupola sweep` tries many settings",
    "track": "leave it out: this server writes to no tracker",
    "engine.kind": "leave it out: the server decides",
    "engine.workers": "leave it out: the server decides",
    "engine.address": "leave it out: the server decides",
}
_WORDS = ("name", "kind")  # a name is never looked up; a kind only where its module is allowed


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


def check(
    kind: str, given: dict[str, Any], sites: Sequence[str] = (), modules: Collection[str] = ()
) -> Any:
    """The plan, if this server may carry it out. sites: names of those who joined. modules: whose
    code a plan may name as its kind."""
    analysis = analysis_named(kind, modules)
    found = list(_not_here(analysis, given))
    if given.get("kind", registered(kind)) != registered(kind):
        found.append(("kind", f"this is a study of kind '{kind}'"))
    if found:
        raise Wrong(found)
    names = list(sites)
    if not names and analysis.unchosen is not None:
        names = [f"site {i + 1}" for i in range(3)]
    whole = analysis.with_sites(given, {name: analysis.unchosen or {} for name in names})
    try:
        plan = analysis.Plan.model_validate(whole)
    except ValidationError as error:
        found = list(problems(error, analysis.Plan))
        raise Wrong([(key, said.removeprefix(f"{key}: ")) for key, said in found]) from None
    form = forms().get(kind)
    if form is not None and (problem := form.refuses(plan)):
        raise Wrong([problem])
    return plan


def plan_of(study: Study, sites: Sequence[str] = ()) -> Any:
    """The plan of a study; sites: names of those who joined."""
    return check(study.kind, parse(study.plan), sites, study.modules)


def _not_here(analysis: type[Analysis[Any]], given: Mapping[str, Any]) -> Iterator[Problem]:
    for key, value in leaves(given):
        for name, why in {**_REFUSED, **analysis.not_from_browsers}.items():
            if key == name or key.startswith(name + "."):
                yield key, why
        if key == "name" and isinstance(value, str) and len(value) > NAME:
            yield key, f"has {NAME} characters at most"
        if isinstance(value, str) and key not in (*_WORDS, *analysis.browser_words):
            if ":" in value:
                yield key, f"'{value}' may name code; a plan from a browser cannot"
            elif any(mark in value for mark in ("/", "\\", "..", "~")):
                yield key, f"'{value}' may name a file; a plan from a browser cannot"
        most = analysis.browser_limits.get(key)
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
