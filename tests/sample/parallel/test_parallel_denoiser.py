"""Tests of a network call on several ranks: the bits of one rank."""

import json

import pytest
import torch

from dithc.engine import hcops, native
from dithc.sample.parallel import ParallelDenoiser
from tests.ranks import needs_launcher, run_on_ranks

needs_kernels = pytest.mark.skipif(native.library() is None, reason=f"no C kernels: {native.load_library().reason}")

NETWORK = """
import json, sys
import torch
from dithc.engine.comm import init_distributed
from dithc.model import DiT, fused_blocks
from dithc.engine.cost.sampling import ParallelDegrees
from dithc.sample.parallel import ParallelDenoiser, SamplingGroup
from dithc.sample.parallel.attention import SharedMemoryAttention
from dithc.sample.parallel.rank_set import RankSet, cut

KINDS = ({}, {"mlp": "swiglu", "norm": "rms", "position_embedding": "rope", "qk_norm": True})
X = torch.randn(5, 4, 16, 14, generator=torch.Generator().manual_seed(1))
T, Y = torch.linspace(3.5, 999, 5), torch.arange(5)

def network(kind):
    torch.manual_seed(0)
    sizes = {"hidden_size": 96, "num_heads": 6, "depth": 3, "num_classes": 10, "input_size": (16, 14)}
    model = DiT.from_preset("DiT-S/2", **(sizes | kind))
    for weight in model.parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.1)  # includes heads and gates, which are zero in an untrained network
    return model.eval()

def far(found, expected):
    return ((found - expected).abs().max() / expected.abs().max()).item()
"""
ALL_PARTITIONS = (
    NETWORK
    + """
n = int(sys.argv[2])
output = []
with init_distributed(n) as group:
    all_ranks = group.split([list(range(n))])
    local = RankSet(group.rank, n, all_ranks)
    for kind in KINDS:
        model = network(kind)
        lengths = cut(model.config.num_tokens, n)
        for bf16 in (False, True):
            single = ParallelDenoiser(model, bf16=bf16)(X, T, Y)
            shared = ParallelDenoiser(model, bf16=bf16, tokens=local, over=SharedMemoryAttention(local, lengths))
            shared(X[:1], T[:1], Y[:1])  # the memory grows behind it
            found = {"exact": {
                "rows": torch.equal(ParallelDenoiser(model, bf16=bf16, rows=local)(X, T, Y), single),
                "shared": torch.equal(shared(X, T, Y), single),
                "shared, fewer rows": torch.equal(shared(X[:2], T[:2], Y[:2]), single[:2]),
            }, "bf16": bf16}
            # Control: each rank uses its own tokens only, as if they were the image.
            class Isolated:
                lost_rank, begin, most_tokens, turn = lambda self: None, lambda self: None, 1, (0, 0)
                def linears(self, x, layers, dtype):
                    from dithc.engine.hcops.blocks import sharded_ops
                    return sharded_ops.linears_apart(x, layers, dtype)
                def attention(self, qkv, num_heads):
                    from dithc.engine.hcops.c import matrix
                    return matrix.attention_forward(qkv, num_heads)[0]
            found["control"] = far(ParallelDenoiser(model, bf16=bf16, tokens=local, over=Isolated())(X, T, Y), single)
            output.append(found)
    # Uneven partition: one rank exceeds the work of a single call and another does not. All ranks must decide equally.
    model = network({"input_size": (14, 14)})
    lengths = cut(49, n)
    weights = sum(weight.numel() for block in model.blocks for weight in block.parameters())
    x, t, y = X[:, :, :14], T, Y
    single = ParallelDenoiser(model)(x, t, y)
    fused_blocks.MAX_FLOP = 2 * weights * len(x) * 49 / n
    uneven = ParallelDenoiser(model, tokens=local, over=SharedMemoryAttention(local, lengths))
    output[0]["exact"]["uneven"] = torch.equal(uneven(x, t, y), single)
    # Memory read in one part of a pass is not written in the next.
    attention = SharedMemoryAttention(local, lengths)
    layers = [(block.adaLN_modulation[1].weight, block.adaLN_modulation[1].bias) for block in model.blocks]
    c = torch.ones(1, 96)
    with torch.no_grad():
        attention.begin()
        (first,) = attention.linears(c, layers[:1], torch.float32)
        kept = first.clone()
        list(attention.linears(2 * c, layers[1:2], torch.float32))
        output[0]["exact"]["parts"] = torch.equal(first, kept)
        output[0]["exact"]["columns"] = far(kept, torch.nn.functional.linear(c, *layers[0])) < 1e-5
    gathered = group.gather_objects(output)
    if group.rank == 0:
        print("output " + json.dumps([found for output in gathered for found in output]))
"""
)


def program_output(program: str, ranks: int, folder, *, given: object = None) -> list[dict]:
    done = run_on_ranks(program, ranks=ranks, given=given, folder=folder)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("output "))
    return json.loads(line.removeprefix("output "))


MANY = (pytest.mark.slow, pytest.mark.sampled("several ranks"))


@pytest.mark.mpi
@needs_launcher
@needs_kernels
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=MANY), pytest.param(4, marks=MANY)])
def test_parallel_denoiser_output_equals_a_single_rank(ranks, tmp_path) -> None:
    found = program_output(ALL_PARTITIONS, ranks, tmp_path)
    assert len(found) == ranks * 4  # every rank has the complete output
    for one in found:
        assert all(one["exact"].values()), one
        assert one["control"] > 0.05


@needs_kernels
@pytest.mark.parametrize("bf16", [False, True])
def test_denoiser_row_is_bit_identical_for_any_batch(network, bf16) -> None:
    x, t, y = torch.randn(33, 4, 16, 14), torch.rand(33) * 999, torch.randint(0, 10, (33,))
    denoiser = ParallelDenoiser(network, bf16=bf16)
    whole = denoiser(x, t, y)
    for rows in (1, 2, 8, 9, 16, 17):
        assert torch.equal(denoiser(x[:rows], t[:rows], y[:rows]), whole[:rows])
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        plain = network(x, t, y)
        few = network(x[:2], t[:2], y[:2])
    if not bf16:  # control: a separate product depends on its number of rows; rounding to bf16 may hide it
        assert not torch.equal(few, plain[:2])
    torch.testing.assert_close(whole, plain.float(), rtol=0, atol=0.05 if bf16 else 1e-4)


def test_denoiser_with_reference_backend_matches_the_network(network) -> None:
    x, t, y = torch.randn(3, 4, 16, 14), torch.rand(3) * 999, torch.randint(0, 10, (3,))
    with hcops.use("reference"), torch.no_grad():
        torch.testing.assert_close(ParallelDenoiser(network)(x, t, y), network(x, t, y))
