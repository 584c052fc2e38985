"""What is left of components: eigenvalues, and loadings for others to be projected on."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from cupola.association.structure.markers import Markers
from cupola.base.files import replacing

if TYPE_CHECKING:
    from cupola.association.study_program import Association
    from cupola.federation.program import State

VALUES, LOADINGS = ".components.tsv", ".loadings.tsv"
PLACE = ("CHR", "SNP", "POS", "A1", "A2", "A1_FREQ")


def component_facts(state: State) -> dict[str, Any]:
    """For result.json; nothing if the study has no components, or came to none."""
    known = state.values.get("components", {})
    if "eigenvalues" not in known:
        return {}
    told = ("markers", "withheld", "sums", "eigenvalues", "residuals", "gaps", "determined")
    values = np.array(known["eigenvalues"])
    shares = (values * known["markers"] / known["variance"]).tolist()
    facts = {name: known[name] for name in told} | {"shares": shares}
    facts |= {"pruned": known["pruned"]} if "pruned" in known else {}
    if "components/density" in state.arrays:
        facts["density"] = state.arrays["components/density"].astype(int).tolist()
    return facts


def write_components(program: Association, state: State, folder: Path, stem: str) -> list[str]:
    """The tables; their names."""
    facts = component_facts(state)
    if not facts:
        return []
    names = [stem + VALUES, stem + LOADINGS]
    with replacing(folder / names[0]) as file:
        _values(file, facts)
    with replacing(folder / names[1]) as file:
        _loadings(file, program, state)
    return names


def _values(file: IO[bytes], facts: dict[str, Any]) -> None:
    file.write(b"PC\tEIGENVALUE\tSHARE\tRESIDUAL\tGAP\tDETERMINED\n")
    columns = (facts[name] for name in ("eigenvalues", "shares", "residuals", "gaps", "determined"))
    for i, (value, share, residual, gap, sure) in enumerate(zip(*columns)):
        told = "yes" if sure else "no"
        file.write(
            f"PC{i + 1}\t{value!r}\t{share:.6g}\t{residual:.3g}\t{gap:.3g}\t{told}\n".encode()
        )


def used_markers(program: Association, state: State) -> Markers:
    """The markers that components were made of."""
    from cupola.association.structure.components import ComponentsPart

    return ComponentsPart(program, state).used


def _loadings(file: IO[bytes], program: Association, state: State) -> None:
    """A person's score is the sum over markers of (copies of A1 - 2 f) / sqrt(2 f (1 - f)) times
    the loading, f = A1_FREQ; 0 without a call."""
    used, loadings = used_markers(program, state), state.arrays["components/loadings"]
    variants = program.variants(state)[used.index]
    order = np.lexsort((variants.position, variants.chromosome))
    names = [f"PC{i + 1}" for i in range(loadings.shape[1])]
    file.write(("\t".join([*PLACE, *names]) + "\n").encode())
    columns = (variants.chromosome, variants.name, variants.position, variants.a1, variants.a2)
    facts = list(zip(*(np.asarray(column).tolist() for column in columns)))
    frequency, rows = used.frequency.tolist(), loadings.tolist()
    for i in order.tolist():
        cells = [*map(str, facts[i]), repr(frequency[i]), *map(repr, rows[i])]
        file.write(("\t".join(cells) + "\n").encode())
