# %% [markdown]
# The trimmed mean as a method of one's own (Yin et al. 2018, "Byzantine-robust distributed
# learning"), named by a plan:
#
#     cupola run own_method.toml --set method.name=own_trimmed_mean:OwnTrimmedMean
#
# It must see every site's update, which the ledger says; masked sums are refused with the reason.

# %%
import numpy as np
from pydantic import Field

from cupola.training import Method


class OwnTrimmedMean(Method):
    """Of every coordinate, the share `trim` of sites is left out at either end."""

    asks = "gather"
    trim: float = Field(0.2, gt=0, lt=0.5)

    def aggregate(self, updates, weights):  # noqa: ARG002
        out = int(self.trim * len(updates))
        return {
            name: np.sort([update[name] for update in updates], 0)[out : len(updates) - out].mean(0)
            for name in updates[0]
        }
