"""What a site hides: no bound that a question states makes one site refuse and another answer."""

import numpy as np
import pytest

from cupola.federation import Contribution, Question, SiteContext, Spec, StateStore, task
from cupola.secure.encoding import decode
from cupola.secure.wrapped_question import BEYOND, hidden_values, layout_of


@task("hidden numbers")
def numbers(site, question):  # noqa: ARG001
    return Contribution({"x": site.data[0]}, site.data[1])


def hide(array, weight, bound):
    """The integers and how many were cut off, as a site of three hands them on."""
    spec = Spec.of(array, bound)
    question = Question("hidden numbers", expects={"x": spec}, heaviest=10.0)
    layout = layout_of(question, 3)
    site = SiteContext(0, (array, weight), None, StateStore(), 1)
    found = {e.name: decode(e, v) for e, v in hidden_values(site, question, layout, "").items()}
    return found["x"].tolist(), int(found[BEYOND])


@pytest.mark.parametrize(
    ("array", "weight", "bound", "expected"),
    [
        (np.array([True, False]), 5.0, 0.5, ([0, 0], 1)),
        (np.array([7, 200], np.uint8), 1.0, 100, ([7, 100], 1)),
        (np.array([-128, 127], np.int8), 1.0, 100, ([-100, 100], 2)),
        (np.array([-(2**63), 5]), 1.0, 100, ([-100, 5], 1)),
        (np.array([1.0, -3.0]), 1.0, 2.0, ([1.0, -2.0], 1)),
        # bound / weight rounds up, to a whole number that is beyond the bound
        (np.array([2**60, 0]), 3.0, float(2**57 + 32), ([(2**57 + 32) // 3 * 3, 0], 1)),
    ],
)
def test_numbers_of_every_kind_are_cut_off_at_their_bound(array, weight, bound, expected):
    found, beyond = hide(array, weight, bound)
    assert (pytest.approx(found, rel=1e-14), beyond) == expected
