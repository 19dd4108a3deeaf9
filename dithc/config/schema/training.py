"""Settings of training runs. Separate files contain the settings of model and objective, and of evaluations."""

from collections.abc import Iterator
from math import sqrt
from typing import Any, Literal

from pydantic import Field

from dithc.config.schema.base import Condition, Count, Gib, Name, Place, Positive, Rate, Seed, Settings
from dithc.config.schema.evaluations import MAX_STEPS
from dithc.config.schema.run_sections import FAMILIES as FAMILIES
from dithc.config.schema.run_sections import SIZES as SIZES
from dithc.config.schema.run_sections import BandGroup as BandGroup
from dithc.config.schema.run_sections import BandGroupConfig as BandGroupConfig
from dithc.config.schema.run_sections import Beta
from dithc.config.schema.run_sections import BlockKind as BlockKind
from dithc.config.schema.run_sections import EmaConfig as EmaConfig
from dithc.config.schema.run_sections import LocalUpdatesConfig as LocalUpdatesConfig
from dithc.config.schema.run_sections import MaskedTrainingConfig as MaskedTrainingConfig
from dithc.config.schema.run_sections import MlpKind as MlpKind
from dithc.config.schema.run_sections import ModelConfig as ModelConfig
from dithc.config.schema.run_sections import Norm as Norm
from dithc.config.schema.run_sections import ObjectiveConfig as ObjectiveConfig
from dithc.config.schema.run_sections import OptimizerConfig as OptimizerConfig
from dithc.config.schema.run_sections import Position as Position
from dithc.config.schema.run_sections import swiglu_width as swiglu_width
from dithc.config.suggestions import suggest_value

StrategyName = Literal["cftp", "dp", "dp+tp"]
GradientMode = Literal["overlapped", "ddp"]
Sharding = Literal["none", "node", "zero1", "zero2"]
CheckpointMode = Literal["async", "blocking"]
AutoMemChoice = Literal["auto", "on", "off"]
NonFinite = Literal["stop", "skip", "rollback"]
Recompute = Literal["none", "block"]
PARTED_TOKENS = 2048  # tokens of an image from which a block is recomputed by parts of the tokens
Augment = Literal["none", "mirror", "dihedral"]
CONDITIONS = "place", "season", "sun", "gsd", "cloud", "view"  # without columns of plugins

MAX_SEGMENTS = 10_000  # each is a job, and a manifest


class MemoryConfig(Settings):
    """Use of the machine's memories by a rank of a training run; no effect on results."""

    automem: AutoMemChoice = "auto"
    """Move weights, activations and optimizer state between memories. auto: if the machine has two tiers, or a setting
    below adds a second tier; on: as auto, but an error if only one tier exists; off: never."""
    fast_memory_gib: Gib | None = None
    """Hard limit in GiB for the data of a rank in the fastest tier. `null`: its share of that tier's capacity."""
    spill_folder: Place | None = None
    """Folder on a local disk for a file that is the last tier, one per rank. `null`: no file tier."""
    spill_gib: Gib | None = None
    """GiB of that file, per rank; allocated before the training run begins."""
    allow_recompute: bool = False
    """Allow recomputation of activations in the backward pass if it is cheaper than moving them. Results are equal."""

    def _faults(self) -> Iterator[str]:
        if (self.spill_folder is None) != (self.spill_gib is None):
            yield "give both of `spill_folder` and `spill_gib`, or neither"


