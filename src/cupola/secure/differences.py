"""Differencing attacks: of whom the released totals of a study tell, whatever is done with them.

A coordinator that asks nearly the same twice, and claims that one site was late the second time,
reads its answer from the difference. The sets of sites behind the totals of an array cut the sites
into *parts*: those that are in exactly the same totals (the atoms of the sets' algebra). Any linear
combination of the totals has one coefficient for all sites of a part, so that it is a combination
of the parts' own totals. If every part has the minimum of sites, then so has everybody a crowd,
however alike the questions were and however totals are combined.

A part may be smaller if all of its sites are free to be told of: each agreed to that in the roster
('leaves'), or the study goes on without it (`going_on`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

Sets = Mapping[str, frozenset[str]]  # array -> names of the sites behind its total

ALL = "#weight"  # the array that stands for what all sites of a total send beside their own
EXPOSED = "a difference of totals would tell of too few sites"


def parts(sets: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """What these sets cut their union into: sites that are in exactly the same ones."""
    found: list[frozenset[str]] = []
    for new in sets:
        rest = new.difference(*found)
        cut = (piece for part in found for piece in (part & new, part - new))
        found = [piece for piece in (*cut, rest) if piece]
    return found


def exposed(
    before: Collection[Sets], new: Sets, minimum: int, free: Collection[str] = ()
) -> frozenset[str]:
    """Sites of whom fewer than the minimum could be told at once, if `new` were released, too.
    Those without an array of their own are not told of by it."""
    found: set[str] = set()
    for array, sites in new.items():
        told = [b[array] for b in before if array in b and (array != ALL or related(b, new))]
        for part in parts([*told, sites]):
            if len(part) < minimum and not part <= set(free):
                found |= part
    return frozenset(found)


def behind(arrays: Mapping[str, Collection[str]], minimum: int) -> Sets:
    """Of arrays and their senders, those that a total is told of. A site's weight, and how many of
    its numbers were beyond a bound, go with its arrays: one name stands for these, and weights of
    single arrays are of the same sites as the arrays."""
    kept = {a: frozenset(sites) for a, sites in arrays.items() if len(sites) >= minimum}
    return {a: sites for a, sites in kept.items() if a == ALL or not a.startswith("#")}


def related(a: Sets, b: Sets) -> bool:
    """Whether two totals are of the same kind: they share an array, or one has none. Weights of
    others (of training, of judging) are of other things, and who judges need not train."""
    own, other = a.keys() - {ALL}, b.keys() - {ALL}
    return not own or not other or bool(own & other)
