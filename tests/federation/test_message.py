"""Messages: exact sizes, round trips, and nothing but well-formed bytes gets in."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cupola.errors import FederationError
from cupola.federation import Contribution, Question, Spec
from cupola.federation.message import (
    TYPES,
    contribution_size,
    decode_contribution,
    decode_question,
    encode_contribution,
    encode_question,
    question_size,
)

ARRAYS = st.dictionaries(
    st.text(max_size=8),
    st.sampled_from(sorted(TYPES)).flatmap(
        lambda t: hnp.arrays(np.dtype(t), hnp.array_shapes(min_dims=0, max_dims=3, max_side=4))
    ),
    max_size=4,
)


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert a[name].tobytes() == b[name].tobytes()
        assert a[name].shape == b[name].shape


@settings(max_examples=60, deadline=None)
@given(ARRAYS, st.floats(allow_nan=False))
def test_contributions_round_trip(arrays, weight):
    data = encode_contribution(Contribution(arrays, weight))
    assert len(data) == contribution_size(arrays)
    back = decode_contribution(data)
    assert back.weight == weight
    same(back.arrays, arrays)


@settings(max_examples=60, deadline=None)
@given(ARRAYS, st.integers(0, 10**9), st.dictionaries(st.text(), st.integers() | st.text()))
def test_questions_round_trip(arrays, step, options):
    expects = {"x": Spec((2, 3), "int")}
    question = Question("train", arrays, options, expects, step=step, round=3, partial=True)
    data = encode_question(question)
    assert len(data) == question_size(question)
    back = decode_question(data)
    same(back.arrays, arrays)
    assert (back.step, back.options, back.expects) == (step, options, expects)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_messages_are_refused_or_harmless(data):
    good = encode_contribution(Contribution({"x": np.arange(3.0), "n": np.array(2)}, 1.5))
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    for bytes_ in (bytes(damaged), bytes(damaged[:cut]), data.draw(st.binary(max_size=80))):
        for decode in (decode_contribution, decode_question):
            try:
                decode(bytes_)
            except FederationError:
                continue


def test_types_that_carry_code_are_refused():
    with pytest.raises(FederationError, match="may not cross"):
        encode_contribution(Contribution({"x": np.array([object()])}))


def test_a_header_cannot_ask_for_memory():
    data = encode_contribution(Contribution({"x": np.zeros(4)}))
    with pytest.raises(FederationError, match="not well formed"):
        decode_contribution(data.replace(b"[4]", b"[9]"))


def test_flags_have_one_spelling():
    """Else two signatures under the same flags would differ."""
    data = encode_contribution(Contribution({"x": np.array([True, False])}))
    assert decode_contribution(data).arrays["x"].tolist() == [True, False]
    with pytest.raises(FederationError, match="not well formed"):
        decode_contribution(data[:-2] + b"\x03\x00")


def test_a_header_cannot_be_read_in_two_ways():
    data = encode_question(Question("train", options={"a": 1, "b": 2}))
    with pytest.raises(FederationError, match="not well formed"):
        decode_question(data.replace(b'"b":2', b'"a":2'))
