"""Tests of diffusers weight names: equal outputs in diffusers and a lossless round trip.

The reference is the DiTTransformer2DModel of the installed diffusers.
"""

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from dithc.core.logging import UserError
from dithc.model import DiT, adapt_state_dict, diffusers_keys
from dithc.model.embeddings import timestep_features

SMALL = {"hidden_size": 32, "num_heads": 2, "depth": 3, "input_size": 8, "num_classes": 5}
XL_WIDTHS = {"depth": 2, "input_size": 8, "num_classes": 10}
PRESET = {"small": ("DiT-S/2", SMALL), "xl": ("DiT-XL/2", XL_WIDTHS)}
BANDS = ("DiT-S/4", {**SMALL, "in_channels": 13, "learn_sigma": False, "input_size": 16})


def _model(name: str, overrides: dict[str, Any], seed: int = 0) -> DiT:
    """Return a model without zero-initialized weights, so that every layer affects the output."""
    torch.manual_seed(seed)
    model = DiT.from_preset(name, **overrides)
    for key, value in model.named_parameters():
        if value.requires_grad and (not value.any() or key.endswith("bias")):
            value.data.normal_(std=0.02)
    return model


def _diffusers_network(model: DiT) -> Any:
    """Return the diffusers network with the model's weights; its strict loading validates settings and names."""
    from diffusers.models.transformers.dit_transformer_2d import DiTTransformer2DModel

    content = diffusers_keys.settings(model.config)
    net = DiTTransformer2DModel.from_config(content)
    net.load_state_dict(diffusers_keys.to_diffusers(model.state_dict(), model.config), strict=True)
    return net.eval()


def _same_frequencies(net: Any) -> Any:
    for block in net.transformer_blocks:
        block.norm1.emb.time_proj.downscale_freq_shift = 0
    return net


def _inputs(model: DiT, count: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Return noisy images, timesteps from both ends, and labels including the null label."""
    torch.manual_seed(1)
    x = torch.randn(count, model.config.in_channels, *model.config.size)
    return x, torch.tensor([0, 999, 500, 37][:count]), torch.tensor([0, 1, model.config.num_classes, 3][:count])


@torch.no_grad()
def _difference(model: DiT, net: Any) -> float:
    """Return the norm of the difference of both outputs, relative to the model's output."""
    x, t, y = _inputs(model)
    actual, reference = model(x, t, y), net(x, timestep=t, class_labels=y, return_dict=False)[0]
    assert actual.shape == reference.shape
    return float((actual - reference).norm() / actual.norm())


@pytest.mark.parametrize(("name", "overrides"), [*PRESET.values(), BANDS], ids=["small", "xl", "bands"])
@pytest.mark.slow
def test_converted_weights_produce_equal_outputs_in_diffusers(name: str, overrides: dict[str, Any]) -> None:
    model = _model(name, overrides)
    assert _difference(model, _same_frequencies(_diffusers_network(model))) < 1e-5


def test_norm_epsilon_matches_diffusers() -> None:
    """Use tiny tokens, because the position embedding (variance one half) would hide the epsilon."""
    model = _model(*PRESET["small"])
    net = _same_frequencies(_diffusers_network(model))
    for positions in (model.pos_embed.data, net.pos_embed.pos_embed):
        positions.zero_()
    for weight in (model.x_embedder.proj.weight.data, net.pos_embed.proj.weight.data):
        weight *= 1e-2
    assert _difference(model, net) < 1e-5


def test_timestep_features_differ_from_diffusers_only_in_frequencies() -> None:
    from diffusers.models.embeddings import get_timestep_embedding

    steps = torch.arange(1000)
    actual = timestep_features(steps)
    equal, shifted = (get_timestep_embedding(steps, 256, flip_sin_to_cos=True, downscale_freq_shift=s) for s in (0, 1))
    assert float((actual - equal).abs().max()) < 1e-6
    assert 0.6 < float((actual - shifted).norm() / actual.norm()) < 0.7


@pytest.mark.parametrize(("name", "overrides"), [*PRESET.values(), BANDS], ids=["small", "xl", "bands"])
def test_diffusers_key_round_trip_is_bit_exact(name: str, overrides: dict[str, Any]) -> None:
    model = _model(name, overrides)
    state = model.state_dict()
    back = diffusers_keys.from_diffusers(diffusers_keys.to_diffusers(state, model.config), model.config)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[key], value) for key, value in state.items())
    assert (
        adapt_state_dict(back, model, source=diffusers_keys.source_of(diffusers_keys.settings(model.config)))[1] == []
    )


