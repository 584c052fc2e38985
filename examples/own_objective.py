# %% [markdown]
# An objective of one's own: FedLC (Zhang et al. 2022, "Federated learning with label distribution
# skew via logits calibration"). Scores are lowered by temperature * n_c^(-1/4), where a site holds
# n_c examples of class c, so that rare classes need a larger margin.
#
#     cupola run own_method.toml --set method.name=own_objective:FedLC
#     cupola sweep own_method.toml --set method.name=own_objective:FedLC \
#         --over method.temperature=0.3,1,3

# %%
import torch
from pydantic import Field
from torch.nn.functional import cross_entropy

from cupola.training import Method


class FedLC(Method):
    """Cross-entropy of scores that are calibrated by the site's own label counts."""

    temperature: float = Field(1.0, gt=0)

    def loss(self, turn):
        labels, classes = turn.site.data.train.y, turn.space.problem.classes
        counts = torch.bincount(labels, minlength=classes).clamp(min=1)
        margin = self.temperature * counts.to(turn.space.flat) ** -0.25

        def calibrated(model, x, y):
            return cross_entropy(model(x) - margin, y)

        return calibrated
