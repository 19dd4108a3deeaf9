"""Tests of the order of demotions to slow memory."""

from dataclasses import replace

from dithc.engine.automem.planning.decision import CopyBandwidth
from dithc.engine.automem.planning.demotion_order import Demotion, order_demotions
from dithc.engine.automem.planning.schedule import is_offloadable
from dithc.engine.automem.trace import StateItem, Trace
from tests.engine.automem.steps import blocks, tensor, unit


def symmetric_bandwidth(rate: float) -> CopyBandwidth:
    return CopyBandwidth(load=rate, offload=rate)


def labels(order: tuple[Demotion, ...]) -> list[str]:
    return [f"{demotion.kind} {demotion.name or demotion.unit}" for demotion in order]


def test_demotions_are_ordered_by_cost_and_within_each_kind() -> None:
    state = (StateItem(name="small", bytes=1), StateItem(name="large", bytes=2))
    order = labels(order_demotions(replace(blocks(4), state=state), symmetric_bandwidth(1000.0)))
    assert order == [
        *("state large", "state small"),
        *("gradients 3", "gradients 2", "gradients 1", "gradients 0"),
        *("saved 0", "saved 1", "saved 2"),  # the last block's tensor is read at the next slot: it stays
        *("copied 1", "copied 2"),
        *("copied 0", "copied 3"),  # no slot before the first; no pause after the last
        *("in place 0", "in place 1", "in place 2", "in place 3"),
    ]


def test_exposed_saved_tensors_follow_hidden_weights() -> None:
    # Block 2 pauses for 3 seconds. 30 bytes out and back need 4 s at 15 bytes per second; a load of 10 bytes needs less
    # than 1 s.
    order = labels(order_demotions(blocks(4), symmetric_bandwidth(15.0)))
    assert order.index("saved 1") < order.index("copied 1") < order.index("saved 2") < order.index("copied 0")


def test_copies_between_the_same_slots_are_all_hidden_or_all_exposed() -> None:
    three = tuple(tensor(ordinal, 10, 1) for ordinal in range(3))
    units = (unit("a"), unit("b", weight=1, saved=three), unit("c"))  # the tensors are idle for 3 seconds
    trace = Trace(units=units, outside_bytes=0)
    for rate, num_hiding in ((20.0, 3), (19.9, 0)):
        order = [demotion.kind for demotion in order_demotions(trace, symmetric_bandwidth(rate))]
        assert order[: order.index("copied")].count("saved") == num_hiding, "saved tensors precede the first weights"


def test_only_tensors_idle_for_a_slot_are_offloadable() -> None:
    trace = blocks(3)
    found = [is_offloadable(trace, index, unit.saved[0]) for index, unit in enumerate(trace.units)]
    assert found == [True, True, False]
    assert not is_offloadable(trace, 0, tensor(0, 1, last=2, first=0)), "the last unit reads it"
