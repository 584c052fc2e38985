"""Models of a user's own whose layers see every place of an input."""

from torch import nn


class Mean(nn.Module):
    """Over places."""

    def forward(self, x):
        return x.flatten(2).mean(2) if x.dim() == 4 else x.mean(1)


class Quarters(nn.Module):
    """The quarters of an image, one after the other: (n, 4, 16)."""

    def forward(self, x):
        return x.reshape(len(x), 4, 16)


def over_positions(classes=10):
    """A linear layer at every quarter of an image, wide enough for norms from products."""
    return nn.Sequential(Quarters(), nn.Linear(16, 64), Mean(), nn.Linear(64, classes))


def pointwise(classes=10):
    """1 x 1 convolutions at every pixel."""
    wide = [nn.Conv2d(1, 64, 4, stride=4), nn.Conv2d(64, 64, 1)]
    return nn.Sequential(*wide, Mean(), nn.Linear(64, classes))


def lstm(classes=10):
    """A recurrent layer over the rows of an image."""
    return nn.Sequential(Rows(), Last(), nn.Linear(16, classes))


class Rows(nn.Module):
    """The rows of an image, one after the other: (n, 8, 8)."""

    def forward(self, x):
        return x.reshape(len(x), 8, 8)


class Last(nn.Module):
    """The last output of an LSTM."""

    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(8, 16, batch_first=True)

    def forward(self, x):
        return self.inner(x)[0][:, -1]
