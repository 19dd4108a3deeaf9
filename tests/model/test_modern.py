"""Tests of modern block types against an independent float64 implementation, and of their rejection by other formats.

The reference implements the formulas per image and head: RMSNorm (Zhang & Sennrich 2019, equation 4), SwiGLU (Shazeer
2020, equation 6), rotations as complex products (Su et al. 2021, equation 12).
Legend: T tokens, D width, H heads, K head width.
"""

import cmath
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dithc.config import training
from dithc.core.logging import UserError
from dithc.engine import hcops, native
from dithc.engine.hcops import blocks
from dithc.model import PRESETS, DiT, adapt_state_dict, diffusers_keys, flops_per_image
from dithc.train.muon_matrices import matrices_of
from tests.model.networks import nonzero

SMALL = {"hidden_size": 24, "num_heads": 3, "depth": 2, "input_size": (4, 6), "num_classes": 3, "in_channels": 2}
KINDS: list[dict[str, Any]] = [
    {},
    {"norm": "rms"},
    {"mlp": "swiglu"},
    {"position_embedding": "rope"},
    {"qk_norm": True},
    {"norm": "rms", "mlp": "swiglu", "position_embedding": "rope", "qk_norm": True},
]
NORM_EPS = 1e-6


def create_model(dtype: torch.dtype = torch.float32, **overrides: Any) -> DiT:
    return nonzero(scale=0.2, **{**SMALL, **overrides}).to(dtype)


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs with small timesteps, because their sines are computed in fp32 by design."""
    x = torch.randn(3, 2, 4, 6, generator=torch.Generator().manual_seed(1))
    return x.to(dtype), torch.tensor([0.0, 0.5, 1.0], dtype=dtype), torch.tensor([0, 2, 3])


class Truth:
    """Reference network in float64 from named weights."""

    def __init__(self, model: DiT) -> None:
        self.config = model.config
        self.weights = {name: value.detach().double().requires_grad_() for name, value in model.named_parameters()}

    def __call__(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return torch.stack([self.image(*sample) for sample in zip(x.double(), t.tolist(), y.tolist(), strict=True)])

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].flatten(1).T + self.weights[f"{name}.bias"]

    def image(self, image: Tensor, time: float, label: int) -> Tensor:
        p, (rows, columns) = self.config.patch_size, self.config.grid
        corners = [(row, column) for row in range(rows) for column in range(columns)]
        cut = [image[:, r * p : (r + 1) * p, c * p : (c + 1) * p].flatten() for r, c in corners]
        tokens = self.linear("x_embedder.proj", torch.stack(cut)) + self.weights["pos_embed"][0]  # (T, D)
        angles = torch.tensor([time * 10_000 ** (-i / 128) for i in range(128)], dtype=torch.float64)
        hidden = self.linear("t_embedder.mlp.0", torch.cat([angles.cos(), angles.sin()]))
        condition = self.linear("t_embedder.mlp.2", hidden / (1 + (-hidden).exp()))
        condition = condition + self.weights["y_embedder.embedding_table.weight"][label]  # (D)
        condition = condition / (1 + (-condition).exp())
        for number in range(self.config.depth):
            tokens = self.block(f"blocks.{number}", tokens, condition)
        shift, scale = self.linear("final_layer.adaLN_modulation.1", condition).chunk(2)
        patches = self.linear("final_layer.linear", self.norm(tokens) * (1 + scale) + shift)
        out = torch.zeros(self.config.out_channels, rows * p, columns * p, dtype=torch.float64)
        for (r, c), patch in zip(corners, patches, strict=True):
            out[:, r * p : (r + 1) * p, c * p : (c + 1) * p] = patch.view(p, p, -1).permute(2, 0, 1)
        return out

    def norm(self, x: Tensor) -> Tensor:
        centred = x if self.config.norm == "rms" else x - x.mean(-1, keepdim=True)
        return centred / ((centred**2).mean(-1, keepdim=True) + NORM_EPS).sqrt()

    def block(self, name: str, x: Tensor, condition: Tensor) -> Tensor:
        parts = self.linear(f"{name}.adaLN_modulation.1", condition).chunk(6)
        x = x + parts[2] * self.attention(f"{name}.attn", self.norm(x) * (1 + parts[1]) + parts[0])
        return x + parts[5] * self.mlp(f"{name}.mlp", self.norm(x) * (1 + parts[4]) + parts[3])

    def attention(self, name: str, x: Tensor) -> Tensor:
        width = self.config.hidden_size // self.config.num_heads
        q, k, v = (part.split(width, dim=1) for part in self.linear(f"{name}.qkv", x).chunk(3, dim=1))
        heads = []
        for query, key, value in zip(q, k, v, strict=True):  # (T, K) each
            query, key = self.rotate(f"{name}.q_norm", query), self.rotate(f"{name}.k_norm", key)
            heads.append(torch.softmax(query @ key.T / math.sqrt(width), dim=1) @ value)
        return self.linear(f"{name}.proj", torch.cat(heads, dim=1))

    def rotate(self, norm: str, head: Tensor) -> Tensor:
        """Normalize tokens (T, K) by their root mean square and rotate them by their place."""
        if self.config.qk_norm:
            head = head / ((head**2).mean(1, keepdim=True) + NORM_EPS).sqrt() * self.weights[norm]
        if self.config.position_embedding == "sincos":
            return head
        columns, quarter = self.config.grid[1], head.shape[1] // 4
        pairs = torch.view_as_complex(head.unflatten(1, (-1, 2)))  # (T, K/2)
        steps = [10_000 ** (-i / quarter) for i in range(quarter)]
        rotations = [
            [cmath.exp(1j * position * step) for position in divmod(token, columns) for step in steps]
            for token in range(len(head))
        ]
        return torch.view_as_real(pairs * torch.tensor(rotations, dtype=torch.complex128)).flatten(1)

    def mlp(self, name: str, x: Tensor) -> Tensor:
        if self.config.mlp == "swiglu":
            gate, up = self.linear(f"{name}.gate_up", x).chunk(2, dim=1)
            hidden = gate / (1 + (-gate).exp()) * up
        else:
            h = self.linear(f"{name}.fc1", x)
            hidden = h / 2 * (1 + (math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)).tanh())
        return self.linear(f"{name}.fc2", hidden)


def gradients_of(out: Tensor, named: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return gradients of a sum of terms with different signs and sizes."""
    weights = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    names = [name for name in named if name != "pos_embed"]
    found = torch.autograd.grad((out * weights).sum(), [named[name] for name in names])
    return dict(zip(names, found, strict=True))


