"""Tests of the order of demotions to slow memory."""

from dataclasses import replace

from dithc.engine.automem.planning.decision import CopyBandwidth
from dithc.engine.automem.planning.demotion_order import Demotion, is_offloadable, ladder, weight_groups
from dithc.engine.automem.trace import SavedTensor, StateItem, Trace
from tests.engine.automem.steps import blocks, unit


def both(rate: float) -> CopyBandwidth:
    return CopyBandwidth(load=rate, offload=rate)


def said(rungs: tuple[Demotion, ...]) -> list[str]:
    return [f"{rung.kind} {rung.name or ' '.join(map(str, rung.units))}" for rung in rungs]


def test_cheap_demotions_come_first_and_each_kind_in_its_order() -> None:
    state = (StateItem(name="small", bytes=1), StateItem(name="large", bytes=2))
    rungs = said(ladder(replace(blocks(4), state=state), both(1000.0)))
    assert rungs == [
        *("state large", "state small"),
        *("gradients 3", "gradients 2", "gradients 1", "gradients 0"),
        *("saved 0", "saved 1", "saved 2"),  # the last block's tensor is read at the next turn: it stays
        *("copied 1", "copied 2"),
        *("copied 0", "copied 3"),  # no turn before the first; no pause after the last
        *("in place 0", "in place 1", "in place 2", "in place 3"),
    ]


def test_saved_tensors_whose_copies_cannot_hide_come_after_weights_whose_copies_can() -> None:
    # Block 2 pauses for 3 seconds. 30 bytes out and back need 4 s at 15 bytes per second; a load of 10 bytes needs less
    # than 1 s.
    rungs = said(ladder(blocks(4), both(15.0)))
    assert rungs.index("saved 1") < rungs.index("copied 1") < rungs.index("saved 2") < rungs.index("copied 0")


def test_copies_between_the_same_turns_hide_together_or_not_at_all() -> None:
    three = tuple(SavedTensor(ordinal=ordinal, bytes=10, last_reader=1) for ordinal in range(3))
    units = (unit("a"), unit("b", weight=1, saved=three), unit("c"))  # the tensors are idle for 3 seconds
    trace = Trace(units=units, outside_bytes=0)
    for rate, num_hiding in ((20.0, 3), (19.9, 0)):
        order = [rung.kind for rung in ladder(trace, both(rate))]
        assert order[: order.index("copied")].count("saved") == num_hiding, "saved tensors precede the first weights"


def test_only_what_is_idle_for_a_turn_can_leave() -> None:
    trace = blocks(3)
    found = [is_offloadable(trace, index, unit.saved[0]) for index, unit in enumerate(trace.units)]
    assert found == [True, True, False]
    read_by_the_last = SavedTensor(ordinal=0, bytes=1, last_reader=2, first_reader=0)
    assert not is_offloadable(trace, 0, read_by_the_last)


def test_units_that_share_weights_by_way_of_others_are_one_group() -> None:
    def sharing(name: str, *weights: str):
        first = unit(name, weight=1)
        return replace(first, weights=tuple(replace(first.weights[0], name=weight) for weight in weights))

    units = (sharing("a", "x"), sharing("b", "y"), unit("c"), sharing("d", "z"), sharing("e", "y", "x"))
    assert weight_groups(Trace(units=units, outside_bytes=0)) == [(0, 1, 4), (3,)]
