"""The whole configuration: one experiment, every reference in it checked before the first job starts."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from dithc.averages import LARGEST_MISFIT, Profile, combine
from dithc.config.base import Name, Place, Positive, Seed, Settings, Title
from dithc.config.benches import Bench
from dithc.config.codecs import AnyExtractor, Codec, Extractor, Foreign, KlVae
from dithc.config.datasets import SENTINEL2_BANDS, Dataset
from dithc.config.paper import Paper
from dithc.config.training import (
    MOST_SNAPSHOTS,
    CheckpointPath,
    Evaluation,
    GradientPath,
    Memory,
    Run,
    Sharding,
    StrategyName,
)

Stage = Literal[
    "default",
    "synthesize",
    "stage",
    "tiles",
    "codec",
    "latents",
    "train",
    "sample",
    "extractor",
    "features",
    "fid",
    "bench",
    "report",
]


Degree = Literal["auto"] | Positive


class Sampling(Settings):
    """How ranks share a sampling: decides its time, never its images. auto: what is done first, by what is left to be made."""

    data_parallel_degree: Degree = "auto"
    """Ranks that share the images of a shard (64 of them); they exchange nothing until these are made."""
    cfg_parallel: Literal["auto"] | bool = "auto"
    """Whether the two branches of guidance are made by two ranks, or two sets of ranks."""
    shared_degree: Degree = "auto"
    """Ranks of a node that share the tokens of an image, by keys and values in memory that all see. The same bits as one rank."""
    ulysses_degree: Degree = "auto"
    """Ranks that share them by messages, each with all tokens for some heads; divides the heads. The same bits. auto: 1."""
    ring_degree: Degree = "auto"
    """Ranks, or sets of `ulysses_degree` ranks, that pass keys and values on. Sums are rounded otherwise than on one rank, in
    the seventh digit. auto: 1."""
    parallel_vae: Literal["auto"] | bool = "auto"
    """Whether ranks that make an image together also decode it together, each some of its rows: sums are rounded otherwise than
    on one rank, in the seventh digit, and a rank needs less memory. false: whole images are dealt to them, with the same bits.
    auto: those that are left when each has had as many whole ones are decoded together. Codecs kl-vae, sd-vae, and diffusers of
    the same structure (AutoencoderKL); of others whole images are dealt."""

    @property
    def given(self) -> dict[str, int]:
        """The degrees that are not auto, by the names of `dithc.parallel.Degrees`."""
        named = {
            "data": self.data_parallel_degree,
            "cfg": self.cfg_parallel if self.cfg_parallel == "auto" else 1 + self.cfg_parallel,
            "shared": self.shared_degree,
            "ulysses": self.ulysses_degree,
            "ring": self.ring_degree,
        }
        return {name: degree for name, degree in named.items() if degree != "auto"}

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        messages = {self.ulysses_degree, self.ring_degree} - {"auto", 1}
        if self.shared_degree not in ("auto", 1) and messages:
            raise ValueError(
                "machine.sampling shares tokens in memory (shared_degree) or by messages (ulysses_degree, ring_degree): "
                "leave one of both out"
            )
        return self


class Machine(Settings):
    """How ranks are started; set by a profile, never by an experiment, and without effect on results."""

    launcher: Literal["none", "mpiexec", "srun"] = "none"
    """What starts the ranks of a training or sampling; `none` for one rank."""
    nodes: Positive = 1
    """Nodes of a training."""
    strategy: StrategyName = "cftp"
    """How ranks share a training. cftp: a rank a die, whose clusters share every operation inside the process; dp: a rank
    a cluster, with a replica of everything; dp+tp: a rank a cluster, those of a die share every layer (tensor parallelism)."""
    ranks_per_node: Positive | None = None
    """Ranks on a node; if not given, its dies (cftp) or its clusters (dp, dp+tp), counted where the ranks are started."""
    cpus_per_rank: Positive | None = None
    """Cores of a rank; the cores the workflow was given, shared by the ranks of a node, if not given."""
    gradients: GradientPath = "overlapped"
    """Who sums gradients over ranks: dithc's reducer while the backward pass runs, or PyTorch's DistributedDataParallel."""
    sharding: Sharding = "none"
    """What ranks with a replica of the weights keep of the optimizer's state: none shares nothing, each keeps all of it; zero1:
    moments and averages of a share of the weights each (strategies cftp and dp, gradients overlapped)."""
    collectives: Literal["hierarchical", "iallreduce", "blocking"] = "hierarchical"
    """How sums over ranks are made: in shared memory within a node and by MPI between nodes; by MPI's own all-reduce, posted and
    polled; or by its blocking one."""
    wire: Literal["fp32", "bf16"] = "fp32"
    """Type in which hierarchical sums move numbers between ranks; they are summed in fp32 either way."""
    weights_wire: Literal["fp32", "bf16"] = "fp32"
    """Type in which weights travel under sharding: zero1. With bf16 all ranks compute with weights rounded to it; the exact ones
    are kept, updated and saved once, each by the rank that has it in its share."""
    trace_step: Positive | None = None
    """Optimizer step of which each rank writes a trace (operators, phases, communication) into the store; none for no trace."""
    checkpoints: CheckpointPath = "async"
    """async: training goes on while checkpoints are written, from a copy of the state, which is memory beside it; blocking: it
    waits."""
    go_back: bool = False
    """Where several of the newest checkpoints are damaged: continue from the next older that is whole, or begin anew, instead of
    stopping."""
    memory: Memory = Memory()
    """How a rank uses the memories of its machine."""
    sampling: Sampling = Sampling()
    """How ranks share a sampling."""
    walltime: bool = False
    """Jobs are ended at their `runtime`: a training or sampling then saves and stops before, to be run again."""
    inputs: Literal["here", "nodes"] = "here"
    """Where the user's files are seen. here: on the machine that starts the workflow too, which looks whether they are there
    before the first job; nodes: perhaps on nodes alone, so that only a job finds out."""
    scheduler: Literal["none", "slurm", "generic"] = "none"
    """Who runs the jobs. slurm: a job that stopped before its walltime puts itself back into the queue; generic: the scripts
    of that profile do it; none: this machine."""
    srun_mpi: str = Field(default="auto", pattern=r"^[a-z0-9_]+$")
    """How srun's ranks find each other: hydra, MPICH's own launcher, which srun starts on the nodes; or an interface that
    `srun --mpi=list` names. auto: hydra where the MPI is MPICH, else pmix."""
    node_cores: Positive | None = None
    """Cores that a job may ask of a node; those of this machine where no scheduler runs the jobs."""
    node_memory_mb: Positive | None = None
    """Memory in MB that a job may ask of a node; none for no limit."""
    max_minutes: Positive | None = None
    """The longest walltime that a job may ask, in minutes; none for no limit."""
    prologue: Place | None = None
    """File of shell lines that run before the command of every rule, such as `module load`; one that fails ends the job."""
    gflops_per_core: float = Field(default=10.0, ge=1e-6, le=10.0**6)
    """What a core does in training, in GFLOP/s, from which walltimes follow; low, so that a job seldom ends early."""

    @model_validator(mode="after")
    def _scheduled(self) -> Self:
        if self.scheduler != "none" and (self.node_cores is None or self.cpus_per_rank is None):
            raise ValueError(
                f"machine.scheduler `{self.scheduler}` needs machine.node_cores and machine.cpus_per_rank: nodes are elsewhere, "
                "and what a job asks must not depend on where it is read; `dithc doctor --write-profile` measures both"
            )
        if self.node_cores is not None and (self.launched_per_node or 1) * (self.cpus_per_rank or 1) > self.node_cores:
            raise ValueError(
                f"machine.ranks_per_node {self.launched_per_node} x cpus_per_rank {self.cpus_per_rank} is more than "
                f"machine.node_cores {self.node_cores}"
            )
        return self

    @classmethod
    def of_profile(cls, folder: Path) -> "tuple[Machine, dict[str, Any]]":
        """What a profile of the workflow engine says of the machine, and everything that it says.

        Raises:
            UserError: there is no such profile, or it cannot be read; a setting of `machine` is wrong.
        """
        from dithc.config.load import load, read_profile

        content, machine = read_profile(folder)
        return load({"machine": machine}).machine, content

    @property
    def ranks(self) -> int | None:
        """Ranks over all nodes; None where the machine decides."""
        return None if self.launched_per_node is None else self.nodes * self.launched_per_node

    @property
    def launched_per_node(self) -> int | None:
        """Ranks on a node, 1 without a launcher; None where the machine decides."""
        return 1 if self.ranks_per_node is None and self.launcher == "none" else self.ranks_per_node

    def ranks_on(self, *, num_dies: int, num_clusters: int) -> int:
        """Ranks on a node with so many dies and clusters, where nobody has given their number."""
        return num_dies if self.strategy == "cftp" else num_clusters


class Resources(Settings):
    """What a job asks of the scheduler, where it is not what follows from its work."""

    mem_mb: Positive | None = None
    """Memory of a node in MB; from model, batch and data if not given."""
    runtime: Positive | None = None
    """Walltime in minutes; from the work and `machine.gflops_per_core` if not given."""
    cpus: Positive | None = None
    """Cores of a job that computes; those of a node if not given."""


class Experiment(Settings):
    """What is trained on what, and how it is judged."""

    name: Name = "demo"
    """Name of the experiment: its outputs stand in `results/<name>`."""
    title: Title = "dithc"
    """Title of the report."""
    seed: Seed = 0
    """Seed of everything random."""
    results: Place = "results"
    """Folder of all outputs."""
    store: Place = "store"
    """Folder of checkpoints, owned by the trainer and shared by experiments."""
    machine: Machine = Machine()
    """How ranks are started; set by a profile."""
    resources: dict[Stage, Resources] = {}
    """What jobs ask, by stage, in place of what follows from their work; `default` for stages not named."""
    bench: Bench = Bench()
    """Timing of a step."""
    paper: Paper = Paper()
    """The paper's tables and figures."""
    datasets: dict[Name, Dataset] = {}
    """Data sets."""
    codecs: dict[Name, Codec] = {}
    """Codecs."""
    runs: dict[Name, Run] = {}
    """Trainings."""
    extractors: dict[Name, AnyExtractor] = {}
    """Feature extractors."""
    evaluations: dict[Name, Evaluation] = {}
    """Evaluations."""

    @model_validator(mode="after")
    def _references(self) -> Self:
        for name, dataset in self.datasets.items():
            self._known(f"datasets.{name}.codec", dataset.codec, self.codecs)
            self._rendered(name, dataset)
        for name, codec in self.codecs.items():
            if isinstance(codec, KlVae):
                self._known(f"codecs.{name}.trained_on", codec.trained_on, self.datasets)
                codec.check_tiles(self.datasets[codec.trained_on].tiles.size, f"codecs.{name}")
        for name, extractor in self.extractors.items():
            if isinstance(extractor, Extractor) and extractor.trained_on is not None:
                self._known(f"extractors.{name}.trained_on", extractor.trained_on, self.datasets)
                self._told_apart(name, extractor, self.datasets[extractor.trained_on])
        for name, run in self.runs.items():
            self._known(f"runs.{name}.dataset", run.dataset, self.datasets)
            self._chain(name)
            self._learns(name, run)
            self._sees(name, run)
            self._fits(name, run)
            ranks = self.machine.ranks
            if ranks is not None and self.machine.strategy != "dp+tp" and run.global_batch % ranks:
                raise ValueError(
                    f"runs.{name}.global_batch {run.global_batch} cannot be shared equally by "
                    f"{ranks} ranks (machine.nodes x machine.ranks_per_node)"
                )
        for name, evaluation in self.evaluations.items():
            self._known(f"evaluations.{name}.run", evaluation.run, self.runs)
            self._known(f"evaluations.{name}.extractor", evaluation.extractor, self.extractors)
            if isinstance(evaluation.at, int) and not self.runs[evaluation.run].keeps(evaluation.at):
                raise ValueError(
                    f"evaluations.{name}.at is step {evaluation.at}, whose checkpoint runs.{evaluation.run} does not keep: it "
                    "keeps multiples of `segment` and of `keep_every`, and the last step"
                )
            run = self.runs[evaluation.run]
            if evaluation.guide is not None and run.init is None and run.init_file is None:
                raise ValueError(
                    f"evaluations.{name}.guide is {evaluation.guide}, which needs a fine-tuning: "
                    f"runs.{evaluation.run} has neither `init` nor `init_file`"
                )
            if evaluation.guidance != 1.0 and run.guide is not None:
                raise ValueError(
                    f"evaluations.{name}.guidance {evaluation.guidance} would guide twice: runs.{evaluation.run} has guidance "
                    "trained in (`guide`); leave `guidance` out"
                )
            started = self.runs[run.init] if run.init is not None else run
            if evaluation.guide is not None and not (run.label_dropout and started.label_dropout):
                raise ValueError(
                    f"evaluations.{name}.guide is {evaluation.guide}, which predicts without a label: `label_dropout` of "
                    f"runs.{evaluation.run} and of the run it starts from must be above 0, or that was never learnt"
                )
            if evaluation.guidance != 1.0 and evaluation.guide is None and run.label_dropout == 0.0:
                raise ValueError(
                    f"evaluations.{name}.guidance {evaluation.guidance} needs a run that saw dropped labels; "
                    f"runs.{evaluation.run}.label_dropout is 0"
                )
            self._solved(name, evaluation)
            self._averaged(name, evaluation)
        if self.machine.launcher == "srun" and self.machine.ranks_per_node is None:
            raise ValueError("machine.launcher `srun` needs machine.ranks_per_node: its nodes are elsewhere")
        if self.machine.launcher == "none" and self.machine.ranks is not None and self.machine.ranks > 1:
            raise ValueError(f"machine.launcher `none` starts one rank, {self.machine.ranks} are asked for")
        return self

    def _known(self, key: str, name: str, section: object) -> None:
        assert isinstance(section, dict)
        if name not in section:
            raise ValueError(f"{key} is {name!r}, which is not defined; there are: {', '.join(section) or 'none'}")

    @model_validator(mode="after")
    def _measured(self) -> Self:
        for name, evaluation in self.evaluations.items():
            self._has_bands(name, evaluation)
        return self

    def _has_bands(self, name: str, evaluation: Evaluation) -> None:
        """The bands that are measured are there, in generated images too."""
        dataset = self.runs[evaluation.run].dataset
        settings = self.datasets[dataset]
        if (evaluation.triplets or evaluation.sees_pixels) and self.codecs[settings.codec].sees_display:
            raise ValueError(
                f"evaluations.{name}: `triplets` and the metrics of pixels need all bands, and codecs.{settings.codec} gives "
                "those that are rendered alone, as 8-bit pictures: leave them out"
            )
        known = settings.band_names or SENTINEL2_BANDS
        for triplet in evaluation.triplets:
            if not set(triplet) <= set(known):
                raise ValueError(
                    f"evaluations.{name}.triplets has {', '.join(triplet)}: datasets.{dataset} has {', '.join(known)}"
                )

    def _rendered(self, name: str, dataset: Dataset) -> None:
        """Bands that are named, by the rendering or by the codec, are those of the source, where that says them."""
        known = dataset.band_names
        if not set(dataset.rendering.bands) <= set(known or SENTINEL2_BANDS):
            raise ValueError(
                f"datasets.{name}.rendering.bands {', '.join(dataset.rendering.bands)}: the source has "
                f"{', '.join(known or SENTINEL2_BANDS)}"
            )
        codec = self.codecs[dataset.codec]
        if known is not None and isinstance(codec, Foreign):
            codec.check_bands(known, f"codecs.{dataset.codec}")

    def _told_apart(self, name: str, extractor: Extractor, dataset: Dataset) -> None:
        """A classifier has something to tell apart; how many classes a user's folders are is only known once they are read."""
        if dataset.one_class and not extractor.defects:
            raise ValueError(
                f"extractors.{name} tells classes apart, and tiles of datasets.{extractor.trained_on} all have one: set "
                "`defects: true`, which one class is enough for, or train it on an image folder of two classes or more"
            )

    def _fits(self, name: str, run: Run) -> None:
        """A tile becomes a whole number of patches."""
        dataset = self.datasets[run.dataset]
        factor = self.codecs[dataset.codec].factor
        patch = int(run.model.preset.rpartition("/")[2])
        if dataset.tiles.size % (factor * patch):
            raise ValueError(
                f"datasets.{run.dataset}.tiles.size {dataset.tiles.size} is no multiple of {factor * patch}: the codec "
                f"shrinks by {factor} and runs.{name} cuts patches of {patch}"
            )

    def _learns(self, name: str, run: Run) -> None:
        """What the initial weights have learnt is what the run goes on to learn."""
        before = self.runs[run.init] if run.init is not None else run
        if before.objective.predict != run.objective.predict:
            raise ValueError(
                f"runs.{name}.objective.predict is {run.objective.predict}, and runs.{run.init}, its `init`, predicts "
                f"{before.objective.predict}: give both the same"
            )
        if before.model.block != run.model.block:
            raise ValueError(
                f"runs.{name}.model has blocks of {run.model.block}, and runs.{run.init}, its `init`, of {before.model.block}: "
                "weights mean something in blocks of their kind alone; give both the same"
            )
        if run.guide is not None and run.guide.by == "start" and before.label_dropout == 0.0:
            raise ValueError(
                f"runs.{name}.guide.by: start moves away from what runs.{run.init} predicts without a label, and its "
                "`label_dropout` is 0: train it with one, or set `by: self`"
            )
        if run.guide is not None and run.guide.by == "self" and self.datasets[run.dataset].one_class:
            raise ValueError(
                f"runs.{name}.guide.by: self moves labels apart, and tiles of datasets.{run.dataset} all have one: set "
                "`by: start` in a fine-tuning, or leave `guide` out"
            )

    def _sees(self, name: str, run: Run) -> None:
        """The views that are learnt are encoded."""
        views = self.datasets[run.dataset].views
        if run.augment == "dihedral" and views != 8:
            raise ValueError(
                f"runs.{name}.augment dihedral needs 8 views of a tile, and datasets.{run.dataset}.views is {views}: set that to "
                "8, or `augment: mirror`"
            )

    def _solved(self, name: str, evaluation: Evaluation) -> None:
        """The sampler solves for what the network predicts."""
        predict = self.runs[evaluation.run].objective.predict
        if evaluation.at != "codec" and evaluation.solves_flow != (predict == "flow"):
            fitting = "euler or heun" if predict == "flow" else "one of the others"
            raise ValueError(
                f"evaluations.{name}.sampler {evaluation.sampler} does not fit runs.{evaluation.run}, whose objective.predict is "
                f"{predict}: choose {fitting}"
            )

    def _averaged(self, name: str, evaluation: Evaluation) -> None:
        """The average of another length can be made of what the run keeps."""
        run = self.runs[evaluation.run]
        if evaluation.ema is None:
            return
        if run.ema.lengths is None:
            raise ValueError(
                f"evaluations.{name}.ema {evaluation.ema} is made of averages that runs.{evaluation.run} does not keep: set its "
                "`ema.lengths`, such as [0.05, 0.1] (it is then trained anew), or leave `ema` out"
            )
        until = self._step_of(evaluation)
        if (count := until // (run.keep_every or until)) > MOST_SNAPSHOTS:
            raise ValueError(
                f"evaluations.{name}.ema is made of all kept checkpoints, of which runs.{evaluation.run} has {count} until then: "
                f"{MOST_SNAPSHOTS} are the most; keep fewer (`keep_every`)"
            )
        stored = [Profile(step, length) for step in self.snapshots_of(evaluation) for length in run.ema.lengths]
        misfit = combine(Profile(until, evaluation.ema), stored).misfit
        if misfit > LARGEST_MISFIT:
            raise ValueError(
                f"evaluations.{name}.ema {evaluation.ema} cannot be made of `ema.lengths` {run.ema.lengths} in the "
                f"{len(stored) // 2} kept checkpoint(s) of runs.{evaluation.run}: its profile would be missed by {misfit:.2f} of "
                f"its norm, {LARGEST_MISFIT} is the most. Keep more checkpoints (`keep_every`; 8 do for 0.03 to 0.25, 16 for "
                "0.02), or take a length nearer to those"
            )

    def _step_of(self, evaluation: Evaluation) -> int:
        """The last step of the weights that are sampled."""
        return evaluation.at if isinstance(evaluation.at, int) else self.runs[evaluation.run].steps

    def snapshots_of(self, evaluation: Evaluation) -> list[int]:
        """Steps of the checkpoints of which the average of another length is made; empty where none is asked for.

        Those at the ends of segments are not among them: where a training is cut into jobs decides no result.
        """
        if evaluation.ema is None:
            return []
        until, every = self._step_of(evaluation), self.runs[evaluation.run].keep_every
        return sorted({until, *(range(every, until + 1, every) if every else ())})

    def _chain(self, name: str) -> None:
        seen = [name]
        while (before := self.runs[seen[-1]].init) is not None:
            self._known(f"runs.{seen[-1]}.init", before, self.runs)
            if before in seen:
                raise ValueError(f"runs.{name}.init goes in a circle: {' <- '.join([*seen, before])}")
            seen.append(before)

    def seed_of(self, run: str) -> int:
        """The seed of a run."""
        own = self.runs[run].seed
        return self.seed if own is None else own

    def resources_of(self, stage: str) -> Resources:
        """Resources of a stage."""
        known = {str(name): asked for name, asked in self.resources.items()}
        return known.get(stage) or known.get("default") or Resources()
