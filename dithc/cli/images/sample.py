"""`dithc sample`: generates the images of an evaluation."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from dithc.cli.making import add_of
from dithc.cli.ranks import HELD, add_ranks_argument, leased, ranks
from dithc.log import problem

if TYPE_CHECKING:
    from dithc.config import Experiment
    from dithc.sample import Job

SUMMARY = (
    "Generates the images of an evaluation from a run's checkpoint; started again, it makes what is missing. Status: 0 done, "
    "75 stopped before the end of the walltime, 76 another process makes them."
)
EXAMPLE = (
    "dithc sample --config config/experiments/demo.yaml --evaluation sentinel2-after --checkpoint "
    "results/demo/runs/sentinel2/step_0000400.json --latents results/demo/latents/sentinel2/manifest.json --tiles "
    "results/demo/tiles/sentinel2/manifest.json --codec results/demo/codecs/sentinel2-vae/manifest.json --out "
    "results/demo/samples/sentinel2-after/manifest.json"
)
MOST_RANKS = 1 << 14
STOPPED = 75  # stopped before the end of the walltime: run me again
# Ranks do not speak while they make their shards and wait for the last at the end. One may have a shard more than another, 64
# images of any size and number of steps: hours of work. A rank that fails ends the others at once, without this limit.
TIMEOUT_SECONDS = 7 * 24 * 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the verb's arguments."""
    add_inputs(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="MANIFEST", help="manifest; shards go beside it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers here")
    parser.add_argument(
        "--degrees",
        nargs="?",
        const="",
        metavar="RANKS",
        help="sample nothing: measure rates, print the predicted seconds of every way to cut this sampling among the ranks "
        "that are here, or among others (`4` of a node, `64x4` of 64 nodes: links of the description in DITHC_MACHINE), and "
        "why others do not go",
    )
    add_ranks_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Samples."""
    from dithc.config import load
    from dithc.runs import outputs
    from dithc.sample import degrees_table, sample

    layout = _layout(args.degrees) if args.degrees else None
    experiment = load(args.config)
    job = job_of(experiment, args)
    if args.degrees is not None:
        with ranks(experiment, expected=args.ranks) as group:
            table = degrees_table(job, group, layout=layout)
            if group.rank == 0:
                print(table)
        return 0
    with (
        ranks(experiment, expected=args.ranks, timeout_seconds=TIMEOUT_SECONDS) as group,
        leased(group, args.out.parent) as is_ours,
    ):
        if not is_ours:
            return HELD
        numbers = sample(job, group)
        if numbers is None:
            return STOPPED
        if args.json is not None and group.rank == 0:
            outputs.write(args.json, json.dumps(numbers, indent=1) + "\n")
    return 0


def _layout(text: str) -> tuple[int, int]:
    """(nodes, ranks of each) of `64x4`, or of `4` on one node.

    Raises:
        UserError: it is neither.
    """
    parts = text.split("x")
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() and 0 < int(part) <= MOST_RANKS for part in parts):
        raise problem(
            "--degrees",
            got=repr(text),
            expected=f"ranks such as 4, or nodes x ranks such as 64x4, at most {MOST_RANKS} of each",
            fix="correct --degrees",
        )
    return (1, int(parts[0])) if len(parts) == 1 else (int(parts[0]), int(parts[1]))


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Declares what images are made from."""
    add_of(parser, "evaluation")
    parser.add_argument("--checkpoint", type=Path, nargs="?", metavar="MANIFEST", help="manifest of the run")
    parser.add_argument("--latents", type=Path, nargs="?", metavar="MANIFEST", help="latents it was trained on")
    parser.add_argument("--tiles", type=Path, required=True, metavar="MANIFEST", help="tiles of its data set")
    parser.add_argument(
        "--codec", type=Path, nargs="?", metavar="MANIFEST", help="codec, where it was trained here; else nothing"
    )


def job_of(experiment: "Experiment", args: argparse.Namespace) -> "Job":
    """The sampling of an evaluation.

    Raises:
        UserError: an input that it has no use for, or that is not given.
    """
    from dithc.config import named
    from dithc.runs import Manifest
    from dithc.sample import Job

    evaluation = named(experiment.evaluations, args.evaluation, key="evaluations")
    dataset = experiment.datasets[experiment.runs[evaluation.run].dataset]
    settings = experiment.codecs[dataset.codec]
    if (args.codec is None) == (settings.kind == "kl-vae"):
        raise problem(
            "--codec",
            got=args.codec,
            expected=f"the manifest of codec {dataset.codec}" if settings.kind == "kl-vae" else "nothing",
            fix="pass --codec for a codec that this workflow trains (kl-vae), and only for one",
        )
    for option, given in (("--checkpoint", args.checkpoint), ("--latents", args.latents)):
        if (given is None) != (evaluation.at == "codec"):
            raise problem(
                option,
                got=given,
                expected="nothing: the codec is judged alone" if evaluation.at == "codec" else "a manifest",
                fix=f"leave out {option}" if evaluation.at == "codec" else f"pass {option}",
            )
    return Job(
        name=args.evaluation,
        evaluation=evaluation,
        spec=Manifest.spec_of(experiment, "sample", args.evaluation),
        checkpoint=args.checkpoint,
        latents=args.latents,
        tiles=args.tiles,
        codec_settings=settings,
        codec=args.codec,
        out=args.out,
        snapshots=tuple(experiment.snapshots_of(evaluation)),
        degrees=experiment.machine.sampling.given,
        parallel_vae=experiment.machine.sampling.parallel_vae,
    )
