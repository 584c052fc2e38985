"""A site's part in one round: what it is asked, with which local choices, on which model."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from cupola.federation.message import Question
    from cupola.federation.site import SiteContext
    from cupola.training.choices import Local
    from cupola.training.workspace import Workspace


class Turn(NamedTuple):
    """A site's part in one round: what it is asked, with which local choices."""

    site: SiteContext
    question: Question
    local: Local

    @property
    def space(self) -> Workspace:
        workspace: Workspace = self.site.workspace
        return workspace.of_site(self.site.index)

    @property
    def params(self) -> list[Tensor]:
        """The parameters as they are now."""
        return self.space.params

    @property
    def received(self) -> list[Tensor]:
        """The parameters as they were received."""
        return self.space.split(self.space.start)

    @property
    def lr(self) -> float:
        """The learning rate of this round."""
        return float(self.question.options["lr"])
