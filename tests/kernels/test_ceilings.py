"""Ceilings: the copy writes exactly its bytes, and multiply-adds are counted. No time is checked."""

import pytest
import torch

from dithc.engine import native
from dithc.engine.native import rooflines

CANARY = 93


@pytest.fixture(autouse=True)
def _needs_library():
    if native.library() is None:
        pytest.skip(f"no library: {native.load_library().reason}")


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 4095, 4096, 4097, 262_143, 262_144, 1_000_003])
@pytest.mark.parametrize(("source_offset", "target_offset"), [(0, 0), (1, 0), (0, 1), (3, 61)])
def test_copy_writes_exactly_the_target_bytes(size, source_offset, target_offset):
    generator = torch.Generator().manual_seed(size)
    source = torch.randint(0, 256, (size + source_offset,), dtype=torch.uint8, generator=generator)[source_offset:]
    around = torch.full((size + target_offset + 64,), CANARY, dtype=torch.uint8)
    target = around[target_offset : target_offset + size]
    rooflines.copy(source, target)
    assert torch.equal(target, source)
    assert (around[:target_offset] == CANARY).all()
    assert (around[target_offset + size :] == CANARY).all()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_operations_are_counted_by_round_and_thread(dtype):
    per_round = rooflines.multiply_add(dtype, rounds=1)
    assert per_round > 0
    assert per_round % torch.get_num_threads() == 0
    assert rooflines.multiply_add(dtype, rounds=1000) == 1000 * per_round
    assert rooflines.multiply_add(dtype, rounds=0) == 0


def test_negative_rounds_raise_value_error():
    with pytest.raises(ValueError, match="hc_multiply_add_ceiling"):
        rooflines.multiply_add("fp32", rounds=-1)
