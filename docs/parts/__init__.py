"""Parts of the documentation that are made from the code, by name."""

from collections.abc import Callable

from parts import grounds, kernelnorm, keys, names, published, studies, verdicts

PARTS: dict[str, Callable[[], str]] = {
    **grounds.PARTS,
    **kernelnorm.PARTS,
    **keys.PARTS,
    **names.PARTS,
    **published.PARTS,
    **studies.PARTS,
    **verdicts.PARTS,
}
