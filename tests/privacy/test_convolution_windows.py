"""The two ways to lay out windows agree, and a step leaves the module's weights where they were."""

import pytest
import torch
from torch import nn

from cupola.errors import PlanError
from cupola.privacy.persample import PerSample
from cupola.privacy.persample import convolution as conv


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_strips_of_an_image_give_the_products_of_whole_windows(
    monkeypatch: pytest.MonkeyPatch, copies: int, dilation: int
) -> None:
    layer = nn.Conv2d(5, 4, (3, 2), padding=(2, 1), dilation=dilation, dtype=torch.float64)
    monkeypatch.setattr(conv, "WINDOWS", 2 * 9 * 8 * 30)  # two or so samples in a block
    x = torch.randn(5, copies, 5, 9, 8, dtype=torch.float64)
    g = torch.randn_like(layer(x.flatten(0, 1)).unflatten(0, (5, copies)))
    found = torch.empty(5, 30, 4, dtype=torch.float64)
    conv._write_products(layer, conv.Windows(x, g, (2, 1)), found)
    for i in range(5):
        (reference,) = torch.autograd.grad(layer(x[i]), layer.weight, g[i])
        got = conv._as_weights(layer, found[i : i + 1])[0]
        torch.testing.assert_close(got, reference, rtol=1e-12, atol=1e-12)


def test_weights_are_turned_only_while_a_step_is_made() -> None:
    module = nn.Sequential(nn.Conv2d(64, 128, 3, padding=1), nn.Flatten(), nn.Linear(128 * 16, 3))
    flat = torch.cat([p.detach().flatten() for p in module.parameters()])  # weights may be views
    for parameter, part in zip(
        module.parameters(), flat.split([p.numel() for p in module.parameters()])
    ):
        parameter.data = part.view(parameter.shape)
    before = [(p.data_ptr(), p.stride()) for p in module.parameters()]
    x, y = torch.randn(40, 64, 4, 4), torch.arange(40) % 3
    loss = nn.CrossEntropyLoss(reduction="none")
    steps = PerSample(module, loss, microbatch=16)
    found = steps.clipped_sum(x, y, 1.0)
    assert steps.form is not None
    assert steps.form.layout.channels_last, "else this shows nothing"
    assert [(p.data_ptr(), p.stride()) for p in module.parameters()] == before
    assert all(total.is_contiguous() for total in found.sums)
    with pytest.raises(PlanError, match="expected input"):
        steps.clipped_sum(x[:, :3], y, 1.0)  # wrong shape: the error passes through
    assert [(p.data_ptr(), p.stride()) for p in module.parameters()] == before
