"""Cells of each target: commands for rows and columns."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from dithc.config import ExperimentConfig
from dithc.workflow.jobs import BenchmarkArguments, options
from dithc.workflow.reproduction.cost import START_SECONDS, Cost, Network
from dithc.workflow.reproduction.jobs import OUT, CellJob
from dithc.workflow.reproduction.scales import MODELS, ScaleSettings

STRATEGIES = {"cftp": "CFTP", "dp": "DP", "dp+tp": "DP+TP"}
WARMUP = 2
# Variants of `dithc bench step` by their names in table 3.
PRODUCTS = {
    "openblas": "OpenBLAS",
    "torch-blas": "nativeBLAS",
    "onednn": "oneDNN",
    "untuned": "own GEMM",
    "dithc": "tuned",
    "own-products": "own GEMM, products alone",
}
TUNE_STEPS = 340  # duration of a search for the products of a block, in steps of the block
# Platforms of figure 7 with their step time relative to dithc in fp32.
PLATFORMS = {"reference": 2.0, "c-fp32": 1.0, "c-bf16": 0.7, "numba": 3.0, "cuda": 0.2}
IN_BOTH_BATCHES = ("reference", "c-fp32", "cuda")
OPS_IMAGES = {"DiT-S/2": 16, "DiT-XL/2": 4}  # per step of `dithc bench ops`
SIMULATION_SECONDS = 10.0
OPTIMIZATION_STEPS = 6
NODES = "1,2,4,8,16,32,64,128,256,512,1024"


@dataclass(frozen=True)
class TargetContext:
    experiment: ExperimentConfig
    sizes: ScaleSettings
    cost: Cost

    @property
    def per_node(self) -> int:
        """Ranks per launched node, at most the largest count of `sizes`."""
        machine = self.experiment.machine
        launched = None if machine.launcher == "none" else machine.launched_per_node
        return min(launched or max(self.sizes.ranks), max(self.sizes.ranks))


def _table2(scope: TargetContext) -> Iterator[CellJob]:
    sizes = scope.sizes
    timed = {"rounds": sizes.rounds, "warmup": WARMUP, "steps": sizes.steps, "memory_limit": sizes.memory_gib}
    for batch, network, (strategy, column) in product(sizes.batches, sizes.networks, STRATEGIES.items()):
        step = scope.cost.step(network, images=batch, variant=strategy)
        measured = options(models=network.label, override=network.override, batches=batch, strategies=strategy)
        yield CellJob(
            name=f"{strategy.replace('+', '-')}-{network.file_name}-{batch}",
            words=("bench", "strategies", *measured, *options(**timed, json=OUT)),
            row=f"{batch} {network.label}",
            columns=(f"{column} s", f"{column} GB"),
            seconds=sizes.rounds * (START_SECONDS + (WARMUP + sizes.steps) * step),
            metadata={"strategy": strategy, "batch": batch, "full": network.depth is None},
        )


def _search(scope: TargetContext, network: Network, images: int) -> float:
    return START_SECONDS + TUNE_STEPS * scope.cost.step(replace(network, depth=1), images=images)


def _table3(scope: TargetContext) -> Iterator[CellJob]:
    sizes, batch = scope.sizes, scope.sizes.batches[0]
    for network in sizes.networks:
        base = options(model=network.preset, override=network.override, batch=batch, dtype="fp32")
        tuned = f"{network.file_name}-{batch}"
        if sizes.tunes:
            yield CellJob(
                name=f"tuning-{network.file_name}",
                words=("tune-kernels", *base),
                row=network.label,
                columns=(),
                seconds=_search(scope, network, batch),
                tuning=tuned,
            )
        compare = [name for name in PRODUCTS if name != "dithc"]
        step = sum(scope.cost.step(network, images=batch, variant=name) for name in PRODUCTS)
        yield CellJob(
            name=network.file_name,
            words=("bench", "step", *base, *options(compare=compare, warmup=1, rounds=sizes.step_rounds, json=OUT)),
            row=network.label,
            columns=tuple(PRODUCTS.values()),
            seconds=START_SECONDS + step * (2 + sizes.step_rounds),
            memory_gib=network.memory_gib(images=batch),
            after=(f"tuning-{network.file_name}",) if sizes.tunes else (),
            tuning=tuned if sizes.tunes else "",
            metadata={"tuned": sizes.tunes, "batch": batch, "full": network.depth is None},
        )


def _table4(scope: TargetContext) -> Iterator[CellJob]:
    model = "DiT-S/2" if scope.experiment.paper.scale == "ci" else "DiT-XL/2"
    libraries = ("openblas", "torch-blas", "onednn")
    block = Network(model, depth=1)
    variants, images = ("dithc", "eager", *libraries), OPS_IMAGES[model]
    round_seconds = sum(scope.cost.step(block, images=images, variant=variant) for variant in variants)
    for dtype in ("fp32", "bf16"):
        measured = options(ops="gemm", models=model, dtype=dtype, libraries=libraries, rounds=scope.sizes.step_rounds)
        yield CellJob(
            name=dtype,
            words=("bench", "ops", *measured, "--json", OUT),
            row=f"all modules, {dtype}",
            columns=tuple(f"{PRODUCTS[name]} {dtype}" for name in libraries),
            seconds=START_SECONDS + (1 + scope.sizes.step_rounds) * round_seconds,
            metadata={"dtype": dtype, "model": model},
        )


def _fig9(scope: TargetContext) -> Iterator[CellJob]:
    sizes = scope.sizes
    network, batch = sizes.networks[-1], max(2, sizes.batches[0])
    for ranks in [count for count in sizes.ranks if count <= 2]:
        run = START_SECONDS + (WARMUP + sizes.steps) * scope.cost.step(network, images=batch, variant="eager")
        measured = options(model=network.preset, override=network.override, batch=batch, ranks=ranks)
        timed = options(rounds=sizes.rounds, warmup=WARMUP, steps=sizes.steps, tune=sizes.tunes, json=OUT)
        yield CellJob(
            name=f"ranks-{ranks}",
            words=("bench", "stepwise", *measured, *timed),
            row="all steps",
            columns=(_ranks(ranks),),
            seconds=OPTIMIZATION_STEPS * sizes.rounds * run + (_search(scope, network, batch) if sizes.tunes else 0),
        )


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count > 1)}"


def _scaling(scope: TargetContext, mode: str, network: Network, batch: int, *, name: str = "") -> CellJob:
    """Return a scaling cell. Counts of strong scaling divide the batch and fit memory."""
    sizes, machine, per_node = scope.sizes, scope.experiment.machine, scope.per_node
    is_weak = mode == "weak"
    shared = [count for count in sizes.ranks if is_weak or batch % count == 0]
    fitting = [count for count in shared if scope.cost.fits(_node_memory_gib(scope, network, count, batch, mode))]
    counts = fitting or shared[-1:]
    launch = BenchmarkArguments(scope.experiment).scaling_launch.split()
    seconds = 0.0
    for count in counts:
        images, cores = batch * count if is_weak else batch, max(1, scope.cost.node.cores * count // per_node)
        step = scope.cost.step(network, images=images, variant="dp", cores=cores)
        seconds += sizes.rounds * (START_SECONDS + (WARMUP + 2 * sizes.steps) * step)
    is_elsewhere = machine.launcher == "srun"
    measured = options(**{mode: True}, models=network.label, override=network.override, ranks=counts, batch=batch)
    timed = options(rounds=sizes.rounds, warmup=WARMUP, steps=sizes.steps, no_communication_baseline=True)
    return CellJob(
        name=name or f"measured-{network.file_name}",
        words=("bench", "scaling", *measured, *timed, *launch, "--json", OUT),
        row=network.label,
        columns=tuple(_ranks(count) for count in counts),
        seconds=seconds,
        memory_gib=max(_node_memory_gib(scope, network, count, batch, mode) for count in counts),
        nodes=-(-max(counts) // per_node) if is_elsewhere else 1,
        ranks=max(counts) if is_elsewhere else 1,
    )


def _node_memory_gib(scope: TargetContext, network: Network, count: int, batch: int, mode: str) -> float:
    local = min(count, scope.per_node)
    images = batch * local if mode == "weak" else -(-batch * local // count)
    return network.memory_gib(images=images, replicas=local)


def _simulated(
    scope: TargetContext,
    name: str,
    *,
    mode: str | None = None,
    models: Iterable[str] | None = None,
    row: str = "XL/2",
    **changes: object,
) -> CellJob:
    """Return a cell of a simulated experiment; without a mode the experiments of the paper."""
    machine = scope.experiment.paper.machine
    simulated = options(reproduce_paper=mode is None, scaling=mode, models=models, machine=machine, nodes=NODES)
    return CellJob(
        name=f"simulated-{name}",
        words=("simulate", *simulated, *options(**changes, json=OUT)),
        row=row,
        columns=("simulated",),
        seconds=SIMULATION_SECONDS,
        measures=False,
    )


def _fig10(scope: TargetContext) -> Iterator[CellJob]:
    sizes = scope.sizes
    for network in sizes.networks:
        yield _scaling(scope, "weak", network, max(1, sizes.batches[0] // scope.per_node))
    yield _simulated(scope, "paper")
    yield _simulated(scope, "weak", mode="weak", row="all", models=MODELS)


def _fig11(scope: TargetContext) -> Iterator[CellJob]:
    sizes = scope.sizes
    for batch in sizes.strong_batches:
        name = f"measured-xl-2-{batch}" if len(sizes.strong_batches) > 1 else ""
        yield _scaling(scope, "strong", sizes.largest, batch, name=name)
    yield _simulated(scope, "paper")
    yield _simulated(scope, "strong", mode="strong", wire="fp32,bf16")
    yield _simulated(scope, "zero1", mode="strong", global_batch_size="448,3072", wire="fp32,bf16", zero1=True)


def _fig7(scope: TargetContext) -> Iterator[CellJob]:
    sizes, settings = scope.sizes, scope.experiment.paper
    network = sizes.networks[-1] if settings.scale == "ci" else sizes.largest
    for platform, slowness in PLATFORMS.items():
        steps, batches = sizes.loss_curve_steps, sizes.batches if platform in IN_BOTH_BATCHES else sizes.batches[:1]
        for batch, seed in product(batches, range(settings.seeds)):
            step = slowness * scope.cost.step(network, images=batch)
            trained = options(platform=platform, seed=seed, steps=steps, model=network.label, override=network.override)
            yield CellJob(
                name=f"{platform}-{batch}-{seed}",
                words=("bench", "curves", *trained, *options(batch=batch, json=OUT)),
                row=platform,
                columns=(f"batch {batch}, seed {seed}",),
                seconds=START_SECONDS + steps * step,
                memory_gib=network.memory_gib(images=batch),
                metadata={"full": network.depth is None},
            )


def _sec56(scope: TargetContext) -> Iterator[CellJob]:
    sizes = scope.sizes
    network, batch = sizes.largest, sizes.batches[0]
    for device, dtype in product(("cpu", "cuda"), ("fp32", "bf16")):
        step = sum(scope.cost.step(network, images=batch, variant=name) for name in ("dithc", "eager", "compile"))
        measured = options(model=network.preset, override=network.override, batch=batch, dtype=dtype)
        measured += options(device=None if device == "cpu" else device, compare="eager,compile", warmup=1)
        yield CellJob(
            name=f"{device}-{dtype}",
            words=("bench", "step", *measured, *options(rounds=sizes.step_rounds, json=OUT)),
            row=f"{device.upper()} {dtype}",
            columns=("linear layers", "with attention"),
            seconds=2 * START_SECONDS + step * (2 + sizes.step_rounds),
            memory_gib=network.memory_gib(images=batch),
            metadata={"dtype": dtype},
        )


# Table 1 and figure 8 have no cells, because they use the runs of the experiment.
TARGETS: Mapping[str, Callable[[TargetContext], Iterable[CellJob]]] = {
    "table1": lambda scope: (),
    "table2": _table2,
    "table3": _table3,
    "table4": _table4,
    "fig7": _fig7,
    "fig8": lambda scope: (),
    "fig9": _fig9,
    "fig10": _fig10,
    "fig11": _fig11,
    "sec56": _sec56,
}
