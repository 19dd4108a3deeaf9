"""Tests of the loads and offloads that start at each turn."""

from dithc.automem.planning.decision import Decision
from dithc.automem.planning.turns import Turn, turns_of
from dithc.automem.trace import Saved, Trace
from tests.automem.steps import blocks, unit


def copied(forward: int, backward: int, *, saved: str = "keep") -> Decision:
    return Decision(weights="copied", gradients="fast", saved=(saved,), forward_ahead=forward, backward_ahead=backward)


def turns(*decisions: Decision) -> tuple[Turn, ...]:
    trace = blocks(len(decisions))
    return turns_of(trace, {unit.name: decision for unit, decision in zip(trace.units, decisions, strict=True)})


def test_loads_start_as_many_turns_ahead_as_decided_and_own_loads_stand_first() -> None:
    got = turns(copied(0, 1), copied(0, 0), copied(2, 0))
    #                             forward: 0        1   2   backward: 2    1               0
    assert [turn.load_weights for turn in got] == [
        ("block0", "block2"),
        ("block1",),
        (),
        ("block2",),
        ("block1", "block0"),
        (),
    ]
    assert not any(turn.keep_weights for turn in got)


def test_a_copy_whose_next_load_reaches_back_to_its_forward_turn_is_kept() -> None:
    got = turns(copied(0, 3), copied(0, 1))
    assert [turn.keep_weights for turn in got] == [True, True, False, False]
    assert [turn.load_weights for turn in got] == [("block0",), ("block1",), (), ()]
    almost = turns(copied(0, 2), copied(0, 1))
    assert [turn.keep_weights for turn in almost] == [False, True, False, False]
    assert almost[1].load_weights == ("block1", "block0")


def test_a_tensor_leaves_after_its_last_saver_and_returns_with_its_first_reader() -> None:
    shared = Saved(ordinal=0, bytes=1, last_reader=2, first_reader=1)
    trace = Trace(units=(unit("a", saved=(shared,)), unit("b"), unit("c")), outside_bytes=0)
    decisions = {
        "a": Decision(weights="fast", gradients="fast", saved=("offload",), backward_ahead=0),
        "b": Decision(weights="fast", gradients="fast", saved=(), backward_ahead=1),
        "c": Decision(weights="fast", gradients="fast", saved=()),
    }
    got = turns_of(trace, decisions)
    assert [turn.offload_saved for turn in got] == [(), (("a", 0),), (), (), (), ()]
    assert [turn.load_saved for turn in got] == [(), (), (), (("a", 0),), (), ()]


def test_tensors_that_a_plan_does_not_know_stay() -> None:
    trace = blocks(2)
    bare = Decision(weights="fast", gradients="fast", saved=())
    assert not any(turn.offload_saved for turn in turns_of(trace, {"block0": bare, "block1": bare}))
