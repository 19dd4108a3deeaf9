"""Tests of pipeline stages: patches follow their rule, are exact without stale keys, for any number of stages."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dithc.core.logging import UserError
from dithc.engine import hcops
from dithc.model import DiT
from dithc.sample.parallel import ParallelDegrees, ParallelDenoiser, SamplingWork, best_degrees, planner
from dithc.sample.parallel.rank_set import cut
from tests.ranks import needs_launcher
from tests.sample.parallel.test_degrees import XL
from tests.sample.parallel.test_parallel_denoiser import MANY, NETWORK, needs_kernels, program_output

CALLS, DEPTH, TOKENS = 4, 5, 56
SAMPLING = (
    NETWORK.replace('"depth": 3', f'"depth": {DEPTH}')
    + f"""
from dithc.config import evaluations
CALLS = {CALLS}
def settings_of(patches, warmup, stages=1):
    return evaluations.PipeFusionConfig(
        pipefusion_parallel_degree=stages, num_pipeline_patch=patches, warmup_steps=warmup)
def sampled(denoiser, rows=slice(None), calls=CALLS, stride=1.0):
    places = [stride * call for call in range(calls)]
    return torch.stack([
        denoiser(X[rows] * (1 + 0.02 * place), T[rows] * 0 + 600 - 5 * place, Y[rows]) for place in places])
"""
)


def by_rule(model: DiT, x: Tensor, c: Tensor, owner: Tensor, old: list[Tensor]) -> Tensor:
    """Return all patches together in plain PyTorch: a mask over the new and the old keys of all tokens."""
    fresh = owner[None, :] <= owner[:, None]  # new keys that the token of a row attends to
    mask = torch.cat([fresh, ~fresh], dim=1)
    heads = model.config.num_heads
    for number, block in enumerate(model.blocks):
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = (
            part[:, None] for part in block.adaLN_modulation(c).chunk(6, dim=1)
        )
        normed = F.layer_norm(x, x.shape[2:], eps=1e-6) * (1 + scale_a) + shift_a
        query, *new = block.attn.qkv(normed).chunk(3, dim=2)
        before = old[number].chunk(2, dim=2) if len(old) > number else new
        old[number : number + 1] = [torch.cat(new, dim=2)]
        key, value = (torch.cat(both, dim=1) for both in zip(new, before, strict=True))
        q, k, v = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in (query, key, value))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        x = x + gate_a * block.attn.proj(mixed)
        normed = F.layer_norm(x, x.shape[2:], eps=1e-6) * (1 + scale_m) + shift_m
        hidden = F.linear(normed, block.mlp.fc1.weight, block.mlp.fc1.bias)
        x = x + gate_m * block.mlp.fc2(F.gelu(hidden, approximate="tanh"))
    return model.final_layer(x, c)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["c", "reference"])
@pytest.mark.parametrize("patches", [3, TOKENS])
def test_patch_attends_to_current_earlier_and_stale_later_patches(
    network, scope, use_backend, backend, patches
) -> None:
    use_backend(backend)
    found = scope["sampled"](ParallelDenoiser(network, pipefusion=scope["settings_of"](patches, 1)))
    owner = torch.repeat_interleave(torch.arange(patches), torch.tensor(cut(TOKENS, patches)))
    far = {}
    for name, order in (("rule", owner), ("control", owner.flip(0))):
        old: list[Tensor] = []
        for call in range(CALLS):
            with torch.no_grad(), hcops.use("reference"):
                tokens = network.x_embedder(scope["X"] * (1 + 0.02 * call)) + network.pos_embed
                c = network.t_embedder(torch.full((5,), 600.0 - 5 * call)) + network.y_embedder(scope["Y"])
                expected = by_rule(network, tokens, c, order if call else order * 0, old)
        image = expected.view(5, 8, 7, 2, 2, -1).permute(0, 5, 1, 3, 2, 4).reshape(5, -1, 16, 14)
        far[name] = scope["far"](found[-1], image)
    assert far["rule"] < 1e-4
    assert far["control"] > 1e-2


@pytest.mark.slow
@needs_kernels
def test_pipefusion_row_is_bit_identical_for_any_batch(network, scope) -> None:
    settings = scope["settings_of"](4, 1)
    whole = scope["sampled"](ParallelDenoiser(network, pipefusion=settings))
    for rows in (slice(0, 1), slice(3, 4), slice(1, 3)):
        assert torch.equal(scope["sampled"](ParallelDenoiser(network, pipefusion=settings), rows), whole[:, rows])
    other = scope["sampled"](ParallelDenoiser(network, pipefusion=scope["settings_of"](5, 1)))
    assert not torch.equal(other, whole)  # control


def test_changed_rows_and_excess_patches_or_stages_are_rejected(network, scope) -> None:
    denoiser = ParallelDenoiser(network, pipefusion=scope["settings_of"](4, 1))
    denoiser(scope["X"], scope["T"], scope["Y"])
    with pytest.raises(UserError, match="rows per network call") as error:
        denoiser(scope["X"][:2], scope["T"][:2], scope["Y"][:2])
    assert all(word in str(error.value) for word in ("got", "expected", "fix"))
    for wrong, output in (
        (scope["settings_of"](TOKENS + 1, 1), "num_pipeline_patch"),
        (scope["settings_of"](2, 1, DEPTH + 1), "pipefusion_parallel_degree"),
    ):
        with pytest.raises(UserError, match=output) as error:
            ParallelDenoiser(network, pipefusion=wrong)
        assert all(word in str(error.value) for word in ("got", "expected", "fix"))


def work(**more: Any) -> SamplingWork:
    return SamplingWork.of(XL, shards=[64], branches=2, batch=8, calls=50, **{"patches": 4, "warmup_calls": 1, **more})


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"stages": 9}, "9 ranks, and there are 8"),
        ({"stages": 2, "shared": 2}, "pipeline patches cannot be combined"),
        ({"ring": 2}, "pipeline patches cannot be combined"),
        ({"stages": 2, "windows": 2}, "windows"),
    ],
)
def test_degrees_incompatible_with_stages_are_rejected(fixed, message) -> None:
    with pytest.raises(UserError, match=message):
        best_degrees(work(), ranks=8, ranks_per_node=4, fixed=fixed)
    with pytest.raises(UserError, match="stages require patches"):
        best_degrees(work(patches=0), ranks=8, ranks_per_node=4, fixed={"stages": 2})
    with pytest.raises(UserError, match="30 stages of 28 blocks"):
        best_degrees(work(), ranks=32, ranks_per_node=4, fixed={"stages": 30})


def test_stages_combine_with_images_and_branches() -> None:
    found = best_degrees(work(), ranks=8, ranks_per_node=4, fixed={"stages": 2})
    assert (found.stages, found.tokens, found.size) == (2, 1, 8)
    assert best_degrees(work(), ranks=4, ranks_per_node=4, fixed={"stages": 4}) == ParallelDegrees(stages=4)


def test_predicted_stage_utilization_matches_patches_and_stages() -> None:
    fast = planner.MachineRates(
        flops=1e12, inside=planner.LinkModel(latency=0.0, bandwidth=1e15), between=None, copy_rate=1e10, half_tokens=0.0
    )

    def seconds(stages: int, **more: Any) -> float:
        costs = planner.CostModel(work=work(**more), rates=fast, ranks=8, ranks_per_node=8)
        return costs.call(ParallelDegrees(stages=stages), 2).whole

    for patches, stages in ((4, 4), (2, 4), (16, 4), (8, 2)):
        share = patches / (patches + stages - 1)
        whole, cut_up = (seconds(many, patches=patches, warmup_calls=0) for many in (1, stages))
        assert whole / stages / cut_up == pytest.approx(share, rel=0.01)
        warm = seconds(stages, patches=patches, warmup_calls=50)  # two rows, one after the other
        assert seconds(1, patches=1) / stages / warm == pytest.approx(2 / (2 + stages - 1), rel=0.01)
    half = seconds(4, warmup_calls=25)
    assert half == pytest.approx((seconds(4, warmup_calls=0) + seconds(4, warmup_calls=50)) / 2)


ON_RANKS = (
    SAMPLING
    + """
