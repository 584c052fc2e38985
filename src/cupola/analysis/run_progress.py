"""How far a run is, as it is told to whoever watches it: a terminal, a web page, a submitter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Progress:
    """How far a run is. part: what it is about ('round', 'alleles'); record: what was measured in
    it. rate, seconds_left: of this part, by the pace of this session; infinite if not known yet.
    step: which part this is, of how many. said: the part in words, for people."""

    part: str
    done: int
    whole: int
    record: Mapping[str, Any]
    rate: float
    seconds_left: float
    folder: Path
    step: tuple[int, int] = (1, 1)
    said: str = ""

    @property
    def last_part(self) -> bool:
        """Whether the run ends with this part, as far as is known."""
        return self.step[0] >= self.step[1]

    @property
    def round(self) -> int:
        return self.done

    @property
    def rounds(self) -> int:
        return self.whole

    @property
    def rounds_per_second(self) -> float:
        return self.rate
