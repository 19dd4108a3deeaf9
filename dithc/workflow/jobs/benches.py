"""Arguments of benchmark commands, from an experiment."""

import shlex

from dithc.config import ExperimentConfig


class BenchmarkArguments:
    """Arguments of the benchmarks that an experiment requests, by the name of the command."""

    def __init__(self, experiment: ExperimentConfig) -> None:
        self.asked, self.machine = experiment.bench, experiment.machine

    @property
    def step(self) -> str:
        bench = self.asked
        return f"step --model {bench.model} --batch {bench.batch} --dtype {bench.dtype} --compare {','.join(bench.compare)}"

    @property
    def strategies(self) -> str:
        asked = self.asked.strategies
        limit = f" --memory-limit {asked.memory_limit_gib:g}" if asked.memory_limit_gib else ""
        models, batches = ",".join(asked.models or ["DiT-S/2"]), ",".join(map(str, asked.batches))
        return f"strategies --models {models} --batches {batches} --dtype {asked.dtype} --rounds {asked.rounds}{limit}"

    def scaling(self, mode: str) -> str:
        asked = self.asked.scaling
        models, ranks = ",".join(asked.models or ["DiT-S/2"]), ",".join(map(str, asked.ranks))
        words = f"--{mode} --models {models} --ranks {ranks} --batch {asked.batch} --dtype {asked.dtype} --rounds {asked.rounds}"
        return words + (" --no-communication-baseline" if asked.no_communication_baseline else "")

    @property
    def scaling_launch(self) -> str:
        """Launch options of `dithc bench scaling` for ranks on other nodes; not part of the measurement."""
        machine = self.machine
        if machine.nodes == 1 and machine.launcher != "srun":
            return ""
        words = f"--launcher {machine.launcher} --ranks-per-node {machine.launched_per_node or 1}"
        return words + (f" --cpus {machine.cpus_per_rank}" if machine.cpus_per_rank else "")

    @property
    def scaling_ranks(self) -> int:
        """Ranks requested from the scheduler for measured scaling; 1 on one machine, where the bench starts them."""
        return max(self.asked.scaling.ranks) if self.machine.launcher == "srun" else 1

    @property
    def scaling_nodes(self) -> int:
        return -(-self.scaling_ranks // (self.machine.launched_per_node or 1))

    @property
    def stepwise(self) -> str:
        asked = self.asked.stepwise
        words = f"stepwise --model {asked.model or 'DiT-S/2'} --batch {asked.batch} --dtype {asked.dtype}"
        return f"{words} --ranks {asked.ranks} --rounds {asked.rounds}{' --tune' if asked.tune else ''}"

    @property
    def automem(self) -> str:
        asked = self.asked.automem
        memory = "" if asked.memory_gib is None else f" --memory {asked.memory_gib:g}"
        return (
            f"automem --model {asked.model or 'DiT-S/2'} --batch {asked.batch} --dtype {asked.dtype} "
            f"--only {','.join(asked.parts)} --budget {asked.fast_memory_fraction:g} "
            f"--folder {shlex.quote(asked.spill_folder)} --spill-gib {asked.spill_gib:g} --rounds {asked.rounds}{memory}"
        )

    @property
    def sampling(self) -> str:
        asked = self.asked.sampling
        tokens, guidance = ",".join(map(str, asked.tokens)), ",".join(f"{scale:g}" for scale in asked.guidance)
        return (
            f"sampling --model {asked.model or 'DiT-S/2'} --tokens {tokens} --dtypes {','.join(asked.dtypes)} "
            f"--guidance {guidance} --ranks {asked.ranks} --steps {asked.steps} --decode-size {asked.decode_size} "
            f"--decode-width {asked.decode_width} --rounds {asked.rounds}{' --diffusers' if asked.diffusers else ''}"
        )

    def simulate(self, what: str) -> str:
        asked = self.asked.simulate
        machine, nodes = shlex.quote(asked.machine or "profiles/machines/lx2.yaml"), ",".join(map(str, asked.nodes))
        if what == "paper":
            return f"--reproduce-paper --machine {machine} --nodes {nodes}"
        step = f" --step {shlex.quote(asked.step)}" if asked.step else ""
        return f"--mode {what} --machine {machine} --models {','.join(asked.models)} --nodes {nodes}{step}"