def test_imported_diffusers_network_matches_diffusers_outputs() -> None:
    from diffusers.models.transformers.dit_transformer_2d import DiTTransformer2DModel

    torch.manual_seed(3)
    net = DiTTransformer2DModel(
        num_attention_heads=4, attention_head_dim=8, in_channels=3, out_channels=6, num_layers=2, sample_size=8,
        patch_size=2, num_embeds_ada_norm=7, norm_eps=1e-6,
    ).eval()  # fmt: skip
    for block in net.transformer_blocks:
        block.norm1.emb.load_state_dict(net.transformer_blocks[0].norm1.emb.state_dict())
    config = diffusers_keys.source_of(dict(net.config))
    assert (config.num_heads, config.num_classes, config.out_channels, config.size) == (4, 7, 6, (8, 8))
    model = DiT(config)
    model.load_state_dict(diffusers_keys.from_diffusers(net.state_dict(), config), strict=True)
    assert _difference(model, _same_frequencies(net)) < 1e-5


def test_default_settings_equal_the_diffusers_class_defaults() -> None:
    from diffusers.models.transformers.dit_transformer_2d import DiTTransformer2DModel

    parameters = inspect.signature(DiTTransformer2DModel.__init__).parameters
    actual = diffusers_keys.DEFAULTS | diffusers_keys.FIXED
    assert {key: parameters[key].default for key in actual} == actual


@pytest.mark.parametrize(
    ("overrides", "feature"),
    [
        ({"input_size": (8, 16)}, "not square"),
        ({"class_dropout_prob": 0.0}, "null label"),
        ({"mlp_ratio": 2.0}, "MLP width"),
    ],
)
def test_to_diffusers_rejects_unsupported_model_features(overrides: dict[str, Any], feature: str) -> None:
    model = DiT.from_preset("DiT-S/2", **{**SMALL, **overrides})
    with pytest.raises(UserError, match=f"cannot hold[\\s\\S]*{feature}"):
        diffusers_keys.to_diffusers(model.state_dict(), model.config)


@pytest.mark.parametrize("part", ["timestep_embedder.linear_2.bias", "class_embedder.embedding_table.weight"])
def test_embedders_differing_between_blocks_are_rejected(part: str) -> None:
    model = _model(*PRESET["small"])
    state = diffusers_keys.to_diffusers(model.state_dict(), model.config)
    state[f"transformer_blocks.2.norm1.emb.{part}"].view(-1)[-1] += 1e-6
    with pytest.raises(UserError, match=r"embedders of the blocks differ[\s\S]*blocks.2"):
        diffusers_keys.from_diffusers(state, model.config)


def test_missing_and_unknown_weight_names_are_reported() -> None:
    model = _model(*PRESET["small"])
    state = diffusers_keys.to_diffusers(model.state_dict(), model.config)
    state["caption_projection.weight"] = state.pop("transformer_blocks.1.attn1.to_v.bias")
    with pytest.raises(UserError, match=r"missing: \S*1.attn1.to_v.bias; unknown: caption_projection.weight"):
        diffusers_keys.from_diffusers(state, model.config)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("_class_name", "PixArtTransformer2DModel"),
        ("norm_type", "ada_norm_single"),
        ("activation_fn", "geglu"),
        ("num_layers", None),
        ("sample_size", "32"),
    ],
)
def test_settings_of_incompatible_networks_are_rejected_by_key(key: str, value: object) -> None:
    with pytest.raises(UserError, match=key):
        diffusers_keys.source_of({key: value})
