"""Kernel-normalised networks outside Python: graphs for any size of batch, traces, ONNX."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from cupola.nn import build
from cupola.nn.kernelnorm import KernelNorm2d, KNConv2d

BATCHES = (1, 7, 64)
ANY = ({0: torch.export.Dim("n")},)


def small() -> nn.Module:
    """Every kind of window; expected statistics."""
    return nn.Sequential(
        KNConv2d(2, 4, 3, padding=((1, 0), (1, 0)), dropout=0.2),
        nn.ReLU(),
        KNConv2d(4, 4, 2, stride=2, padding=1, dropout=0.2),
        KNConv2d(4, 4, 3, padding="same", dilation=2, padding_mode="reflect"),
        KernelNorm2d(2, 2, dropout=0.2),
        KernelNorm2d(dropout=0.2),
        nn.Flatten(),
    ).eval()


def compare(found, channels: int, module: nn.Module, size: int) -> None:
    for n in BATCHES:
        x = torch.rand(n, channels, size, size)
        with torch.no_grad():
            torch.testing.assert_close(found(x), module(x), rtol=0, atol=1e-5)


def test_torch_export_takes_any_batch():
    module = small()
    exported = torch.export.export(module, (torch.rand(3, 2, 8, 8),), dynamic_shapes=ANY)
    compare(exported.module(), 2, module, 8)


def test_torch_export_keeps_the_draws_of_training():
    module, x = small().train(), torch.rand(3, 2, 8, 8)
    exported = torch.export.export(module, (x,), strict=False).module()
    assert not torch.equal(exported(x), exported(x))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_trace_can_be_saved(tmp_path: Path):
    module = small()
    path = str(tmp_path / "trace.pt")
    torch.jit.trace(module, torch.rand(3, 2, 8, 8)).save(path)
    compare(torch.jit.load(path), 2, module, 8)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["small", "resnet8"])
def test_onnx_takes_any_batch(name: str, tmp_path: Path):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="needs the extra 'export'")
    import onnxruntime

    if name == "small":
        module, channels, size = small(), 2, 8
    else:
        channels, size = 3, 16
        module = build(name, (3, size, size), 10, 0, norm="kernel", width=8).eval()
    path = str(tmp_path / "model.onnx")
    program = torch.onnx.export(
        module, (torch.rand(2, channels, size, size),), dynamic_shapes=ANY, verbose=False
    )
    program.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    place = session.get_inputs()[0].name
    compare(
        lambda x: torch.from_numpy(session.run(None, {place: x.numpy()})[0]), channels, module, size
    )
