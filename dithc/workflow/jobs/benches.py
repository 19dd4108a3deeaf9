"""Arguments of benchmark commands, from an experiment."""

import shlex

from dithc.config import ExperimentConfig

DEFAULT_MODEL = "DiT-S/2"


def options(**values: object) -> list[str]:
    """Return `--name value` for each value, without None and False; True is a switch, and lists have commas."""
    words: list[str] = []
    for name, value in values.items():
        if value is not None and value is not False:
            words.append(f"--{name.replace('_', '-')}")
        if value is not None and not isinstance(value, bool):
            parts = value if isinstance(value, list | tuple) else [value]
            words.append(",".join(f"{part:g}" if isinstance(part, float) else str(part) for part in parts))
    return words


class BenchmarkArguments:
    """Arguments of the benchmarks that an experiment requests, by the name of the command."""

    def __init__(self, experiment: ExperimentConfig) -> None:
        self.bench, self.machine = experiment.bench, experiment.machine

    @property
    def step(self) -> str:
        bench = self.bench
        words = options(model=bench.model, batch=bench.batch, dtype=bench.dtype, compare=bench.compare)
        return shlex.join(["step", *words])

    @property
    def strategies(self) -> str:
        bench = self.bench.strategies
        words = options(models=bench.models or DEFAULT_MODEL, batches=bench.batches, dtype=bench.dtype)
        return shlex.join(["strategies", *words, *options(rounds=bench.rounds, memory_limit=bench.memory_limit_gib)])

    def scaling(self, mode: str) -> str:
        bench = self.bench.scaling
        settings = bench.model_dump() | {"models": bench.models or DEFAULT_MODEL}
        return shlex.join(options(**{mode: True}, **settings))

    @property
    def scaling_launch(self) -> str:
        """Launch options of `dithc bench scaling` for ranks on other nodes; not part of the measurement."""
        machine = self.machine
        if machine.nodes == 1 and machine.launcher != "srun":
            return ""
        per_node = machine.launched_per_node or 1
        return shlex.join(
            options(launcher=machine.launcher, ranks_per_node=per_node, cpus_per_rank=machine.cpus_per_rank)
        )

    @property
    def scaling_ranks(self) -> int:
        """Ranks requested from the scheduler for measured scaling; 1 on one machine, where the bench starts them."""
        return max(self.bench.scaling.ranks) if self.machine.launcher == "srun" else 1

    @property
    def scaling_nodes(self) -> int:
        return -(-self.scaling_ranks // (self.machine.launched_per_node or 1))

    @property
    def stepwise(self) -> str:
        bench = self.bench.stepwise
        words = options(model=bench.model or DEFAULT_MODEL, batch=bench.batch, dtype=bench.dtype, ranks=bench.ranks)
        return shlex.join(["stepwise", *words, *options(rounds=bench.rounds, tune=bench.tune)])

    @property
    def automem(self) -> str:
        bench = self.bench.automem
        words = options(model=bench.model or DEFAULT_MODEL, batch=bench.batch, dtype=bench.dtype, parts=bench.parts)
        words += options(
            fast_memory_fraction=bench.fast_memory_fraction, spill_folder=bench.spill_folder, spill_gib=bench.spill_gib
        )
        return shlex.join(["automem", *words, *options(rounds=bench.rounds)])

    def simulate(self, mode: str) -> str:
        bench = self.bench.simulate
        machine, nodes = bench.machine or "profiles/machines/lx2.yaml", bench.nodes
        if mode == "paper":
            return shlex.join(options(reproduce_paper=True, machine=machine, nodes=nodes))
        return shlex.join(options(scaling=mode, machine=machine, models=bench.models, nodes=nodes, step=bench.step))
