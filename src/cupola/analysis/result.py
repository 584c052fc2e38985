"""The result of a run: result.json with attributes."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from cupola.errors import DataError


class Facts(BaseModel):
    """A part of a result. What an analysis does not name is there all the same."""

    model_config = ConfigDict(frozen=True, extra="allow")


class Result(Facts):
    """What every run leaves behind. `result["key"]` gives the plain value that result.json holds.

    status: 'finished', 'stopped', 'failed', or 'unfinished' if the run was killed or is under way.
    """

    status: str = "unfinished"
    reason: str | None = None
    name: str | None = None
    kind: str | None = None
    bytes_down: int = 0
    bytes_up: int = 0
    seconds: float = 0.0
    simulated: bool = True

    _plain: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Self:
        try:
            made = cls.model_validate(dict(plain))
        except ValidationError as error:
            key = ".".join(map(str, error.errors()[0]["loc"]))
            raise DataError(f"result.json: {key} is not what this version writes") from None
        made._plain = dict(plain)
        return made

    def to_dict(self) -> dict[str, Any]:
        return dict(self._plain)

    def keys(self) -> Iterator[str]:
        return iter(self._plain)

    def items(self) -> ItemsView[str, Any]:
        return self._plain.items()

    def get(self, key: str, default: Any = None) -> Any:
        return self._plain.get(key, default)

    def __getitem__(self, key: str) -> Any:
        return self._plain[key]

    def __contains__(self, key: object) -> bool:
        return key in self._plain

    def __bool__(self) -> bool:
        return bool(self._plain)
