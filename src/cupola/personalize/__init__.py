"""One model for every site: PFA (federated adaptation within groups) and its rivals."""

from cupola.personalize import alone as _alone  # registers the task 'adapt'
from cupola.personalize.choices import Personalise, Release
from cupola.personalize.grouping import from_matrix, from_references
from cupola.personalize.layers import activations, find_layers
from cupola.personalize.program import Personalisation
from cupola.personalize.similarity import full_matrix, to_references
from cupola.personalize.sparsity import sparsity_of

__all__ = [
    "Personalisation",
    "Personalise",
    "Release",
    "activations",
    "find_layers",
    "from_matrix",
    "from_references",
    "full_matrix",
    "sparsity_of",
    "to_references",
]

del _alone
