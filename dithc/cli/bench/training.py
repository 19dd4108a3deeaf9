"""`dithc bench training`: one rank of a training run on random latents, started by other measurements."""

import argparse
from pathlib import Path

from dithc.cli.bench.arguments import Benchmark, add_model, preset, settings_of

GIB = 1 << 30


def _add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--strategy", choices=("cftp", "dp", "dp+tp"), default="cftp", help="(default cftp)")
    parser.add_argument("--gradients", choices=("overlapped", "ddp"), default="overlapped", help="(default overlapped)")
    parser.add_argument(
        "--collectives",
        choices=("hierarchical", "iallreduce", "blocking"),
        default="hierarchical",
        help="sums over ranks, as in section machine (default hierarchical)",
    )
    parser.add_argument("--sharding", choices=("none", "zero1"), default="none", help="(default none)")
    parser.add_argument(
        "--operators",
        choices=("default", "products", "torch"),
        default="default",
        help="torch: PyTorch's operators; products: the same, except matrix products of linear layers "
        "(default: those of a training run)",
    )
    parser.add_argument("--recompute", choices=("none", "block"), default="none", help="(default none)")
    parser.add_argument("--automem", choices=("auto", "on", "off"), default="auto", help="(default auto)")
    parser.add_argument("--fast-bytes", type=int, help="hard limit on the bytes in the fastest tier")
    parser.add_argument("--spill-folder", type=Path, metavar="DIR", help="folder of the file of the last tier")
    parser.add_argument("--file-bytes", type=int, help="size of that file")
    parser.add_argument("--allow-recompute", action="store_true", help="allow the plan to recompute activations")
    parser.add_argument("--warmup", type=int, default=2, help="untimed steps (default 2)")
    parser.add_argument("--steps", type=int, default=3, help="timed steps (default 3)")
    parser.add_argument("--pairs", type=int, default=0, help="then pairs of steps, joint and independent (default 0)")
    parser.add_argument("--data-limit", type=int, metavar="BYTES", help="RLIMIT_DATA of each rank")
    parser.add_argument(
        "--json",
        type=Path,
        required=True,
        metavar="FILE",
        help="result; FILE with the suffix .warm appears after warm-up",
    )


def _run(args: argparse.Namespace) -> int:
    import json
    import resource

    from dithc.cli.distributed import ranks
    from dithc.config import ExperimentConfig, MachineConfig, training
    from dithc.core.artifacts import outputs
    from dithc.train import StepBenchmark, benchmark_steps

    memory = training.MemoryConfig(
        automem=args.automem,
        fast_memory_gib=args.fast_bytes / GIB if args.fast_bytes else None,
        spill_folder=None if args.spill_folder is None else str(args.spill_folder),
        spill_gib=args.file_bytes / GIB if args.file_bytes else None,
        allow_recompute=args.allow_recompute,
    )
    model = {"preset": preset(args.model), **dict(args.override)}
    settings = settings_of(StepBenchmark, args, model=model, memory=memory)
    with ranks(ExperimentConfig(machine=MachineConfig(collectives=args.collectives)), expected=None) as group:
        if args.data_limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (args.data_limit, args.data_limit))
        result = benchmark_steps(settings, group, warm=args.json.with_suffix(".warm").touch)
        if group.rank == 0:
            outputs.write(args.json, json.dumps(result, indent=1) + "\n")
    return 0


TRAINING = Benchmark(
    "steps of one training run on the ranks of `dithc launch`",
    "dithc launch --launcher mpiexec --ranks 2 --cpus 1 -- dithc bench training --model S/2 --json training.json",
    _add,
    _run,
)
