"""The complete configuration of an experiment. All references in it are checked before the first job starts."""

from collections.abc import Collection, Iterator, Mapping
from typing import Literal, TypeVar

from dithc.config.schema.base import Name, Place, Positive, Seed, Settings, Title
from dithc.config.schema.benchmarks import BenchConfig, PaperConfig
from dithc.config.schema.codecs import AnyExtractor, Codec, ExternalCodecConfig, ExtractorConfig, KlVaeConfig
from dithc.config.schema.datasets import SENTINEL2_BANDS, DatasetConfig
from dithc.config.schema.evaluations import EvaluationConfig, RestorationConfig
from dithc.config.schema.machine import MachineConfig
from dithc.config.schema.training import RunConfig
from dithc.core.logging import user_error

T = TypeVar("T")
Stage = Literal[
    "default",
    "synthesize",
    "ingest",
    "tiles",
    "codec",
    "latents",
    "train",
    "sample",
    "restore",
    "extractor",
    "features",
    "fid",
    "bench",
    "report",
]


class ResourcesConfig(Settings):
    """Resources that a job requests from the scheduler, instead of the computed values."""

    mem_mb: Positive | None = None
    """Memory per node in MB; computed from model, batch and data if unset."""
    runtime: Positive | None = None
    """Walltime in minutes; computed from the work and `machine.gflops_per_core` if unset."""
    cpus: Positive | None = None
    """Cores of a compute job; all cores of a node if unset."""


