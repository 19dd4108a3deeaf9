"""Settings of training runs and of their evaluation; those of what is learnt have a file of their own."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, SerializeAsAny, model_validator

from dithc.config.base import Band, Count, Fraction, Gib, Name, Place, Positive, Rate, Seed, Settings, Size
from dithc.config.caching import Cache as Cache
from dithc.config.caching import Taylor
from dithc.config.installed import InstalledSampler as InstalledSampler
from dithc.config.installed import taking
from dithc.config.learning import FAMILIES as FAMILIES
from dithc.config.learning import SIZES as SIZES
from dithc.config.learning import Beta, Length
from dithc.config.learning import BlockKind as BlockKind
from dithc.config.learning import Ema as Ema
from dithc.config.learning import Guide as Guide
from dithc.config.learning import MlpKind as MlpKind
from dithc.config.learning import Model as Model
from dithc.config.learning import Norm as Norm
from dithc.config.learning import Objective as Objective
from dithc.config.learning import Optimizer as Optimizer
from dithc.config.learning import Position as Position
from dithc.config.learning import swiglu_width as swiglu_width
from dithc.config.scenes import LARGEST_SCENE, check_scene
from dithc.config.scenes import Windows as Windows

StrategyName = Literal["cftp", "dp", "dp+tp"]
GradientPath = Literal["overlapped", "ddp"]
Sharding = Literal["none", "zero1"]
CheckpointPath = Literal["async", "blocking"]
AutoMemChoice = Literal["auto", "on", "off"]
NonFinite = Literal["stop", "skip", "rollback"]
Recompute = Literal["none", "block"]
Augment = Literal["none", "mirror", "dihedral"]

MOST_STEPS = 9_999_999  # file names have seven digits for them
MOST_SEGMENTS = 10_000  # each is a job, and a manifest
MOST_SNAPSHOTS = 100  # whose averages are summed up: each is read whole

FLOW_SAMPLERS = ("euler", "heun")
FLOW_START, LAST_TIMESTEP = 1000, 999  # the times of pure noise: of a flow, and of a noise schedule

# Of a weight: itself, its gradient, two moments, the average (fp32); a copy in bf16 counts as a half more.
STATE_BYTES, BF16_COPY_BYTES = 20, 2
# What an asynchronous checkpoint copies of a weight: weight, two moments, average.
SNAPSHOT_BYTES = 16
MOMENT_BYTES = 4  # of these, which muon needs one of for a matrix
LENGTH_BYTES = 4  # more of both for each of `ema.lengths`


class Memory(Settings):
    """How a rank of a training uses the memories of its machine; without effect on results."""

    automem: AutoMemChoice = "auto"
    """Whether weights, activations and optimizer state are moved between memories. auto: where the machine has two tiers, or a
    setting below makes a second; on: the same, and an error where there is one tier only; off: never."""
    fast_budget_gib: Gib | None = None
    """GiB that a rank may hold in the fastest tier at most, a hard limit; none for its share of what that tier has."""
    file_folder: Place | None = None
    """Folder on a local disk for a file that is the last tier, one of each rank; none for no such tier."""
    file_gib: Gib | None = None
    """GiB of that file, of each rank; taken before the training begins."""
    allow_recompute: bool = False
    """Let the plan compute activations again in backward where that is cheaper than moving them; the numbers stay the same."""

    @model_validator(mode="after")
    def _consistent(self) -> "Memory":
        if (self.file_folder is None) != (self.file_gib is None):
            raise ValueError("give both of `file_folder` and `file_gib`, or neither")
        return self


class Run(Settings):
    """One training: a pre-training, or a fine-tuning that starts from another run or from a file."""

    dataset: Name
    """Data set whose latents are learnt."""
    model: Model = Model()
    """The network."""
    init: Name | None = None
    """Run whose final weights are the start; makes this a fine-tuning."""
    init_file: Place | None = None
    """Start instead: an official DiT .pt, safetensors, or a folder of diffusers' transformer; makes this a fine-tuning."""
    init_weights: Literal["ema", "raw"] = "ema"
    """Which weights of the initial run are taken."""
    seed: Seed | None = None
    """Seed of the initial weights and of everything drawn; the experiment's if not given."""
    steps: int = Field(default=1000, ge=1, le=MOST_STEPS)
    """Optimizer steps in all; may be raised later, the run then goes on."""
    segment: Positive | None = None
    """Steps of one job, so that a job fits its walltime; all steps in one job if not given. Divides `steps`."""
    global_batch: Positive = 112
    """Images a step over all ranks."""
    micro_batch: Positive | None = None
    """Images a rank computes at once; its whole share of the batch if not given."""
    lr: Rate = 1e-4
    """Learning rate of AdamW; updates of muon have the same size."""
    warmup_steps: Count = 0
    """Steps over which the learning rate rises linearly from 0."""
    lr_schedule: Literal["constant", "cosine", "trapezoid"] = "constant"
    """Learning rate after those. constant; cosine: half a cosine to 0 at the last of `steps`; trapezoid: constant, then linearly
    to 0 over the last of them. With the latter two, `steps` decides the result and cannot be raised later."""
    decay_share: float = Field(default=0.2, gt=0.0, le=1.0)
    """Share of `steps` over which trapezoid falls to 0."""
    optimizer: Optimizer = Optimizer()
    """What makes updates of gradients."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay of AdamW's first and second moments."""
    weight_decay: float = Field(default=0.0, ge=0.0, le=1000.0)
    """Decoupled weight decay."""
    clip: float | None = Field(default=1.0, gt=0.0, le=10.0**9)
    """Largest global gradient norm; none for no clipping."""
    dtype: Literal["fp32", "bf16"] = "fp32"
    """Compute type; master weights and optimizer state are always fp32."""
    backend: Literal["auto", "numba", "reference"] = "auto"
    """Whose operators. auto: the fastest that works here; numba: dithc's without a C compiler; reference: PyTorch's own, to
    compare with. What is learnt differs by rounding."""
    recompute: Recompute = "none"
    """Recompute activations of each block in backward: less memory, the same numbers, about a third more time."""
    guide: Guide | None = None
    """Guidance trained into the network; none for none. `loss` and `mse` in the metrics are then of the moved target; those on
    held-out tiles (`validate_every`) stay of the plain one."""
    nonfinite: NonFinite = "stop"
    """What to do about a step whose loss or gradient is not finite. stop: end with an error that names it; skip: leave its update
    out and go on; rollback: the same from the newest checkpoint, which also heals weights that are not finite. May be changed
    later; which steps were left out is in the checkpoints and in the manifest."""
    ema: Ema = Ema()
    """The averaged weights."""
    objective: Objective = Objective()
    """What is learnt: of which times, and what is predicted."""
    label_dropout: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share of labels replaced by the null label, for classifier-free guidance."""
    augment: Augment = "mirror"
    """Which encoded views of a tile are learnt, each as often. none: the tile itself; mirror: its mirror image too; dihedral: all
    quarter turns of both, of a data set whose `views` are 8."""
    checkpoint_every: Positive = 100
    """Steps between checkpoints."""
    keep_last: Positive = 2
    """Checkpoints kept beside those at the ends of segments."""
    keep_every: Positive | None = None
    """Checkpoints at multiples of so many steps are kept too; a multiple of `checkpoint_every`, none for no more than those."""
    validate_every: Positive | None = None
    """Steps between measurements of the loss on up to 256 tiles of the split val (raw weights, 8 times, noise that is always the
    same), and one at the end of each job; none for none. Without effect on what is learnt."""
    log_every: Positive = 10
    """Steps between lines in the log; metrics are written every step."""

    @model_validator(mode="before")
    @classmethod
    def _is_renamed(cls, content: Any) -> Any:
        if isinstance(content, Mapping) and "flip" in content:
            raise ValueError(
                "`flip` has become `augment`: write `augment: mirror` for `flip: true` (the default), `augment: none` for "
                "`flip: false`"
            )
        return content

    @model_validator(mode="after")
    def _consistent(self) -> "Run":
        if self.init is not None and self.init_file is not None:
            raise ValueError("give at most one of `init` (a run) and `init_file` (a file)")
        if self.segment is not None and self.steps % self.segment:
            raise ValueError(f"`segment` {self.segment} does not divide `steps` {self.steps}")
        if self.steps // self.segment_steps > MOST_SEGMENTS:
            raise ValueError(f"`segment` {self.segment} cuts `steps` {self.steps} into more than {MOST_SEGMENTS} jobs")
        if self.keep_every is not None and self.keep_every % self.checkpoint_every:
            raise ValueError(
                f"`keep_every` {self.keep_every} is no multiple of `checkpoint_every` {self.checkpoint_every}: most of its steps "
                "have no checkpoint"
            )
        self._check_objective()
        self._check_schedule()
        self._check_guide()
        return self

    def _check_guide(self) -> None:
        if self.guide is None:
            return
        if self.label_dropout == 0.0:
            raise ValueError(
                "`guide` moves away from a prediction without a label, and with `label_dropout` 0 there is none: set it to 0.1, "
                "say, or leave `guide` out"
            )
        if self.guide.by == "start" and self.init is None and self.init_file is None:
            raise ValueError(
                "`guide.by: start` needs weights to start from: give `init` or `init_file`, or set `by: self`"
            )

    def _check_objective(self) -> None:
        predict = self.objective.predict
        if predict == "flow" and self.model.learn_sigma:
            raise ValueError("`objective.predict` flow knows no variance: set `model.learn_sigma: false`")
        if predict != "noise" and self.init_file is not None:
            raise ValueError(
                f"`init_file` holds a network that predicts noise, and `objective.predict` is {predict}: set it to noise, or "
                "leave `init_file` out"
            )
        if self.init_file is not None and self.model.block != BlockKind():
            raise ValueError(
                f"`init_file` holds a network of the original blocks ({BlockKind()}), and `model` has others "
                f"({self.model.block}), in which its weights mean nothing: take a preset DiT-..., or start from a run by `init`"
            )

    def _check_schedule(self) -> None:
        if self.lr_schedule != "trapezoid" and self.decay_share != type(self).model_fields["decay_share"].default:
            raise ValueError(
                f"`decay_share` is of no effect: it belongs to `lr_schedule: trapezoid`, not {self.lr_schedule}"
            )
        decay = {"constant": 0.0, "cosine": 1.0, "trapezoid": self.decay_share * self.steps}[self.lr_schedule]
        if decay and self.warmup_steps + decay > self.steps:
            raise ValueError(
                f"`warmup_steps` {self.warmup_steps} and the fall of `lr_schedule` {self.lr_schedule} ({decay:g} steps at least) "
                f"are more than `steps` {self.steps}"
            )

    @property
    def segment_steps(self) -> int:
        """Steps of one job."""
        return self.segment or self.steps

    def keeps(self, step: int) -> bool:
        """Whether the checkpoint of a step is there when the training has ended."""
        return step <= self.steps and (step == self.steps or any(step % one == 0 for one in self.kept_every))

    @property
    def kept_every(self) -> list[int]:
        """The checkpoints of their multiples are there when the training has ended."""
        return [every for every in (self.segment_steps, self.keep_every) if every is not None]

    def image_bytes(self, tokens: int, *, recompute: Recompute | None = None) -> int:
        """What an image of so many tokens keeps for its backward pass."""
        width, depth, _ = self.model.shape
        kept_blocks = 2 if (recompute or self.recompute) == "block" else depth
        return tokens * width * (2 if self.dtype == "bf16" else 4) * (kept_blocks * self.model.kept_widths + depth)

    @property
    def state_bytes(self) -> int:
        """Weights, gradients, moments and averages, of a rank that shares none of them; and the start that guides."""
        each = STATE_BYTES + (BF16_COPY_BYTES if self.dtype == "bf16" else 0)
        if self.guide is not None and self.guide.by == "start":
            each += 2 if self.dtype == "bf16" else 4
        return self.model.parameters * (each + self._lengths_bytes) - self._saved_bytes

    @property
    def snapshot_bytes(self) -> int:
        """What a checkpoint that is written beside the training copies."""
        return self.model.parameters * (SNAPSHOT_BYTES + self._lengths_bytes) - self._saved_bytes

    @property
    def update_flops(self) -> int:
        """Operations of an update beside those by element: products of Newton-Schulz, over all ranks."""
        width, depth, _ = self.model.shape
        # An iteration on (R, C), R <= C, takes 2 R^2 C + R^3 multiply-adds: 3 D^3 for each of 4 matrices, and those of the MLP, 2
        # or with a gate 3 of (D, E).
        of_mlp = (3 if self.model.block.mlp == "swiglu" else 2) * (2 * self.model.mlp_width + width) * width**2
        adds = depth * (12 * width**3 + of_mlp) * self.optimizer.iterations
        return 2 * adds if self.optimizer.kind == "muon" else 0

    @property
    def guided_share(self) -> float:
        """Of the images of a step, those that run forward a second time for `guide`; expected, as labels and times are drawn."""
        if self.guide is None:
            return 0.0
        low, high = self.guide.interval or (0.0, 1.0)
        return (1 - self.label_dropout) * self.objective.share_between(low, high)

    @property
    def _saved_bytes(self) -> int:
        """Of the second moments that matrices do not have."""
        return self.model.matrix_elements * MOMENT_BYTES if self.optimizer.kind == "muon" else 0

    @property
    def _lengths_bytes(self) -> int:
        """Of a weight, in the averages of `ema.lengths`."""
        return LENGTH_BYTES * len(self.ema.lengths or ())


Metric = Literal["precision-recall", "density-coverage", "interval", "bands", "indices", "spectra"]
OF_PIXELS = {"bands", "indices", "spectra"}


BuiltInSampler = Literal["ddpm", "ddim", "dpm-solver", "unipc", "euler", "heun"]
Sampler = Annotated[
    BuiltInSampler | SerializeAsAny[InstalledSampler],
    taking(InstalledSampler, get_args(BuiltInSampler), BuiltInSampler, bare=True),
]


class Evaluation(Settings):
    """Samples of one run compared with real tiles."""

    run: Name
    """Run whose weights are sampled."""
    at: Literal["final", "start", "untrained", "codec"] | Annotated[int, Field(ge=1, le=MOST_STEPS)] = "final"
    """Weights after the last step; before the first (for a fine-tuning: the pre-trained ones); freshly initialised; or after a
    step whose checkpoint is kept. codec: no samples, but real tiles as the codec gives them back, which is the best that samples
    of it can look."""
    weights: Literal["ema", "raw"] = "ema"
    """Averaged or raw weights; recorded with the score."""
    ema: Length | None = None
    """Length of the average, such as 0.07, made of the two that the run keeps (`ema.lengths`) in all its kept checkpoints until
    then; none for the average of `ema.decay`."""
    images: int = Field(default=10000, ge=1, le=10**8)
    """Number of generated images; of a scene (`windows`) one will do, of others two at least, which are compared."""
    size: int | None = Field(default=None, ge=1, le=LARGEST_SCENE)
    """Pixels of a side of an image, such as 4096; the size of the data set's tiles if not given. A larger one needs `windows`, or
    a run on tiles of that size. A multiple of the codec's `factor`."""
    windows: Windows | None = None
    """How a network makes a scene larger than its tiles; none for images of their size. A scene is written by itself, by rows, as
    are its GeoTIFF (`dithc export`); it has no score, since FID is of images as large as tiles."""
    sampler: Sampler = "ddpm"
    """Solver of the reverse process; euler and heun for runs whose `objective.predict` is flow, the others for all other runs.
    One of an installed package by its name, or with settings of its own: `{kind: NAME, ...}`."""
    order: Literal[1, 2, 3] | None = None
    """Order of dpm-solver or unipc, 2 if not given; 3 takes ten steps and more to be the better one."""
    steps: int = Field(default=250, ge=1, le=1000)
    """Network evaluations an image (before guidance), all of which are used: heun takes two for an interval, and of an odd number
    one for the last."""
    times: list[Annotated[int, Field(ge=0, le=FLOW_START)]] | None = Field(default=None, min_length=1, max_length=1000)
    """Timesteps of the training to visit, falling, as many as `steps`, such as `dithc search-sampler` finds; of euler and heun,
    thousandths of time where intervals begin, from 1000: as many as `steps`, of heun half of that. Spread as suits the sampler if
    not given."""
    epsilon_scaling: float = Field(default=0.0, ge=-0.5, le=0.5)
    """How much more noise is taken out than the network predicts: its noise counts 1 + this x (1 - time), where time is 1 at pure
    noise and 0 at the image. `dithc search-sampler --epsilon-scaling` finds it for a network of one's own, some hundredths. Below
    0 less is taken out, as Ning et al. (2024) do for networks that see too much of it."""
    guidance: float = Field(default=1.0, ge=0.0, le=1000.0)
    """Classifier-free guidance scale; 1 is none."""
    guidance_channels: Literal["all", "first3"] = "all"
    """Guide all latent channels, or the first three as the published DiT samples were made."""
    guidance_interval: list[Fraction] | None = Field(default=None, min_length=2, max_length=2)
    """Guide between these two timesteps alone, as shares of the training's: 0 is the least noise, 1 the most. Other steps cost
    half; none to guide all."""
    guide: Literal["start"] | None = None
    """What guidance moves away from: start, the prediction without a label by the run's weights before its first step (of a
    fine-tuning: the pre-trained ones); none for that of the sampled weights."""
    cache: Cache | None = None
    """What of a call of the network is used at later ones in the place of computing it; images are then not exact, which stands
    beside their score. none computes everything."""
    batch: Size = 32
    """Images sampled at once by one rank."""
    extractor: Name
    """Feature extractor (section `extractors`)."""
    real_split: Literal["train", "val", "test", "all"] = "all"
    """Real tiles to compare with."""
    real_images: int | None = Field(default=None, ge=2, le=10**8)
    """Number of real tiles, chosen by the experiment's seed; all of the split if not given."""
    metrics: list[Metric] = Field(default=[], max_length=len(get_args(Metric)))
    """What is told beside FID and KID. Of features: precision-recall (3 neighbours), density-coverage (5), interval (95 %, of
    FID). Of pixels in the units of the data set: bands (distance of each band's distribution, spectral angle, correlations),
    indices (NDVI and NDWI), spectra (radial power of each band)."""
    triplets: list[tuple[Band, Band, Band]] = Field(default=[], max_length=16)
    """FID and KID of other bands than the display's, shown to the extractor as red, green and blue, such as [B12, B11, B04]; each
    band goes from its low to its high of `scaling`, on both sides. Each takes as long as the features of the set."""
    seed: Seed = 0
    """Image i is made from (seed, i), whatever the number of ranks."""

    @property
    def num_times(self) -> int:
        """How many `times` the sampler takes: heun makes two steps of an interval."""
        return -(-self.steps // 2) if self.sampler == "heun" else self.steps

    @property
    def solves_flow(self) -> bool:
        """Whether the sampler follows a velocity, and takes times of a flow."""
        return (
            self.sampler.predicts == "flow"
            if isinstance(self.sampler, InstalledSampler)
            else self.sampler in FLOW_SAMPLERS
        )

    @property
    def sees_pixels(self) -> bool:
        """Whether it asks for statistics of pixels in the units of the data set."""
        return bool(OF_PIXELS & set(self.metrics))

    @property
    def triplet_names(self) -> list[str]:
        """Its triplets as one word each."""
        return ["+".join(triplet) for triplet in self.triplets]

    @property
    def searches_copies(self) -> bool:
        """Whether images are generated by weights that have learnt, and compared with all that was learnt."""
        return (
            self.at not in ("codec", "untrained", "start")
            and self.real_images is None
            and self.real_split in ("train", "all")
        )

    @model_validator(mode="after")
    def _once(self) -> "Evaluation":
        for name, values in (("metrics", list[str](self.metrics)), ("triplets", self.triplet_names)):
            if twice := sorted({value for value in values if values.count(value) > 1}):
                raise ValueError(f"`{name}` has {', '.join(twice)} twice: leave one out")
        return self

    @model_validator(mode="after")
    def _of_scenes(self) -> "Evaluation":
        check_scene(self)
        return self

    @model_validator(mode="after")
    def _has_effect(self) -> "Evaluation":
        if self.order is not None and self.sampler not in (
            "dpm-solver",
            "unipc",
        ):  # nor of an installed one, which has settings
            raise ValueError(f"`order` is of the samplers dpm-solver and unipc; `sampler` is {self.sampler}")
        if self.times is not None:
            self._visits(self.times)
        if self.ema is not None and self.weights == "raw":
            raise ValueError("`ema` is the length of an average, and `weights` is raw: leave one of both out")
        if self.ema is not None and self.at in ("start", "untrained", "codec"):
            raise ValueError(f"`ema` is of weights while they were trained, and `at` is {self.at}: leave it out")
        if self.epsilon_scaling and self.at == "codec":
            raise ValueError("`epsilon_scaling` is of predicted noise, and `at` is codec: leave it out")
        if self.guidance_interval is not None:
            low, high = self.guidance_interval
            if low > high:
                raise ValueError(f"`guidance_interval` begins at {low} and ends before, at {high}")
            if self.guidance == 1.0:
                raise ValueError("`guidance_interval` needs `guidance` other than 1: there is none to confine")
        self._check_cache()
        if self.guide is not None:
            if self.guidance <= 1.0:
                raise ValueError(
                    f"`guide` needs `guidance` above 1, it is {self.guidance}: nothing is moved away from it"
                )
            if self.at in ("start", "untrained", "codec"):
                raise ValueError(f"`guide: {self.guide}` needs weights that were trained since; `at` is {self.at}")
        return self

    def _check_cache(self) -> None:
        if self.cache is None:
            return
        if self.at == "codec":
            raise ValueError("`cache` is of calls of a network, and `at` is codec: leave it out")
        if self.windows is not None:
            raise ValueError(
                "`cache` compares each call with the ones before, and those of `windows` differ: leave one out"
            )
        if self.guidance_interval is not None:
            raise ValueError(
                "`cache` compares each call with the ones before, and with `guidance_interval` some have no branch without a "
                "label: leave one of both out"
            )
        if isinstance(self.cache, Taylor) and self.sampler == "heun":
            raise ValueError(
                "`cache` taylor extrapolates over timesteps, and heun is twice at each: take `kind: first-block`, or euler"
            )

    def _visits(self, times: list[int]) -> None:
        """The sampler can take these times."""
        if len(times) != self.num_times:
            raise ValueError(
                f"`times` are {len(times)} timesteps and `steps` is {self.steps}: give {self.sampler} {self.num_times}"
            )
        if times != sorted(set(times), reverse=True):
            raise ValueError(f"`times` do not fall: {times}")
        if self.solves_flow and (times[0] != FLOW_START or times[-1] == 0):
            raise ValueError(
                f"`times` of {self.sampler} begin at {FLOW_START}, which is noise, and end above 0: {times}; correct them"
            )
        if not self.solves_flow and times[0] > LAST_TIMESTEP:
            raise ValueError(
                f"`times` of {self.sampler} are less than or equal to {LAST_TIMESTEP}: {times}; correct them"
            )
