"""How ranks share a sampling."""

from typing import Literal, Self

from pydantic import model_validator

from dithc.config.base import Positive, Settings

Degree = Literal["auto"] | Positive


class Sampling(Settings):
    """How ranks share a sampling: decides its time, never its images. auto: what is done first, by seconds that are
    predicted from rates measured at the start, for all that is left to be made (`dithc sample --degrees` shows them)."""

    data_parallel_degree: Degree = "auto"
    """Ranks that share the images of a shard (64 of them); they exchange nothing until these are made."""
    cfg_parallel: Literal["auto"] | bool = "auto"
    """Whether the two branches of guidance are made by two ranks, or two sets of ranks."""
    shared_degree: Degree = "auto"
    """Ranks of a node that share the tokens of an image, by keys and values in memory that all see. The same bits as one rank."""
    ulysses_degree: Degree = "auto"
    """Ranks that share them by messages, each with all tokens for some heads; divides the heads. The same bits."""
    ring_degree: Degree = "auto"
    """Ranks, or sets of `ulysses_degree` ranks, that pass keys and values on. Sums are rounded otherwise than on one rank, in
    the seventh digit; auto takes it only where it saves more than a tenth of the time."""
    windows_degree: Degree = "auto"
    """Ranks that share the windows of a scene, at each step. The same bits."""
    parallel_vae: Literal["auto"] | bool = False
    """Whether ranks that make an image together also decode it together, each some of its rows: sums are rounded otherwise than
    on one rank, in the seventh digit, and a rank needs less memory. false: whole images are dealt to them, with the same bits.
    auto: those that are left when each has had as many whole ones are decoded together. Codecs kl-vae, sd-vae, and diffusers of
    the same structure (AutoencoderKL); of others whole images are dealt."""

    @property
    def given(self) -> dict[str, int]:
        """The degrees that are not auto, by the names of `dithc.parallel.Degrees`."""
        named = {
            "data": self.data_parallel_degree,
            "cfg": self.cfg_parallel if self.cfg_parallel == "auto" else 1 + self.cfg_parallel,
            "shared": self.shared_degree,
            "ulysses": self.ulysses_degree,
            "ring": self.ring_degree,
            "windows": self.windows_degree,
        }
        return {name: degree for name, degree in named.items() if degree != "auto"}

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        messages = {self.ulysses_degree, self.ring_degree} - {"auto", 1}
        if self.shared_degree not in ("auto", 1) and messages:
            raise ValueError(
                "machine.sampling shares tokens in memory (shared_degree) or by messages (ulysses_degree, ring_degree): "
                "leave one of both out"
            )
        return self
