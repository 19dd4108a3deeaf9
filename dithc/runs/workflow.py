"""What the workflow's rule files ask: the matrix of an experiment, where each stage's manifest stands, what it depends on."""

import json
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from dithc.config import Machine, experiment_of
from dithc.log import problem
from dithc.runs.files import atomic_write
from dithc.runs.spec import rule_spec


class Workflow:
    """An experiment as the workflow engine sees it: names, paths of manifests, dependencies, resources.

    Attributes:
        experiment: the checked configuration.
        root: folder of all outputs, `results/<name>`.
        config: path of the resolved configuration, which every command reads.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.experiment = experiment_of(config)
        self.root = f"{self.experiment.results}/{self.experiment.name}"
        self.config = f"{self.root}/config.json"

    def write_config(self) -> None:
        """Writes the resolved configuration, which every job reads; called when a real run starts, not by a dry run."""
        text = json.dumps(self.experiment.model_dump(mode="json"), indent=1) + "\n"
        path = Path(self.config)
        if not path.exists() or path.read_text() != text:
            atomic_write(path, text)

    def check_inputs(self, rules: Set[str]) -> None:
        """Checks before the first job that the user's files are there.

        Args:
            rules: names of the rules that will run; only what they read is checked.

        Raises:
            UserError: a path of a data set, codec, extractor or initial checkpoint does not exist; all are named.
        """
        experiment = self.experiment
        wanted: dict[str, str | None] = {}
        if "stage" in rules:
            wanted |= {f"datasets.{name}.source.path": one.source.path for name, one in experiment.datasets.items()}
        if rules & {"latents", "sample"}:
            wanted |= {f"codecs.{name}.path": getattr(one, "path", None) for name, one in experiment.codecs.items()}
        if rules & {"features_real", "features_generated"}:
            wanted |= {f"extractors.{name}.path": one.path for name, one in experiment.extractors.items()}
        if rules & {"pretrain", "finetune"}:
            wanted |= {f"runs.{name}.init_file": one.init_file for name, one in experiment.runs.items()}
        if "simulate_scaling" in rules:
            simulate = experiment.bench.simulate
            wanted |= {"bench.simulate.machine": simulate.machine, "bench.simulate.step": simulate.step}
        missing = [f"{key}: {path}" for key, path in wanted.items() if path is not None and not Path(path).exists()]
        if missing:
            raise problem(
                f"input of experiment {experiment.name!r} is not on this machine",
                got="no such file or folder for" + "".join(f"\n    {line}" for line in missing),
                expected="your data, autoencoder and feature extractor at those paths (nothing is downloaded)",
                remedy="put them there (a link will do), or set the keys in a config file of your own and pass it as a "
                "second --configfile; config/README.md says which files each kind needs",
            )

    # names

    def names(self, section: str) -> str:
        """The names of a section as a regular expression, for wildcards; matches nothing where there are none."""
        return "|".join(getattr(self.experiment, section)) or "(?!)"

    @property
    def pretrainings(self) -> list[str]:
        """Runs that start from scratch."""
        return [name for name in self.experiment.runs if name not in self.finetunings]

    @property
    def finetunings(self) -> list[str]:
        """Runs that start from another run or from a file."""
        return [name for name, run in self.experiment.runs.items() if run.init or run.init_file]

    @property
    def real_sets(self) -> list[str]:
        """Real feature sets the evaluations need, as `dataset.split.count.extractor`."""
        return sorted({self.real_set(name) for name in self.experiment.evaluations})

    def real_set(self, evaluation: str) -> str:
        """The real feature set that an evaluation is compared with."""
        chosen = self.experiment.evaluations[evaluation]
        count = chosen.real_images or "all"
        return f"{self.experiment.runs[chosen.run].dataset}.{chosen.real_split}.{count}.{chosen.extractor}"

    # paths of manifests

    def path(self, stage: str, name: str) -> str:
        """The manifest of a stage's result for a data set, codec, evaluation ...; `name` may be a wildcard in braces."""
        return f"{self.root}/{stage}/{name}/manifest.json"

    def log(self, name: str) -> str:
        """The log file of a rule."""
        return f"{self.root}/logs/{name}.log"

    def segment(self, run: str, step: int | str) -> str:
        """The manifest of a run at the end of a segment; both may be wildcards in braces."""
        number = f"{step:07d}" if isinstance(step, int) else step
        return f"{self.root}/runs/{run}/step_{number}.json"

    def final(self, run: str) -> str:
        """The manifest of a run at its last step."""
        return self.segment(run, self.experiment.runs[run].steps)

    @property
    def manifests(self) -> list[str]:
        """Every manifest the report reads: all stages of all data sets, codecs, runs and evaluations."""
        experiment = self.experiment
        synthetic = [name for name in experiment.datasets if self.scene_input(name)]
        stages: dict[str, Iterable[str]] = {
            "inputs": synthetic,
            "scenes": experiment.datasets,
            "tiles": experiment.datasets,
            "codecs": [name for name, codec in experiment.codecs.items() if codec.kind == "kl-vae"],
            "latents": experiment.datasets,
            "samples": experiment.evaluations,
            "extractors": [name for name in experiment.extractors if self.extractor_of(name)],
            "features": [*self.real_sets, *experiment.evaluations],
            "fid": experiment.evaluations,
        }
        paths = [self.path(stage, name) for stage, names in stages.items() for name in names]
        return paths + [self.segment(name, step) for name in experiment.runs for step in self.segments(name)]

    def segments(self, run: str) -> list[int]:
        """Last steps of a run's segments."""
        chosen = self.experiment.runs[run]
        return list(range(chosen.segment_steps, chosen.steps + 1, chosen.segment_steps))

    @property
    def bench_file(self) -> list[str]:
        """The JSON of the step bench, or nothing where none is asked for."""
        return [f"{self.root}/bench/step.json"] if self.experiment.bench.model else []

    @property
    def strategies_file(self) -> list[str]:
        """The JSON of the comparison of strategies, or nothing where none is asked for."""
        return [f"{self.root}/bench/strategies.json"] if self.experiment.bench.strategies.models else []

    @property
    def measured_files(self) -> list[str]:
        """The JSON files of weak and of strong scaling, measured."""
        return [f"{self.root}/bench/scaling-{mode}.json" for mode in ("weak", "strong")]

    @property
    def simulated_files(self) -> list[str]:
        """The JSON files of simulated scaling."""
        return [f"{self.root}/bench/simulated-{what}.json" for what in self.experiment.bench.simulate.of]

    @property
    def scaling_files(self) -> list[str]:
        """What the report says of scaling: what was asked for."""
        measured = self.measured_files if self.experiment.bench.scaling.models else []
        return measured + (self.simulated_files if self.experiment.bench.simulate.machine else [])

    @property
    def stepwise_file(self) -> list[str]:
        """The JSON of the training by stages, or nothing where none is asked for."""
        return [f"{self.root}/bench/stepwise.json"] if self.experiment.bench.stepwise.model else []

    @property
    def automem_file(self) -> list[str]:
        """The JSON of what AutoMem gives, or nothing where it is not asked for."""
        return [f"{self.root}/bench/automem.json"] if self.experiment.bench.automem.model else []

    # dependencies

    def dataset_of(self, evaluation: str) -> str:
        """The data set an evaluation is about."""
        return self.experiment.runs[self.experiment.evaluations[evaluation].run].dataset

    def scene_input(self, dataset: str) -> list[str]:
        """What staging a data set waits for: the generator, or nothing (the user's own files)."""
        synthetic = self.experiment.datasets[dataset].source.synthetic is not None
        return [self.path("inputs", dataset)] if synthetic else []

    def train_input(self, run: str, step: int) -> dict[str, str]:
        """What a segment waits for: latents, and the segment before it or the run it starts from."""
        chosen = self.experiment.runs[run]
        inputs = {"latents": self.path("latents", chosen.dataset)}
        if chosen.init:
            inputs["init"] = self.final(chosen.init)
        if step > chosen.segment_steps:
            inputs["before"] = self.segment(run, step - chosen.segment_steps)
        return inputs

    def spec(self, stage: str, name: str) -> str:
        """The settings that decide a stage's result, as canonical JSON: a rule's parameter that triggers reruns."""
        return json.dumps(rule_spec(self.experiment, stage, name), sort_keys=True)

    def extractor_of(self, name: str) -> list[str]:
        """The manifest of a trained extractor, or nothing for one in a file."""
        return [self.path("extractors", name)] if self.experiment.extractors[name].kind == "classifier" else []

    def codec_of(self, dataset: str) -> list[str]:
        """The manifest of a data set's codec if it is trained here, or nothing."""
        name = self.experiment.datasets[dataset].codec
        return [self.path("codecs", name)] if self.experiment.codecs[name].kind == "kl-vae" else []

    def threads(self, stage: str, cores: int | None) -> int:
        """Cores of a stage's job, all ranks of a node together, where the workflow was given `cores` (None: a cluster)."""
        if stage != "train":
            return self.experiment.resources_of(stage).cpus or cores or 1
        ranks = self.machine.launched_per_node
        return ranks * self.rank_cpus(cores) if ranks else cores or 1

    def rank_cpus(self, cores: int | None) -> int:
        """Cores of one rank of a training; all of a node where the machine decides how many ranks share them."""
        return self.machine.cpus_per_rank or max(1, (cores or 1) // (self.machine.launched_per_node or 1))

    @property
    def tasks(self) -> int:
        """Ranks of a training as the scheduler is told; those of one machine start as one task where it decides their number."""
        return self.machine.ranks or self.machine.nodes

    @property
    def mpi(self) -> str:
        """The launcher as the scheduler's plugin wants it: empty where one rank is started."""
        return self.machine.launcher if self.machine.ranks != 1 else ""

    def launch(self, cores: int | None) -> str:
        """Arguments of `dithc launch` for a training or sampling."""
        machine = self.machine
        launcher = machine.launcher if machine.ranks != 1 else "none"
        if machine.ranks is None:
            cpus = f"--cpus {machine.cpus_per_rank}" if machine.cpus_per_rank else f"--node-cpus {cores or 1}"
            return f"--launcher {launcher} --nodes {machine.nodes} --strategy {machine.strategy} {cpus}"
        return f"--launcher {launcher} --nodes {machine.nodes} --ranks {machine.ranks} --cpus {self.rank_cpus(cores)}"

    @property
    def walltime(self) -> str:
        """The argument that tells a training when its job ends, where the machine ends jobs."""
        return f"--walltime-minutes {self.resource('train', 'runtime')}" if self.machine.walltime else ""

    @property
    def titles(self) -> list[str]:
        """What the report calls things: a parameter, so that an edited title makes a new report."""
        return [self.experiment.title, *(dataset.title for dataset in self.experiment.datasets.values())]

    @property
    def bench(self) -> str:
        """Arguments of `dithc bench step`."""
        bench = self.experiment.bench
        return f"--model {bench.model} --batch {bench.batch} --dtype {bench.dtype} --compare {','.join(bench.compare)}"

    @property
    def strategies(self) -> str:
        """Arguments of `dithc bench strategies`."""
        asked = self.experiment.bench.strategies
        limit = f" --memory-limit {asked.memory_limit_gib:g}" if asked.memory_limit_gib else ""
        models, batches = ",".join(asked.models or ["DiT-S/2"]), ",".join(map(str, asked.batches))
        return f"--models {models} --batches {batches} --dtype {asked.dtype} --rounds {asked.rounds}{limit}"

    def scaling(self, mode: str) -> str:
        """Arguments of `dithc bench scaling` for `weak` or `strong`."""
        asked, machine = self.experiment.bench.scaling, self.machine
        models, ranks = ",".join(asked.models or ["DiT-S/2"]), ",".join(map(str, asked.ranks))
        words = f"--{mode} --models {models} --ranks {ranks} --batch {asked.batch} --dtype {asked.dtype} --rounds {asked.rounds}"
        words += " --without-communication" if asked.without_communication else ""
        if machine.nodes > 1 or machine.launcher == "srun":
            words += f" --launcher {machine.launcher} --ranks-per-node {machine.launched_per_node or 1}"
            words += f" --cpus {machine.cpus_per_rank}" if machine.cpus_per_rank else ""
        return words

    @property
    def scaling_ranks(self) -> int:
        """The most ranks of measured scaling, as the scheduler is told; 1 on one machine, where the bench starts them itself."""
        return max(self.experiment.bench.scaling.ranks) if self.machine.launcher == "srun" else 1

    @property
    def scaling_nodes(self) -> int:
        """Nodes for that many ranks."""
        return -(-self.scaling_ranks // (self.machine.launched_per_node or 1))

    @property
    def stepwise(self) -> str:
        """Arguments of `dithc bench stepwise`."""
        asked = self.experiment.bench.stepwise
        tune = " --tune" if asked.tune else ""
        return (
            f"--model {asked.model or 'DiT-S/2'} --batch {asked.batch} --dtype {asked.dtype} --ranks {asked.ranks} "
            f"--rounds {asked.rounds}{tune}"
        )

    @property
    def automem(self) -> str:
        """Arguments of `dithc bench automem`."""
        asked = self.experiment.bench.automem
        memory = "" if asked.memory_gib is None else f" --memory {asked.memory_gib:g}"
        return (
            f"--model {asked.model or 'DiT-S/2'} --batch {asked.batch} --dtype {asked.dtype} --only {','.join(asked.only)} "
            f"--budget {asked.budget:g} --folder {asked.folder} --file-gib {asked.file_gib:g} --rounds {asked.rounds}{memory}"
        )

    def simulate(self, what: str) -> str:
        """Arguments of `dithc simulate` for `paper`, `weak` or `strong`."""
        asked = self.experiment.bench.simulate
        machine, nodes = asked.machine or "profiles/machines/lx2.yaml", ",".join(map(str, asked.nodes))
        if what == "paper":
            return f"--reproduce-paper --machine {machine} --nodes {nodes}"
        step = f" --step {asked.step}" if asked.step else ""
        return f"--mode {what} --machine {machine} --models {','.join(asked.models)} --nodes {nodes}{step}"

    @property
    def machine(self) -> Machine:
        """How ranks are started."""
        return self.experiment.machine

    def resource(self, stage: str, field: str) -> int:
        """Memory (`mem_mb`) or walltime (`runtime`, minutes) of a stage's job."""
        return int(getattr(self.experiment.resources_of(stage), field))
