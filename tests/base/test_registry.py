"""Things by name: suggestions, options, users' own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from cupola.base.registry import Registry
from cupola.errors import DataError, PlanError


def known() -> Registry[Any]:
    found: Registry[Any] = Registry("model")

    @found.add("mlp", "a perceptron")
    def mlp(shape: int, *, hidden: Annotated[int, Field(ge=1)] = 3, width: int) -> int:
        return shape + hidden + width

    return found


def test_names_are_sorted_and_described() -> None:
    models = known()
    models.add("a", "first")(print)
    assert models.names() == ["a", "mlp"]
    assert models.describe() == {"a": "first", "mlp": "a perceptron"}
    assert "mlp" in models
    assert "mpl" not in models
    assert list(models.options("mlp")) == ["hidden", "width"]


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("mpl", {}, "model = 'mpl' is not known; did you mean 'mlp'?"),
        ("mlp", {"hiden": 1}, "model.hiden: 'mlp' has no option 'hiden'; did you mean 'hidden'?"),
        ("mlp", {"hidden": 1}, "model.width is missing: 'mlp' needs the option 'width'"),
        ("mlp", {"width": 1, "hidden": 0}, "model.hidden = 0: input should be greater than"),
        ("os:nothing", {}, "model = 'os:nothing': module os has no nothing"),
        ("math:pi", {}, "model = 'math:pi' is not callable"),
    ],
)
def test_refusals_name_what_was_written(name: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError) as refused:
        known().check(name, given)
    assert said in str(refused.value)


def test_values_are_converted_and_own_ones_left_alone() -> None:
    assert known().check("mlp", {"width": "4"}) == {"width": 4}
    assert known().check("fractions:Fraction", {"numerator": "4"}) == {"numerator": "4"}


def test_a_name_is_registered_once_unless_it_may_be_replaced() -> None:
    with pytest.raises(ValueError, match="'mlp' is registered twice"):
        known().add("mlp", "again")(print)
    again: Registry[Any] = Registry("model", replace=True)
    again.add("x", "")(print)
    again.add("x", "")(len)
    assert again.find("x") is len


def test_things_of_a_kind_and_words_without_a_key() -> None:
    kinds: Registry[Path] = Registry(what="folder", error=DataError, kind=Path)
    kinds.add("here", "")(Path())
    with pytest.raises(DataError, match="there is no folder 'heer'; did you mean 'here'"):
        kinds.find("heer")
    with pytest.raises(DataError, match="os:sep is a str, not a cupola Path"):
        kinds.find("os:sep")


def test_nothing_is_imported_where_users_have_none_of_their_own() -> None:
    fixed: Registry[Any] = Registry("step", own=False)
    with pytest.raises(PlanError, match="step = 'os:system' is not known"):
        fixed.find("os:system")


def test_modules_that_register_themselves_are_imported_when_asked_for() -> None:
    calls = []
    late: Registry[Any] = Registry("late", fill=lambda: calls.append(1) or late.add("x", "")(1))
    assert not calls
    assert late.names() == late.names() == ["x"]
    assert calls == [1]
