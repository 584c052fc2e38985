"""Data: load a set by name, cut it into sites, look at who holds what.

    source = load("digits")
    data = partition(source, {"kind": "dirichlet", "alpha": 0.3, "sites": 20}, seed=1)
    data = transforms([{"crop": 1}]).apply(data)
    data.site(3).train.inputs()

Sites are made when asked for. Nothing is downloaded unless `download=True` is said.
"""

from cupola.data import loaders
from cupola.data.conversion import converted
from cupola.data.dataset import (
    NO_LABEL,
    Dataset,
    FederatedData,
    Kind,
    SiteData,
    Source,
    Transform,
    pool,
)
from cupola.data.download import Files, Remote, fetch
from cupola.data.indices import partition_indices
from cupola.data.lazy import Owners
from cupola.data.loaders.synthetic import synthetic_population
from cupola.data.loading import dataset, describe, load, names, options
from cupola.data.partition import (
    IID,
    Classes,
    Dirichlet,
    Natural,
    Partition,
    Pooled,
    Quantity,
    Types,
    partition,
)
from cupola.data.site_picture import holdings, picture
from cupola.data.stored_rows import Reader, Rows, first_unusable
from cupola.data.transform import Transforms, transforms

__all__ = [
    "IID",
    "NO_LABEL",
    "Classes",
    "Dataset",
    "Dirichlet",
    "FederatedData",
    "Files",
    "Kind",
    "Natural",
    "Owners",
    "Partition",
    "Pooled",
    "Quantity",
    "Reader",
    "Remote",
    "Rows",
    "SiteData",
    "Source",
    "Transform",
    "Transforms",
    "Types",
    "converted",
    "dataset",
    "describe",
    "fetch",
    "first_unusable",
    "holdings",
    "load",
    "loaders",
    "names",
    "options",
    "partition",
    "partition_indices",
    "picture",
    "pool",
    "synthetic_population",
    "transforms",
]