@pytest.mark.parametrize(
    ("kind", "dtype", "tolerance"),
    [*((kind, torch.float64, 1e-6) for kind in KINDS), (KINDS[-1], torch.float32, 3e-5)],
    ids=str,
)
def test_modern_network_and_gradients_match_the_float64_reference(kind, dtype, tolerance) -> None:
    """In float64 the remaining error is in the fp32 sines; in fp32 the default backend runs."""
    model = create_model(dtype, **kind)
    truth = Truth(model)
    out, expected = model(*inputs(dtype)), truth(*inputs())
    assert (out.double() - expected).norm() < tolerance * expected.norm()
    found, expected_gradients = gradients_of(out, dict(model.named_parameters())), gradients_of(expected, truth.weights)
    assert found.keys() == expected_gradients.keys()
    for name, value in expected_gradients.items():
        assert value.norm() > 0, name
        assert (found[name].double() - value).norm() < tolerance * value.norm(), name


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("Modern")])
def test_modern_family_matches_the_original_sizes_and_flops(name: str) -> None:
    modern, original = PRESETS[name], PRESETS[name.removeprefix("Modern")]
    assert modern.block == ("rms", "swiglu", "rope", False)
    assert (modern.hidden_size, modern.depth, modern.num_heads) == (
        original.hidden_size,
        original.depth,
        original.num_heads,
    )
    assert modern.mlp_width % 16 == 0
    modern_flops, original_flops = flops_per_image(modern).forward_total, flops_per_image(original).forward_total
    assert original_flops <= modern_flops < 1.01 * original_flops


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_settings_report_parameter_matrix_and_update_counts(kind: dict[str, Any]) -> None:
    sizes = {"hidden_size": 64, "num_heads": 4, "depth": 3}
    networks = [DiT.from_preset("DiT-S/2", **sizes, **changes) for changes in ({}, kind)]
    before, after = (sum(value.numel() for value in network.parameters()) for network in networks)
    original, settings = training.ModelConfig(**sizes), training.ModelConfig(**sizes, **kind)
    assert settings.parameters - original.parameters == after - before
    matrices = matrices_of({name: tuple(value.shape) for name, value in networks[1].named_parameters()})
    assert settings.matrix_elements == sum(matrix.size for matrix in matrices)
    run = training.RunConfig(dataset="a", model=settings, optimizer=training.OptimizerConfig(kind="muon"))
    assert run.update_flops == 2 * run.optimizer.newton_schulz_steps * sum(matrix.cost for matrix in matrices)


