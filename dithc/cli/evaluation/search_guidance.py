"""`dithc search-guidance`: searches the guidance scale of an evaluation."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dithc.cli.distributed import ranks
from dithc.cli.evaluation.sample import add_inputs, job_of
from dithc.core.logging import get_logger, user_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SUMMARY = (
    "Searches the `guidance_scale` of an evaluation by the detectability of images that it does not score, relative to train "
    "tiles. Prints the setting."
)
EXAMPLE = (
    "dithc search-guidance --config config/experiments/demo.yaml --evaluation sentinel2-after --checkpoint "
    "results/demo/runs/sentinel2/step_0001000.json --latents results/demo/latents/sentinel2/manifest.json --tiles "
    "results/demo/tiles/sentinel2/manifest.json --codec results/demo/codecs/sentinel2-vae/manifest.json --out "
    "results/demo/samples/sentinel2-after/guidance.json"
)
IMAGES, MIN_IMAGES, MAX_IMAGES, MAX_REAL = 256, 16, 10_000, 1000
log = get_logger("dithc.search-guidance")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_inputs(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="checksummed JSON file of the result")
    count = f"images of the search ({MIN_IMAGES} or more, default {IMAGES}); as many for validation"
    parser.add_argument("--num-samples", type=int, default=IMAGES, metavar="N", help=count)


def run(args: argparse.Namespace) -> int:
    """Search, write the result, and print the setting."""
    from dithc.config import load
    from dithc.core.artifacts import outputs
    from dithc.core.integrity import dump_checksummed
    from dithc.sample import search_guidance_scale

    count = args.num_samples
    if not MIN_IMAGES <= count <= MAX_IMAGES:
        expected, fix = f"{MIN_IMAGES} to {MAX_IMAGES}", f"pass --num-samples {IMAGES}"
        raise user_error("--num-samples", got=count, expected=expected, fix=fix)
    experiment = load(args.config)
    job = job_of(experiment, args)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with ranks(experiment, expected=1):
        result = search_guidance_scale(job, score=_detectability(args.tiles, seed=experiment.seed), images=count)
    outputs.write(args.out, dump_checksummed(result))
    scores = result["unseen"]
    log.info(f"AUC of other images: {scores['before']:.3f} without, {scores['after']:.3f} with guidance; {args.out}")
    print(f"guidance_scale: {result['guidance_scale']}")
    return 0


def _detectability(manifest: Path, *, seed: int) -> "Callable[[NDArray[np.uint8]], float]":
    """Return a function for the mean AUC of uint8 images (N, 3, H, W) and up to 1,000 train tiles over all scales."""
    import numpy as np

    from dithc.data import Tiles
    from dithc.evaluate import detectability

    tiles = Tiles(manifest.parent)
    rows = np.random.default_rng(seed).permutation(tiles.rows("train"))[:MAX_REAL]
    if len(rows) < MIN_IMAGES:
        got, fix = f"{len(rows)} in the split train", "prepare more scenes"
        raise user_error("train tiles to compare with", got=got, expected=f"{MIN_IMAGES} or more", fix=fix)
    real = detectability.describe(tiles.rgb(np.sort(rows)))

    def score(images: "NDArray[np.uint8]") -> float:
        scales = detectability.compare(detectability.describe(images), real, bands=images.shape[1], seed=seed)
        assert scales
        return float(np.mean([found["auc"] for found in scales.values()]))

    return score
