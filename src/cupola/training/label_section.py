"""The map of labels that a border was trained with, for the report, where it was made anew."""

from __future__ import annotations

import numpy as np

from cupola.base.formatting import count, number, text
from cupola.pages import page
from cupola.pages.folder import RunFolder
from cupola.training.border_picture import saved_array


def label_section(run: RunFolder) -> str:
    """Which source classes stand for which target class in the end, and how often that changed."""
    index = saved_array(run, "output.index")
    if index is None or index.ndim != 2 or not np.isfinite(index).all():
        return ""
    known = run.partition.get("classes")
    names = [str(name) for name in known] if isinstance(known, list) else []
    names += [str(i) for i in range(len(names), len(index))]
    rows = [
        (text(name), ", ".join(str(int(i)) for i in chosen)) for name, chosen in zip(names, index)
    ]
    made = [r["labels_moved"] for r in run.history if isinstance(r.get("labels_moved"), int)]
    lead = (
        f"Which of the source's classes stand for each class. Chosen {count(len(made), 'time')} "
        f"as the border learnt; classes that got others, time by time: "
        f"{', '.join(map(number, made[:50]))}."
    )
    table = page.table([("class", False), ("the source's", False)], rows)
    return page.section("The map of labels", lead, table)
