"""Validated configuration of a DiT, and the sizes of the paper by name."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import Any, get_args

from dithc.config import training
from dithc.core.logging import UserError, user_error


@dataclass(frozen=True)
class DiTConfig:
    """Architecture of a DiT: all settings that determine parameter shapes and the forward pass.

    Attributes:
        hidden_size: D, the width of a token; divisible by 4 and by `num_heads`, H.
        patch_size: p, the side of a patch in latent pixels.
        input_size: (height, width) of the latent image, each divisible by `patch_size`; an int means a square.
        in_channels: C, the channels of the latent image.
        num_classes: Number of labeled classes; 1 for unconditional data.
        learn_sigma: Whether the output has a variance for each channel, 2C channels in total.
        class_dropout_prob: Share of labels dropped by the trainer, in [0, 1). Above 0 the label table has a null label.
        mlp_ratio: Hidden width of the MLP over `hidden_size`; for a SwiGLU, of the plain MLP with equal arithmetic.
        norm: Norm before each modulation: LayerNorm, or RMSNorm (Zhang & Sennrich 2019), both without weights.
        mlp: Two layers with a GELU between them, or with a SwiGLU (Shazeer 2020).
        position_embedding: Position embedding only, or also rotated queries and keys; the head width is then divisible by 4.
        conditions: Name and numbers of each condition besides the label; empty for the label alone.
        band_groups: Name, channels and role of each group of bands with its own noise level; see `BandLevels`.
        qk_norm: Whether queries and keys have RMS norms, each with weights (K) shared by all heads.
        gaussian_prediction: Whether the output of a flow is added to a `GaussianPrediction`.
    """

    hidden_size: int
    depth: int
    num_heads: int
    patch_size: int
    input_size: tuple[int, int] | int = 32
    in_channels: int = 4
    num_classes: int = 1000
    learn_sigma: bool = True
    class_dropout_prob: float = 0.1
    mlp_ratio: float = 4.0
    norm: training.Norm = "layer"
    mlp: training.MlpKind = "gelu"
    position_embedding: training.Position = "sincos"
    qk_norm: bool = False
    conditions: tuple[tuple[str, int], ...] = ()
    band_groups: tuple[training.BandGroup, ...] = ()
    gaussian_prediction: bool = False

    def __post_init__(self) -> None:
        shape = self.input_size
        size = tuple(shape) if isinstance(shape, (tuple, list)) else (shape, shape)
        object.__setattr__(self, "input_size", size)
        object.__setattr__(self, "conditions", tuple((str(name), int(width)) for name, width in self.conditions))
        groups = tuple((str(name), tuple(channels), role) for name, channels, role in self.band_groups)
        object.__setattr__(self, "band_groups", groups)
        for name in ("hidden_size", "depth", "num_heads", "patch_size", "in_channels", "num_classes"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise _error(name, got=repr(getattr(self, name)), expected="an integer of at least 1")
        if len(size) != 2 or any(not isinstance(side, int) or side < 1 or side % self.patch_size for side in size):
            raise _error("input_size", got=size, expected=f"(height, width), both multiples of patch {self.patch_size}")
        if self.hidden_size % self.num_heads or self.hidden_size % 4:
            expected = f"a multiple of 4 (position embedding) and of num_heads = {self.num_heads}"
            raise _error("hidden_size", got=self.hidden_size, expected=expected)
        kinds = {"norm": training.Norm, "mlp": training.MlpKind, "position_embedding": training.Position}
        for name, literal in kinds.items():
            if getattr(self, name) not in get_args(literal):
                raise _error(name, got=repr(getattr(self, name)), expected=" or ".join(get_args(literal)))
        for name in ("qk_norm", "gaussian_prediction"):
            if not isinstance(getattr(self, name), bool):
                raise _error(name, got=repr(getattr(self, name)), expected="True or False")
        if self.gaussian_prediction and self.learn_sigma:
            raise _error("gaussian_prediction", got="learn_sigma: True", expected="a flow, which has no learned sigma")
        if self.position_embedding == "rope" and self.head_width % 4:
            expected = "a number that gives a head width divisible by 4, for rotations by row and column (rope)"
            raise _error("num_heads", got=f"{self.num_heads}, head width {self.head_width}", expected=expected)
        if not 0 <= self.class_dropout_prob < 1:
            raise _error("class_dropout_prob", got=self.class_dropout_prob, expected="a share in [0, 1)")
        if self.mlp_width < 1:
            raise _error("mlp_ratio", got=self.mlp_ratio, expected="a positive ratio")

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the latent image."""
        assert isinstance(self.input_size, tuple)
        return self.input_size

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches."""
        return self.size[0] // self.patch_size, self.size[1] // self.patch_size

    @property
    def head_width(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def num_tokens(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def out_channels(self) -> int:
        """Output channels: C, or 2C with learned sigma."""
        return self.in_channels * (2 if self.learn_sigma else 1)

    @property
    def mlp_width(self) -> int:
        """E, the hidden width of the MLP."""
        width = int(self.hidden_size * self.mlp_ratio)
        return training.swiglu_width(width) if self.mlp == "swiglu" else width

    @property
    def mlp_rows(self) -> int:
        """Rows of the first MLP weight: E, or 2E for a SwiGLU."""
        return self.mlp_width * (2 if self.mlp == "swiglu" else 1)

    @property
    def block(self) -> training.BlockKind:
        return training.BlockKind(**{name: getattr(self, name) for name in training.BlockKind._fields})

    def described(self) -> dict[str, Any]:
        """Return the fields as JSON values, without empty conditions and groups."""
        conditions = [list(condition) for condition in self.conditions]
        groups = [[name, list(channels), role] for name, channels, role in self.band_groups]
        fields = asdict(self) | {"input_size": list(self.size), "conditions": conditions, "band_groups": groups}
        return {name: value for name, value in fields.items() if value or name not in ("conditions", "band_groups")}

    @property
    def null_label(self) -> int | None:
        """Label of the null class, or None if the table has no row for it (no label dropout)."""
        return self.num_classes if self.class_dropout_prob > 0 else None


def _error(name: str, *, got: object, expected: str) -> UserError:
    return user_error(f"model setting {name}", got=got, expected=expected, fix=f"correct {name}")


PRESETS: Mapping[str, DiTConfig] = MappingProxyType(
    {
        f"{family}-{size}/{patch}": DiTConfig(width, depth, heads, patch, **block._asdict())
        for family, block in training.FAMILIES.items()
        for size, (width, depth, heads) in training.SIZES.items()
        for patch in (2, 4, 8)
    }
)


def preset(name: str, overrides: Mapping[str, Any]) -> DiTConfig:
    """Return the preset `name` with overridden fields; UserError for unknown names or inconsistent values."""
    if name not in PRESETS:
        fix = "name a preset and override its fields"
        raise user_error("unknown model preset", got=repr(name), expected=" or ".join(PRESETS), fix=fix)
    names = [field.name for field in fields(DiTConfig)]
    unknown = [key for key in overrides if key not in names]
    if unknown:
        title = f"unknown override of preset {name}"
        raise user_error(title, got=", ".join(unknown), expected=", ".join(names), fix="use one of these names")
    return replace(PRESETS[name], **overrides)
