"""Settings of codecs, which turn tiles into latents and back, and of feature extractors.

Every codec says, before a file of it is read, its `factor` (side of a tile over side of its latent), the `channels` of its
latents and whether it `sees_display` (pictures of the three display bands) or numbers of all bands.
"""

from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field, SerializeAsAny, model_validator

from dithc import extensions
from dithc.config.base import Band, Fraction, Name, Place, Positive, Rate, Settings, Size
from dithc.config.installed import Installed, kinds_of, taking
from dithc.config.installed import InstalledExtractor as InstalledExtractor

CROP = 32
"""Side in pixels of what a codec's training step sees: the cost of a step does not grow with the tile, and more steps gain more
than larger crops."""
LEAST_TURNED = 2  # side of the smallest latent that has orientations


class PixelCodec(Settings):
    """No codec: the diffusion model works on scaled pixels."""

    kind: Literal["pixel"]
    """Selects this codec."""
    factor: ClassVar[int] = 1
    sees_display: ClassVar[bool] = False

    def channels(self, bands: int) -> int:
        """Of the latents of tiles of so many bands."""
        return bands


class SdVae(Settings):
    """Stable Diffusion's autoencoder from local files; sees the three display bands only."""

    kind: Literal["sd-vae"]
    """Selects this codec."""
    path: Place
    """Folder in diffusers' layout: config.json and diffusion_pytorch_model.safetensors. Nothing is downloaded."""
    scale: float = Field(default=0.18215, gt=0.0, le=1000.0)
    """Factor on latents."""
    factor: ClassVar[int] = 8
    sees_display: ClassVar[bool] = True

    def channels(self, bands: int) -> int:
        """Of the latents of tiles of so many bands."""
        return 4


Scale = Annotated[float, Field(ge=1e-6, le=1e6)]
Shift = Annotated[float, Field(ge=-1e6, le=1e6)]
Group = Annotated[list[Band], Field(min_length=1, max_length=64)]  # of bands that are seen together


class Foreign(Settings):
    """An autoencoder that others trained, of any latent depth and range. Before any work it is tried on tiles of noise."""

    path: Place | None = None
    """Where it stands. Nothing is downloaded."""
    latent_channels: Size
    """Channels of a latent that it gives; with groups of `bands` a tile has so many for each group."""
    factor: Annotated[int, Field(ge=1, le=256)]
    """Side of a tile over side of its latent."""
    bands: Literal["display", "all"] | Annotated[list[Group], Field(min_length=1, max_length=64)] = "display"
    """What it sees. display: pictures of the three display bands, as they are shown, and no other band is learnt; all: every band
    of the data set, in its order, scaled to [-1, 1]; or groups of bands, such as [[B04, B03, B02], [B08, B11, B12]], each of
    which it encodes by itself, scaled likewise: the latents are stacked, and a band in several places is their average when it is
    decoded. Groups have all bands of the data set."""

    @property
    def named(self) -> str:
        """How messages call it."""
        return str(self.path)

    @property
    def sees_display(self) -> bool:
        """Whether its images are pictures."""
        return self.bands == "display"

    @property
    def groups(self) -> int:
        """How often it sees a tile."""
        return len(self.bands) if isinstance(self.bands, list) else 1

    def channels(self, bands: int) -> int:
        """Of the latents of tiles of so many bands."""
        return self.groups * self.latent_channels

    def check_bands(self, known: list[str], key: str) -> None:
        """Refuses groups that are not of the bands of a data set.

        Raises:
            ValueError: it names settings as parts of `key`.
        """
        grouped = {band for group in self.bands for band in group} if isinstance(self.bands, list) else set(known)
        if strange := [band for band in grouped if band not in known]:
            raise ValueError(f"{key}.bands has {', '.join(sorted(strange))}: the data set has {', '.join(known)}")
        if lost := [band for band in known if band not in grouped]:
            raise ValueError(
                f"{key}.bands leaves out {', '.join(lost)}, which could not be given back: put each into a group (the same one "
                "may be in several places), or leave it out of the data set (`source.bands`)"
            )

    @model_validator(mode="after")
    def _groups_alike(self) -> Self:
        if isinstance(self.bands, list) and len(sizes := {len(group) for group in self.bands}) > 1:
            raise ValueError(
                f"`bands` has groups of {' and '.join(map(str, sorted(sizes)))} bands, and an autoencoder has one number of "
                "them: fill the short ones up with a band that is there already, which is then the average of its places"
            )
        for name in ("scale", "shift"):
            given, fitting = getattr(self, name), {self.latent_channels, self.channels(0)}
            if isinstance(given, list) and len(given) not in fitting:
                raise ValueError(
                    f"`{name}` has {len(given)} numbers: give one, or {' or '.join(map(str, sorted(fitting)))}, one a channel"
                )
        return self