def test_block_options_preserve_initial_weights_and_add_unit_norms() -> None:
    """Check that runs that differ in a norm or a rotation start from equal weights."""
    torch.manual_seed(0)
    original = DiT.from_preset("DiT-S/2", **SMALL).state_dict()
    torch.manual_seed(0)
    state = DiT.from_preset("DiT-S/2", **SMALL, norm="rms", position_embedding="rope", qk_norm=True).state_dict()
    added = {f"blocks.{block}.attn.{part}_norm" for block in range(2) for part in "qk"}
    assert state.keys() - original.keys() == added
    assert all(torch.equal(state[name], value) for name, value in original.items())
    assert all(state[name].shape == (8,) and bool((state[name] == 1).all()) for name in added)


@pytest.mark.parametrize("kind", KINDS[1:], ids=str)
def test_weights_of_a_different_block_type_are_rejected(kind: dict[str, Any]) -> None:
    """Weights of unknown origin count as original, because norms and rotations leave no trace in names and shapes."""
    modern, original = create_model(**kind), create_model()
    for model, source in ((modern, original), (original, modern)):
        with pytest.raises(UserError, match="block type"):
            adapt_state_dict(source.state_dict(), model, source=source.config)
    with pytest.raises(UserError, match="block type"):
        adapt_state_dict(original.state_dict(), modern)
    assert adapt_state_dict(modern.state_dict(), create_model(**kind), source=modern.config)[1] == []
    with pytest.raises(UserError, match="blocks of another type"):
        diffusers_keys.settings(create_model(**{**SMALL, **kind, "input_size": 8}).config)


ONE_NODE = [(kind, "autocast") for kind in KINDS]
ONE_NODE += [
    (kind, mode) for kind in (KINDS[0], KINDS[-1], {**KINDS[-1], "qk_norm": False}) for mode in ("fp32", "bf16")
]


@pytest.mark.skipif(native.library() is None, reason=f"no C kernels: {native.load_library().reason}")
@pytest.mark.parametrize(("kind", "mode"), ONE_NODE, ids=str)
def test_each_block_is_one_autograd_node_bit_identical_to_operators(
    kind: dict[str, Any], mode: str, monkeypatch
) -> None:
    dtype = torch.bfloat16 if mode == "bf16" else torch.float32
    model, results = create_model(dtype, **kind), []
    is_served = mode != "bf16" or not kind.get("qk_norm")  # the norms of heads must be fp32
    with hcops.use("c"), torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
        for is_one in (is_served, False):
            out = model(*inputs(dtype))
            assert str(nodes_of(out)).count("dithc_block") == (2 if is_one else 0)
            with torch.no_grad():
                assert torch.equal(model(*inputs(dtype)), out)
            results.append([out, *gradients_of(out.float(), dict(model.named_parameters())).values()])
            monkeypatch.setattr(blocks.fused, "accepts_block", lambda *_: False)
    for sample, other in zip(*results, strict=True):
        assert sample.dtype is other.dtype
        assert torch.equal(sample, other)


def nodes_of(out: Tensor) -> list[str]:
    found, ahead = {}, [out.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is not None and node not in found:
            found[node] = node.name()
            ahead += [before for before, _ in node.next_functions]
    return list(found.values())
