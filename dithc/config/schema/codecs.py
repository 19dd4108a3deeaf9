"""Settings of codecs, which encode tiles as latents and decode them, and of feature extractors.

The settings define `downsampling_factor` (side of a tile over side of its latent) and the `channels` of latents before a file is
read. `sees_display` is true for codecs of images of the three display bands, false for codecs of all bands."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, SerializeAsAny, model_validator

from dithc.config.schema.base import Band, Fraction, Name, Place, Positive, Rate, Settings, Size
from dithc.config.schema.plugins import PluginExtractor as PluginExtractor
from dithc.config.schema.plugins import PluginSettings, kinds_of, plugin_field
from dithc.core import plugins

CROP = 32
"""Side in pixels of the crops for codec training. The cost of a step is independent of the tile size, and more steps
improve the codec more than larger crops."""
MIN_TURNED = 2  # side of the smallest latent with distinct orientations


class PixelCodecConfig(Settings):
    """No codec: the diffusion model works on scaled pixels."""

    kind: Literal["pixel"]
    """Selects this codec."""
    downsampling_factor: ClassVar[int] = 1
    sees_display: ClassVar[bool] = False

    def channels(self, bands: int) -> int:
        """Return the number of latent channels for tiles with this number of bands."""
        return bands


class SdVaeConfig(Settings):
    """The autoencoder of Stable Diffusion from local files, for the three display bands."""

    kind: Literal["sd-vae"]
    """Selects this codec."""
    path: Place
    """Folder in the layout of diffusers: config.json and diffusion_pytorch_model.safetensors."""
    scaling_factor: float = Field(default=0.18215, gt=0.0, le=1000.0)
    """Factor applied to latents."""
    downsampling_factor: ClassVar[int] = 8
    sees_display: ClassVar[bool] = True

    def channels(self, bands: int) -> int:
        return 4


Scale = Annotated[float, Field(ge=1e-6, le=1e6)]
Shift = Annotated[float, Field(ge=-1e6, le=1e6)]
Group = Annotated[list[Band], Field(min_length=1, max_length=64)]  # bands that are encoded together


class ExternalCodecConfig(Settings):
    """An external autoencoder with any number and range of latent channels, tested on tiles of noise before use."""

    path: Place | None = None
    """File or folder of the autoencoder. dithc does not download files."""
    latent_channels: Size
    """Channels of a latent; per group if `bands` are groups."""
    downsampling_factor: Annotated[int, Field(ge=1, le=256)]
    """Side of a tile over side of its latent."""
    bands: Literal["display", "all"] | Annotated[list[Group], Field(min_length=1, max_length=64)] = "display"
    """Input of the autoencoder. display: images of the three display bands, so no other band is learned; all: every
    band of the dataset in its order, scaled to [-1, 1]; or groups such as [[B04, B03, B02], [B08, B11, B12]], scaled in
    the same way. Groups are encoded separately and their latents stacked. A band in several groups is decoded as the
    average. The groups must contain all bands of the dataset."""

    @property
    def named(self) -> str:
        """Name of the autoencoder in messages."""
        return str(self.path)

    @property
    def sees_display(self) -> bool:
        return self.bands == "display"

    @property
    def groups(self) -> int:
        return len(self.bands) if isinstance(self.bands, list) else 1

    def channels(self, bands: int) -> int:
        return self.groups * self.latent_channels

    def check_bands(self, known: list[str], key: str) -> None:
        """Check that the groups contain exactly the bands of a dataset; raises ValueError with keys below `key`."""
        grouped = {band for group in self.bands for band in group} if isinstance(self.bands, list) else set(known)
        if unknown := [band for band in grouped if band not in known]:
            raise ValueError(f"{key}.bands has {', '.join(sorted(unknown))}: the dataset has {', '.join(known)}")
        if missing := [band for band in known if band not in grouped]:
            raise ValueError(
                f"{key}.bands lacks {', '.join(missing)}, which could not be decoded: add each band to a group (a band may be in "
                "several groups), or remove it from the dataset (`source.bands`)"
            )

    def _faults(self) -> Iterator[str]:
        if isinstance(self.bands, list) and len(sizes := {len(group) for group in self.bands}) > 1:
            yield (
                f"`bands` has groups of {' and '.join(map(str, sorted(sizes)))} bands, but the autoencoder has one number of "
                "input bands: repeat a band in the shorter groups; its copies are averaged"
            )
        for name in ("scaling_factor", "shift_factor"):
            factor, fitting = getattr(self, name), {self.latent_channels, self.channels(0)}
            if isinstance(factor, list) and len(factor) not in fitting:
                counts = " or ".join(map(str, sorted(fitting)))
                yield f"`{name}` has {len(factor)} numbers: set one, or {counts}, one per channel"


class DiffusersCodecConfig(ExternalCodecConfig):
    """An image autoencoder in the layout of diffusers: AutoencoderKL, AutoencoderTiny, AutoencoderDC and others."""

    path: Place
    """Folder of the autoencoder. dithc does not download files."""
    kind: Literal["diffusers"]
    """Selects this codec. `path` is a folder with config.json, which names the class, and
    diffusion_pytorch_model.safetensors."""
    scaling_factor: Scale | list[Scale] | None = None
    """Factor applied to latents so that their variance is about 1; one number, or one per channel. If unset, the value
    in config.json (`scaling_factor`, `latents_std`)."""
    shift_factor: Shift | list[Shift] | None = None
    """Number subtracted from latents before `scaling_factor`. If unset, the value in config.json (`shift_factor`, `latents_mean`)
    or 0."""


class TorchScriptCodecConfig(ExternalCodecConfig):
    """An autoencoder as a program: TorchScript, or graphs of torch.export."""

    path: Place
    """File or folder of the autoencoder. dithc does not download files."""
    kind: Literal["torchscript"]
    """Selects this codec. `path` is a TorchScript file with methods `encode` and `decode`, or a folder with
    `encoder.pt` and `decoder.pt`, or `encoder.pt2` and `decoder.pt2`. They are programs that run with your permissions:
    see `trust_code`."""
    scaling_factor: Scale | list[Scale]
    """Factor applied to latents so that their variance is about 1; one number, or one per channel."""
    shift_factor: Shift | list[Shift] = 0.0
    """Number subtracted from latents before `scaling_factor`."""
    low: float = Field(default=-1.0, ge=-1e6, le=1e6)
    """Input and output value of the autoencoder for the lowest value of a band, which is -1 in scaled tiles."""
    high: float = Field(default=1.0, ge=-1e6, le=1e6)
    """Input and output value of the autoencoder for the highest value of a band, which is 1 in scaled tiles."""
    moments: Literal["mean", "mean-logvar"] = "mean"
    """Output of the encoder: the latent; or mean and log-variance, as a pair or concatenated along the channels."""
    trust_code: bool = False
    """Must be true: you know the origin of the files and allow their program to run. No effect on results."""

    def _faults(self) -> Iterator[str]:
        yield from super()._faults()
        if not self.trust_code:
            yield (
                "a `torchscript` codec is a program that runs with your permissions: set `trust_code: true` if you "
                f"know the origin of {self.path}"
            )
        if self.low >= self.high:
            yield f"`low` {self.low} is not below `high` {self.high}"


class KlVaeConfig(Settings):
    """An autoencoder with a KL term for any number of bands, trained here from the best linear codec of its size."""

    kind: Literal["kl-vae"]
    """Selects this codec."""
    train_dataset: Name
    """Dataset that provides the tiles for training (split train)."""
    latent_channels: Size = 4
    """Channels of a latent."""
    downsampling_factor: Literal[1, 2, 4, 8, 16, 32] = 4
    """Side of a tile over side of its latent."""
    hidden_channels: Size = 128
    """Channels of the convolutions, which run at the resolution of the latent."""
    decoder_blocks: Annotated[int, Field(ge=0, le=64)] = 3
    """Residual blocks of the decoder."""
    steps: Positive = 250
    """Training steps."""
    batch_size: Size = 16
    """Crops per step."""
    orientations: Literal[2, 8] = 8
    """Views of a tile in training. 2: the tile and its mirror image; 8: all quarter turns of both."""
    lr: Rate = 1e-2
    """Peak learning rate of Muon and AdamW (linear warm-up, cosine decay). For 1,000 steps and more, 5e-3 is better."""
    equivariance: Fraction = 0.0
    """Share of steps that rotate the latent, or halve it by averaging. The target is the tile with the same change."""
    latent_noise: Fraction = 0.0
    """Share of steps that add noise of random strength to the latent. The target is the clean tile."""

    sees_display: ClassVar[bool] = False

    def channels(self, bands: int) -> int:
        return self.latent_channels

    def _faults(self) -> Iterator[str]:
        if self.equivariance + self.latent_noise > 1.0:
            yield (
                f"`equivariance` {self.equivariance} and `latent_noise` {self.latent_noise} are shares of different steps: "
                "lower one, so that their sum is at most 1"
            )

    def crop(self, size: int) -> int:
        """Return the side in pixels of a training crop of tiles with side `size`, a multiple of `downsampling_factor`."""
        return min(max(CROP // self.downsampling_factor, 1) * self.downsampling_factor, size)

    def check_tiles(self, size: int, key: str) -> None:
        """Check that tiles with side `size` allow `equivariance`; raises ValueError with keys below `key`."""
        crop = self.crop(size)
        if self.equivariance and crop // self.downsampling_factor < MIN_TURNED:
            raise ValueError(
                f"{key}.equivariance {self.equivariance} requires latents of at least {MIN_TURNED} x {MIN_TURNED}: a crop "
                f"of {crop} pixels has one latent pixel at `downsampling_factor` {self.downsampling_factor}; lower "
                "`downsampling_factor`, or set `equivariance: 0`"
            )


class PluginCodec(PluginSettings, ExternalCodecConfig):
    """An autoencoder of an installed package (docs/extending.md), returned by its `network()`."""

    group: ClassVar[plugins.Group] = "codecs"
    scaling_factor: Scale | list[Scale] = 1.0
    """Factor applied to latents so that their variance is about 1; one number, or one per channel."""
    shift_factor: Shift | list[Shift] = 0.0
    """Number subtracted from latents before `scaling_factor`."""

    @property
    def named(self) -> str:
        return self.words

    def network(self) -> Any:
        """Return an object with the interface of `Network` in dithc/latents/codecs/external.py."""
        raise NotImplementedError(f"{type(self).__name__} has no `network()`")


BuiltInCodec = Annotated[
    PixelCodecConfig | SdVaeConfig | DiffusersCodecConfig | TorchScriptCodecConfig | KlVaeConfig,
    Field(discriminator="kind"),
]
Codec = Annotated[
    BuiltInCodec | SerializeAsAny[PluginCodec], plugin_field(PluginCodec, kinds_of(BuiltInCodec), BuiltInCodec)
]
ExtractorKind = Literal["inception", "torchscript", "squeezenet", "classifier"]


class ExtractorConfig(Settings):
    """The network that computes the features for scores."""

    kind: ExtractorKind
    """inception: the network of published FID; squeezenet: a smaller network with published weights; classifier:
    trained by this workflow, with scores that are comparable only within one experiment; torchscript: a program that
    runs with your permissions, see `trust_code`."""
    path: Place | None = None
    """File with the weights (all kinds except `classifier`). dithc does not download files."""
    trust_code: bool = False
    """Must be true for a `torchscript` file: you know its origin and allow its program to run. No effect on results."""
    train_dataset: Name | None = None
    """Dataset for training the `classifier`."""
    resize: Literal["legacy-pytorch", "clean"] = "legacy-pytorch"
    """Resizing of images for the network. legacy-pytorch: bilinear, as in pytorch-fid; clean: bicubic with
    antialiasing, as in clean-fid, which is the default of `squeezenet`."""
    steps: Positive = 300
    """Training steps of the `classifier`."""
    batch: Size = 32
    """Tiles per training step of the `classifier`."""
    train_on_defects: bool = False
    """Also train the `classifier` to detect defects of random strength (blocks, blur, noise and others), and use
    features of all its stages. Its features then react to defects that others ignore. Its dataset may have one
    class."""

    @model_validator(mode="before")
    @classmethod
    def _resize_of_kind(cls, settings: Any) -> Any:
        if isinstance(settings, dict) and settings.get("kind") == "squeezenet":
            return {"resize": "clean"} | settings
        return settings

    def _faults(self) -> Iterator[str]:
        if self.kind == "classifier" and (self.train_dataset is None or self.path is not None):
            yield "a `classifier` extractor requires `train_dataset` (a dataset) and no `path`"
        if self.kind != "classifier" and (self.path is None or self.train_dataset is not None):
            yield f"a `{self.kind}` extractor requires `path` (its weights) and no `train_dataset`"
        if self.train_on_defects and self.kind != "classifier":
            yield f"`train_on_defects` applies to `classifier` extractors, not to `{self.kind}`: leave it out"
        if self.trust_code != (self.kind == "torchscript"):
            yield (
                "a `torchscript` extractor is a program that runs with your permissions: set `trust_code: true` if you know the "
                f"origin of {self.path}"
                if self.kind == "torchscript"
                else f"`trust_code` applies to `torchscript` files only; a `{self.kind}` file contains numbers and no program"
            )


AnyExtractor = Annotated[
    ExtractorConfig | SerializeAsAny[PluginExtractor],
    plugin_field(PluginExtractor, get_args(ExtractorKind), ExtractorConfig),
]
