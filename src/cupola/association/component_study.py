"""Principal components over cohorts as an analysis of their own: `cupola run` of the kind 'pca'."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cupola.analysis.forms import Form
from cupola.analysis.protocol import Watch
from cupola.association import variant_list_codec
from cupola.association.accounting import counted_lines
from cupola.association.agreement import left_out
from cupola.association.analysis import AssociationAnalysis
from cupola.association.component_plan import ComponentsPlan
from cupola.association.result_files import stem, write_reasons
from cupola.base.formatting import duration, size
from cupola.federation.program import State

if TYPE_CHECKING:
    from cupola.analysis.run_folder import Run
    from cupola.pages.folder import RunFolder


class ComponentsAnalysis(AssociationAnalysis):
    """Principal components of people's genotypes, who stay at their cohorts."""

    kind = "pca"
    Plan = ComponentsPlan  # type: ignore[assignment]
    title = "principal components"
    table_link = ""

    def finish(self, state: State, folder: Path, watch: Watch) -> None:
        from cupola.association.structure.component_results import component_facts, write_components

        del watch
        plan, program, name = self.plan, self.association, stem(self.plan.name)
        written = write_components(program, state, folder, name)
        written.append(write_reasons(folder, name, program, state))
        names = [cohort.name for cohort in plan.cohorts]
        shared = [[names[a], names[b], n] for a, b, n in state.values.get("shared_people", [])]
        proposed = [] if plan.variants else [list(p) for p in zip(names, state.values["proposed"])]
        self._facts = {
            "people": state.values["people"],
            "binary": False,
            "variants": len(state.arrays["reason"]),
            "list_hash": variant_list_codec.fingerprint(program.variants(state)),
            "left_out": left_out(state.arrays["reason"]),
            "without_result": {},
            "limits": plan.limits_told,
            "agreement": state.values["own"] | state.values["found"],
            "warnings": state.values["warnings"],
            "hits": {},
            "components": component_facts(state),
            "proposed": proposed,
            "files": written,
            "shared_people": shared,
        }

    def chips(self, run: RunFolder) -> list[tuple[str, str]]:
        del run
        return [("principal components", "")]

    def sections(self, run: RunFolder) -> list[str]:
        from cupola.association.structure.component_pages import sections

        return sections(run)

    def show(self, run: Run, quiet: bool) -> list[Any]:
        from cupola.association.structure.component_pages import in_words

        del quiet
        found = run.result
        lines = [
            *in_words(found["components"], found["people"]["loaded"], len(found.cohorts)),
            f"{size(found.bytes_down + found.bytes_up)} sent, {duration(found.seconds)}",
            *counted_lines(found),
        ]
        return [*lines, *(str(run.folder / file) for file in (*found.files, "report.html"))]

    def in_short(self, run: RunFolder) -> dict[str, Any]:
        r = run.result
        found = r["components"]["eigenvalues"]
        return {
            "said": f"{len(found)} components", "metric": "components", "value": len(found),
            "people": r["people"]["loaded"], "bytes": r["bytes_down"] + r["bytes_up"],
            "seconds": r["seconds"], "sites": len(r["cohorts"]),
        }  # fmt: skip

    def index_table(self, run: RunFolder, path: Path) -> None:
        """There is no table of tests to search."""

    @classmethod
    def forms(cls) -> Mapping[str, Form]:
        from cupola.association.component_form import forms

        return forms()
