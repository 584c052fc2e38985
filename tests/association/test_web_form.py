"""The web form for association studies: every key is a field, or left out for a reason."""

import tomllib

import pytest
from pydantic import BaseModel

from cupola.association.plan import StudyPlan
from cupola.association.web_form import LEFT_OUT, forms
from cupola.web import form_fields

FORM = forms()["association"]
FIELDS = {entry.key for _, entries in FORM.groups for entry in entries}


def keys(model, prefix=""):
    """Every key that takes a value of its own, dotted."""
    for name, field in model.model_fields.items():
        inner = [t for t in (field.annotation, *getattr(field.annotation, "__args__", ()))
                 if isinstance(t, type) and issubclass(t, BaseModel)]  # fmt: skip
        if inner:
            yield from keys(inner[0], f"{prefix}{name}.")
        else:
            yield prefix + name


def left_out(key):
    parts = key.split(".")
    return any(".".join(parts[: i + 1]) in LEFT_OUT for i in range(len(parts)))


def test_every_key_is_a_field_or_left_out_for_a_reason():
    forgotten = [key for key in keys(StudyPlan) if key not in FIELDS and not left_out(key)]
    assert forgotten == [], "give them an Entry, or a reason in LEFT_OUT (association/web_form.py)"


def test_what_is_left_out_is_no_field_and_exists():
    assert [key for key in FIELDS if left_out(key)] == []
    known = {".".join(key.split(".")[:i]) for key in keys(StudyPlan) for i in (1, 2, 3)}
    assert [key for key in LEFT_OUT if key not in known] == []
    assert all(LEFT_OUT.values())


def test_every_field_is_a_key():
    known = set(keys(StudyPlan))
    assert [key for key in FIELDS if key not in known] == []


def test_a_form_that_is_sent_as_it_comes_is_a_study_with_masked_sums():
    values = form_fields.filled("association", FORM.start)
    made = form_fields.from_form("association", FORM.start, values)
    plan = StudyPlan.model_validate({**made, "cohorts": [{"name": n, "bfile": n} for n in "abc"]})
    assert plan.sum.masked
    assert plan.test == "logistic"


@pytest.mark.parametrize("group", form_fields.groups("association"), ids=lambda g: g.title)
def test_choices_are_those_of_the_plan_and_all_is_explained(group):
    for field in group.fields:
        assert field.about, field.key
        assert not field.about.endswith(" below."), field.key
        values = [value for value, _ in field.options]
        if field.kind == "choice" and field.default:
            assert field.default in values, field.key


def test_a_flag_that_is_on_by_default_can_be_put_out():
    values = form_fields.filled("association", FORM.start) | {"sex_on_x": "false"}
    made = form_fields.from_form("association", FORM.start, values)
    assert made["sex_on_x"] is False
    assert tomllib.loads("a = false")["a"] is made["sex_on_x"]