class ExperimentConfig(Settings):
    """An experiment: datasets, training runs and their evaluation."""

    name: Name = "demo"
    """Name of the experiment; its outputs are in `results/<name>`."""
    title: Title = "dithc"
    """Title of the report."""
    seed: Seed = 0
    """Seed of all random draws."""
    results: Place = "results"
    """Folder of all outputs."""
    store: Place = "store"
    """Folder of checkpoints, owned by the trainer and shared by experiments."""
    machine: MachineConfig = MachineConfig()
    """Launch of ranks; set by a profile."""
    resources: dict[Stage, ResourcesConfig] = {}
    """Requested resources by stage, instead of the computed values; `default` applies to all other stages."""
    bench: BenchConfig = BenchConfig()
    """Benchmarks in the report."""
    paper: PaperConfig = PaperConfig()
    """Tables and figures of the paper."""
    datasets: dict[Name, DatasetConfig] = {}
    """Datasets."""
    codecs: dict[Name, Codec] = {}
    """Codecs."""
    runs: dict[Name, RunConfig] = {}
    """Training runs."""
    extractors: dict[Name, AnyExtractor] = {}
    """Feature extractors."""
    evaluations: dict[Name, EvaluationConfig] = {}
    """Evaluations."""
    restorations: dict[Name, RestorationConfig] = {}
    """Restorations of scenes."""

    def _faults(self) -> Iterator[str]:
        for name, dataset in self.datasets.items():
            yield from self._check_name(f"datasets.{name}.codec", dataset.codec, self.codecs)
            yield from self._check_rendering(name, dataset)
        for name, codec in self.codecs.items():
            if isinstance(codec, KlVaeConfig):
                yield from self._check_name(f"codecs.{name}.train_dataset", codec.train_dataset, self.datasets)
                codec.check_tiles(self.datasets[codec.train_dataset].tiles.size, f"codecs.{name}")
        for name, extractor in self.extractors.items():
            if isinstance(extractor, ExtractorConfig) and extractor.train_dataset is not None:
                yield from self._check_name(f"extractors.{name}.train_dataset", extractor.train_dataset, self.datasets)
                yield from self._check_classes(name, extractor, self.datasets[extractor.train_dataset])
        for name, run in self.runs.items():
            yield from self._check_name(f"runs.{name}.dataset", run.dataset, self.datasets)
            yield from self._check_chain(name)
            yield from self._check_workers(name, run)
            yield from self._check_start(name, run)
            yield from self._check_tiles(name, run)
        for name, evaluation in self.evaluations.items():
            yield from self._check_name(f"evaluations.{name}.run", evaluation.run, self.runs)
            yield from self._check_name(f"evaluations.{name}.extractor", evaluation.extractor, self.extractors)
            run = self.runs[evaluation.run]
            yield from evaluation.condition_faults(f"evaluations.{name}", run)
            checks = (self._check_guidance, self._check_sampled)
            for check in (*checks, self._check_images, self._check_bands):
                yield from check(name, evaluation, run)
        for name, restoration in self.restorations.items():
            key, hide = f"restorations.{name}", restoration.hide
            yield from self._check_name(f"{key}.run", restoration.run, self.runs)
            yield from self._check_name(f"{key}.dataset", restoration.dataset, self.datasets)
            if hide is not None and hide.dataset is not None:
                yield from self._check_name(f"{key}.hide.dataset", hide.dataset, self.datasets)
            yield from restoration.faults(key, self)
        yield from self._check_ranks()

    def _check_ranks(self) -> Iterator[str]:
        """Check that the launcher starts the ranks and that they share the batch of each run."""
        machine, ranks = self.machine, self.machine.ranks
        shares = None if ranks is None else max(1, ranks // machine.pipeline_stages)
        for name, run in self.runs.items():
            if shares is not None and machine.strategy != "dp+tp" and run.global_batch_size % shares:
                yield (
                    f"runs.{name}.global_batch_size {run.global_batch_size} cannot be shared equally by {shares} ranks "
                    "(machine.nodes x machine.ranks_per_node / machine.pipeline_stages)"
                )
            if machine.pipeline_stages > 1:
                yield from machine.stage_faults(name, run)
        if machine.launcher == "srun" and machine.ranks_per_node is None:
            yield "machine.launcher `srun` requires machine.ranks_per_node: its nodes are other machines"
        if machine.launcher == "none" and ranks is not None and ranks > 1:
            yield f"machine.launcher `none` starts one rank, {ranks} are requested"

    def _check_sampled(self, name: str, evaluation: EvaluationConfig, run: RunConfig) -> Iterator[str]:
        """Check that the run keeps the sampled weights and that the sampler fits its prediction target."""
        if isinstance(evaluation.checkpoint, int) and not run.keeps(evaluation.checkpoint):
            yield (
                f"evaluations.{name}.checkpoint is step {evaluation.checkpoint}, but runs.{evaluation.run} does not "
                "keep this checkpoint: it keeps multiples of `steps_per_job` and of `keep_every`, and the last step"
            )
        predict = run.objective.prediction_type
        if evaluation.checkpoint != "codec" and evaluation.solver.is_flow != (predict == "flow"):
            fitting = "euler or heun" if predict == "flow" else "another sampler"
            yield (
                f"evaluations.{name}.sampler {evaluation.sampler} does not fit objective.prediction_type of "
                f"runs.{evaluation.run}, which is {predict}: choose {fitting}"
            )

    def _check_guidance(self, name: str, evaluation: EvaluationConfig, run: RunConfig) -> Iterator[str]:
        """Check that the run supports the guidance of an evaluation."""
        reference = evaluation.guidance_reference
        if reference is not None:
            if not run.keeps(reference) or reference == run.steps:
                yield (
                    f"evaluations.{name}.guidance_reference is step {reference}, but runs.{evaluation.run} does not keep it as "
                    "an earlier checkpoint: it keeps multiples of `steps_per_job` and of `keep_every`"
                )
        elif evaluation.guidance_scale != 1.0 and run.label_dropout == 0.0:
            yield (
                f"evaluations.{name}.guidance_scale {evaluation.guidance_scale} requires a run with dropped labels; "
                f"runs.{evaluation.run}.label_dropout is 0"
            )

    def _check_images(self, name: str, evaluation: EvaluationConfig, run: RunConfig) -> Iterator[str]:
        """Check the size of images against tiles and codec."""
        dataset = self.datasets[run.dataset]
        key, tile, factor = f"evaluations.{name}", dataset.tiles.size, self.codecs[dataset.codec].downsampling_factor
        size = evaluation.image_size or tile
        if size < tile:
            yield (
                f"{key}.image_size {size} is smaller than the tiles of runs.{evaluation.run} ({tile}): leave it out, or train "
                "on smaller tiles"
            )
        if size > tile and evaluation.windows is None:
            yield (
                f"{key}.image_size {size} is larger than the tiles of runs.{evaluation.run} ({tile}), and a network generates "
                "images of the tile size only: add `windows: {overlap: 0.25}`, or train a run on tiles of that size"
            )
        if size > tile and size % factor:
            yield f"{key}.image_size {size} is not a multiple of the codec's {factor}: use {size // factor * factor}"

    def _check_workers(self, name: str, run: RunConfig) -> Iterator[str]:
        """Check that the workers of local updates have equal settings, and that the machine supports them."""
        if run.local_updates is None:
            return
        key, machine = f"runs.{name}.local_updates", self.machine
        if name not in run.local_updates.workers:
            yield f"{key}.workers does not contain {name}: list all runs that are workers, this one included"
        for other in run.local_updates.workers:
            if other in self.runs and (self.runs[other] != run or self.seed_of(other) != self.seed_of(name)):
                yield f"{key}: runs.{other} differs from runs.{name}: give all workers the same settings"
        if machine.strategy == "dp+tp" or machine.param_gather_dtype == "bf16":
            got = "strategy dp+tp" if machine.strategy == "dp+tp" else "param_gather_dtype bf16"
            yield f"{key} requires complete fp32 weights on each rank, not machine.{got}: use dp or cftp with fp32"

    def _check_name(self, key: str, name: str, section: Collection[str]) -> Iterator[str]:
        if name not in section:
            yield f"{key} is {name!r}, which is not defined; there are: {', '.join(section) or 'none'}"

    def _check_bands(self, name: str, evaluation: EvaluationConfig, run: RunConfig) -> Iterator[str]:
        settings = self.datasets[run.dataset]
        if (evaluation.band_triplets or evaluation.needs_pixel_statistics) and self.codecs[settings.codec].sees_display:
            yield (
                f"evaluations.{name}: `band_triplets` and the metrics of pixels require all bands, but codecs.{settings.codec} "
                "decodes only the display bands, as 8-bit images: leave them out"
            )
        bands, has = settings.band_names or SENTINEL2_BANDS, f"evaluations.{name}.band_triplets has"
        for triplet in evaluation.band_triplets:
            if not set(triplet) <= set(bands):
                yield f"{has} {', '.join(triplet)}: datasets.{run.dataset} has {', '.join(bands)}"

    def _check_rendering(self, name: str, dataset: DatasetConfig) -> Iterator[str]:
        """Check that the source has the bands of rendering and codec, if the configuration defines its bands."""
        bands = dataset.band_names
        if not set(dataset.rendering.bands) <= set(bands or SENTINEL2_BANDS):
            yield (
                f"datasets.{name}.rendering.bands {', '.join(dataset.rendering.bands)}: the source has "
                f"{', '.join(bands or SENTINEL2_BANDS)}"
            )
        codec = self.codecs[dataset.codec]
        if bands is not None and isinstance(codec, ExternalCodecConfig):
            codec.check_bands(bands, f"codecs.{dataset.codec}")

    def _check_classes(self, name: str, extractor: ExtractorConfig, dataset: DatasetConfig) -> Iterator[str]:
        """Check that a classifier has several classes; the number of class folders is unknown before they are read."""
        if dataset.one_class and not extractor.train_on_defects:
            yield (
                f"extractors.{name} classifies tiles, but all tiles of datasets.{extractor.train_dataset} have one class: set "
                "`train_on_defects: true`, which works with one class, or train it on an image folder of two or more classes"
            )

    def _check_tiles(self, name: str, run: RunConfig) -> Iterator[str]:
        """Check that the latent of a tile consists of complete patches and has the views that `augment` requires."""
        dataset, patch = self.datasets[run.dataset], run.model.patch
        factor = self.codecs[dataset.codec].downsampling_factor
        if run.augment == "dihedral" and dataset.views != 8:
            yield (
                f"runs.{name}.augment dihedral requires 8 views of a tile, and datasets.{run.dataset}.views is "
                f"{dataset.views}: set it to 8, or set `augment: mirror`"
            )
        yield from run.tile_faults(f"runs.{name}", dataset, codec=self.codecs[dataset.codec].kind)
        if dataset.tiles.size % (factor * patch):
            yield (
                f"datasets.{run.dataset}.tiles.size {dataset.tiles.size} is not a multiple of {factor * patch}: the codec "
                f"shrinks by {factor}, and the patches of runs.{name} have {patch} latent pixels"
            )

    def _check_start(self, name: str, run: RunConfig) -> Iterator[str]:
        """Check that the start run has the same prediction target and blocks."""
        before = self.runs[run.init_from_run] if run.init_from_run is not None else run
        if before.objective.prediction_type != run.objective.prediction_type:
            yield (
                f"runs.{name}.objective.prediction_type is {run.objective.prediction_type}, and runs.{run.init_from_run}, its "
                f"`init_from_run`, predicts {before.objective.prediction_type}: set both to the same value"
            )
        if before.model.block != run.model.block:
            yield (
                f"runs.{name}.model has blocks of {run.model.block}, and runs.{run.init_from_run}, its `init_from_run`, of "
                f"{before.model.block}: weights are valid only in the same type of block; use the same settings"
            )

    @property
    def tiled(self) -> list[str]:
        """Datasets that are cut into tiles: all except those that restorations use, and nothing else."""
        hides = (one.hide.dataset for one in self.restorations.values() if one.hide is not None)
        restored = {*(one.dataset for one in self.restorations.values()), *hides}
        used = {run.dataset for run in self.runs.values()}
        used |= {
            getattr(one, "train_dataset", None) or "" for one in (*self.codecs.values(), *self.extractors.values())
        }
        return [name for name in self.datasets if name in used or name not in restored]

    @property
    def scored(self) -> list[str]:
        """Evaluations with scores; scenes are not compared with real tiles."""
        return [name for name, evaluation in self.evaluations.items() if evaluation.windows is None]

    def _check_chain(self, name: str) -> Iterator[str]:
        chain = [name]
        while (before := self.runs[chain[-1]].init_from_run) is not None:
            yield from self._check_name(f"runs.{chain[-1]}.init_from_run", before, self.runs)
            if before in chain:
                yield f"runs.{name}.init_from_run is circular: {' <- '.join([*chain, before])}"
            chain.append(before)

    def seed_of(self, run: str) -> int:
        run_seed = self.runs[run].seed
        return self.seed if run_seed is None else run_seed

    def entry(self, section: Mapping[str, T], name: str) -> T:
        """Return an entry of a section of names, such as `self.datasets`; UserError lists the names if it does not exist."""
        if name not in section:
            key = next(key for key in type(self).model_fields if getattr(self, key) is section)
            raise user_error(
                f"section `{key}` of the configuration does not contain {name!r}",
                got=name,
                expected=f"one of {', '.join(section)}" if section else "a name in this section, which is empty",
                fix="correct the name, or add it to the configuration",
            )
        return section[name]

    def resources_of(self, stage: str) -> ResourcesConfig:
        resources = {str(name): requested for name, requested in self.resources.items()}
        return resources.get(stage) or resources.get("default") or ResourcesConfig()
