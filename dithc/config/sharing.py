"""Settings of parallel sampling."""

from typing import Literal

from dithc.config.base import Positive, Settings

Degree = Literal["auto"] | Positive


class Sampling(Settings):
    """Parallelism of a sampling run; it affects the time, not the images. auto selects the fastest combination for the
    remaining images, predicted from rates measured at the start (`dithc sample --degrees` lists them)."""

    data_parallel_degree: Degree = "auto"
    """Ranks that divide the images of a shard (64). They communicate only after these images are finished."""
    cfg_parallel: Literal["auto"] | bool = "auto"
    """Compute the two branches of guidance on two ranks, or two sets of ranks."""
    shared_degree: Degree = "auto"
    """Ranks of a node that divide the tokens of an image, with keys and values in shared memory. Bit-identical to one
    rank."""
    ulysses_degree: Degree = "auto"
    """Ranks that divide the tokens of an image by messages; each rank has all tokens for some heads. Must divide the
    number of heads. Bit-identical to one rank."""
    ring_degree: Degree = "auto"
    """Ranks, or sets of `ulysses_degree` ranks, that pass keys and values in a ring. Results differ from one rank in
    the seventh digit, because sums are rounded differently. auto selects a ring only if it saves more than 10% of the
    time."""
    windows_degree: Degree = "auto"
    """Ranks that divide the windows of a scene in each step. Bit-identical to one rank."""
    parallel_vae: Literal["auto"] | bool = False
    """Decode an image on all ranks that sample it, each with some of its rows. Results differ from one rank in the
    seventh digit, and a rank needs less memory. false: each image is decoded on one rank, with identical bits. auto:
    each rank decodes the same number of images, and the remaining images are decoded by all ranks. For the codecs
    kl-vae, sd-vae and diffusers (AutoencoderKL); other codecs always decode each image on one rank."""

    @property
    def given(self) -> dict[str, int]:
        """Degrees other than auto, by the names of `dithc.parallel.Degrees`."""
        named = {
            "data": self.data_parallel_degree,
            "cfg": self.cfg_parallel if self.cfg_parallel == "auto" else 1 + self.cfg_parallel,
            "shared": self.shared_degree,
            "ulysses": self.ulysses_degree,
            "ring": self.ring_degree,
            "windows": self.windows_degree,
        }
        return {name: degree for name, degree in named.items() if degree != "auto"}

    def _check_consistency(self) -> None:
        messages = {self.ulysses_degree, self.ring_degree} - {"auto", 1}
        if self.shared_degree not in ("auto", 1) and messages:
            raise ValueError(
                "machine.sampling divides tokens in shared memory (shared_degree) or by messages (ulysses_degree, ring_degree): "
                "leave one of both out"
            )
