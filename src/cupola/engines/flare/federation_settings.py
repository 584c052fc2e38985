"""A federation as people write it down: who coordinates, who takes part, who may hand in plans."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from cupola.errors import PlanError

Kind = Literal["coordinator", "site", "compensator", "user"]
Role = Literal["lead", "member"]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
EMAIL = re.compile(r"[A-Za-z0-9._+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FederationSettings(_Strict):
    """federation.toml. coordinator: 'host:port', by which all others reach it. users: e-mail
    address -> 'lead' (hands plans in) or 'member' (looks on)."""

    name: str
    coordinator: str
    sites: list[str] = Field(min_length=1)
    compensator: str | None = None
    users: dict[str, Role] = Field(min_length=1)

    @field_validator("name")
    @classmethod
    def _plain(cls, name: str) -> str:
        return _named("name", name)

    @field_validator("coordinator")
    @classmethod
    def _address(cls, address: str) -> str:
        host, _, port = address.rpartition(":")
        if not HOST.fullmatch(host) or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"'{address}' is not host:port, such as fl.example.org:8002")
        return address

    @model_validator(mode="after")
    def _distinct(self) -> FederationSettings:
        parties = [*self.sites, *([self.compensator] if self.compensator else [])]
        for name in parties:
            _named("sites", name)
        taken = [*parties, self.host]
        if len(set(taken)) < len(taken):
            raise ValueError("two parties have the same name")
        for user in self.users:
            if not EMAIL.fullmatch(user):
                raise ValueError(f"users: '{user}' is not an e-mail address")
        return self

    @property
    def host(self) -> str:
        return self.coordinator.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.coordinator.rpartition(":")[2])

    @property
    def parties(self) -> dict[str, Kind]:
        """Every party's name and kind. The coordinator is named by its host, as its certificate."""
        kinds: dict[str, Kind] = {self.host: "coordinator"}
        kinds |= dict.fromkeys(self.sites, "site")
        if self.compensator:
            kinds[self.compensator] = "compensator"
        return kinds | dict.fromkeys(self.users, "user")


class Invitation(_Strict):
    """What a party is told so that it can ask for its certificate. authority: fingerprint of the
    federation's root certificate, to be compared by another way (by telephone)."""

    federation: str
    name: str
    kind: Kind
    coordinator: str
    role: Role | None = None
    authority: str

    @property
    def org(self) -> str:
        """FLARE's rights know organisations; each party is one of its own."""
        return re.sub(r"[^A-Za-z0-9]", "_", self.name)


def load_federation(path: Path) -> FederationSettings:
    return _load(FederationSettings, path)


def load_invitation(path: Path) -> Invitation:
    return _load(Invitation, path)


def _load(kind: type[Any], path: Path) -> Any:
    try:
        return kind.model_validate(tomllib.loads(path.read_text()))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PlanError(f"{path}: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise PlanError(f"{path}: {key + ': ' if key else ''}{first['msg']}") from None


def to_toml(settings: BaseModel) -> str:
    return tomli_w.dumps(settings.model_dump(exclude_none=True))


def _named(key: str, name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"{key}: '{name}' may have letters, digits, '-' and '_' only")
    return name