class Diffusers(Foreign):
    """An autoencoder of images in diffusers' layout: AutoencoderKL, AutoencoderTiny, AutoencoderDC and others."""

    path: Place
    """Where it stands. Nothing is downloaded."""
    kind: Literal["diffusers"]
    """Selects this codec; `path` is a folder with config.json, which says the class, and
    diffusion_pytorch_model.safetensors."""
    scale: Scale | list[Scale] | None = None
    """Factor on latents, or one a channel, which gives them about unit variance; that of config.json if not given
    (`scaling_factor`, `latents_std`)."""
    shift: Shift | list[Shift] | None = None
    """Taken off latents before `scale`; that of config.json if not given (`shift_factor`, `latents_mean`), or 0."""


class Torchscript(Foreign):
    """An autoencoder as a program: TorchScript, or graphs that torch.export wrote."""

    path: Place
    """Where it stands. Nothing is downloaded."""
    kind: Literal["torchscript"]
    """Selects this codec; `path` is a TorchScript file with methods `encode` and `decode`, or a folder with `encoder.pt` and
    `decoder.pt`, or `encoder.pt2` and `decoder.pt2`. Such files are programs, which run with your rights: see `trust`."""
    scale: Scale | list[Scale]
    """Factor on latents, or one a channel, which gives them about unit variance."""
    shift: Shift | list[Shift] = 0.0
    """Taken off latents before `scale`."""
    low: float = Field(default=-1.0, ge=-1e6, le=1e6)
    """What it takes and gives for the lowest value of a band, which is -1 in scaled tiles."""
    high: float = Field(default=1.0, ge=-1e6, le=1e6)
    """What it takes and gives for the highest value of a band."""
    moments: Literal["mean", "mean-logvar"] = "mean"
    """What encoding gives: the latent; or mean and log-variance of its posterior, as a pair or one after the other along the
    channels."""
    trust: bool = False
    """Must be true: you know where the files are from, and let the program in them run here. Results do not depend on it."""

    @model_validator(mode="after")
    def _trusted(self) -> Self:
        if not self.trust:
            raise ValueError(
                f"a `torchscript` codec is a program that runs with your rights: set `trust: true` if you know where {self.path} "
                "is from"
            )
        if self.low >= self.high:
            raise ValueError(f"`low` {self.low} is not below `high` {self.high}")
        return self


