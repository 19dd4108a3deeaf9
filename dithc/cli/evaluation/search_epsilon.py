"""`dithc search-epsilon`: searches the epsilon scaling of an evaluation."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dithc.cli.distributed import ranks
from dithc.cli.evaluation.sample import add_inputs, job_of
from dithc.core.logging import get_logger, user_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from dithc.config import ExperimentConfig

SUMMARY = (
    "Searches the `epsilon_scaling` of an evaluation by KID from train tiles, on images that it does not score. Prints the "
    "setting."
)
EXAMPLE = (
    "dithc search-epsilon --config config/experiments/demo.yaml --evaluation sentinel2-after --checkpoint "
    "results/demo/runs/sentinel2/step_0001000.json --latents results/demo/latents/sentinel2/manifest.json --tiles "
    "results/demo/tiles/sentinel2/manifest.json --codec results/demo/codecs/sentinel2-vae/manifest.json "
    "--extractor-manifest results/demo/extractors/landscape-classifier/manifest.json --out "
    "results/demo/samples/sentinel2-after/epsilon.json"
)
IMAGES, MIN_IMAGES, MAX_IMAGES, MAX_REAL = 256, 16, 10_000, 1000
BATCH = 64
log = get_logger("dithc.search-epsilon")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_inputs(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="checksummed JSON file of the result")
    count = f"images of the search (default {IMAGES}); as many for validation"
    parser.add_argument("--num-samples", type=int, default=IMAGES, metavar="N", help=count)
    trained = "extractor, if trained by dithc"
    parser.add_argument("--extractor-manifest", type=Path, nargs="?", metavar="MANIFEST", help=trained)


def run(args: argparse.Namespace) -> int:
    """Search, write the result, and print the setting."""
    from dithc.config import load
    from dithc.core.artifacts import outputs
    from dithc.core.integrity import dump_checksummed
    from dithc.sample import search_epsilon_scaling

    count = args.num_samples
    if not MIN_IMAGES <= count <= MAX_IMAGES:
        expected, fix = f"{MIN_IMAGES} to {MAX_IMAGES}", f"pass --num-samples {IMAGES}"
        raise user_error("--num-samples", got=count, expected=expected, fix=fix)
    experiment = load(args.config)
    job = job_of(experiment, args)
    with ranks(experiment, expected=1):
        result = search_epsilon_scaling(job, score=_kid_from_training(experiment, args), images=count)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    outputs.write(args.out, dump_checksummed(result))
    scores = result["unseen"]
    log.info(f"KID of other images: {scores['before']:.4g} before, {scores['after']:.4g} after the search; {args.out}")
    print(f"epsilon_scaling: {result['epsilon_scaling']}")
    return 0


def _kid_from_training(
    experiment: "ExperimentConfig", args: argparse.Namespace
) -> "Callable[[NDArray[np.uint8]], float]":
    """Return a function for the KID of uint8 images (N, 3, H, W) from up to 1,000 train tiles."""
    import numpy as np

    from dithc.cli.evaluation.features import open_extractor
    from dithc.data import Tiles
    from dithc.evaluate import kid

    extractor = open_extractor(experiment, experiment.evaluations[args.evaluation].extractor, args.extractor_manifest)

    def features(images: Any) -> "NDArray[np.float32]":
        return np.concatenate([extractor(images[first : first + BATCH]) for first in range(0, len(images), BATCH)])

    tiles = Tiles(args.tiles.parent)
    rows = np.random.default_rng(experiment.seed).permutation(tiles.rows("train"))[:MAX_REAL]
    if len(rows) < MIN_IMAGES:
        got, fix = f"{len(rows)} in the split train", "prepare more scenes"
        raise user_error("train tiles to compare with", got=got, expected=f"{MIN_IMAGES} or more", fix=fix)
    log.info(f"computing features of {len(rows)} train tiles")
    real = features(tiles.rgb(np.sort(rows)))
    return lambda images: kid([real], [features(images)], seed=experiment.seed).value
