"""What a coordinator asks a compensator: to settle a step, then for its masks, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cupola.errors import FederationError
from cupola.federation.message import Declined, Question, Spec
from cupola.secure.canonical import digest, is_name, is_whole
from cupola.secure.encoding import Outline, layout_hash, outline_from_json
from cupola.secure.envelope import ENVELOPE

CHUNK = 4 << 20  # bytes of mask in one answer
OTHER_SURVIVORS = "step settled for other survivors"


@dataclass(frozen=True)
class Request:
    """A coordinator's request to settle a step.

    roster, question: hashes of 32 bytes. sites: numbers in the roster. outlines: the distinct
    layouts; layouts: which of them each site signed. envelopes: of each site.
    """

    study: str
    roster: bytes
    step: int
    attempt: int
    question: bytes
    sites: tuple[int, ...]
    outlines: tuple[Outline, ...]
    layouts: tuple[int, ...]
    envelopes: tuple[bytes, ...]

    @cached_property
    def hashes(self) -> tuple[bytes, ...]:
        """What each site signed of its layout."""
        known = [layout_hash(outline) for outline in self.outlines]
        return tuple(known[number] for number in self.layouts)

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that stand for the request, in whatever order its sites are listed."""
        parts = sorted(zip(self.sites, self.hashes, self.envelopes, strict=True))
        facts = (self.study, self.roster, self.step, self.attempt, self.question)
        return digest("cupola settle 1", *facts, parts)

    @cached_property
    def arrays(self) -> dict[str, tuple[int, int]]:
        """Bits and size of each array, in order of appearance; Declined where sites differ."""
        found: dict[str, tuple[int, int]] = {}
        for outline in self.outlines:
            for name, bits, size in outline:
                if found.setdefault(name, (bits, size)) != (bits, size):
                    raise Declined(f"array '{name}' differs between sites")
        return found

    @cached_property
    def _outlines_with(self) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for number, outline in enumerate(self.outlines):
            for name, _, _ in outline:
                found.setdefault(name, set()).add(number)
        return found

    def contributors(self, array: str) -> list[int]:
        """Places (in `sites`) of those whose layout has this array."""
        having = self._outlines_with[array]
        return [place for place, number in enumerate(self.layouts) if number in having]

    def to_question(self) -> Question:
        """The request as it is asked."""
        return Question(
            "settle",
            {
                "sites": np.array(self.sites, np.int32),
                "layout": np.array(self.layouts, np.int32),
                "envelopes": np.frombuffer(b"".join(self.envelopes), np.uint8).reshape(
                    -1, ENVELOPE
                ),
            },
            {
                "study": self.study,
                "roster": self.roster.hex(),
                "step": self.step,
                "attempt": self.attempt,
                "question": self.question.hex(),
                "layouts": [[list(part) for part in outline] for outline in self.outlines],
            },
            {"granted": Spec((len(self.arrays),), "bool")},
            step=self.step,
            reveals="nothing: which arrays enough sites sent",
        )

    @classmethod
    def from_question(cls, question: Question) -> Request:
        """The request that a question holds, or Declined."""
        options = question.options
        try:
            sites = _integers(question.arrays["sites"])
            layouts = _integers(question.arrays["layout"])
            envelopes = question.arrays["envelopes"]
            outlines = tuple(outline_from_json(outline) for outline in options["layouts"])
            if envelopes.dtype != np.uint8 or envelopes.shape != (len(sites), ENVELOPE):
                raise ValueError("envelopes")
            if len(layouts) != len(sites) or not all(0 <= n < len(outlines) for n in layouts):
                raise ValueError("layouts")
            if not (is_whole(options["step"]) and is_whole(options["attempt"])):
                raise ValueError("counters")
            if not is_name(options["study"]):
                raise ValueError("study")
            return cls(
                options["study"],
                _hash(options["roster"]),
                options["step"],
                options["attempt"],
                _hash(options["question"]),
                sites,
                outlines,
                layouts,
                tuple(row.tobytes() for row in envelopes),
            )
        except (FederationError, KeyError, ValueError, TypeError, AttributeError):
            raise Declined("request is not well formed") from None


def unmask_question(request: Request, array: str, start: int, stop: int) -> Question:
    """Ask for the sum of masks of numbers `start` to `stop` of an array: at most CHUNK bytes."""
    options = _about(request, array) | {"start": start, "stop": stop}
    expects = {"sum": Spec((stop - start,), "int")}
    return Question("unmask", {}, options, expects, step=request.step)


def residue_question(request: Request, array: str) -> Question:
    """Ask for the sum of masks of an array's checksums."""
    options = _about(request, array) | {"start": 0, "stop": 0, "checksum": True}
    return Question("unmask", {}, options, {"checksum": Spec((16,), "int")}, step=request.step)


def settled_question(step: int, sites: int) -> Question:
    """Ask for whom a step was settled: a flag per site of the roster."""
    expects = {"settled": Spec((sites,), "bool")}
    return Question("settled", {}, {"step": step}, expects, step=step)


def _about(request: Request, array: str) -> dict[str, Any]:
    return {"request": request.digest.hex(), "array": array}


def _hash(text: str) -> bytes:
    found = bytes.fromhex(text)
    if len(found) != 32:
        raise ValueError("hash")
    return found


def _integers(array: np.ndarray) -> tuple[int, ...]:
    if array.dtype != np.int32 or array.ndim != 1:
        raise ValueError("integers")
    return tuple(array.tolist())
