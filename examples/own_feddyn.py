# %% [markdown]
# FedDyn as a method of one's own (Acar et al. 2021, "Federated learning based on dynamic
# regularization"), named by a plan:
#
#     cupola check own_method.toml --set method.name=own_feddyn:OwnFedDyn
#     cupola run own_method.toml --set method.name=own_feddyn:OwnFedDyn --set method.alpha=0.3

# %%
import numpy as np
from pydantic import Field

from cupola.training import Method


class OwnFedDyn(Method):
    """Site k minimises F_k(w) - <h_k, w> + alpha/2 |w - w_t|^2."""

    alpha: float = Field(0.1, gt=0)
    post_processing = True  # a site's data enter through gradients alone: goes with dp-sgd

    # At a site: what changes every gradient, and what stays there until the next turn.

    def correction(self, turn):
        own = self.kept(turn, "h")

        def correct(grads):
            for g, w, start, h in zip(grads, turn.params, turn.received, own):
                g += self.alpha * (w - start) - h

        return correct

    def keep(self, turn, steps):  # noqa: ARG002
        moved = zip(self.kept(turn, "h"), turn.params, turn.received)
        return {"h": [h - self.alpha * (w - start) for h, w, start in moved]}

    # At the coordinator: its own h, and the model that follows from the mean update w_t - w_k.

    def start(self, model):
        return {f"h/{name}": np.zeros(weight.shape) for name, weight in model.items()}

    def combine(self, round, update):
        h = {n: round.kept[f"h/{n}"] + self.alpha * round.share * u for n, u in update.items()}
        moved = {n: u + h[n] / self.alpha for n, u in update.items()}
        return moved, {f"h/{n}": array for n, array in h.items()}
