"""`dithc train`: trains a run up to a step and writes its manifest."""

import argparse
from pathlib import Path

from dithc.cli.distributed import add_ranks_argument, ranks
from dithc.cli.stage_context import add_entry_arguments
from dithc.config import stage_spec

SUMMARY = (
    "Pre-trains or fine-tunes a DiT up to a step. A restarted command resumes. Exit status: 0 done, 75 stopped and "
    "saved, 76 another trainer holds the run."
)
EXAMPLE = (
    "dithc train --config config/experiments/demo.yaml --run pretrain --latents "
    "results/demo/latents/landscape/manifest.json --out results/demo/runs/pretrain/step_0000160.json\n"
    "dithc train --config config/experiments/demo.yaml --run sentinel2 --latents "
    "results/demo/latents/sentinel2/manifest.json --init-from results/demo/runs/pretrain/step_0000160.json --out "
    "results/demo/runs/sentinel2/step_0001000.json"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_entry_arguments(parser, "run")
    parser.add_argument("--latents", type=Path, required=True, metavar="MANIFEST", help="latents to train on")
    parser.add_argument("--init-from", type=Path, metavar="MANIFEST", help="manifest of the run to fine-tune")
    parser.add_argument("--store", type=Path, metavar="DIR", help="folder of checkpoints (default: `store`)")
    parser.add_argument(
        "--until-step", type=int, metavar="STEP", help="last step of this job (default: `steps` of the run)"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="MANIFEST", help="manifest to write")
    parser.add_argument("--walltime-minutes", type=float, metavar="M", help="save and stop before this time")
    strategy = "partition of work among ranks (default: `machine.strategy`); not part of the run's digest"
    parser.add_argument("--strategy", choices=("cftp", "dp", "dp+tp"), help=strategy)
    back = "if several of the newest checkpoints are damaged, use the newest intact one or step 0"
    parser.add_argument("--allow-checkpoint-rollback", action="store_true", help=back)
    add_ranks_argument(parser)


def run(args: argparse.Namespace) -> int:
    from dithc.config import load
    from dithc.core.artifacts import outputs
    from dithc.train import Paths, TrainingJob, train

    experiment = load(args.config)
    settings = experiment.entry(experiment.runs, args.run)
    outputs.check_file(args.out, stage="train", name=args.run)
    overrides = {
        "strategy": args.strategy,
        "allow_checkpoint_rollback": args.allow_checkpoint_rollback or None,
    }
    job = TrainingJob(
        name=args.run,
        run=settings,
        machine=experiment.machine.updated(**{key: value for key, value in overrides.items() if value is not None}),
        seed=experiment.seed_of(args.run),
        spec=stage_spec(experiment, "train", args.run),
        paths=Paths(
            latents=args.latents, init=args.init_from, store=args.store or Path(experiment.store), out=args.out
        ),
        until=settings.steps if args.until_step is None else args.until_step,
        walltime_minutes=args.walltime_minutes,
    )
    with ranks(experiment, expected=args.ranks) as group:
        return train(job, group)