class KlVae(Settings):
    """An autoencoder of any number of bands with a KL term, trained by this workflow; it starts as the best linear codec of its
    size."""

    kind: Literal["kl-vae"]
    """Selects this codec."""
    trained_on: Name
    """Data set on whose train tiles it is trained."""
    latent_channels: Size = 4
    """Channels of a latent."""
    factor: Literal[1, 2, 4, 8, 16, 32] = 4
    """Side of a tile over side of its latent."""
    width: Size = 128
    """Channels of the convolutions, which are at the latent's resolution."""
    encoder_blocks: Annotated[int, Field(ge=0, le=64)] = 1
    """Residual blocks of the encoder; none for one layer."""
    decoder_blocks: Annotated[int, Field(ge=0, le=64)] = 2
    """Residual blocks of the decoder."""
    steps: Positive = 1000
    """Training steps."""
    batch: Size = 8
    """Crops a step."""
    orientations: Literal[2, 8] = 8
    """Views of a tile that are learnt: itself and its mirror image, or all quarter turns of both."""
    lr: Rate = 2e-3
    """Peak learning rate of AdamW (linear warm-up, cosine decay)."""
    kl_weight: float = Field(default=1e-6, ge=0.0, le=1000.0)
    """Weight of the KL term beside the reconstruction loss."""
    equivariance: Fraction = 0.0
    """Share of the steps on which the latent is turned, or halved by averaging, and decoded to the tile that is changed alike."""
    latent_noise: Fraction = 0.0
    """Share of the steps on which noise of random strength is added to the latent, and decoded to the clean tile."""

    sees_display: ClassVar[bool] = False

    def channels(self, bands: int) -> int:
        """Of the latents of tiles of so many bands."""
        return self.latent_channels

    @model_validator(mode="after")
    def _shares(self) -> "KlVae":
        if self.equivariance + self.latent_noise > 1.0:
            raise ValueError(
                f"`equivariance` {self.equivariance} and `latent_noise` {self.latent_noise} are shares of the steps, no step "
                "is of both: lower one, so that they are 1 together at most"
            )
        return self

    def crop(self, size: int) -> int:
        """Side in pixels of what a step sees of tiles of side `size`; latents of it have whole places."""
        return min(max(CROP // self.factor, 1) * self.factor, size)

    def check_tiles(self, size: int, key: str) -> None:
        """Refuses tiles of side `size` of which no step could learn what is asked for.

        Raises:
            ValueError: it names settings as parts of `key`.
        """
        crop = self.crop(size)
        if self.equivariance and crop // self.factor < LEAST_TURNED:
            raise ValueError(
                f"{key}.equivariance {self.equivariance} needs latents that have orientations: a step sees {crop} pixels, one "
                f"place of a latent at `factor` {self.factor}; lower `factor`, or set `equivariance: 0`"
            )


class InstalledCodec(Installed, Foreign):
    """An autoencoder of an installed package (docs/extending.md), which its `network()` gives."""

    group: ClassVar[extensions.Group] = "codecs"
    scale: Scale | list[Scale] = 1.0
    """Factor on latents, or one a channel, which gives them about unit variance."""
    shift: Shift | list[Shift] = 0.0
    """Taken off latents before `scale`."""

    @property
    def named(self) -> str:
        return self.words

    def network(self) -> Any:
        """An object with `bands`, `has_logvar`, `encode` and `decode`, as `Network` in dithc/latents/codecs/trial.py says."""
        raise NotImplementedError(f"{type(self).__name__} has no `network()`")


BuiltInCodec = Annotated[PixelCodec | SdVae | Diffusers | Torchscript | KlVae, Field(discriminator="kind")]
Codec = Annotated[
    BuiltInCodec | SerializeAsAny[InstalledCodec], taking(InstalledCodec, kinds_of(BuiltInCodec), BuiltInCodec)
]
ExtractorKind = Literal["inception", "torchscript", "squeezenet", "classifier"]


class Extractor(Settings):
    """The network whose features are compared."""

    kind: ExtractorKind
    """`inception` is the one of published FID; `classifier` is trained by this workflow and comparable with nothing. A
    `torchscript` file is a program, which runs with your rights and may read, write and send whatever you may: see `trust`."""
    path: Place | None = None
    """File with the weights (all kinds but `classifier`). Nothing is downloaded."""
    trust: bool = False
    """Must be true for a `torchscript` file: you know where it is from, and let the program in it run here. Results do not depend
    on it."""
    trained_on: Name | None = None
    """Data set on which the `classifier` is trained."""
    resize: Literal["legacy-pytorch", "clean"] = "legacy-pytorch"
    """How pictures are resized for the network: as pytorch-fid does (bilinear), or bicubic and antialiased as clean-fid does,
    which is what a `squeezenet` does where none is named."""
    steps: Positive = 300
    """Training steps of the `classifier`."""
    batch: Size = 32
    """Tiles a training step of the `classifier`."""
    defects: bool = False
    """The `classifier` learns to tell defects of random level too (blocks, blur, noise and others), and its features are of all
    its stages: it sees what a classifier of clean tiles has no need to. Its data set may have one class."""

    @model_validator(mode="before")
    @classmethod
    def _resize_of_kind(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("kind") == "squeezenet":
            return {"resize": "clean"} | given
        return given

    @model_validator(mode="after")
    def _origin(self) -> "Extractor":
        if self.kind == "classifier" and (self.trained_on is None or self.path is not None):
            raise ValueError("a `classifier` extractor needs `trained_on` (a data set) and no `path`")
        if self.kind != "classifier" and (self.path is None or self.trained_on is not None):
            raise ValueError(
                f"a `{self.kind}` extractor needs `path` (its weights on this machine) and no `trained_on`"
            )
        if self.defects and self.kind != "classifier":
            raise ValueError(
                f"`defects` is what a `classifier` learns; a `{self.kind}` extractor is read from its file as it is: leave it out"
            )
        if self.trust != (self.kind == "torchscript"):
            raise ValueError(
                "a `torchscript` extractor is a program that runs with your rights: set `trust: true` if you know where "
                f"{self.path} is from"
                if self.kind == "torchscript"
                else f"`trust` is for `torchscript` files alone; a `{self.kind}` file holds numbers and runs nothing"
            )
        return self


AnyExtractor = Annotated[
    Extractor | SerializeAsAny[InstalledExtractor], taking(InstalledExtractor, get_args(ExtractorKind), Extractor)
]
