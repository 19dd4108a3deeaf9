"""`dithc restore`: restores pixels and bands of scenes from a trained prior."""

import argparse
from pathlib import Path

from dithc.cli.distributed import add_ranks_argument, leased, ranks
from dithc.cli.stage_context import add_entry_arguments, add_out
from dithc.config import stage_spec
from dithc.core.processes import HELD, STOPPED

SUMMARY = (
    "Restores clouded, coarse or missing pixels of scenes from a trained prior, with an uncertainty. A rerun computes the "
    "missing parts. Exit status: 0 done, 75 stopped before the end of the walltime, 76 another process restores them."
)
EXAMPLE = (
    "dithc restore --config config/experiments/restore-demo.yaml --restoration gaps --checkpoint "
    "results/restore-demo/runs/prior/step_0000400.json --tiles results/restore-demo/tiles/sentinel2/manifest.json "
    "--training results/restore-demo/scenes/sentinel2/manifest.json --scenes "
    "results/restore-demo/scenes/clouded/manifest.json --out results/restore-demo/restorations/gaps/manifest.json"
)
# Ranks do not communicate while they sample their blocks; see `dithc sample`.
TIMEOUT_SECONDS = 7 * 24 * 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_entry_arguments(parser, "restoration")
    for option, text in (
        ("checkpoint", "manifest of the run"),
        ("tiles", "tiles of its dataset"),
        ("training", "scenes of these tiles"),
        ("scenes", "scenes to restore"),
    ):
        parser.add_argument(f"--{option}", type=Path, required=True, metavar="MANIFEST", help=text)
    parser.add_argument("--codec", type=Path, nargs="?", metavar="MANIFEST", help="codec, if dithc trained it")
    masks = "scenes with gaps that hide pixels, for `hide.dataset`"
    parser.add_argument("--masks", type=Path, nargs="?", metavar="MANIFEST", help=masks)
    add_out(parser, "a folder of images per scene is written")
    add_ranks_argument(parser)


def run(args: argparse.Namespace) -> int:
    from dithc.cli.evaluation.restoration_scores import score
    from dithc.config import load
    from dithc.core.logging import user_error
    from dithc.sample.restoration import RestorationJob, restore

    experiment = load(args.config)
    settings = experiment.entry(experiment.restorations, args.restoration)
    is_needed = settings.hide is not None and settings.hide.dataset is not None
    if is_needed != (args.masks is not None):
        expected = (
            "the manifest of the scenes of `hide.dataset`" if is_needed else "no manifest, without `hide.dataset`"
        )
        raise user_error("--masks", got=args.masks, expected=expected, fix="correct --masks")
    codec_settings = experiment.codecs[experiment.datasets[experiment.runs[settings.run].dataset].codec]
    if (args.codec is not None) != (is_needed := codec_settings.kind == "kl-vae"):
        expected = (
            "the manifest of the codec" if is_needed else f"no manifest, for a codec of kind {codec_settings.kind}"
        )
        raise user_error("--codec", got=args.codec, expected=expected, fix="correct --codec")
    job = RestorationJob(
        name=args.restoration,
        settings=settings,
        spec=stage_spec(experiment, "restore", args.restoration),
        checkpoint=args.checkpoint,
        tiles=args.tiles,
        training=args.training,
        scenes=args.scenes,
        masks=args.masks,
        codec_settings=codec_settings,
        codec=args.codec,
        out=args.out,
    )
    with (
        ranks(experiment, expected=args.ranks, timeout_seconds=TIMEOUT_SECONDS) as group,
        leased(group, args.out.parent) as is_acquired,
    ):
        if not is_acquired:
            return HELD
        return STOPPED if restore(job, group, score=score) is None else 0
