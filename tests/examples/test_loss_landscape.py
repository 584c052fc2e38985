"""The loss around a model: directions by filter, the model in the middle and unchanged."""

from __future__ import annotations

import json

import numpy as np
import torch
from loss_landscape import direction, landscape, main, picture

import cupola
from cupola.nn import build, find_loss


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


def test_a_runs_model_is_shown_in_the_middle_of_its_landscape(tmp_path):
    plan = {"name": "around", "rounds": 1, "data": "digits", "model": "linear"}
    run = cupola.run(plan, tmp_path / "run", report=False)
    main(run.folder, tmp_path)
    held = json.loads((tmp_path / "landscape.json").read_text("utf-8"))
    assert len(held["losses"]) == len(held["steps"]) == 11
    assert abs(held["losses"][5][5] - run.result["final"]["test"]["loss"]) < 1e-5
    assert (tmp_path / "landscape.png").read_bytes()[:4] == b"\x89PNG"


def test_shades_span_the_losses_that_are_there():
    """A flat landscape far above zero still shows its shape: lightest is the least loss."""
    losses = np.array([[2.5, 2.4, 2.6], [2.45, 2.3, 2.4], [2.5, 2.4, 2.55]])
    plane, cuts, _ = picture(np.array([-1, 0, 1]), losses).axes
    (shown,) = plane.images
    assert shown.get_clim() == (2.3, 2.6)
    assert (shown.origin, shown.get_cmap().name) == ("lower", "Blues")  # upwards; light is little
    assert np.array_equal(shown.get_array(), losses)
    first, second = (line.get_ydata() for line in cuts.lines)
    assert (first.tolist(), second.tolist()) == ([2.4, 2.3, 2.4], [2.45, 2.3, 2.4])


def test_the_example_trains_a_model_of_its_own(tmp_path, capsys):
    main(out=tmp_path)
    assert "test samples" in capsys.readouterr().out
    assert (tmp_path / "landscape.png").is_file()
