"""Settings of model, objective, optimizer and averages: the sub-sections of `runs.*`."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from dithc.config.schema.base import Band, Fraction, Name, Positive, Preset, Settings, Size

Predict = Literal["noise", "flow"]
Norm = Literal["layer", "rms"]
MlpKind = Literal["gelu", "swiglu"]
Position = Literal["sincos", "rope"]
BandRole = Literal["modeled", "condition"]
BandGroup = tuple[str, tuple[int, ...], BandRole]  # name, channels and role
Beta = Annotated[float, Field(gt=0.0, lt=1.0)]

# Peebles & Xie, table 1: width, depth, heads.
SIZES = {"S": (384, 12, 6), "B": (768, 12, 12), "L": (1024, 24, 16), "XL": (1152, 28, 16)}


class BlockKind(NamedTuple):
    """Structure of the blocks of a network; the default is the block of Peebles & Xie."""

    norm: Norm = "layer"
    mlp: MlpKind = "gelu"
    position_embedding: Position = "sincos"
    qk_norm: bool = False

    def __str__(self) -> str:
        qk_norm = str(self.qk_norm).lower()
        return f"norm {self.norm}, mlp {self.mlp}, position_embedding {self.position_embedding}, qk_norm {qk_norm}"


FAMILIES = {"DiT": BlockKind(), "ModernDiT": BlockKind("rms", "swiglu", "rope")}
"""Blocks by the first part of a preset's name."""
# A SwiGLU has three matrix products, a GELU two, so 2/3 of the width has the same operations. Rounding up to vectors of 16 fp32
# adds 0.8% for width 256, 0.2% for 1024, and 0% for 384, 768 and 1152.
SWIGLU_MULTIPLE = 16


