"""Conversion of DiT weights and settings to and from diffusers' DiTTransformer2DModel, without importing diffusers.

- Each block of the diffusers class has its own timestep and label embedders. Export copies them; import requires equal
  copies.
- Queries, keys and values are three layers in diffusers and one here.
- The position embedding of diffusers is computed and is not part of the weights.
- Timestep frequencies of diffusers fall by i / 127, official ones by i / 128 (`downscale_freq_shift` 1 instead of 0).
  Weights do not record the value used in training, so neither direction changes them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from dithc.config import training
from dithc.core.logging import UserError, user_error
from dithc.model.checkpoint_adapter import State, check_names
from dithc.model.embeddings import position_embedding
from dithc.model.presets import DiTConfig

CLASS = "DiTTransformer2DModel"
CLASSES = (CLASS, "Transformer2DModel")  # older files use the latter
POSITIONS = "pos_embed"
PATCH = "pos_embed.proj"
BLOCK = "transformer_blocks."
NORM_EPS = 1e-6  # of every norm of the official DiT

# Names of modules here and in diffusers. Each has a weight and a bias, except the label table.
OUTER = {"x_embedder.proj": PATCH, "final_layer.adaLN_modulation.1": "proj_out_1", "final_layer.linear": "proj_out_2"}
IN_BLOCK = {
    "adaLN_modulation.1": ("norm1.linear",),
    "attn.qkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
    "attn.proj": ("attn1.to_out.0",),
    "mlp.fc1": ("ff.net.0.proj",),
    "mlp.fc2": ("ff.net.2",),
}
EMBEDDERS = {
    "t_embedder.mlp.0.weight": "timestep_embedder.linear_1.weight",
    "t_embedder.mlp.0.bias": "timestep_embedder.linear_1.bias",
    "t_embedder.mlp.2.weight": "timestep_embedder.linear_2.weight",
    "t_embedder.mlp.2.bias": "timestep_embedder.linear_2.bias",
    "y_embedder.embedding_table.weight": "class_embedder.embedding_table.weight",
}

# Limits of a config.json, because tables of these sizes are allocated before weights are compared.
MAX_SIDE, MAX_CLASSES = 1024, 10**6
# Defaults of the class for settings that config.json lacks, and settings for which a DiT has one value only.
DEFAULTS: dict[str, Any] = {
    "num_attention_heads": 16,
    "attention_head_dim": 72,
    "in_channels": 4,
    "out_channels": None,
    "num_layers": 28,
    "sample_size": 32,
    "patch_size": 2,
    "num_embeds_ada_norm": 1000,
    "norm_eps": 1e-5,
}
FIXED: dict[str, Any] = {
    "activation_fn": "gelu-approximate",
    "attention_bias": True,
    "norm_type": "ada_norm_zero",
    "norm_elementwise_affine": False,
}


def are_diffusers_keys(content: object) -> bool:
    """Return whether a file's content uses the names of the diffusers class."""
    return isinstance(content, Mapping) and f"{PATCH}.weight" in content


def settings(config: DiTConfig) -> dict[str, Any]:
    """Return the content of config.json; UserError names a property that the diffusers class cannot represent."""
    if config.size[0] != config.size[1]:
        raise _export_error("an input that is not square", got=config.size, expected="(side, side)")
    if config.null_label is None:
        got = f"{config.num_classes} classes, trained without label dropout"
        raise _export_error("a label table without a row for the null label", got=got, expected="label_dropout above 0")
    if config.block != training.BlockKind():
        fix = "export it as safetensors"
        raise _export_error("blocks of another type", got=config.block, expected=training.BlockKind(), fix=fix)
    if config.mlp_width != 4 * config.hidden_size:
        raise _export_error("another MLP width", got=config.mlp_width, expected=4 * config.hidden_size)
    return {
        "_class_name": CLASS,
        "num_attention_heads": config.num_heads,
        "attention_head_dim": config.hidden_size // config.num_heads,
        "in_channels": config.in_channels,
        "out_channels": config.out_channels,
        "num_layers": config.depth,
        "sample_size": config.size[0],
        "patch_size": config.patch_size,
        "num_embeds_ada_norm": config.num_classes,
        "norm_eps": NORM_EPS,
        **FIXED,
    }


