"""Tests of traces: JSON conversion and validation."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from dithc.automem.trace import Saved, StateItem, Trace, Weight
from dithc.log import UserError
from tests.automem.steps import blocks, traces, unit


@settings(max_examples=50, deadline=None)
@given(trace=traces())
def test_a_trace_survives_json(trace: Trace) -> None:
    assert Trace.from_json(trace.to_json()) == trace
    assert Trace.from_dict(json.loads(json.dumps(trace.to_dict()))) == trace


def test_a_gradient_is_as_large_as_its_weight_unless_said() -> None:
    assert Weight(name="w", bytes=8).resting_bytes == 8
    assert Weight(name="w", bytes=8, gradient_bytes=0).resting_bytes == 0
    assert Weight(name="w", bytes=8, gradient_bytes=16).resting_bytes == 16


def test_a_tensor_is_first_read_by_its_last_reader_unless_said() -> None:
    assert Saved(ordinal=0, bytes=1, last_reader=3).first == 3
    assert Saved(ordinal=0, bytes=1, last_reader=3, first_reader=0).first == 0


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        ((Saved(ordinal=1, bytes=1, last_reader=0),), "ordinals"),
        ((Saved(ordinal=0, bytes=1, last_reader=2),), "read from 2 to 2"),
        ((Saved(ordinal=0, bytes=1, last_reader=0, first_reader=1),), "read from 1 to 0"),
        ((Saved(ordinal=0, bytes=-1, last_reader=0),), "negative"),
    ],
)
def test_what_no_step_can_have_saved_is_refused(saved: tuple[Saved, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        Trace(units=(unit("a", saved=saved), unit("b")), outside_bytes=0)


def test_two_units_of_one_name_are_refused() -> None:
    with pytest.raises(UserError, match="two units a"):
        Trace(units=(unit("a"), unit("a")), outside_bytes=0)


def test_negative_bytes_and_seconds_are_refused() -> None:
    with pytest.raises(UserError, match="negative"):
        Trace(units=(), outside_bytes=-1)
    with pytest.raises(UserError, match="negative"):
        Trace(units=(), outside_bytes=0, state=(StateItem(name="m", bytes=-1),))
    with pytest.raises(UserError, match="negative"):
        Trace(units=(replace(unit("a"), forward_seconds=-1.0),), outside_bytes=0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 99}'])
def test_text_that_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="trace of a training step"):
        Trace.from_json(text)


@pytest.mark.parametrize(("key", "value"), [("units", None), ("outside_bytes", ...), ("mood", 1)])
def test_missing_and_unknown_fields_are_refused(key: str, value: Any) -> None:
    data = blocks(2).to_dict()
    if value is ...:
        del data[key]
    else:
        data[key] = value
    with pytest.raises(UserError, match="record it again"):
        Trace.from_dict(data)
