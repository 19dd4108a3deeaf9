"""Settings of what a training run learns, and how: parts of `runs.*` that have names of their own."""

import math
from statistics import NormalDist
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from dithc.averages import LONGEST, SHORTEST
from dithc.config.base import Fraction, Preset, Settings, Size

Predict = Literal["noise", "v", "flow"]
Norm = Literal["layer", "rms"]
MlpKind = Literal["gelu", "swiglu"]
Position = Literal["sincos", "rope"]
Beta = Annotated[float, Field(gt=0.0, lt=1.0)]
Length = Annotated[float, Field(ge=SHORTEST, le=LONGEST)]

# Peebles & Xie, table 1: width, depth, heads.
SIZES = {"S": (384, 12, 6), "B": (768, 12, 12), "L": (1024, 24, 16), "XL": (1152, 28, 16)}


class BlockKind(NamedTuple):
    """What the blocks of a network consist of; by default what Peebles & Xie describe."""

    norm: Norm = "layer"
    mlp: MlpKind = "gelu"
    position: Position = "sincos"
    qk_norm: bool = False

    def __str__(self) -> str:
        return f"norm {self.norm}, mlp {self.mlp}, position {self.position}, qk_norm {str(self.qk_norm).lower()}"


# By the first part of a preset's name.
FAMILIES = {"DiT": BlockKind(), "ModernDiT": BlockKind("rms", "swiglu", "rope")}
# A SwiGLU has three products where a GELU has two: 2/3 of the width is the same arithmetic. Rounded up to whole vectors of 16
# fp32 that is 0.8 % more of it for tokens 256 wide, 0.2 % for 1024, none for 384, 768 and 1152.
SWIGLU_MULTIPLE = 16


