"""What a coordinator asks a compensator: to settle a step, then for its masks, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cupola.errors import FederationError
from cupola.federation.message import Declined, Question, Spec
from cupola.secure.canonical import digest, is_name, is_whole
from cupola.secure.encoding import Outline, layout_hash, outline_from_json
from cupola.secure.envelope import ENVELOPE
from cupola.secure.reading import hash_in, numbers_in, rows_in, whole_in
from cupola.secure.wrapped_question import CHECK

CHUNK = 4 << 20  # bytes of mask in one answer
OTHER_SURVIVORS = "step settled for other survivors"
LATER_ATTEMPT = "this attempt or a later one was settled with other envelopes"
SUM = "sum/"  # of an array's masks
ILL = "request is not well formed"
_ILL_FORMED = (Declined, FederationError, KeyError, ValueError, TypeError, AttributeError)
Part = tuple[str, int, int]  # array, and from which number to which


@dataclass(frozen=True)
class Request:
    """A coordinator's request to settle a step.

    roster, question, terms: hashes of 32 bytes, as every site signed them alike. sites: numbers
    in the roster. outlines: the distinct layouts; layouts: which of them each site signed.
    envelopes: of each site.
    """

    study: str
    roster: bytes
    step: int
    attempt: int
    question: bytes
    terms: bytes
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
        facts = (self.study, self.roster, self.step, self.attempt, self.question, self.terms)
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
                "terms": self.terms.hex(),
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
            sites, layouts = numbers_in(question, "sites"), numbers_in(question, "layout")
            envelopes = rows_in(question, "envelopes", len(sites), ENVELOPE)
            outlines = tuple(outline_from_json(outline) for outline in options["layouts"])
            if len(layouts) != len(sites) or not all(0 <= n < len(outlines) for n in layouts):
                raise ValueError("layouts")
            if not is_name(options["study"]):
                raise ValueError("study")
            return cls(
                options["study"],
                hash_in(options, "roster"),
                whole_in(options, "step"),
                whole_in(options, "attempt"),
                hash_in(options, "question"),
                hash_in(options, "terms"),
                sites,
                outlines,
                layouts,
                envelopes,
            )
        except _ILL_FORMED:
            raise Declined(ILL) from None


def unmask_question(request: Request, parts: Sequence[Part]) -> Question:
    """Ask for the sums of masks of these parts, each of another array: at most CHUNK bytes. With
    the beginning of an array comes the sum of masks of its checksums."""
    expects = {SUM + array: Spec((stop - start,), "int") for array, start, stop in parts}
    expects |= {CHECK + array: Spec((16,), "int") for array, start, _ in parts if start == 0}
    options = {"request": request.digest.hex(), "parts": [list(part) for part in parts]}
    return Question("unmask", {}, options, expects, step=request.step)


def parts_from(question: Question) -> tuple[bytes, list[Part]]:
    """The digest of the request and the parts that a question asks for, or Declined."""
    try:
        request = hash_in(question.options, "request")
        parts = [(array, start, stop) for array, start, stop in question.options["parts"]]
        whole = all(is_name(a) and is_whole(b) and is_whole(c) and b <= c for a, b, c in parts)
        if not whole or len({array for array, *_ in parts}) < len(parts):
            raise ValueError("parts")
        return request, parts
    except _ILL_FORMED:
        raise Declined(ILL) from None


def chunks(arrays: Mapping[str, tuple[int, int]]) -> Iterator[list[Part]]:
    """Arrays, given by bits and size, cut into parts that fill a chunk each."""
    chunk: list[Part] = []
    room = CHUNK
    for array, (bits, size) in arrays.items():
        start = 0
        while (stop := start + room * 8 // bits) < size:
            yield [*chunk, (array, start, stop)]
            chunk, room, start = [], CHUNK, stop
        chunk.append((array, start, size))
        room -= (size - start) * bits // 8
    if chunk:
        yield chunk


def settled_question(step: int, sites: int) -> Question:
    """Ask for whom a step was settled, a flag per site of the roster, and in which attempt (-1: not
    yet)."""
    expects = {"settled": Spec((sites,), "bool"), "attempt": Spec((), "int")}
    return Question("settled", {}, {"step": step}, expects, step=step)