def swiglu_width(gelu_width: int) -> int:
    """Return the hidden width of a SwiGLU with the operations of a GELU MLP with this hidden width."""
    return -(-(2 * gelu_width // 3) // SWIGLU_MULTIPLE) * SWIGLU_MULTIPLE


class EmaConfig(Settings):
    """The exponential moving average of the weights."""

    decay: float = Field(default=0.9999, ge=0.0, lt=1.0)
    """Final decay."""
    warmup: bool = True
    """Use min(decay, (1 + step) / (10 + step)). Else 0.9999 keeps 90% of the initial weights after 1,000 steps."""


class LocalUpdatesConfig(Settings):
    """Training as one of several workers, which train one network apart and exchange only updates of many steps, through a
    folder (DiLoCo, arXiv 2311.08105). A worker is a run, with its own job and ranks, on this or on another cluster."""

    workers: list[Name] = Field(min_length=2, max_length=64)
    """Names of the runs that are the workers, this run included, in the same order in each. The other settings of the runs
    must be equal. Worker k of M takes the samples k, k + M, ... of the common order; `global_batch_size` counts its own."""
    steps: Positive = 16
    """Steps between two exchanges. Must divide `steps_per_job`."""
    overlap: bool = True
    """true: exchange during the next steps, so that updates of other workers arrive one exchange later; false: wait."""
    outer_lr: float = Field(default=1.0, gt=0.0, le=10.0)
    """Factor on the mean update of the workers."""
    outer_momentum: float = Field(default=0.3, ge=0.0, lt=1.0)
    """Nesterov momentum of the mean update. 0.9 is for hundreds of steps between exchanges."""
    dtype: Literal["fp32", "bf16", "int4"] = "bf16"
    """Type of the exchanged numbers. Rounding errors are added to the next update."""

    def _faults(self) -> Iterator[str]:
        if len(set(self.workers)) < len(self.workers):
            yield f"`workers` names a run twice: {', '.join(self.workers)}"


class ModelConfig(Settings):
    """The network: a preset and its changes."""

    preset: Preset = "DiT-S/2"
    """DiT-S, B, L or XL with patch 2, 4 or 8. ModernDiT-S, ... have `norm: rms`, `mlp: swiglu` and `position_embedding: rope`."""
    learn_sigma: bool = True
    """Predict the variance as well (doubles the output channels, adds the VLB term)."""
    hidden_size: Size | None = None
    """Width; the preset's if unset."""
    depth: Size | None = None
    """Number of blocks; the preset's if unset."""
    num_heads: Size | None = None
    """Attention heads; the preset's if unset."""
    norm: Norm | None = None
    """Normalization of tokens before shift and scale; the preset's if unset. layer: LayerNorm; rms: RMSNorm."""
    mlp: MlpKind | None = None
    """MLP of a block; the preset's if unset. gelu: hidden width 4 D; swiglu: gated, hidden width 8/3 D."""
    position_embedding: Position | None = None
    """Position encoding; the preset's if unset. sincos: a table added to tokens; rope: also rotated queries and
    keys."""
    qk_norm: bool | None = None
    """Normalize queries and keys, which bounds attention logits; no preset does. Useful for long training runs of large
    networks. Short runs do not learn faster."""
    gaussian_prediction: bool = False
    """Add the network's output to the prediction for normal images with the mean and covariance of the train tiles, so that
    the network learns the difference (`prediction_type: flow`). The variance is scaled for each image. It helps in short
    runs on archives of few scenes. Bands of different `band_groups` count as uncorrelated."""

    def _faults(self) -> Iterator[str]:
        width, _, heads = self.shape
        if width % heads:
            yield f"hidden_size {width} is not a multiple of num_heads {heads}"
        if self.block.position_embedding == "rope" and width // heads % 4:
            yield (
                "`position_embedding: rope` rotates pairs of a head's channels, half by row and half by column, and "
                f"the heads of `hidden_size` {width} / `num_heads` {heads} are {width // heads} wide, which is not a "
                "multiple of 4: choose another number of heads, or `position_embedding: sincos`"
            )

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
        """Blocks of the preset with the changes of this section."""
        changes = {name: value for name in BlockKind._fields if (value := getattr(self, name)) is not None}
        return self._family._replace(**changes)

    @property
    def block_changes(self) -> dict[str, str | bool]:
        """Settings of the blocks that differ from the preset."""
        return {name: value for name, value in self.block._asdict().items() if value != getattr(self._family, name)}

    @property
    def _family(self) -> BlockKind:
        return FAMILIES[self.preset.partition("-")[0]]

    @property
    def parameters(self) -> int:
        """Number of weights without the label table."""
        width, depth, heads = self.shape
        modulations = depth * 6 * width**2
        ends = 3 * width**2 + 512 * width  # timestep embedding, last adaLN, first and last layer
        norms = 2 * (width // heads) if self.block.qk_norm else 0
        return self.matrix_elements + modulations + depth * (11 * width + self._mlp_rows + norms) + ends

    @property
    def matrix_elements(self) -> int:
        """Number of weights in the linear layers on tokens in the blocks, without biases."""
        width, depth, _ = self.shape
        return depth * width * (4 * width + self._mlp_rows + self.mlp_width)

    def flops(self, tokens: int) -> float:
        """Return the floating-point operations of a forward pass of an image of `tokens` tokens."""
        width, depth, _ = self.shape
        return 2.0 * tokens * (self.matrix_elements + depth * 2 * tokens * width)

    @property
    def mlp_width(self) -> int:
        width, _, _ = self.shape
        return swiglu_width(4 * width) if self.block.mlp == "swiglu" else 4 * width

    @property
    def _mlp_rows(self) -> int:
        return self.mlp_width * (2 if self.block.mlp == "swiglu" else 1)

    @property
    def kept_widths(self) -> float:
        """Numbers per token that a block keeps for its backward pass, in multiples of the width D (paper section 4.2).

        Two norms, qkv, attention, projection, MLP before and after its nonlinearity (8 for GELU and SwiGLU), and two
        gates; measured: 18.3. Rotation or normalization keeps qkv twice; fast kernels keep only the rotated copy.
        """
        return 18.5 + (3 if self.block.position_embedding == "rope" or self.block.qk_norm else 0)


class ObjectiveConfig(Settings):
    """The training target of the network."""

    prediction_type: Predict = "noise"
    """Predicted quantity. noise; flow: noise - image on the straight path between image and noise, sampled by euler or heun
    (without `model.learn_sigma`)."""
    timestep_sampling: Literal["uniform", "logit-normal"] = "uniform"
    """Distribution of training times from 0 (image) to 1 (noise): uniform, or the sigmoid of normal numbers."""
    logit_mean: float = Field(default=0.0, ge=-20.0, le=20.0)
    """Mean of the normal distribution; values above 0 give more noise, at which colors and large shapes are determined."""
    logit_std: float = Field(default=1.0, ge=0.01, le=20.0)
    """Standard deviation of the normal distribution."""

    def _faults(self) -> Iterator[str]:
        if self.timestep_sampling == "uniform":
            yield from self._check_unused("timestep_sampling: logit-normal", "logit_mean", "logit_std")


class MaskedTrainingConfig(Settings):
    """Training from incomplete tiles. The loss counts clear pixels only. The input has pure noise at all other pixels."""

    hidden_share: Fraction = 0.0
    """Share of images of which a further part is replaced by noise in the input, but counts in the loss, so that the network
    learns to fill gaps. The part has the shape of the gaps of another train tile in a random orientation. Requires
    `prediction_type: flow`, because noise does not predict an image at pure noise."""


class BandGroupConfig(Settings):
    """Bands with a separate noise level, such as the bands of one sensor. A network that was trained with the group at
    level 0 restores the other bands from it."""

    bands: list[Band] = Field(min_length=1)
    """Bands of the tiles."""
    role: BandRole = "condition"
    """condition: the network never predicts the group, which is clean or, in a share `label_dropout` of the images, pure noise.
    modeled: the network also predicts the group, which is clean in half of the images and has the noise of the image in the
    others. A restoration then also samples gaps of the group."""


class OptimizerConfig(Settings):
    """The optimizer."""

    kind: Literal["adamw", "muon"] = "adamw"
    """adamw; muon: orthogonalized updates of the weight matrices on tokens, and AdamW for biases, modulations,
    embeddings and the final layer. `lr`, `weight_decay` and `max_grad_norm` have the same meaning for both."""
    momentum: Beta = 0.95
    """Decay of the momentum of matrices (muon)."""
    adamw_ratio: float = Field(default=1.0, gt=0.0, le=1.0)
    """Learning rate of the other parameters, and with it their weight decay, over `lr` (muon). In short runs, updates of
    AdamW are up to five times as large as updates of muon. 0.2 then prevents large errors at rare timesteps."""

    newton_schulz_steps: ClassVar[int] = 5  # iterations that orthogonalize an update, in the `dtype` of the run

    def _faults(self) -> Iterator[str]:
        if self.kind != "muon":
            yield from self._check_unused("kind: muon", "momentum", "adamw_ratio")
