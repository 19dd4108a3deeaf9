"""`dithc search-sampler`: searches the best settings of an evaluation's few-step sampler."""

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
    "Searches the timesteps with which an evaluation's dpm-solver, unipc, euler or heun sampler, in at most 20 steps, "
    "comes closest to a many-step result, on latents that it does not score. With --epsilon-scaling, searches that "
    "factor by KID from train tiles, on images that it does not score. Prints a setting of the evaluation."
)
EXAMPLE = (
    "dithc search-sampler --config config/experiments/demo.yaml --evaluation sentinel2-after --checkpoint "
    "results/demo/runs/sentinel2/step_0000400.json --latents results/demo/latents/sentinel2/manifest.json --tiles "
    "results/demo/tiles/sentinel2/manifest.json --codec results/demo/codecs/sentinel2-vae/manifest.json --out "
    "results/demo/samples/sentinel2-after/times.json"
)
FEWEST, MOST = 1, 10_000
LATENTS, IMAGES, MIN_IMAGES, MAX_REAL = 16, 256, 16, 1000
BATCH = 64
log = get_logger("dithc.search-sampler")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_inputs(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="checksummed JSON file of the result")
    count = f"latents (default {LATENTS}) or images (default {IMAGES}) of the search; as many for validation"
    parser.add_argument("--num-samples", type=int, metavar="N", help=count)
    parser.add_argument("--reference-steps", type=int, default=200, metavar="N", help="reference steps (default 200)")
    parser.add_argument("--epsilon-scaling", action="store_true", help="search `epsilon_scaling`, not the timesteps")
    trained = "extractor of --epsilon-scaling, if trained by dithc"
    parser.add_argument("--extractor-manifest", type=Path, nargs="?", metavar="MANIFEST", help=trained)


def run(args: argparse.Namespace) -> int:
    """Search, write the result, and print the setting."""
    from dithc.config import load
    from dithc.core.artifacts import outputs
    from dithc.core.integrity import dump_checksummed
    from dithc.sample import search_epsilon_scaling, search_timesteps

    fewest, usual = (MIN_IMAGES, IMAGES) if args.epsilon_scaling else (FEWEST, LATENTS)
    count = usual if args.num_samples is None else args.num_samples
    if not fewest <= count <= MOST:
        raise user_error("--num-samples", got=count, expected=f"{fewest} to {MOST}", fix=f"pass --num-samples {usual}")
    experiment = load(args.config)
    job = job_of(experiment, args)
    with ranks(experiment, expected=1):
        if args.epsilon_scaling:
            result = search_epsilon_scaling(job, score=_kid_from_training(experiment, args), images=count)
        else:
            result = search_timesteps(job, latents=count, reference_steps=args.reference_steps)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    outputs.write(args.out, dump_checksummed(result))
    scores, measure = result["unseen"], "KID of other images" if args.epsilon_scaling else "difference on other latents"
    log.info(f"{measure}: {scores['before']:.4g} before, {scores['after']:.4g} after the search; {args.out}")
    setting = "epsilon_scaling" if args.epsilon_scaling else "timesteps"
    print(f"{setting}: {result[setting]}")
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
        got, fix = f"{len(rows)} in the split train", "search the timesteps instead, or stage more scenes"
        raise user_error("train tiles to compare with", got=got, expected=f"{MIN_IMAGES} or more", fix=fix)
    log.info(f"computing features of {len(rows)} train tiles")
    real = features(tiles.rgb(np.sort(rows)))
    return lambda images: kid([real], [features(images)], seed=experiment.seed).value
