"""`dithc bench training`: one rank of a training run on random latents, started by other measurements."""

import argparse
from pathlib import Path

from dithc.cli.bench.arguments import Benchmark, add_choice, add_dtype, add_model, add_option, settings_of
from dithc.core.units import GIB


def _add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_dtype(parser)
    add_choice(parser, "--strategy", ("cftp", "dp", "dp+tp"))
    add_choice(parser, "--gradients", ("overlapped", "ddp"))
    collectives = "sums over ranks, as in section machine"
    add_choice(parser, "--collectives", ("hierarchical", "iallreduce", "blocking"), collectives)
    add_choice(parser, "--sharding", ("none", "node", "zero1", "zero2"))
    operators = "default: those of a training run; torch: PyTorch's; products: the same, except matrix products"
    add_choice(parser, "--operators", ("default", "products", "torch"), operators)
    add_choice(parser, "--recompute", ("none", "block"))
    add_choice(parser, "--automem", ("auto", "on", "off"))
    parser.add_argument("--fast-bytes", type=int, help="hard limit on the bytes in the fastest tier")
    parser.add_argument("--spill-folder", type=Path, metavar="DIR", help="folder of the file of the last tier")
    parser.add_argument("--spill-bytes", type=int, help="size of that file")
    add_option(parser, "--warmup", 2, "untimed steps")
    add_option(parser, "--steps", 3, "timed steps")
    add_option(parser, "--pairs", 0, "then pairs of steps, joint and independent")
    parser.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help="JSON of a list of changed settings of StepBenchmark, to run in sequence",
    )
    parser.add_argument("--rlimit-data", type=int, metavar="BYTES", help="RLIMIT_DATA of each rank")
    result = "result; FILE with the suffix .warm appears after warm-up"
    parser.add_argument("--json", type=Path, required=True, metavar="FILE", help=result)


def _run(args: argparse.Namespace) -> int:
    import json
    import resource
    from dataclasses import replace

    from dithc.cli.distributed import ranks
    from dithc.config import ExperimentConfig, MachineConfig, training
    from dithc.core.artifacts import outputs
    from dithc.train import StepBenchmark, benchmark_in_sequence, benchmark_steps

    memory = training.MemoryConfig(
        automem=args.automem,
        fast_memory_gib=args.fast_bytes / GIB if args.fast_bytes else None,
        spill_folder=None if args.spill_folder is None else str(args.spill_folder),
        spill_gib=args.spill_bytes / GIB if args.spill_bytes else None,
    )
    model = {"preset": args.model, **dict(args.override)}
    settings = settings_of(StepBenchmark, args, model=model, memory=memory)
    sequence = [] if args.settings is None else json.loads(args.settings.read_text())
    with ranks(ExperimentConfig(machine=MachineConfig(collectives=args.collectives)), expected=None) as group:
        if args.rlimit_data is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (args.rlimit_data, args.rlimit_data))
        if sequence:
            each = benchmark_in_sequence([replace(settings, **changes) for changes in sequence], group)
            result = each[-1] | {"sequence": each}
        else:
            result = benchmark_steps(settings, group, warm=args.json.with_suffix(".warm").touch)
        if group.rank == 0:
            outputs.write(args.json, json.dumps(result, indent=1) + "\n")
    return 0


TRAINING = Benchmark(
    "steps of one training run on the ranks of `dithc launch`",
    "dithc launch --launcher mpiexec --ranks 2 --cpus-per-rank 1 -- dithc bench training --model S/2 --json training.json",
    _add,
    _run,
)
