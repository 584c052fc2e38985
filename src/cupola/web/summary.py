"""A finished run in a few numbers: what lists and the comparison show."""

from __future__ import annotations

from typing import Any

from cupola.pages.folder import RunFolder


def of_run(run: RunFolder) -> dict[str, Any]:
    spent = run.result.get("privacy") or {}
    return {
        "metric": run.metric,
        "value": run.final(),
        "rounds": run.rounds,
        "bytes": run.bytes_sent,
        "seconds": run.result.get("seconds"),
        "epsilon": spent.get("epsilon"),
        "neighbours": spent.get("neighbours"),
        "unit": spent.get("unit"),
        "private": bool((run.plan.get("privacy") or {}).get("mechanism", "none") != "none"),
        "recipe": run.recipe,
        "data": run.result.get("data"),
        "model": run.result.get("model"),
        "sites": run.result.get("sites"),
    }


def of_study(result: dict[str, Any]) -> dict[str, Any]:
    return {
        "metric": "hits",
        "value": result["hits"]["5e-8"],
        "tested": result["tested"],
        "people": result["people"]["tested"],
        "inflation": result["inflation"],
        "bytes": result["bytes_down"] + result["bytes_up"],
        "seconds": result["seconds"],
        "test": result["test"],
        "sites": len(result["cohorts"]),
    }
