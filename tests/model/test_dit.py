"""Tests of the network: exact sizes, official names, initial state, and the inputs that affect its output."""

import math

import pytest
import torch
from torch import Tensor

from dithc.core.logging import UserError
from dithc.model import PRESETS, DiT
from tests.model.networks import inputs, nonzero, small


@pytest.mark.parametrize(
    ("name", "count"),
    [("DiT-XL/2", 675_129_632), ("DiT-L/2", 458_102_816), ("DiT-B/2", 130_512_416), ("DiT-S/2", 32_963_360)],
)
def test_parameter_counts_equal_the_paper_values(name: str, count: int) -> None:
    with torch.device("meta"):
        model = DiT.from_preset(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_presets_contain_every_size_and_patch_combination() -> None:
    sizes = [f"DiT-{size}/{patch}" for size in ("S", "B", "L", "XL") for patch in (2, 4, 8)]
    assert list(PRESETS) == [*sizes, *(f"Modern{name}" for name in sizes)]


def test_state_dict_has_the_official_names_and_shapes() -> None:
    weights = {
        "x_embedder.proj": (32, 4, 2, 2),
        "t_embedder.mlp.0": (32, 256),
        "t_embedder.mlp.2": (32, 32),
        "blocks.0.attn.qkv": (96, 32),
        "blocks.0.attn.proj": (32, 32),
        "blocks.0.mlp.fc1": (128, 32),
        "blocks.0.mlp.fc2": (32, 128),
        "blocks.0.adaLN_modulation.1": (192, 32),
        "final_layer.linear": (32, 32),
        "final_layer.adaLN_modulation.1": (64, 32),
    }
    expected: dict[str, tuple[int, ...]] = {"pos_embed": (1, 16, 32), "y_embedder.embedding_table.weight": (4, 32)}
    for name, shape in weights.items():
        expected |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    assert {key: tuple(value.shape) for key, value in small(depth=1).state_dict().items()} == expected


def test_initial_weights_match_the_official_initialization() -> None:
    torch.manual_seed(0)
    model = DiT.from_preset("DiT-S/2", depth=1)
    state = model.state_dict()
    for key in ("final_layer.linear", "final_layer.adaLN_modulation.1", "blocks.0.adaLN_modulation.1"):
        assert not state[f"{key}.weight"].any()
    assert not any(value.any() for key, value in state.items() if key.endswith("bias"))
    for key in ("t_embedder.mlp.0.weight", "t_embedder.mlp.2.weight", "y_embedder.embedding_table.weight"):
        assert state[key].std().item() == pytest.approx(0.02, rel=0.02)
    for key, fan_sum in {"blocks.0.attn.qkv.weight": 4 * 384, "x_embedder.proj.weight": 384 + 16}.items():
        assert state[key].abs().max().item() == pytest.approx(math.sqrt(6 / fan_sum), rel=0.01)


def test_position_embedding_is_fixed_and_encodes_column_before_row() -> None:
    model = small(input_size=(4, 8))  # 2 rows, 4 columns
    assert not model.pos_embed.requires_grad
    table = model.pos_embed[0].reshape(2, 4, 32)
    frequencies = 10_000.0 ** (-torch.arange(8) / 8)
    torch.testing.assert_close(table[1, 3, :16], torch.cat([(3 * frequencies).sin(), (3 * frequencies).cos()]))
    torch.testing.assert_close(table[1, 3, 16:], torch.cat([frequencies.sin(), frequencies.cos()]))


def test_timestep_embedding_is_cosine_then_sine_over_128_frequencies() -> None:
    model = small()
    features: list[Tensor] = []
    model.t_embedder.mlp.register_forward_pre_hook(lambda module, inputs: features.append(inputs[0]))
    x, _, y = inputs(model)
    model(x, torch.tensor([0.0, 1.0, 999.5]), y)
    frequencies = 10_000.0 ** (-torch.arange(128) / 128)
    expected = torch.cat([(999.5 * frequencies).cos(), (999.5 * frequencies).sin()])
    torch.testing.assert_close(features[0][2], expected, atol=2e-4, rtol=0)
    assert features[0][0, :128].eq(1).all()
    assert features[0][0, 128:].eq(0).all()


@pytest.mark.parametrize(
    "overrides",
    [
        {"learn_sigma": False},
        {"in_channels": 13, "input_size": (4, 12), "num_classes": 1},
        {"patch_size": 4, "mlp_ratio": 2.0},
        {"patch_size": 8, "class_dropout_prob": 0.0},
        {"in_channels": 1, "input_size": 2},
    ],
)
def test_output_has_the_size_of_the_input_and_the_channels_of_the_config(overrides: dict[str, object]) -> None:
    model = nonzero(**overrides)
    x, t, y = inputs(model)
    out = model(x, t, y)
    assert out.shape == (3, model.config.out_channels, *model.config.size)
    assert out.isfinite().all()


def test_final_layer_rows_are_ordered_by_patch_position_then_channel() -> None:
    model = small()
    with torch.no_grad():
        model.final_layer.linear.bias.copy_(torch.arange(2 * 2 * 8))
    out = model(*inputs(model))
    for channel in range(8):
        expected = torch.tensor([[0.0, 8.0], [16.0, 24.0]]) + channel
        torch.testing.assert_close(out[0, channel, 2:4, 6:8], expected)


def test_output_depends_only_on_time_label_and_image() -> None:
    model = nonzero()
    x, t, y = inputs(model)
    out = model(x, t, y)
    assert torch.equal(out, model(x, t, y))  # the forward pass is deterministic
    assert not torch.allclose(out, model(x, t + 50, y))
    assert not torch.allclose(out, model(x, t, torch.full_like(y, 3)))
    torch.testing.assert_close(out[1:2], model(x[1:2], t[1:2], y[1:2]))


def test_every_trained_parameter_has_a_gradient() -> None:
    model = nonzero()
    x, t, _ = inputs(model)
    model(x, t, torch.tensor([0, 1, 3])).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None and bool(parameter.grad.any())) == (name != "pos_embed"), name


