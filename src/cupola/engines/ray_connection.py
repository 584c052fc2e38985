"""Ray as the engine needs it: connect or start a cluster, and read what went wrong."""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cupola.errors import CupolaError, FederationError


def library() -> Any:
    """Ray, imported only where it is asked for."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise FederationError(
            "engine.kind = 'ray' needs Ray, which is not installed: pip install 'cupola[ray]'"
        ) from error


#: What a `ray://` address asks of both ends; Ray's own errors do not say it.
CLIENT_NEEDS = (
    "; a cluster with tokens (Ray's default) wants RAY_AUTH_MODE=token and the head's "
    "~/.ray/auth_token here, and its head wants pip install 'ray[default]'"
)


def connect(ray: Any, address: str | None, workers: int) -> Callable[[], None]:
    """Connect to a cluster, or start one; how to undo that."""
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is not None:
        try:
            ray.init(address=address, **quiet)
        except ImportError as error:
            raise FederationError(
                f"engine.address = '{address}': {error}; pip install 'ray[client]'"
            ) from error
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            why = str(error).strip().split("\n")[0]
            client = address.startswith("ray://")
            raise FederationError(
                f"engine.address = '{address}': no Ray cluster can be reached there ({why})"
                + (CLIENT_NEEDS if client else "")
            ) from error
        return ray.shutdown
    # Sockets are in this folder, and their paths must be short.
    place = tempfile.mkdtemp(prefix="cupola-ray-", dir="/tmp" if os.path.isdir("/tmp") else None)

    def stop() -> None:
        ray.shutdown()
        shutil.rmtree(place, ignore_errors=True)

    try:
        with _private():
            ray.init("local", num_cpus=workers, include_dashboard=False, _temp_dir=place, **quiet)
    except BaseException as error:
        stop()
        if isinstance(error, Exception):
            raise FederationError(
                f"Ray cannot start a cluster here: {cause(error)} It gives itself 30 s: on a busy "
                "machine try again, or start one (`ray start --head`) and set engine.address"
            ) from error
        raise
    return stop


@contextmanager
def _private() -> Iterator[None]:
    """A cluster started now sends no usage statistics."""
    name = "RAY_USAGE_STATS_ENABLED"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def told(error: Any) -> CupolaError:
    """An error of a task, as it would be without Ray."""
    if isinstance(error.cause, CupolaError):
        return error.cause
    return FederationError(f"error in a Ray worker: {cause(error)}")


def cause(error: Exception) -> str:
    """What went wrong in a worker, in a line."""
    inner = getattr(error, "cause", None) or error
    lines = str(inner).strip().splitlines() or [""]
    return f"{type(inner).__name__}: {lines[-1].strip()}"


def reason(ray: Any, error: Exception) -> str:
    """Why a worker is gone, in a few words."""
    short_of_memory = isinstance(error, ray.exceptions.OutOfMemoryError) or (
        "memory pressure" in str(error) or "low on memory" in str(error)
    )
    return "its worker died" + (": out of memory" if short_of_memory else "")
