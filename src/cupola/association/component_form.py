"""The form for a study of components alone."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from cupola.analysis.forms import Entry, Form
from cupola.association import web_form

_QUALITY = ("quality.missing", "quality.hardy_weinberg", "quality.person_missing",
            "quality.kinship", "quality.unknown_strand")  # fmt: skip


@cache
def forms() -> dict[str, Form]:
    known = {entry.key: entry for _, entries in web_form._GROUPS for entry in entries}
    count = Entry("components.count", "Components", needed=True, about="Directions in which "
                  "people's genomes differ most.")  # fmt: skip
    details = tuple(replace(entry, when={}) for entry in web_form._COMPONENTS)
    groups = (
        ("The study", (Entry("name", "Name of the study", needed=True,
                             about="Its files are called so, too."),)),
        ("Components", (count, *details)),
        ("People and variants that are good enough", tuple(known[key] for key in _QUALITY)),
        ("How hospitals are protected", web_form._PROTECTED),
    )  # fmt: skip
    about = (
        "In which directions people's genomes differ most, mostly ancestry, over hospitals that "
        "keep their genotypes. Each hospital gets its own people's scores and a picture of them."
    )
    start = {"name": "components", "components": {"count": 10}, "sum": {"kind": "masked"}}
    return {"pca": Form(about, start, groups, title="Principal components")}
