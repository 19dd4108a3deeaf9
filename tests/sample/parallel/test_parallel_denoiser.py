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
from dithc.model import DiT
from dithc.sample.parallel import ParallelDenoiser, SamplingGroup
from dithc.sample.parallel.rank_set import RankSet

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
"""
ALL_ROWS = (
    NETWORK
    + """
n = int(sys.argv[2])
output = []
with init_distributed(n) as group:
    local = RankSet(group.rank, n, group.split([list(range(n))]))
    for kind in KINDS:
        model = network(kind)
        for bf16 in (False, True):
            single = ParallelDenoiser(model, bf16=bf16)(X, T, Y)
            shared = ParallelDenoiser(model, bf16=bf16, rows=local)
            output.append([torch.equal(shared(X, T, Y), single), torch.equal(shared(X[:1], T[:1], Y[:1]), single[:1])])
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
    found = program_output(ALL_ROWS, ranks, tmp_path)
    assert len(found) == ranks * 4  # every rank has the complete output
    assert all(all(one) for one in found)


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
