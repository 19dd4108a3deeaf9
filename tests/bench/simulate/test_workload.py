"""Tests of the simulated work of a rank against the real model and the real reducer."""

import pytest
import torch

from dithc.bench.simulate import links
from dithc.bench.simulate.workload import FP32_BYTES, buckets_of, describe_model
from dithc.engine import hcops
from dithc.engine.comm.process_group import hierarchical, shm_collectives
from dithc.model import DiT


@pytest.fixture(scope="module")
def xl():
    return describe_model("DiT-XL/2")


def test_gradient_bytes_match_the_published_model(xl):
    assert xl.gradient_bytes == FP32_BYTES * (675_129_632 - 256 * 1152)  # the position embedding is not trained
    assert sum(gradient.share for gradient in xl.gradients) == pytest.approx(1.0)


def test_gradient_share_counts_weight_and_input_products(xl):
    share = {gradient.name: gradient.share for gradient in xl.gradients}
    tokens, width = 256, 1152
    first_layer = 2 * tokens * 16 * width  # a single product, because its input requires no gradient
    backward = 2 * xl.flops.forward_total - first_layer
    assert share["blocks.5.mlp.fc1.weight"] * backward == pytest.approx(4 * tokens * 4 * width * width)
    attention = 2 * (2 * 2 * tokens * tokens * width)
    assert share["blocks.5.attn.qkv.weight"] * backward == pytest.approx(4 * tokens * 3 * width * width + attention)
    assert share["blocks.5.adaLN_modulation.1.weight"] * backward == pytest.approx(4 * 6 * width * width)
    assert share["y_embedder.embedding_table.weight"] == 0.0


@pytest.mark.slow
def test_gradient_order_of_a_narrow_twin_matches_the_full_model():
    model = DiT.from_preset("DiT-S/2")
    order: list[str] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    with hcops.use("reference"):
        model(torch.zeros(1, 4, 32, 32), torch.zeros(1), torch.zeros(1, dtype=torch.long)).sum().backward()
    assert [gradient.name for gradient in describe_model("DiT-S/2").gradients] == order


@pytest.mark.parametrize("bucket_bytes", [None, 50_700_000])
def test_buckets_are_full_and_ready_with_their_last_gradient(xl, bucket_bytes):
    """Compare with a partition computed gradient by gradient."""
    limit = bucket_bytes or 16 << 20  # 1/32 of 2.7 GB exceeds the limit of a bucket
    expected: list[tuple[int, float]] = []
    done = 0.0
    for gradient in xl.gradients:
        size = -(-gradient.elements // 1024) * 4096
        done += gradient.share
        if expected and expected[-1][0] + size <= limit:
            expected[-1] = (expected[-1][0] + size, done)
        else:
            expected.append((size, done))
    found = buckets_of(xl.gradients, bucket_bytes=bucket_bytes)
    assert [bucket.size for bucket in found] == [size for size, _ in expected]
    assert [bucket.ready_share for bucket in found] == pytest.approx([share for _, share in expected])
    assert found[-1].ready_share == pytest.approx(1.0)


def test_simulated_chunk_sizes_equal_the_exchange_constants():
    constants = (links.CHUNK_BYTES, links.ACROSS_CHUNK_BYTES, links.IN_FLIGHT)
    assert constants == (shm_collectives.SLOT_BYTES, hierarchical.ACROSS_SLOT_BYTES, hierarchical.IN_FLIGHT)
