"""Inversion: measures of likeness, and what can be rebuilt from what is told."""

import numpy as np
import pytest
import torch
from feature_inversion import attacked, invert, main, psnr, ssim, told
from torch import nn

import cupola
from cupola.errors import CupolaError


def image(seed=0, side=12):
    """A smooth picture."""
    rng = torch.Generator().manual_seed(seed)
    rough = torch.rand(1, 1, 4, 4, generator=rng)
    return torch.nn.functional.interpolate(rough, (side, side), mode="bilinear")


def test_likeness_is_its_definition():
    a, b = image(1), image(2)
    assert ssim(a, a) == pytest.approx(1.0)
    assert ssim(a, b) == pytest.approx(ssim(b, a))
    assert psnr(a, a) == float("inf")
    assert psnr(a, a + 0.1) == pytest.approx(20.0, abs=1e-4)
    # one window by hand
    x, y = a[..., :11, :11].double().numpy()[0, 0], b[..., :11, :11].double().numpy()[0, 0]
    line = np.exp(-((np.arange(11) - 5) ** 2) / 4.5)
    w = np.outer(line, line) / line.sum() ** 2
    mx, my = (w * x).sum(), (w * y).sum()
    vx, vy = (w * (x - mx) ** 2).sum(), (w * (y - my) ** 2).sum()
    cov = (w * (x - mx) * (y - my)).sum()
    by_hand = (2 * mx * my + 1e-4) * (2 * cov + 9e-4)
    by_hand /= (mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4)
    assert ssim(a[..., :11, :11], b[..., :11, :11]) == pytest.approx(by_hand, rel=1e-6)


def test_sparsity_is_told_by_row_column_and_in_all():
    values = torch.tensor([[[[-1.0], [2.0]], [[-3.0], [0.0]]]])  # (1, 2, 2, 1): rows, columns
    module = nn.Sequential(nn.ReLU())
    assert told(module, "0", values, "horizontal").flatten().tolist() == [0.5, 1.0]
    assert told(module, "0", values, "vertical").flatten().tolist() == [1.0, 0.5]
    assert told(module, "0", values, "whole").flatten().tolist() == [0.75]
    assert told(module, "0", values, "feature map").flatten().tolist() == [0, 2, 0, 0]
    soft = told(module, "0", values, "whole", soft=1e-3)
    assert float(soft) == pytest.approx(0.625, abs=1e-3)  # a zero counts half


def test_a_feature_map_gives_the_image_away_and_whole_sparsity_does_not():
    torch.manual_seed(1)
    module = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten()).eval()
    x, attack = image(3), {"steps": 80, "rate": 0.15}
    found = {what: invert(module, "1", x, what, **attack) for what in ("feature map", "whole")}
    assert ssim(x, found["feature map"]) > 0.8 > ssim(x, found["whole"]) + 0.2
    with pytest.raises(CupolaError, match="no places"):
        invert(nn.Sequential(nn.Flatten(), nn.Linear(144, 5), nn.ReLU()), "2", x, "whole", **attack)


def test_a_runs_model_is_attacked_and_pictures_are_left(tmp_path, capsys):
    plan = {"name": "small", "rounds": 1, "data": "digits", "model": "cnn"}
    run = cupola.run(plan, tmp_path / "run", report=False)
    found = main(run.folder, "0", "conv1", out=tmp_path, images=1, steps=2)
    assert len(found["attacks"]) == 2 * 4
    assert (tmp_path / "inversion.png").read_bytes()[:4] == b"\x89PNG"
    assert set(found["chance"]) == {"ssim", "psnr"}
    assert "the site's mean image" in capsys.readouterr().out
    with pytest.raises(CupolaError, match="there are 10 sites"):
        attacked(run, site=10)
    flat = cupola.run({**plan, "data": "breast_cancer", "model": "linear"}, tmp_path / "flat")
    with pytest.raises(CupolaError, match="no images"):
        attacked(flat)


def test_the_example_trains_a_model_of_its_own(tmp_path):
    found = main(out=tmp_path, images=1, steps=2)
    assert found["layers"] == ["act1"]
    assert found["summary"][0].items() >= {"property": "feature map", "layer": "act1"}.items()
