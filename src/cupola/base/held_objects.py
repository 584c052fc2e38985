"""Objects that plans name: 'object:Net#9f3a12bc4d5e' is one that was passed in Python.

A plan stays a value of text and numbers. The word after 'object:' is for people, the mark after '#'
is a hash of what was passed, so that two plans are equal only if their objects are. A name leads to
its object as long as something holds on to it: every plan that names it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

PREFIX = "object:"


class Held:
    """An object, and the name that stands for it."""

    def __init__(self, name: str, value: Any, unsure: Any = None) -> None:
        self.name, self.value, self.unsure = name, value, unsure

    def __deepcopy__(self, memo: Any) -> Held:
        return self


_HELD: WeakValueDictionary[str, Held] = WeakValueDictionary()


def hold(word: str, mark: str, value: Any, unsure: Any = None) -> Held:
    """Give an object its name; who keeps the result keeps it findable.

    unsure: what was passed, where its mark may be that of another, too. Of those that are held at
    the same time each gets a name of its own: a plan must not lead to another one's object.
    """
    name = first = f"{PREFIX}{word}#{mark[:12]}"
    number = 1
    while unsure is not None and name in _HELD and _HELD[name].unsure is not unsure:
        number += 1
        name = f"{first}-{number}"
    held = Held(name, value, unsure)
    _HELD[name] = held
    return held


def is_object(name: Any) -> bool:
    """Whether a plan's name stands for an object that was passed in Python."""
    return isinstance(name, str) and name.startswith(PREFIX)


def is_absent(name: Any) -> bool:
    """Whether it stands for one that is not here."""
    return is_object(name) and name not in _HELD


def word_of(name: str) -> str:
    """What people call it: 'object:Net#9f3a12bc4d5e' is a Net."""
    return name.removeprefix(PREFIX).rpartition("#")[0] or name


def find_object(name: str, said: str, error: type[Exception]) -> Any:
    """The object behind a name. said: what the user wrote, for an error of this kind."""
    held = _HELD.get(name)
    if held is None:
        raise error(
            f"{said} stands for an object that was passed in Python and is not here; pass it "
            "again: cupola.resume(folder, model=..., data=...), or cupola.run(plan, ...)"
        )
    return held.value


def named_objects(tree: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, name) of all objects that plain values name."""
    if isinstance(tree, Mapping):
        for inner, value in tree.items():
            yield from named_objects(value, f"{key}.{inner}" if key else str(inner))
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from named_objects(value, key)
    elif is_object(tree):
        yield key, tree


def keep(tree: Any) -> tuple[Held, ...]:
    """What must be held on to, so that the objects that these values name stay findable."""
    return tuple(held for _, name in named_objects(tree) if (held := _HELD.get(name)) is not None)