def swiglu_width(gelu_width: int) -> int:
    """E of a SwiGLU with the arithmetic of an MLP whose hidden layer is so wide."""
    return -(-(2 * gelu_width // 3) // SWIGLU_MULTIPLE) * SWIGLU_MULTIPLE


class Ema(Settings):
    """The exponential moving average of the weights."""

    decay: float = Field(default=0.9999, ge=0.0, lt=1.0)
    """Final decay."""
    warmup: bool = True
    """Use min(decay, (1 + step) / (10 + step)): without it 0.9999 keeps 90 % of the initial weights after 1,000 steps."""
    lengths: list[Length] | None = Field(default=None, min_length=2, max_length=2)
    """Two averages more in every checkpoint, such as [0.05, 0.1]: over how much of the training so far, as relative standard
    deviations of power-function profiles (Karras et al. 2024). `evaluations.*.ema` makes the average of any other length of those
    in the kept checkpoints; all else (fine-tunings, exports) takes that of `decay`, which stays as it is. None for no more."""

    @model_validator(mode="after")
    def _consistent(self) -> "Ema":
        if self.lengths is not None and self.lengths[0] >= self.lengths[1]:
            raise ValueError(f"`lengths` do not rise: {self.lengths}")
        return self


class Model(Settings):
    """The network: a preset, and what differs from it."""

    preset: Preset = "DiT-S/2"
    """DiT-S, B, L or XL with patch 2, 4 or 8. ModernDiT-S, ...: of the same sizes, with blocks of `norm: rms`, `mlp: swiglu`
    and `position: rope`."""
    learn_sigma: bool = True
    """Predict the variance as well (doubles the output channels, adds the VLB term)."""
    hidden_size: Size | None = None
    """Width, if not the preset's."""
    depth: Size | None = None
    """Number of blocks, if not the preset's."""
    num_heads: Size | None = None
    """Attention heads, if not the preset's."""
    norm: Norm | None = None
    """What tokens are divided by before they are shifted and scaled, if not the preset's. layer: LayerNorm; rms: RMSNorm, which
    leaves their mean."""
    mlp: MlpKind | None = None
    """MLP of a block, if not the preset's. gelu: 4 widths wide; swiglu: gated, 8/3 widths wide, which is the same arithmetic."""
    position: Position | None = None
    """How the network knows places, if not the preset's. sincos: by a table that is added to the tokens; rope: by that table, and
    by queries and keys that are rotated with row and column."""
    qk_norm: bool | None = None
    """Whether queries and keys have norms (no preset's have): attention cannot grow without bound. For long trainings of large
    networks; short ones learn no faster with it."""

    @model_validator(mode="after")
    def _consistent(self) -> "Model":
        width, _, heads = self.shape
        if width % heads:
            raise ValueError(f"hidden_size {width} is no multiple of num_heads {heads}")
        if self.block.position == "rope" and width // heads % 4:
            raise ValueError(
                f"`position: rope` rotates pairs of a head, half of them with the row and half with the column, and `num_heads` "
                f"{heads} of `hidden_size` {width} are {width // heads} wide, which is no multiple of 4: choose another number "
                "of heads, or `position: sincos`"
            )
        return self

    @property
    def patch(self) -> int:
        """Side of a patch in latent pixels."""
        return int(self.preset.rpartition("/")[2])

    @property
    def shape(self) -> tuple[int, int, int]:
        """Width, number of blocks, attention heads."""
        width, depth, heads = SIZES[self.preset.partition("-")[2].partition("/")[0]]
        return self.hidden_size or width, self.depth or depth, self.num_heads or heads

    @property
    def block(self) -> BlockKind:
        """The preset's, but for what is given."""
        given = {name: value for name in BlockKind._fields if (value := getattr(self, name)) is not None}
        return self._family._replace(**given)

    @property
    def block_changes(self) -> dict[str, str | bool]:
        """What of that differs from the preset's."""
        return {name: value for name, value in self.block._asdict().items() if value != getattr(self._family, name)}

    @property
    def _family(self) -> BlockKind:
        return FAMILIES[self.preset.partition("-")[0]]

    @property
    def parameters(self) -> int:
        """Weights, but for the table of labels."""
        width, depth, heads = self.shape
        modulations = depth * 6 * width**2
        ends = 3 * width**2 + 512 * width  # timestep, last adaLN, first and last layer
        norms = 2 * (width // heads) if self.block.qk_norm else 0
        return self.matrix_elements + modulations + depth * (11 * width + self._mlp_rows + norms) + ends

    @property
    def matrix_elements(self) -> int:
        """Weights of the linear layers of the blocks between tokens, without their biases."""
        width, depth, _ = self.shape
        return depth * width * (4 * width + self._mlp_rows + self.mlp_width)

    @property
    def mlp_width(self) -> int:
        """E, of the hidden layer of the MLP."""
        width, _, _ = self.shape
        return swiglu_width(4 * width) if self.block.mlp == "swiglu" else 4 * width

    @property
    def _mlp_rows(self) -> int:
        """Of the MLP's first weight."""
        return self.mlp_width * (2 if self.block.mlp == "swiglu" else 1)

    @property
    def kept_widths(self) -> int:
        """Numbers that a block keeps of a token for its backward pass, in widths D: two norms, qkv, attention, projection, MLP
        before and after what is not linear (8 for a GELU and for a SwiGLU), two gates (paper section 4.2; measured 16 to 19); qkv
        once more where it is rotated or normed, though fast kernels do with the rotated one."""
        return 20 + (3 if self.block.position == "rope" or self.block.qk_norm else 0)


class Objective(Settings):
    """What the network learns of noisy images."""

    predict: Predict = "noise"
    """What it predicts. noise; v: alpha noise - sigma image, of the same schedule; flow: noise - image on the straight path
    between both, sampled by euler or heun (without `model.learn_sigma`)."""
    times: Literal["uniform", "logit-normal"] = "uniform"
    """Distribution of the times that are learnt, between 0 (image) and 1 (noise): even, or the sigmoid of a normal one."""
    mean: float = Field(default=0.0, ge=-20.0, le=20.0)
    """Mean of that normal distribution; above 0 for more noise."""
    std: float = Field(default=1.0, ge=0.01, le=20.0)
    """Standard deviation of that normal distribution."""
    weight: Literal["none", "min-snr"] = "none"
    """How much a time counts. none: all alike; min-snr: an error of the clean image, whatever is predicted, counts by the
    signal-to-noise ratio of its time, but by no more than `gamma` (noise and v only)."""
    gamma: float = Field(default=5.0, gt=0.0, le=10.0**6)
    """Bound of min-snr."""

    @model_validator(mode="after")
    def _consistent(self) -> "Objective":
        if self.predict == "flow" and self.weight != "none":
            raise ValueError(
                f"`weight` {self.weight} is of a noise schedule, and `predict: flow` has none: leave it out"
            )
        unused = [name for name in ("mean", "std") if self.times == "uniform" and self._is_changed(name)]
        unused += ["gamma"] if self.weight == "none" and self._is_changed("gamma") else []
        if unused:
            owner = "weight: min-snr" if unused[0] == "gamma" else "times: logit-normal"
            raise ValueError(f"`{unused[0]}` is of no effect: it belongs to `{owner}`")
        return self

    def _is_changed(self, name: str) -> bool:
        return bool(getattr(self, name) != type(self).model_fields[name].default)

    def share_between(self, low: float, high: float) -> float:
        """The share of times, as they are drawn, between two of [0, 1]."""
        return self._share_below(high) - self._share_below(low)

    def _share_below(self, time: float) -> float:
        if self.times == "uniform" or time in (0.0, 1.0):
            return time
        return NormalDist(self.mean, self.std).cdf(math.log(time / (1 - time)))


class Optimizer(Settings):
    """What becomes of gradients."""

    kind: Literal["adamw", "muon"] = "adamw"
    """adamw; muon: updates of the matrices between tokens are made orthogonal, all the rest (biases, modulations, embeddings,
    final layer) is AdamW's. `lr`, `weight_decay` and `clip` mean the same for both, `betas` are AdamW's alone."""
    momentum: Beta = 0.95
    """Decay of the momentum of matrices."""
    iterations: int = Field(default=5, ge=1, le=20)
    """Iterations of Newton-Schulz, in the run's `dtype`, by which an update becomes orthogonal."""

    @model_validator(mode="after")
    def _consistent(self) -> "Optimizer":
        for name in ("momentum", "iterations"):
            if self.kind != "muon" and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"`{name}` is of no effect: it belongs to `kind: muon`, not {self.kind}")
        return self


class Guide(Settings):
    """Guidance that is learnt: what labelled images ought to give is moved away from a prediction without a label, so that
    sampling takes one pass where guidance takes two."""

    by: Literal["self", "start"]
    """Whose prediction without a label that is. self: of the network as it is (Model-guidance); start: of the weights that a
    fine-tuning starts from, which stay in memory (DogFit)."""
    guidance: float = Field(default=2.0, gt=1.0, le=1000.0)
    """What one pass ends at: the image that this `guidance` of an evaluation would give with two. The target moves by a share of
    1 - 1 / `guidance` of the difference between the predictions with and without a label (w - 1 of both papers), which grows with
    what is learnt until it rests there."""
    interval: list[Fraction] | None = Field(default=None, min_length=2, max_length=2)
    """Only between these two times, as shares of the training's: 0 is the least noise, 1 the most. Published: [0, 0.75]; none for
    all."""

    @model_validator(mode="after")
    def _consistent(self) -> "Guide":
        if self.interval is not None and self.interval[0] >= self.interval[1]:
            raise ValueError(f"`interval` does not rise: {self.interval}")
        return self

    @property
    def share(self) -> float:
        """Of the difference between both predictions, by which the target moves."""
        return 1 - 1 / self.guidance
