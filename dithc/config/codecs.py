"""Settings of codecs, which turn tiles into latents and back, and of feature extractors."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from dithc.config.base import Fraction, Name, Place, Positive, Rate, Settings, Size

CROP = 32
"""Side in pixels of what a codec's training step sees: the cost of a step does not grow with the tile, and more steps gain more
than larger crops."""
LEAST_TURNED = 2  # side of the smallest latent that has orientations


class PixelCodec(Settings):
    """No codec: the diffusion model works on scaled pixels."""

    kind: Literal["pixel"]
    """Selects this codec."""


class SdVae(Settings):
    """Stable Diffusion's autoencoder from local files; sees the three display bands only."""

    kind: Literal["sd-vae"]
    """Selects this codec."""
    path: Place
    """Folder in diffusers' layout: config.json and diffusion_pytorch_model.safetensors. Nothing is downloaded."""
    scale: float = Field(default=0.18215, gt=0.0, le=1000.0)
    """Factor on latents."""


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


Codec = Annotated[PixelCodec | SdVae | KlVae, Field(discriminator="kind")]


class Extractor(Settings):
    """The network whose features are compared."""

    kind: Literal["inception", "torchscript", "squeezenet", "classifier"]
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
