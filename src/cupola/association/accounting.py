"""Variants accounted for: how many stand where, from a study's result.json, in words.

The command line, the report and the web page show these lines and no others, so that nothing is
left out in one place alone. A reason to leave a variant out is a line in `agreement.REASONS`, one
to have no result in `fit.MEANINGS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cupola.association.study_choices import Study
    from cupola.federation.program import State


def missing(result: Mapping[str, Any]) -> list[tuple[str, int]]:
    """What has no result: on no list, left out, without an estimate."""
    own = result["agreement"]
    lines = [("on no list, all cohorts' files added up", own.get("unlisted", 0))]
    lines += [(f"left out: {reason}", n) for reason, n in result["left_out"].items()]
    lines += [(f"without a result: {why}", n) for why, n in result["without_result"].items()]
    return [(words, n) for words, n in lines if n]


def put_right(result: Mapping[str, Any]) -> list[tuple[str, int]]:
    """What differs between cohorts and does no harm."""
    own = result["agreement"]
    fewer = own.get("in_fewer", 0)
    return [
        *([("in some cohorts only, tested in these", fewer)] if fewer else []),
        ("alleles swapped in some cohort, put right", own["swapped"]),
        ("strand flipped in some cohort, put right", own["flipped"]),
        *(
            [("strand flipped by frequency (A/T, C/G)", own["flipped_by_frequency"])]
            if "flipped_by_frequency" in own
            else []
        ),
        ("named otherwise in a cohort", own.get("renamed", 0)),
        ("strand cannot be told (A/T, C/G)", own["unknown_strand"]),
    ]


_TOLD = ("heritability", "estimated", "sums", "converged", "residual", "calibration", "markers")


def mixed_facts(study: Study, state: State) -> dict[str, Any]:
    """What a study's result says of its mixed model; nothing if no variant was tested."""
    facts = state.values.get("mixed")
    if facts is None or "calibration" not in facts:
        return {}
    return {name: facts[name] for name in _TOLD} | {
        "groups": study.mixed.groups, "systems": facts["systems"],
        "probes": study.mixed.probes if facts["estimated"] is not None else 0,
    }  # fmt: skip


def mixed_line(result: Mapping[str, Any]) -> str:
    """What a study used of the mixed model, in a sentence; empty of another test's."""
    told = result.get("mixed")
    if not told:
        return ""
    how = "as stated" if told["estimated"] is None else f"from {told['probes']} random vectors"
    state = "converged" if told["converged"] else "has not converged"
    return (
        f"mixed model of {told['markers']:,} markers: heritability {told['heritability']:.3f} "
        f"({how}), {told['groups']} groups of chromosomes, {state} after {told['sums']} sums "
        f"(residual {told['residual']:.1e}), calibration {told['calibration']:.3f}"
    )


def counted_lines(found: Any) -> list[str]:
    """The mixed model, what is in no table, what cohorts call otherwise, and warnings, for a
    terminal."""
    lines = [f"  {line}" for line in (mixed_line(found),) if line]
    lines += [f"  {words}: {n:,}" for words, n in missing(found)]
    if renamed := found["agreement"].get("renamed"):
        lines.append(f"  other names in cohorts, matched by position and alleles: {renamed:,}")
    if fewer := found["agreement"].get("in_fewer"):
        lines.append(f"  in some cohorts only, tested in these (least_cohorts): {fewer:,}")
    return lines + [f"[yellow]warning: {warning}[/]" for warning in found["warnings"]]
