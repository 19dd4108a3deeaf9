"""Tests of degrees: valid combinations, and the order of preference."""

import pytest

from dithc.core.logging import UserError
from dithc.model import DiTConfig
from dithc.sample.parallel import ParallelDegrees, SamplingWork, best_degrees


def shards(images: int) -> list[int]:
    return [min(64, images - at) for at in range(0, images, 64)]


XL = DiTConfig(hidden_size=1152, depth=28, num_heads=16, patch_size=2, input_size=32)


def work_of(shards: list[int], **settings: int) -> SamplingWork:
    return SamplingWork.of(XL, shards=shards, **settings)


@pytest.mark.parametrize(
    ("images", "branches", "ranks", "expected"),
    [
        (64, 1, 2, ParallelDegrees(data=2)),
        (1, 2, 2, ParallelDegrees(cfg=2)),
        (1, 1, 2, ParallelDegrees(shared=2)),
        (1, 2, 4, ParallelDegrees(cfg=2, shared=2)),
        (2, 2, 8, ParallelDegrees(data=2, cfg=2, shared=2)),
        (10_000, 2, 157, ParallelDegrees()),
    ],
)
def test_degrees_split_images_then_branches_then_tokens(images, branches, ranks, expected) -> None:
    work = work_of(shards(images), branches=branches)
    assert best_degrees(work, ranks=ranks, ranks_per_node=ranks) == expected


def test_scene_windows_are_split_before_tokens() -> None:
    work = work_of([1], branches=2, windows=25)
    assert best_degrees(work, ranks=2, ranks_per_node=2).rows == 2
    found = best_degrees(work, ranks=64, ranks_per_node=4)
    assert (found.rows, found.tokens) == (50, 1)  # one branch of one window per rank
    assert best_degrees(work, ranks=100, ranks_per_node=4).tokens == 2
    assert best_degrees(work, ranks=8, ranks_per_node=4, fixed={"windows": 2, "ulysses": 4}) == ParallelDegrees(
        windows=2, ulysses=4
    )
    scenes = work_of([1, 1, 1], windows=25)
    assert best_degrees(scenes, ranks=3, ranks_per_node=3) == ParallelDegrees()  # one scene per rank, without exchange


def test_tokens_use_shared_memory_only_within_a_node() -> None:
    work = work_of([1])
    assert best_degrees(work, ranks=4, ranks_per_node=4) == ParallelDegrees(shared=4)
    assert best_degrees(work, ranks=8, ranks_per_node=4, fixed={"ulysses": 1, "ring": 1}) == ParallelDegrees(shared=4)
    assert best_degrees(work, ranks=8, ranks_per_node=4, fixed={"ulysses": 4, "ring": 2}) == ParallelDegrees(
        ulysses=4, ring=2
    )


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"cfg": 2}, "without guidance"),
        ({"shared": 3}, "does not divide"),
        ({"ulysses": 3}, "16 heads are not a multiple of 3"),
        ({"ring": 5}, "5 ranks, and there are 4"),
        ({"data": 4, "shared": 2}, "there are 4"),
        ({"shared": 2, "ring": 2}, "through memory or by messages"),
        ({"windows": 2}, "2 ranks for 1 window"),
    ],
)
def test_invalid_degrees_are_rejected_with_a_complete_message(fixed, message) -> None:
    with pytest.raises(UserError) as error:
        best_degrees(work_of([64]), ranks=4, ranks_per_node=4, fixed=fixed)
    assert message in str(error.value)
    assert all(part in str(error.value) for part in ("machine.sampling", "got", "expected", "fix"))


def test_more_ranks_than_tokens_are_rejected() -> None:
    with pytest.raises(UserError, match="4 ranks for 3 tokens"):
        best_degrees(SamplingWork(shards=[1], tokens=3, heads=4), ranks=4, ranks_per_node=4, fixed={"shared": 4})
