"""What a misspelt name may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_SYNONYMS = {
    "clients": "sites",
    "n_clients": "sites",
    "num_clients": "sites",
    "tau": "batches",
    "mu": "proximal",
    "lambda": "damping",
    "client": "local",
    "dataset": "data",
    "n_rounds": "rounds",
    "num_rounds": "rounds",
    "eta": "lr",
}


def closest(given: str, known: Iterable[str]) -> str | None:
    """The known name that `given` most likely stands for: spelling, initials, common synonyms."""
    known = list(known)
    if _SYNONYMS.get(given) in known:
        return _SYNONYMS[given]
    folded = {_folded(name): name for name in reversed(known)}
    plain = _folded(given)
    for cutoff in (0.7, 0.6):
        if close := difflib.get_close_matches(plain, folded, n=1, cutoff=cutoff):
            return folded[close[0]]
        for name in known:
            if _initials(plain) == name or _initials(name) == plain:
                return name
    return None


def hint(given: str, known: Iterable[str], what: str = "allowed", prefix: str = "") -> str:
    """'did you mean x?', or the list of what there is."""
    known = list(known)
    close = closest(given, known)
    if close is not None:
        return f"did you mean {prefix}{close}?"
    return f"{what}: {', '.join(known)}"


def suggest(given: str, known: Iterable[str], what: str = "there are") -> str:
    """The same with quotes: "did you mean 'x'?"."""
    known = list(known)
    close = closest(given, known)
    return f"did you mean {close!r}?" if close is not None else f"{what}: {', '.join(known)}"


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")


def _initials(name: str) -> str | None:
    words = [word for word in name.split("_") if word]
    return "".join(word[0] for word in words) if len(words) > 1 else None
