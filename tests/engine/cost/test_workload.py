"""Tests of the simulated work of a rank against the real model and the real reducer."""

import pytest
import torch

from dithc.config import training
from dithc.engine import hcops
from dithc.engine.comm.process_group import hierarchical, shm_collectives
from dithc.engine.cost import links
from dithc.engine.cost.workload import FP32_BYTES, ModelWorkload
from dithc.model import DiT, flops_per_image


@pytest.fixture(scope="module")
def xl():
    return ModelWorkload.of_preset("DiT-XL/2")


def test_gradient_bytes_match_the_published_model(xl):
    assert xl.gradient_bytes == FP32_BYTES * (675_129_632 - 256 * 1152)  # the position embedding is not trained


@pytest.mark.parametrize("preset", ["DiT-S/2", "DiT-XL/2", "ModernDiT-B/4"])
def test_operations_equal_those_of_the_network(preset):
    with torch.device("meta"):
        flops = flops_per_image(DiT.from_preset(preset).config)
    workload = ModelWorkload.of_preset(preset)
    assert workload.flops == flops.training_total
    assert workload.linear_flops == flops.training_linear


def test_gradient_adds_count_weight_and_input_products(xl):
    share = {gradient.name: 2 * gradient.adds for gradient in xl.gradients}
    tokens, width = 256, 1152
    backward = 1.0
    assert (
        share["x_embedder.proj.weight"] == 2 * tokens * 16 * width
    )  # a single product: its input requires no gradient
    assert share["blocks.5.mlp.fc1.weight"] * backward == pytest.approx(4 * tokens * 4 * width * width)
    attention = 2 * (2 * 2 * tokens * tokens * width)
    assert share["blocks.5.attn.qkv.weight"] * backward == pytest.approx(4 * tokens * 3 * width * width + attention)
    assert share["blocks.5.adaLN_modulation.1.weight"] * backward == pytest.approx(4 * 6 * width * width)
    assert share["y_embedder.embedding_table.weight"] == 0.0


@pytest.mark.parametrize("preset", ["DiT-S/2", "ModernDiT-S/4"])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_gradient_order_and_sizes_match_a_backward_pass(preset, qk_norm):
    small = {"hidden_size": 16, "num_heads": 2, "depth": 2}
    model = DiT.from_preset(preset, **small, input_size=8, qk_norm=qk_norm)
    config = training.ModelConfig.model_validate({"preset": preset, "qk_norm": qk_norm, **small})
    expected = ModelWorkload(config, tokens=16).gradients
    order: list[str] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: order.append(name))
    with hcops.use("reference"):
        model(torch.zeros(1, 4, 8, 8), torch.zeros(1), torch.zeros(1, dtype=torch.long)).sum().backward()
    assert [gradient.name for gradient in expected] == order
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert [gradient.elements for gradient in expected] == [sizes[name] for name in order]


@pytest.mark.parametrize("bucket_bytes", [None, 50_700_000])
def test_buckets_are_full_and_ready_with_their_last_gradient(xl, bucket_bytes):
    """Compare with a partition computed gradient by gradient."""
    limit = bucket_bytes or 16 << 20  # 1/32 of 2.7 GB exceeds the limit of a bucket
    expected: list[tuple[int, float]] = []
    done, whole = 0.0, sum(gradient.adds for gradient in xl.gradients)
    for gradient in xl.gradients:
        size = -(-gradient.elements // 1024) * 4096
        done += gradient.adds / whole
        if expected and expected[-1][0] + size <= limit:
            expected[-1] = (expected[-1][0] + size, done)
        else:
            expected.append((size, done))
    found = xl.buckets(bucket_bytes)
    assert [bucket.size for bucket in found] == [size for size, _ in expected]
    assert [bucket.ready_share for bucket in found] == pytest.approx([share for _, share in expected])
    assert found[-1].ready_share == pytest.approx(1.0)


def test_simulated_chunk_sizes_equal_the_exchange_constants():
    constants = (links.CHUNK_BYTES, links.ACROSS_CHUNK_BYTES, links.IN_FLIGHT)
    assert constants == (shm_collectives.SLOT_BYTES, hierarchical.ACROSS_SLOT_BYTES, hierarchical.IN_FLIGHT)