n, output, counted = int(sys.argv[2]), [], []
isend = RankSet.isend
RankSet.isend = lambda self, x, **to: (counted.append(x.nbytes), isend(self, x, **to))[1]
with init_distributed(n) as group:
    gathered = group.split([list(range(n))])
    cuts = {"stages": {"stages": RankSet(group.rank, n, gathered)}}
    if n == 4:
        pairs, columns = group.split([[0, 1], [2, 3]]), group.split([[0, 2], [1, 3]])
        cuts["rows and stages"] = {"stages": RankSet(group.rank % 2, 2, pairs), "rows": RankSet(group.rank // 2, 2, columns)}
    for kind, bf16 in (({}, False), (KINDS[1], True)):
        model = network(kind)
        plain = sampled(ParallelDenoiser(model, bf16=bf16))
        cases = ((1, 1), (2, 1), (3, 1), (4, 2), (5, 1), (8, 3), (56, 1), (3, CALLS))
        for patches, warmup in cases[2:4] if bf16 else cases:
            settings = settings_of(patches, warmup)
            single = sampled(ParallelDenoiser(model, bf16=bf16, pipefusion=settings))
            for name, sets in cuts.items():
                counted.clear()
                found = sampled(ParallelDenoiser(model, bf16=bf16, pipefusion=settings, **sets))
                output.append({"cut": name, "patches": patches, "equal": torch.equal(found, single), "sent": sum(counted),
                             "exact": torch.equal(found, plain), "is stated": settings.is_exact(CALLS)})
    everything = group.gather_objects(output)
    if group.rank == 0:
        print("output " + json.dumps(everything))
"""
)


@pytest.mark.mpi
@needs_launcher
@needs_kernels
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=MANY), pytest.param(4, marks=MANY)])
def test_any_stage_count_is_bit_identical_to_a_single_rank(ranks, tmp_path) -> None:
    """Every number of patches works: fewer than stages, not a multiple of them, one per token."""
    gathered = program_output(ON_RANKS, ranks, tmp_path)
    assert len(gathered) == ranks
    for rank, found in enumerate(gathered):
        assert len(found) == 10 * (1 + (ranks == 4))
        for one in found:
            assert one["equal"], one
            assert one["exact"] == one["is stated"], one  # control: an approximate result has other bits
            if one["cut"] == "stages":  # each token is sent once per call at any depth, and not from the last stage
                assert one["sent"] == CALLS * 5 * TOKENS * 96 * 4 * (rank + 1 < ranks), one