class RunConfig(Settings):
    """One training run: pre-training, or fine-tuning that starts from another run or from a file."""

    dataset: Name
    """Dataset that provides the latents for training."""
    model: ModelConfig = ModelConfig()
    """Settings of the network."""
    init_from_run: Name | None = None
    """Run that provides its final weights as the start; makes this run a fine-tuning."""
    init_from_file: Place | None = None
    """File or folder with the initial weights instead: an official DiT .pt, safetensors, or a folder of diffusers'
    transformer; makes this run a fine-tuning."""
    init_weights: Literal["ema", "raw"] = "ema"
    """Weights of the initial run to start from."""
    seed: Seed | None = None
    """Seed of the initial weights and of all random draws; the experiment's seed if unset."""
    steps: int = Field(default=1000, ge=1, le=MAX_STEPS)
    """Total number of optimizer steps. You may raise it later; the run then continues."""
    steps_per_job: Positive | None = None
    """Steps of one job, so that a job fits its walltime; all steps in one job if unset. Must divide `steps`."""
    global_batch_size: Positive = 112
    """Images per step over all ranks."""
    micro_batch_size: Positive | None = None
    """Images per forward pass of a rank; the rank's entire share of the batch if unset."""
    lr: Rate | Literal["auto"] = 1e-4
    """Learning rate of AdamW. Updates of muon have the same size. auto, for flows: 0.5 / width, times the square root of
    `global_batch_size` / 32 ([rule](quality.md#rate-by-width))."""
    warmup_steps: Count = 0
    """Steps over which the learning rate rises linearly from 0."""
    lr_schedule: Literal["constant", "trapezoid"] = "constant"
    """Learning rate after the warm-up. constant; trapezoid: constant, then linearly to 0 over the last steps. `steps` of
    trapezoid cannot be raised later."""
    decay_fraction: float = Field(default=0.2, gt=0.0, le=1.0)
    """Share of `steps` over which trapezoid falls to 0."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Settings of the optimizer."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay of AdamW's first and second moments."""
    weight_decay: float = Field(default=0.0, ge=0.0, le=1000.0)
    """Decoupled weight decay."""
    max_grad_norm: float | None = Field(default=1.0, gt=0.0, le=10.0**9)
    """Largest global gradient norm. `null`: no clipping."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Compute type; master weights and optimizer state are always fp32."""
    backend: Literal["auto", "numba", "reference"] = "auto"
    """Implementation of the operators. auto: the fastest available implementation; numba: dithc's operators without a C
    compiler; reference: PyTorch's operators, for comparison. Results differ by rounding."""
    activation_checkpointing: Recompute = "none"
    """block: recompute activations of each block in the backward pass: less memory, equal results, a third more time.
    Blocks of images of 2,048 or more tokens are recomputed by parts of the tokens, which halves their activations."""
    masked_training: MaskedTrainingConfig | None = None
    """Training from incomplete tiles, of a dataset with `tiles.masks` and the codec `pixel`. `null`: all pixels count. The
    loss on held-out tiles then also counts clear pixels only."""
    on_nonfinite: NonFinite = "stop"
    """Reaction to a step with a loss or gradient that is not finite. stop: fail with an error that names the step;
    skip: omit its update and continue; rollback: the same from the newest checkpoint, which also repairs weights that
    are not finite. May be changed later. The checkpoints and the manifest list the omitted steps."""
    ema: EmaConfig = EmaConfig()
    """Settings of the averaged weights."""
    objective: ObjectiveConfig = ObjectiveConfig()
    """Training target: distribution of times, and predicted quantity."""
    label_dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share of labels replaced by the null label, for classifier-free guidance."""
    conditions: list[Condition] = Field(default=[], max_length=64)
    """Conditions of the network besides the label: place (as a unit vector), season (day of the year, as sine and cosine),
    sun (elevation and azimuth), gsd (pixel size), cloud (cloudy share of a tile, with `tiles.masks`), view (of `augment`;
    sampling uses the original orientation), and columns of `datasets.*.conditions`. Each starts without effect, so that a
    fine-tuning run starts with the outputs of its start weights. Each is dropped independently in a share `label_dropout` of
    the images. All but the view may be absent in a tile."""
    band_groups: dict[Name, BandGroupConfig] = {}
    """Groups of bands with a separate noise level, for `prediction_type: flow` and the codec `pixel`. A restoration holds a
    group clean in blocks where all its pixels are observed. The other bands form the main group. Groups start without
    effect, as `conditions` do. Masks of tiles do not hide a clean group, such as radar under clouds."""
    local_updates: LocalUpdatesConfig | None = None
    """Train as one of several workers that exchange updates through `machine.exchange_folder`; for two clusters, or nodes with a
    slow network. At the end of each job, all workers have the same weights. `null`: train alone."""
    augment: Augment = "mirror"
    """Encoded views of a tile used for training, each equally often. none: the tile itself; mirror: also its mirror
    image; dihedral: all quarter turns of both, for a dataset with `views: 8`."""
    checkpoint_every: Positive = 100
    """Steps between checkpoints."""
    keep_last: Positive = 2
    """Number of checkpoints kept in addition to those at the ends of segments."""
    keep_every: Positive | None = None
    """Also keep checkpoints at multiples of this number of steps. Must be a multiple of `checkpoint_every`."""
    validate_every: Positive | None = None
    """Steps between measurements of the loss on up to 256 tiles of the split val (raw weights, 8 times, always the same
    noise), with one more at the end of each job. `null`: no measurements. No effect on training."""
    log_every: Positive = 10
    """Steps between lines in the log; metrics are written every step."""

    def _faults(self) -> Iterator[str]:
        if self.init_from_run is not None and self.init_from_file is not None:
            yield "give at most one of `init_from_run` (a run) and `init_from_file` (a file)"
        if self.steps_per_job is not None and self.steps % self.steps_per_job:
            yield f"`steps_per_job` {self.steps_per_job} does not divide `steps` {self.steps}"
        if self.steps // self.segment_steps > MAX_SEGMENTS:
            yield f"`steps_per_job` {self.steps_per_job} cuts `steps` {self.steps} into more than {MAX_SEGMENTS} jobs"
        if self.local_updates is not None and self.segment_steps % self.local_updates.steps:
            yield (
                f"`local_updates.steps` {self.local_updates.steps} does not divide the {self.segment_steps} steps of a job "
                "(`steps_per_job`, else `steps`)"
            )
        if self.keep_every is not None and self.keep_every % self.checkpoint_every:
            yield (
                f"`keep_every` {self.keep_every} is not a multiple of `checkpoint_every` {self.checkpoint_every}: most of its "
                "steps have no checkpoint"
            )
        if len(set(self.conditions)) < len(self.conditions):
            yield f"`conditions` names a condition twice: {', '.join(self.conditions)}"
        bands = [band for group in self.band_groups.values() for band in group.bands]
        if len(set(bands)) < len(bands):
            yield f"`band_groups` name a band twice: {', '.join(bands)}"
        if bands and self.objective.prediction_type != "flow":
            yield "`band_groups` require separate levels of bands: set `objective.prediction_type: flow`"
        yield from self._check_objective()
        yield from self._check_schedule()

    def tile_faults(self, key: str, dataset: Any, *, codec: str) -> Iterator[str]:
        """Yield the missing requirements for tiles of a `DatasetConfig`, with the kind of their codec."""
        has_masks, bands = dataset.tiles.masks, dataset.band_names
        prefixes = tuple(one.kind.replace("-", "_") for one in dataset.conditions)  # of all columns of a plugin
        if unknown := [name for name in self.conditions if name not in CONDITIONS and not name.startswith(prefixes)]:
            yield (
                f"{key}.conditions has {', '.join(unknown)}: use {', '.join(CONDITIONS)} or columns of `conditions` of its "
                f"dataset{suggest_value(unknown[0], CONDITIONS)}"
            )
        if self.band_groups and codec != "pixel":
            yield f"{key}.band_groups requires latents that are bands: use a codec of kind pixel"
        listed = {band for group in self.band_groups.values() for band in group.bands}
        if listed and bands is not None and not listed < set(bands):
            yield (
                f"{key}.band_groups has {', '.join(sorted(listed))}: list some of the bands {', '.join(bands)} of its dataset, "
                "and leave at least one band without a group"
            )
        if self.masked_training is not None and not (has_masks and codec == "pixel"):
            yield (
                f"{key}.masked_training requires masks of tiles and their pixels: set `tiles.masks: true` of its dataset, and "
                "use a codec of kind pixel"
            )
        if "cloud" in self.conditions and not has_masks:
            yield f"{key}.conditions has cloud, which requires `tiles.masks: true` of its dataset"
        if "view" in self.conditions and self.augment == "none":
            yield f"{key}.conditions has view, which is always the same with `augment: none`: set `mirror` or `dihedral`"

    def _check_objective(self) -> Iterator[str]:
        predict = self.objective.prediction_type
        if predict == "noise" and self.masked_training is not None and self.masked_training.hidden_share:
            yield (
                "`masked_training.hidden_share` has no effect with `objective.prediction_type` noise, because hidden pixels of "
                "the input are the noise itself: set `prediction_type: flow`, or leave `hidden_share` out"
            )
        if predict != "flow" and self.model.gaussian_prediction:
            yield "`model.gaussian_prediction` is the prediction of a flow: set `objective.prediction_type: flow`"
        if predict == "flow" and self.model.learn_sigma:
            yield "`objective.prediction_type` flow does not predict a variance: set `model.learn_sigma: false`"
        if predict != "noise" and self.init_from_file is not None:
            yield (
                "`init_from_file` contains a network that predicts noise, and `objective.prediction_type` is "
                f"{predict}: set it to noise, or leave `init_from_file` out"
            )
        if self.init_from_file is not None and self.model.block != BlockKind():
            yield (
                f"`init_from_file` contains a network with the original blocks ({BlockKind()}), and `model` has different blocks "
                f"({self.model.block}), for which its weights are invalid: use a preset DiT-..., or a start run by "
                "`init_from_run`"
            )

    def _check_schedule(self) -> Iterator[str]:
        if self.lr == "auto" and (self.optimizer.kind == "muon" or self.objective.prediction_type != "flow"):
            yield "`lr: auto` is the rate of adamw for `objective.prediction_type: flow`: set a number"
        if self.lr_schedule != "trapezoid":
            yield from self._check_unused("lr_schedule: trapezoid", "decay_fraction")
        elif self.warmup_steps + (decay := self.decay_fraction * self.steps) > self.steps:
            yield (
                f"`warmup_steps` {self.warmup_steps} and the {decay:g} steps of decay of `lr_schedule: trapezoid` exceed `steps` "
                f"{self.steps}"
            )

    @property
    def peak_lr(self) -> float:
        """Learning rate after the warm-up.

        `auto` falls with the width, as muP's rate of matrices (arXiv 2203.03466, table 3), and rises with the square root of the
        batch. It is the rate of all parameters.
        """
        if self.lr != "auto":
            return self.lr
        return 0.5 / self.model.shape[0] * sqrt(self.global_batch_size / 32)

    @property
    def segment_steps(self) -> int:
        return self.steps_per_job or self.steps

    def keeps(self, step: int) -> bool:
        """Return True if the checkpoint of a step exists after the end of training."""
        return step <= self.steps and (step == self.steps or any(step % interval == 0 for interval in self.kept_every))

    @property
    def kept_every(self) -> list[int]:
        """Step intervals of kept checkpoints. Checkpoints at their multiples exist after the end of training."""
        return [every for every in (self.segment_steps, self.keep_every) if every is not None]

    @property
    def update_flops(self) -> int:
        """Operations of an update besides the element-wise operations: products of Newton-Schulz, over all ranks."""
        width, depth, _ = self.model.shape
        # An iteration on (R, C), R <= C, takes at most 2 R^2 C + R^3 multiply-adds: 3 D^3 for 4 matrices, and the same formula
        # for the 2 matrices (D, E) of the MLP, or 3 with a gate.
        mlp_adds = (3 if self.model.block.mlp == "swiglu" else 2) * (2 * self.model.mlp_width + width) * width**2
        adds = depth * (12 * width**3 + mlp_adds) * self.optimizer.newton_schulz_steps
        return 2 * adds if self.optimizer.kind == "muon" else 0
