"""`dithc search-sampler`: searches the timesteps of an evaluation's sampler of few steps."""

import argparse
from pathlib import Path

from dithc.cli.ranks import ranks
from dithc.cli.sample import add_inputs, job_of
from dithc.log import logger, problem

SUMMARY = (
    "Searches the timesteps at which an evaluation's dpm-solver, unipc, euler or heun, in at most 20 steps, ends nearest to many "
    "steps, on latents that it does not score; what it prints is a setting of the evaluation."
)
EXAMPLE = (
    "dithc search-sampler --config config/experiments/demo.yaml --evaluation sentinel2-after --checkpoint "
    "results/demo/runs/sentinel2/step_0000400.json --latents results/demo/latents/sentinel2/manifest.json "
    "--tiles results/demo/tiles/sentinel2/manifest.json --codec results/demo/codecs/sentinel2-vae/manifest.json "
    "--out results/demo/samples/sentinel2-after/times.json"
)
FEWEST, MOST = 1, 10_000
log = logger("dithc.search-sampler")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    add_inputs(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="sealed JSON of what was found")
    parser.add_argument("--count", type=int, default=16, metavar="N", help="latents searched on (default 16)")
    parser.add_argument("--reference-steps", type=int, default=200, metavar="N", help="of the reference (default 200)")


def run(args: argparse.Namespace) -> int:
    """Searches, writes what was found, and prints the setting."""
    from dithc.config import load
    from dithc.runs import atomic_write
    from dithc.sample import search
    from dithc.sealed import seal

    if not FEWEST <= args.count <= MOST:
        raise problem("--count", got=args.count, expected=f"{FEWEST} to {MOST}", remedy="take 16")
    experiment = load(args.config)
    job = job_of(experiment, args)
    with ranks(experiment, expected=1):
        found = search(job, latents=args.count, reference_steps=args.reference_steps)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(args.out, seal(found))
    unseen = found["unseen"]
    log.info(
        f"difference on other latents: {unseen['before']:.4g} before, {unseen['after']:.4g} with these; {args.out}"
    )
    print(f"times: {found['times']}")
    return 0
