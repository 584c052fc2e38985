"""Ray without processes: what the engine uses of it, in this one. Everything that would be sent is
pickled, and arrives read-only, as from Ray's shared memory."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

from ray import cloudpickle, exceptions


class Dead(exceptions.RayError):
    """The actor is gone."""


class Reference:
    def __init__(self, value: Any) -> None:
        self.buffers: list[bytes] = []
        self.body = cloudpickle.dumps(
            value, protocol=5, buffer_callback=lambda b: self.buffers.append(bytes(b.raw()))
        )

    def value(self) -> Any:
        return pickle.loads(self.body, buffers=self.buffers)


class Loopback:
    """deaths: numbers of calls to actors (but `progress`) at which the actor dies."""

    exceptions = exceptions

    def __init__(self, cpus: int = 8, deaths: tuple[int, ...] = ()) -> None:
        self.cpus, self.deaths = cpus, deaths
        self.calls: list[str] = []
        self.sent: list[int] = []  # bytes of results
        self.started = 0

    def is_initialized(self) -> bool:
        return True

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.cpus}

    def put(self, value: Any) -> Reference:
        return Reference(value)

    def wait(self, references: list[Any], num_returns: int = 1, timeout: float = 0) -> Any:  # noqa: ARG002
        return references, []

    def get(self, reference: Any) -> Any:
        if isinstance(reference, list):
            return [self.get(one) for one in reference]
        value = reference.value()
        if isinstance(value, Exception):
            raise value
        return value

    def kill(self, actor: Any) -> None:
        actor.dead = True

    def method(self, **where: Any) -> Any:  # noqa: ARG002
        return lambda function: function

    def remote(self, **needs: Any) -> Any:  # noqa: ARG002
        def wrap(kind: type) -> Any:
            return SimpleNamespace(remote=lambda: self._started(kind))

        return wrap

    def _started(self, kind: type) -> Any:
        self.started += 1
        made = kind()
        actor = SimpleNamespace(dead=False)
        for name in ("prepare", "add", "answer", "progress"):
            setattr(actor, name, self._method(actor, made, name))
        return actor

    def _method(self, actor: Any, made: Any, name: str) -> Any:
        def call(*arguments: Any) -> Reference:
            self.calls.append(name)
            if actor.dead or len(self.calls) in self.deaths:
                actor.dead = True
                return Reference(Dead())
            sent = [a if isinstance(a, Reference) else Reference(a) for a in arguments]
            try:
                result = getattr(made, name)(*(one.value() for one in sent))
            except Exception as error:
                return Reference(exceptions.RayTaskError(name, str(error), error))
            found = Reference(result)
            self.sent.append(len(found.body) + sum(map(len, found.buffers)))
            return found

        return SimpleNamespace(remote=call)
