"""One model for every site: PFA (federated adaptation within groups) and its rivals."""

from cupola.training.personalise import alone as _alone  # registers the task 'adapt'
from cupola.training.personalise.grouping import from_matrix, from_references
from cupola.training.personalise.layers import activations, find_layers
from cupola.training.personalise.personal_choices import Personalise, Release
from cupola.training.personalise.personal_program import Personalisation
from cupola.training.personalise.similarity import full_matrix, to_references
from cupola.training.personalise.sparsity import sparsity_of

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
