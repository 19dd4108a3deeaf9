"""Tests of collective times: they equal the closed form if a single cost dominates, and grow monotonically."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dithc.engine.cost.links import ACROSS_CHUNK_BYTES, IN_FLIGHT, Links, RankLayout, all_reduce_seconds

MIB = 1 << 20


def seconds(
    size: float, links: Links, *, nodes: int, inner: int = 1, collective="ring", wire="fp32", memory=True
) -> float:
    layout = RankLayout(nodes=nodes, ranks_per_node=inner, shares_memory=memory)
    return all_reduce_seconds(size, collective=collective, layout=layout, links=links, wire=wire)


@pytest.mark.parametrize("collective", ["ring", "hierarchical"])
def test_all_reduce_of_a_single_rank_costs_zero_seconds(collective):
    slow = Links(latency=1.0, byte=1.0, core_byte=1.0, memory_byte=1.0)
    assert seconds(MIB, slow, nodes=1, collective=collective) == 0.0


@pytest.mark.parametrize("wire", ["fp32", "bf16"])
@pytest.mark.parametrize("collective", ["ring", "hierarchical"])
@pytest.mark.parametrize(("nodes", "inner"), [(1, 4), (3, 1), (8, 4), (1024, 4)])
def test_all_reduce_over_an_ideal_network_costs_zero_seconds(collective, nodes, inner, wire):
    assert seconds(100 * MIB, Links(), nodes=nodes, inner=inner, collective=collective, wire=wire) == 0.0


DISTANT = Links(latency=2e-6, overhead=0.5e-6)  # L + 2 o = 3 microseconds per message


@pytest.mark.parametrize(
    ("links", "layout", "expected"),
    [
        *((Links(byte=1e-9), {"nodes": n}, 2 * (n - 1) / n * MIB * 1e-9) for n in (2, 3, 16, 1024)),
        (DISTANT, {"nodes": 64}, 2 * 63 * 3e-6),
        # Without shared memory, the ranks of a node send through their card.
        (Links(byte=1e-9, cards=1), {"nodes": 1, "inner": 4, "memory": True}, 0.0),
        (Links(byte=1e-9, cards=1), {"nodes": 1, "inner": 4, "memory": False}, 4 * 1.5 * MIB * 1e-9),
        # Inside a node, hierarchical copies in, sums and copies out.
        (Links(memory_byte=1e-9), {"nodes": 1, "inner": 4, "collective": "hierarchical"}, 3 * MIB * 1e-9),
    ],
)
def test_all_reduce_time_with_a_single_cost_equals_closed_form(links, layout, expected):
    assert seconds(MIB, links, **layout) == pytest.approx(expected, rel=1e-12)


def test_messages_to_all_nodes_are_posted_together():
    # Messages to 63 nodes take 1 microsecond of the core each, then 6 doublings follow one after the other.
    found = seconds(4, DISTANT, nodes=64, collective="hierarchical")
    assert found == pytest.approx(3e-6 + 62e-6 + 6 * 3e-6)


def test_card_shared_by_two_ranks_halves_the_bandwidth():
    separate, shared = Links(byte=1e-9, cards=4), Links(byte=1e-9, cards=2)
    times = [seconds(64 * MIB, links, nodes=16, inner=4, collective="hierarchical") for links in (separate, shared)]
    assert times[1] == pytest.approx(2 * times[0], rel=1e-3)


def test_hierarchical_sends_a_share_of_each_rank_across_nodes():
    size, nodes, inner = 512 * MIB, 8, 4
    links = Links(byte=1e-9, cards=inner)
    assert seconds(size, links, nodes=nodes, inner=inner, collective="hierarchical") == pytest.approx(
        2 * (nodes - 1) / nodes * size / inner * 1e-9, rel=1e-2
    )
    ring = seconds(size, links, nodes=nodes, inner=inner, collective="ring")
    assert ring == pytest.approx(2 * 31 / 32 * size * 1e-9, rel=1e-12)


def test_bf16_sends_half_the_bytes():
    links = Links(byte=1e-9, cards=4)
    times = [seconds(64 * MIB, links, nodes=16, inner=4, collective="hierarchical", wire=w) for w in ("fp32", "bf16")]
    assert times[1] == pytest.approx(times[0] / 2, rel=1e-2)


@pytest.mark.parametrize(
    ("links", "bound"),
    [
        (Links(memory_byte=1e-9, core_byte=1e-9, byte=1e-10), "core"),
        (Links(memory_byte=1e-11, byte=1e-8), "card"),
        (Links(latency=1e-3, memory_byte=1e-11, byte=1e-11), "latency"),
    ],
)
def test_chunked_time_matches_a_chunk_by_chunk_pipeline(links, bound):
    """Two ranks on two nodes: the core copies and serves a chunk, the card carries it, and it is in flight for L."""
    chunks = 200
    copying = 3 * ACROSS_CHUNK_BYTES * links.memory_byte
    num_bytes = ACROSS_CHUNK_BYTES  # with two nodes half a chunk is sent to be summed, and half a chunk of sums
    core, card, latency = copying + num_bytes * links.core_byte, num_bytes * links.byte, 2 * links.latency
    core_free = card_free = 0.0
    done: list[float] = []
    for number in range(chunks):
        begin = max(core_free, done[number - IN_FLIGHT] if number >= IN_FLIGHT else 0.0)
        core_free = begin + core
        card_free = max(card_free, core_free) + card
        done.append(card_free + latency)
    found = seconds(chunks * ACROSS_CHUNK_BYTES, links, nodes=2, collective="hierarchical")
    assert found == pytest.approx(done[-1], rel=0.03), bound


@given(
    size=st.floats(1e3, 1e9),
    nodes=st.integers(1, 300),
    inner=st.sampled_from([1, 2, 4]),
    collective=st.sampled_from(["ring", "hierarchical"]),
    wire=st.sampled_from(["fp32", "bf16"]),
    factor=st.floats(1.0, 10.0),
    name=st.sampled_from(["latency", "overhead", "gap", "byte", "core_byte", "memory_byte", "memory_latency"]),
)
def test_all_reduce_time_never_falls_with_link_cost_or_size(size, nodes, inner, collective, wire, factor, name):
    base_links = Links(
        latency=1e-6,
        overhead=5e-7,
        gap=2e-7,
        byte=4e-11,
        core_byte=2e-9,
        memory_byte=2.5e-10,
        memory_latency=5e-7,
        cards=2,
    )
    dearer = replace(base_links, **{name: getattr(base_links, name) * factor})
    options = {"nodes": nodes, "inner": inner, "collective": collective, "wire": wire}
    base = seconds(size, base_links, **options)
    assert seconds(size, dearer, **options) >= base * (1 - 1e-12)
    assert seconds(size * factor, base_links, **options) >= base * (1 - 1e-12)