def source_of(content: Mapping[str, Any]) -> DiTConfig:
    """Return the model in a config.json; UserError for another class or a network that `DiT` cannot represent."""
    if content.get("_class_name", CLASS) not in CLASSES:
        raise _import_error("_class_name", got=content["_class_name"], expected=" or ".join(CLASSES))
    for key, value in FIXED.items():
        if content.get(key, value) != value:
            raise _import_error(key, got=content[key], expected=value)
    config = {**DEFAULTS, **content}
    sizes = ("num_attention_heads", "attention_head_dim", "in_channels", "sample_size", "patch_size")
    for key in (*sizes, "num_layers", "num_embeds_ada_norm"):
        limit = MAX_CLASSES if key == "num_embeds_ada_norm" else MAX_SIDE
        if not isinstance(config[key], int) or isinstance(config[key], bool) or not 1 <= config[key] <= limit:
            raise _import_error(key, got=config[key], expected=f"an integer from 1 to {limit}")
    heads, channels = config["num_attention_heads"], config["in_channels"]
    return DiTConfig(
        hidden_size=heads * config["attention_head_dim"],
        depth=config["num_layers"],
        num_heads=heads,
        patch_size=config["patch_size"],
        input_size=config["sample_size"],
        in_channels=channels,
        num_classes=config["num_embeds_ada_norm"],
        learn_sigma=config["out_channels"] == 2 * channels,
    )


def to_diffusers(state: Mapping[str, Tensor], config: DiTConfig) -> State:
    """Rename official weights to diffusers names, without shared memory; UserError if the class lacks a property."""
    settings(config)
    result: State = {}
    for official, names in _table(config.depth):
        value = state[official]
        parts = value.chunk(len(names)) if ".qkv." in official else [value] * len(names)
        result |= {name: part.clone() if len(names) > 1 else part for name, part in zip(names, parts, strict=True)}
    return result


def from_diffusers(state: Mapping[str, Tensor], config: DiTConfig) -> State:
    """Rename diffusers weights to official names, and compute the position embedding of `config`, which the files lack.

    UserError: names are missing or unknown, or the embedders of the blocks differ.
    """
    table = list(_table(len({key.split(".")[1] for key in state if key.startswith(BLOCK)})))
    names = [name for _, targets in table for name in targets]
    fix = "pass the complete weights of its `transformer`, as diffusers saves them"
    check_names(state, names, owner=f"a {CLASS} of this depth", fix=fix)
    result: State = {}
    for official, targets in table:
        parts = [state[name] for name in targets]
        if ".qkv." in official:
            result[official] = torch.cat(parts)
        else:
            _check_equal(dict(zip(targets, parts, strict=True)))
            result[official] = parts[0]
    result[POSITIONS] = position_embedding(config.hidden_size, config.grid)
    return result


def _table(depth: int) -> Iterator[tuple[str, list[str]]]:
    """Yield each official name except the position embedding, with its one or more diffusers names."""
    for kind in ("weight", "bias"):
        for official, targets in OUTER.items():
            yield f"{official}.{kind}", [f"{targets}.{kind}"]
        for block in range(depth):
            for official, parts in IN_BLOCK.items():
                yield f"blocks.{block}.{official}.{kind}", [f"{BLOCK}{block}.{part}.{kind}" for part in parts]
    for official, targets in EMBEDDERS.items():
        yield official, [f"{BLOCK}{block}.norm1.emb.{targets}" for block in range(depth)]


def _check_equal(copies: State) -> None:
    (first, value), *pairs = copies.items()
    for name, other in pairs:
        if not torch.equal(value, other):
            expected = "the same timestep and label embedders in every block: a DiT has one of each"
            fix = f"start from weights of the official network; weights trained as {CLASS} cannot be converted"
            raise user_error("embedders of the blocks differ", got=f"{name} is not {first}", expected=expected, fix=fix)


def _export_error(
    feature: str, *, got: object, expected: object, fix: str = "export it as safetensors or official"
) -> UserError:
    return user_error(f"diffusers' {CLASS} cannot hold {feature}", got=got, expected=expected, fix=fix)


def _import_error(key: str, *, got: object, expected: object) -> UserError:
    fix = f"pass the folder of a {CLASS}: the subfolder `transformer` of a pipeline"
    return user_error(f"{key} in config.json of the weights", got=got, expected=expected, fix=fix)