def test_bf16_autocast_stays_near_fp32_and_keeps_the_stream_in_fp32() -> None:
    model = nonzero()
    given = inputs(model)
    streams: list[torch.dtype] = []
    model.blocks[1].register_forward_pre_hook(lambda module, entered: streams.append(entered[0].dtype))
    exact = model(*given)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(*given)
    assert streams == [torch.float32, torch.float32]
    assert (exact - rounded).norm() < 0.03 * exact.norm()


def test_unknown_preset_and_override_are_rejected_with_valid_names() -> None:
    with pytest.raises(UserError, match="DiT-S/2 or DiT-S/4"):
        DiT.from_preset("DiT-M/2")
    with pytest.raises(UserError, match=r"image_size\n.*input_size"):
        DiT.from_preset("DiT-S/2", image_size=32)


@pytest.mark.parametrize(
    ("overrides", "setting"),
    [
        ({"input_size": 9}, "input_size"),
        ({"input_size": (8, 8, 8)}, "input_size"),
        ({"input_size": 8.0}, "input_size"),
        ({"num_heads": 5}, "hidden_size"),
        ({"hidden_size": 6, "num_heads": 1}, "hidden_size"),
        ({"num_classes": 0}, "num_classes"),
        ({"in_channels": 0}, "in_channels"),
        ({"class_dropout_prob": 1.0}, "class_dropout_prob"),
        ({"mlp_ratio": 0.0}, "mlp_ratio"),
        ({"depth": 1.5}, "depth"),
        ({"norm": "batch"}, "norm"),
        ({"mlp": "relu"}, "mlp"),
        ({"position_embedding": "none"}, "position_embedding"),
        ({"qk_norm": 1}, "qk_norm"),
        ({"position_embedding": "rope", "hidden_size": 24, "num_heads": 4}, "num_heads"),
    ],
)
def test_invalid_model_settings_are_rejected_by_name(overrides: dict[str, object], setting: str) -> None:
    with pytest.raises(UserError, match=f"model setting {setting}"):
        small(**overrides)


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (2, 4, 8, 6), (4, 8, 8), (2, 8, 8, 4)])
def test_mismatched_input_shape_is_rejected(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="shape of the model input"):
        small()(torch.randn(shape), torch.zeros(2), torch.zeros(2, dtype=torch.long))
