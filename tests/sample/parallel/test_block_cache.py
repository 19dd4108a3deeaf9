"""Tests of caches across steps: exact without reuse, by their rule with reuse, independent of ranks and rows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dithc.config import evaluations
from dithc.core.logging import UserError
from dithc.sample.parallel import ParallelDenoiser
from dithc.sample.parallel.block_cache import BlockCache, TaylorCache
from dithc.sample.parallel.rank_set import RankSet
from tests.sample.parallel.test_parallel_denoiser import NETWORK, needs_kernels

CALLS = 7
SAMPLING = (
    NETWORK
    + f"""
CALLS = {CALLS}
SPEED = torch.linspace(0, 1, 5).view(5, 1, 1, 1)  # rows that move so fast fall out of step: each is to be decided by itself
MOVE = torch.randn(5, 4, 16, 14, generator=torch.Generator().manual_seed(2))
MOVE[:, :, 8:] *= 0.1  # most of it in the first half of the tokens

def sampled(denoiser, rows=slice(None)):
    x = [(X + 0.2 * call * SPEED * MOVE)[rows] for call in range(CALLS)]
    return torch.stack([denoiser(x[call], T[rows] * 0 + 600 - 0.1 * call, Y[rows]) for call in range(CALLS)])
"""
)
SOME: list[evaluations.FirstBlockCacheConfig | evaluations.TaylorCacheConfig] = [
    evaluations.FirstBlockCacheConfig(kind="first-block", threshold=0.1),
    evaluations.TaylorCacheConfig(kind="taylor", interval=3, order=2, warmup_steps=2),
]


@needs_kernels
@pytest.mark.parametrize("settings", SOME, ids=lambda one: one.kind)
def test_cached_row_is_bit_identical_for_any_batch(network, scope, settings) -> None:
    whole = scope["sampled"](ParallelDenoiser(network, cache=settings))
    for rows in (slice(0, 1), slice(3, 4), slice(1, 3)):
        assert torch.equal(scope["sampled"](ParallelDenoiser(network, cache=settings), rows), whole[:, rows])


def test_first_block_cache_reuses_each_row_by_the_threshold_rule(network, scope) -> None:
    """Row by row in plain PyTorch: only the additions of the last full run are stored."""
    settings = SOME[0]
    cached = ParallelDenoiser(network, cache=settings)
    found, runs = scope["sampled"](cached), 0
    for row in range(5):
        kept: list[Tensor] = []
        for call in range(CALLS):
            x = (scope["X"] + 0.2 * call * scope["SPEED"] * scope["MOVE"])[row : row + 1]
            with torch.no_grad():
                tokens = network.x_embedder(x) + network.pos_embed
                c = network.t_embedder(torch.tensor([600.0 - 0.1 * call])) + network.y_embedder(
                    scope["Y"][row : row + 1]
                )
                out = first = network.blocks[0](tokens, c)
                if not kept or (first - tokens - kept[0]).abs().sum() >= settings.threshold * kept[0].abs().sum():
                    for block in network.blocks[1:]:
                        out = block(out, c)
                    kept, runs = [first - tokens, out - first], runs + 2
                patches = network.final_layer(first + kept[1], c)
            image = patches.view(1, 8, 7, 2, 2, -1).permute(0, 5, 1, 3, 2, 4).reshape(1, -1, 16, 14)
            assert scope["far"](found[call, row], image[0]) < 1e-4, (row, call)
    assert cached.tally[:2].tolist() == [5 * CALLS + runs, 5 * CALLS * 3]


class OneBlock:
    def __init__(self, block: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.block = block

    def __len__(self) -> int:
        return 1

    def __call__(self, tokens: Tensor, c: Tensor) -> Tensor:
        return self.block(tokens, c)


def cached_outputs(cache: BlockCache, block: Callable[[Tensor, Tensor], Tensor], times: list[float]) -> Tensor:
    tokens = torch.zeros(2, 3, 4)
    return torch.stack([cache(OneBlock(block), tokens, torch.full((2, 4), time), time) for time in times])


def taylor(**settings: Any) -> BlockCache:
    return TaylorCache(evaluations.TaylorCacheConfig(kind="taylor", **settings), RankSet(), num_tokens=3)


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_taylor_cache_is_exact_for_polynomials_of_the_configured_order(order) -> None:
    times = [1000.0, 930, 850, 760, 700, 610, 590, 500, 440, 300, 280, 200, 110, 60, 5, 0]  # unevenly spaced

    def block(degree: int) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda x, c: x + 1 + (c[:, None] / 1000) ** degree

    far = []
    for degree in (order, order + 1):
        settings = {"interval": 2, "order": order, "warmup_steps": 3 + order}
        found = cached_outputs(taylor(**settings), block(degree), times)
        far.append((found - cached_outputs(taylor(interval=1), block(degree), times)).abs().max().item())
    assert far[0] < 2e-6
    assert far[1] > 1e-3 / 10**order  # control: one degree more


def test_changed_row_count_and_repeated_timestep_are_rejected(network, scope) -> None:
    x, t, y = scope["X"], scope["T"] * 0 + 500, scope["Y"]
    for settings in SOME:
        denoiser = ParallelDenoiser(network, cache=settings)
        denoiser(x, t, y)
        with pytest.raises(UserError, match="rows per network call"):
            denoiser(x[:2], t[:2], y[:2])
    with pytest.raises(UserError, match="500 twice"):
        denoiser(x, t, y)


GUIDED = {"guidance_scale": 2.0, "guidance_interval": [0.1, 0.5]}


@pytest.mark.parametrize(
    ("settings", "output"),
    [
        ({"cache": {"kind": "taylor"}, "sampler": "heun"}, "heun evaluates each timestep twice"),
        ({"cache": {"kind": "taylor"}, "checkpoint": "codec"}, "`checkpoint` is codec"),
        ({"cache": {"kind": "taylor"}, **GUIDED}, "`guidance_interval` some have no branch"),
        ({"cache": {"kind": "taylor", "threshold": 0.1}}, "cache.taylor.threshold"),
        ({"cache": {"kind": "taylor", "interval": 0}}, "interval"),
        ({"cache": {"kind": "first-block", "threshold": -0.1}}, "threshold"),
        ({"cache": {"kind": "other"}}, "first-block"),
        ({"cache": {"kind": "taylor"}, "image_size": 512, "windows": {}, "num_images": 1}, "which `windows` change"),
    ],
)
def test_settings_incompatible_with_a_cache_are_rejected(settings, output) -> None:
    with pytest.raises(ValueError, match=output):
        evaluations.EvaluationConfig.model_validate({"run": "a", "extractor": "x", **settings})
