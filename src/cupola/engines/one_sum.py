"""`masked_sum`: one total of several parties' arrays, by the protocol of a federation (SecAgg).

Keys, roster, masks, checksums and unmasking are those that real sites use; only that all parties
are in this process. It is for trying the protocol out, for teaching, and for simulations by hand.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cupola.engines.in_process import InProcess
from cupola.engines.secure_sums import masked_sums
from cupola.errors import DataError
from cupola.federation.message import Arrays, Contribution, Declined, Question, Spec
from cupola.federation.site import SiteContext, task
from cupola.privacy.events import check_number
from cupola.secure.simulation import simulated_parties

Named = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class _Parties:
    """Their arrays, as an engine finds them."""

    held: list[Arrays]

    def __len__(self) -> int:
        return len(self.held)

    def data(self, site: int) -> _Own:
        return _Own(self.held[site])

    def workspace(self) -> None:
        return None


@dataclass(frozen=True)
class _Own:
    arrays: Arrays


@task("masked sum")
def _contribute(site: SiteContext, question: Question) -> Contribution:  # noqa: ARG001
    if not isinstance(site.data, _Own):  # anybody else's site: it has other data to protect
        raise Declined("not a party of masked_sum")
    return Contribution(site.data.arrays)


def masked_sum(
    parties: Mapping[str, Any] | Sequence[Any],
    *,
    bound: float,
    minimum: int = 3,
    protocol: Literal["compensator", "pairwise"] = "compensator",
) -> Any:
    """The sum of the parties' arrays, computed so that nobody sees a single one.

    parties: an array of each, or named arrays of each; shapes and names the same. bound: the most
    that a number of one party may be, in magnitude; it is public, and decides how many bits follow
    the point (integers are exact). minimum: parties that a total must have. protocol: masks that a
    third party takes off (compensator), or that cancel between parties (pairwise).

    >>> masked_sum({"Bern": [1.5, 2], "Rome": [0.25, 1], "Oslo": [-1, 4]}, bound=100.0)
    array([0.75, 7.  ])
    """
    bound = check_number("bound", bound, above=0)
    given = dict(parties) if isinstance(parties, Mapping) else dict(enumerate(parties))
    names = [str(name) for name in given]
    alone = not all(isinstance(one, Mapping) for one in given.values())
    held = [
        _arrays({"array": one} if alone else one, name) for name, one in zip(names, given.values())
    ]
    if len(held) < minimum:
        raise DataError(f"{len(held)} parties: a total needs minimum = {minimum}")
    whole = {name: any(one[name].dtype.kind == "f" for one in held if name in one)
             for name in held[0]}  # fmt: skip
    for name, one in zip(names, held):
        if {k: a.shape for k, a in one.items()} != {k: a.shape for k, a in held[0].items()}:
            raise DataError(f"'{name}' and '{names[0]}' do not have the same arrays and shapes")
        for key, array in one.items():
            if array.size and not np.abs(array).max() <= bound:
                raise DataError(f"'{name}': a number is beyond bound = {bound:g}, or none at all")
            one[key] = array.astype(np.float64 if whole[key] else np.int64)
    expects = {key: Spec.of(array, bound) for key, array in held[0].items()}
    question = Question("masked sum", expects=expects, reveals="the sum of the parties' arrays")
    keys = simulated_parties(
        "masked sum", seed=secrets.randbits(62), sites=len(held), minimum=minimum, protocol=protocol
    )
    with masked_sums(InProcess(_Parties(held), parties=keys.member), keys) as federation:
        total = federation.sum(question, range(len(held)))
    if total.failed:
        site, why = next(iter(total.failed.items()))
        raise DataError(f"'{names[site]}' gave no answer: {why}")
    sums = {key: array.astype(held[0][key].dtype) for key, array in total.arrays.items()}
    return sums["array"] if alone else sums


def _arrays(given: Any, name: str) -> Arrays:
    found = {}
    for key, value in given.items():
        try:
            array = np.asarray(value)
        except ValueError:
            array = np.asarray(None)
        if array.dtype.kind not in "fiub":
            raise DataError(f"'{name}': {key} is no array of numbers")
        found[str(key)] = array
    return found
