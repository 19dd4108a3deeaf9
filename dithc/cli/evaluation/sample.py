"""`dithc sample`: generates the images of an evaluation."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from dithc.cli.distributed import add_ranks_argument, leased, ranks
from dithc.cli.stage_context import add_entry_arguments, add_out
from dithc.config import stage_spec
from dithc.core.logging import user_error
from dithc.core.processes import HELD, STOPPED

if TYPE_CHECKING:
    from dithc.config import ExperimentConfig
    from dithc.sample import SamplingJob

SUMMARY = (
    "Generates the images of an evaluation from a run's checkpoint. A rerun generates the missing images. Exit status: "
    "0 done, 75 stopped before the end of the walltime, 76 another process generates them."
)
EXAMPLE = (
    "dithc sample --config config/experiments/demo.yaml --evaluation sentinel2-after --checkpoint "
    "results/demo/runs/sentinel2/step_0001000.json --latents results/demo/latents/sentinel2/manifest.json --tiles "
    "results/demo/tiles/sentinel2/manifest.json --codec results/demo/codecs/sentinel2-vae/manifest.json --out "
    "results/demo/samples/sentinel2-after/manifest.json"
)
MAX_RANKS = 1 << 14
# Ranks do not communicate while they generate their shards; at the end they wait for the last rank. A rank may have one
# shard more than another: 64 images of any size and number of steps, so hours of work. A rank that fails ends the other
# ranks immediately, without this limit.
TIMEOUT_SECONDS = 7 * 24 * 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_inputs(parser)
    add_out(parser, "the shards are written")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to this file")
    parser.add_argument(
        "--show-plan",
        nargs="?",
        const="",
        metavar="RANKS",
        help="generate no images: measure rates and print the predicted seconds of every partition of this sampling "
        "run among the present ranks, or among RANKS (`4` on one node, `64x4` on 64 nodes, with the network "
        "described in DITHC_MACHINE_FILE), and the reasons against the remaining partitions",
    )
    add_ranks_argument(parser)


def run(args: argparse.Namespace) -> int:
    from dithc.config import load
    from dithc.core.artifacts import outputs
    from dithc.sample import degrees_table, sample

    layout = _layout(args.show_plan) if args.show_plan else None
    experiment = load(args.config)
    job = job_of(experiment, args)
    if args.show_plan is not None:
        with ranks(experiment, expected=args.ranks) as group:
            table = degrees_table(job, group, layout=layout)
            if group.rank == 0:
                print(table)
        return 0
    with (
        ranks(experiment, expected=args.ranks, timeout_seconds=TIMEOUT_SECONDS) as group,
        leased(group, args.out.parent) as is_acquired,
    ):
        if not is_acquired:
            return HELD
        numbers = sample(job, group)
        if numbers is None:
            return STOPPED
        if args.json is not None and group.rank == 0:
            outputs.write(args.json, json.dumps(numbers, indent=1) + "\n")
    return 0


def _layout(text: str) -> tuple[int, int]:
    """Parse `64x4` as (nodes, ranks per node), or `4` as ranks on one node; UserError for another form."""
    parts = text.split("x")
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() and 0 < int(part) <= MAX_RANKS for part in parts):
        expected = f"ranks such as 4, or nodes x ranks such as 64x4, at most {MAX_RANKS} of each"
        raise user_error("--show-plan", got=repr(text), expected=expected, fix="correct --show-plan")
    return (1, int(parts[0])) if len(parts) == 1 else (int(parts[0]), int(parts[1]))


def add_inputs(parser: argparse.ArgumentParser) -> None:
    add_entry_arguments(parser, "evaluation")
    parser.add_argument("--checkpoint", type=Path, nargs="?", metavar="MANIFEST", help="manifest of the run")
    parser.add_argument("--latents", type=Path, nargs="?", metavar="MANIFEST", help="latents of its training")
    parser.add_argument("--tiles", type=Path, required=True, metavar="MANIFEST", help="tiles of its dataset")
    parser.add_argument("--codec", type=Path, nargs="?", metavar="MANIFEST", help="codec, if dithc trained it")


def job_of(experiment: "ExperimentConfig", args: argparse.Namespace) -> "SamplingJob":
    """Build the sampling job of an evaluation; UserError if a required input is missing, or an input is unused."""
    from dithc.sample import SamplingJob

    evaluation = experiment.entry(experiment.evaluations, args.evaluation)
    dataset = experiment.datasets[experiment.runs[evaluation.run].dataset]
    settings = experiment.codecs[dataset.codec]
    has_network = evaluation.checkpoint != "codec"
    for option, path, is_needed in (
        ("--codec", args.codec, settings.kind == "kl-vae"),
        ("--checkpoint", args.checkpoint, has_network),
        ("--latents", args.latents, has_network),
    ):
        if (path is not None) != is_needed:
            context = f"codec {dataset.codec}, kind {settings.kind}, evaluated at {evaluation.checkpoint}"
            expected, fix = ("a manifest", f"pass {option}") if is_needed else (f"no {option}", f"remove {option}")
            raise user_error(option, got=path, expected=f"{expected} ({context})", fix=fix)
    return SamplingJob(
        name=args.evaluation,
        evaluation=evaluation,
        spec=stage_spec(experiment, "sample", args.evaluation),
        checkpoint=args.checkpoint,
        latents=args.latents,
        tiles=args.tiles,
        codec_settings=settings,
        codec=args.codec,
        out=args.out,
        degrees=experiment.machine.sampling.given,
    )
