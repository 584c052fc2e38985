"""The trained size of an image within the border: against a slow reference, gradients, bounds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cupola import nn
from cupola.errors import PlanError
from cupola.nn.reprogram import Border, Placement
from cupola.nn.sources import Preprocessing
from cupola.nn.trained_size import Around, Resized, scale_of

TO = Preprocessing(9, (0.4, 0.5, 0.6), (0.2, 0.25, 0.5), unit=3.0)
LEAST = 2
ANY = ({0: torch.export.Dim("n")},)

pytestmark = pytest.mark.usefixtures("source")


def build(source: str, **options):
    return nn.build("pretrained", (3, 12, 12), 5, 1, source=source, least_inner=4, **options)


def pair(side: float, shape=(3, 5, 7), pad="zero") -> tuple[Resized, Around]:
    """A placement whose image is so many pixels wide, and its border."""
    place, border = Resized(shape, TO, 5, pad, LEAST), Around(TO, LEAST)
    with torch.no_grad():
        place.double().scale.fill_(scale_of(side, LEAST, TO.size))
        border.double().theta.normal_()
    return place, border


def reference(x: Tensor, side: float, theta: Tensor, pad: str) -> Tensor:
    """One image, pixel by pixel: what it covers of a pixel, and what is there where it does."""
    size, low, high = TO.size, (TO.size - side) / 2, (TO.size + side) / 2
    found = torch.empty(3, size, size, dtype=x.dtype)

    def taps(i: int, length: int) -> list[tuple[int, float]]:
        place = ((i + 0.5 - low) / side) * length - 0.5  # in the image's own pixels
        place = min(max(place, 0.0), length - 1.0)
        first = min(math.floor(place), length - 1)
        after = min(first + 1, length - 1)
        return [(first, 1 - (place - first)), (after, place - first)]

    def covered(i: int) -> float:
        return max(0.0, min(i + 1, high) - max(i, low))

    for c in range(3):
        for i in range(size):
            for j in range(size):
                value = sum(
                    a * b * float(x[c % len(x), p, q])
                    for p, a in taps(i, x.shape[1])
                    for q, b in taps(j, x.shape[2])
                )
                share = covered(i) * covered(j)
                value = value * share if pad == "black" else value
                value = (value - TO.mean[c]) / TO.std[c]
                value = value if pad == "black" else value * share
                rest = (1 - share) * TO.unit * math.tanh(float(theta[c, i, j]))
                found[c, i, j] = value + rest
    return found


@pytest.mark.parametrize("pad", ["zero", "black"])
@pytest.mark.parametrize(("side", "channels"), [(2.01, 3), (4.3, 1), (6.0, 3), (8.9, 3)])
def test_images_and_borders_are_those_of_the_slow_reference(pad, side, channels):
    place, border = pair(side, (channels, 5, 7), pad)
    x = torch.rand(2, channels, 5, 7, dtype=torch.float64)
    found = border(place(x))
    for one, image in zip(found, x):
        torch.testing.assert_close(one, reference(image, side, border.theta.detach(), pad))


def test_whole_pixels_are_as_without_a_trained_size():
    x = torch.rand(2, 3, 4, 4, dtype=torch.float64)
    for inner in (3, 5, 7):  # as odd as the source's size
        place, border = pair(inner, (3, 4, 4))
        fixed = Border(TO, inner).double()
        fixed.theta.data.copy_(border.theta.data)
        expected = fixed(Placement((3, 4, 4), TO, inner)(x))
        torch.testing.assert_close(border(place(x)), expected)
        assert place.side() == pytest.approx(inner)


def test_training_begins_with_the_plans_own_size(source):
    x = torch.rand(2, 3, 12, 12)
    fixed = nn.build("pretrained", (3, 12, 12), 5, 1, source=source, inner=10)
    torch.testing.assert_close(build(source, inner=10)(x), fixed(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pad", ["zero", "black"])
def test_gradients_are_finite_differences(pad):
    place, border = pair(5.27, pad=pad)
    x = torch.rand(3, 3, 5, 7, dtype=torch.float64)
    weight = torch.randn(3, 3, TO.size, TO.size, dtype=torch.float64)

    def loss() -> Tensor:
        return (border(place(x)) * weight).sum()

    parameters = [place.scale, border.theta]
    found = torch.autograd.grad(loss(), parameters)
    step = 1e-6
    for parameter, gradient in zip(parameters, found):
        flat = parameter.data.view(-1)
        for i in range(0, len(flat), 29):
            flat[i] += step
            above = loss().item()
            flat[i] -= 2 * step
            below = loss().item()
            flat[i] += step
            assert gradient.view(-1)[i].item() == pytest.approx((above - below) / (2 * step), 1e-5)
    assert abs(float(found[0])) > 1e-3


def test_an_image_of_its_own_size_has_a_gradient_too():
    """Every pixel is then one of the image's own, where interpolation has a kink."""
    place, _ = pair(5.0, (3, 5, 5))
    x = torch.rand(1, 3, 5, 5, dtype=torch.float64)
    inside = place(x)[:, :3, 3:6, 3:6]
    (gradient,) = torch.autograd.grad((inside * torch.randn_like(inside)).sum(), place.scale)
    assert abs(float(gradient)) > 1e-3


@pytest.mark.parametrize("scale", [-100.0, 100.0])
def test_the_size_cannot_leave_its_bounds(scale):
    place, border = pair(5.0)
    with torch.no_grad():
        place.scale.fill_(scale)
    bound = LEAST if scale < 0 else TO.size
    assert 0 < abs(bound - place.side()) < 1e-3
    assert bool(torch.isfinite(border(place(torch.rand(1, 3, 5, 7).double()))).all())


def test_torch_export_takes_any_batch(source):
    module = build(source).eval()
    exported = torch.export.export(module, (torch.rand(3, 3, 12, 12),), dynamic_shapes=ANY)
    compare(exported.module(), module)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("trained", [False, True])
def test_onnx_takes_any_batch(source, trained, tmp_path):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="needs the extra 'export'")
    import onnxruntime

    fixed = {"adapt": "labels", "labels": [0, 1, 2, 3, 4]}
    module = nn.build("pretrained", (3, 12, 12), 5, 1, source=source, **fixed)
    module = (build(source, **fixed) if trained else module).eval()
    path, x = str(tmp_path / "model.onnx"), torch.rand(2, 3, 12, 12)
    torch.onnx.export(module, (x,), dynamic_shapes=ANY, verbose=False).save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    place = session.get_inputs()[0].name
    compare(lambda x: torch.from_numpy(session.run(None, {place: x.numpy()})[0]), module)


def compare(found, module) -> None:
    for n in (1, 7):
        x = torch.rand(n, 3, 12, 12)
        with torch.no_grad():
            torch.testing.assert_close(found(x), module(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "options", "said"),
    [
        ((64,), {}, "trains the size of images"),
        ((3, 12, 12), {"inner": 4}, "must be above model.least_inner = 4"),
        ((3, 12, 12), {"inner": 16}, "below the source's 16 pixels"),
        ((3, 12, 12), {"adapt": "map"}, r"model\.least_inner is for a trained border"),
    ],
)
def test_what_cannot_be_trained_is_refused(source, shape, options, said):
    with pytest.raises(PlanError, match=said):
        nn.build("pretrained", shape, 5, 1, source=source, least_inner=4, **options)
