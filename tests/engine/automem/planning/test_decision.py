"""Tests of plans as data: JSON conversion, totals, and the printed table."""

import json
from typing import Any

import pytest
from hypothesis import given, settings

from dithc.core.logging import UserError
from dithc.engine.automem.planning.document import Plan
from dithc.engine.automem.planning.planner import make_plan
from dithc.engine.automem.trace import Trace
from tests.engine.automem.steps import blocks, level, traces

SLOW = level("ddr", None, 100.0)


def plan_of(trace: Trace, budget: int | None) -> Plan:
    return make_plan(trace, fast=level("hbm", budget, 1000.0), slow=SLOW)


@settings(max_examples=30, deadline=None)
@given(trace=traces())
def test_plan_survives_json_round_trip(trace: Trace) -> None:
    result = plan_of(trace, plan_of(trace, None).peak_fast_bytes // 2)
    assert Plan.from_dict(json.loads(json.dumps(result.to_dict()))) == result


@pytest.mark.parametrize("content", [{}, {"schema": 1}, {"schema": 99}])
def test_invalid_plan_document_is_rejected(content: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"memory plan(.|\n)*fix"):
        Plan.from_dict(content)


def test_plan_table_has_one_line_per_range_of_equal_units() -> None:
    lines = plan_of(blocks(6), 150).describe().splitlines()
    assert lines[0].split() == ["unit", "weights", "gradients", "saved", "kept", "offloaded", "recompute", "ahead"]
    assert any(line.startswith("block0 .. block") and "30 B" in line and "each" in line for line in lines)
    assert any(line.startswith("state: 0 B in hbm, 120 B in ddr") for line in lines)
    assert any(line.startswith("moved per step:") for line in lines)
    assert any(line.startswith("peak: hbm 1") and "(budget 150 B)" in line for line in lines)


def test_resident_plan_table_reports_no_transfers_and_no_budget() -> None:
    text = plan_of(blocks(3), None).describe()
    assert "everything resident" in text
    assert "0 B loaded, 0 B offloaded" in text
    assert "no budget" in text
