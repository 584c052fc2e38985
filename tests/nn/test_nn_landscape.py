"""The loss around a model: directions by filter, the model in the middle and unchanged."""

from __future__ import annotations

import torch

from cupola.nn import build, find_loss
from cupola.nn.landscape import direction, landscape


def test_directions_are_as_long_as_the_filters():
    module = build("resnet8", (1, 8, 8), 3, 0, norm="kernel")
    found = direction(module, 1, 1)
    again, other = direction(module, 1, 1), direction(module, 1, 2)
    for name, p in module.named_parameters():
        if p.dim() < 2:
            assert not found[name].any()
            continue
        own, drawn = (t.detach().flatten(1).norm(dim=1) for t in (p, found[name]))
        torch.testing.assert_close(own, drawn)
        assert torch.equal(found[name], again[name])
        assert not torch.equal(found[name], other[name])


def test_the_model_is_in_the_middle_and_stays_as_it_was():
    module, loss = build("mlp", (6,), 3, 0, hidden=[8], dropout=0.5), find_loss("cross_entropy")
    x, y = torch.rand(20, 6), torch.arange(20) % 3
    before = {k: v.clone() for k, v in module.state_dict().items()}
    steps, losses = landscape(module, loss, x, y, seed=1, points=5, batch=7)
    assert steps.tolist() == [-1, -0.5, 0, 0.5, 1]
    assert losses.shape == (5, 5)
    assert module.training
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    with torch.no_grad():
        assert abs(losses[2, 2] - float(loss(module.eval()(x), y).mean())) < 1e-6
