"""Engines: how a question reaches a site. Each implements `cupola.federation.Federation`.

`InProcess` (the default) computes all sites here, `SeparateProcesses` passes bytes to a process per
site, `RayCluster` uses the cores of a machine or a cluster; `cupola.engines.flare` reaches real
sites over NVIDIA FLARE. Each is loaded when it is used: a FLARE job's process stays small.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cupola.engines.in_process import InProcess as InProcess
    from cupola.engines.one_sum import masked_sum as masked_sum
    from cupola.engines.processes import Processes as Processes
    from cupola.engines.processes import SeparateProcesses as SeparateProcesses
    from cupola.engines.ray_cluster import RayCluster as RayCluster
    from cupola.engines.secure_sums import masked_sums as masked_sums

_HOME = {
    "InProcess": "in_process",
    "Processes": "processes",
    "RayCluster": "ray_cluster",
    "SeparateProcesses": "processes",
    "masked_sum": "one_sum",
    "masked_sums": "secure_sums",
}
__all__ = [
    "InProcess",
    "Processes",
    "RayCluster",
    "SeparateProcesses",
    "masked_sum",
    "masked_sums",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
