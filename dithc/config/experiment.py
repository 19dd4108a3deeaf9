"""The whole configuration: one experiment, every reference in it checked before the first job starts."""

from typing import Literal, Self

from pydantic import model_validator

from dithc.averages import LARGEST_MISFIT, Profile, combine
from dithc.config.base import Name, Place, Positive, Seed, Settings, Title
from dithc.config.benches import Bench
from dithc.config.codecs import AnyExtractor, Codec, Extractor, Foreign, KlVae
from dithc.config.datasets import SENTINEL2_BANDS, Dataset
from dithc.config.machine import Machine
from dithc.config.paper import Paper
from dithc.config.scenes import check_size
from dithc.config.staging import check_stages
from dithc.config.training import (
    MOST_SNAPSHOTS,
    Evaluation,
    Run,
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
            self._guided(name, evaluation)
            self._solved(name, evaluation)
            self._averaged(name, evaluation)
            dataset = self.datasets[self.runs[evaluation.run].dataset]
            check_size(
                f"evaluations.{name}", evaluation, tile=dataset.tiles.size, factor=self.codecs[dataset.codec].factor
            )
            self._staged(name, evaluation)
        if self.machine.launcher == "srun" and self.machine.ranks_per_node is None:
            raise ValueError("machine.launcher `srun` needs machine.ranks_per_node: its nodes are elsewhere")
        if self.machine.launcher == "none" and self.machine.ranks is not None and self.machine.ranks > 1:
            raise ValueError(f"machine.launcher `none` starts one rank, {self.machine.ranks} are asked for")
        return self

    def _guided(self, name: str, evaluation: Evaluation) -> None:
        """Guidance is of something that was learnt, and once."""
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

    def _staged(self, name: str, evaluation: Evaluation) -> None:
        """Stages and patches are no more than there are blocks, ranks and tokens."""
        if evaluation.pipefusion is None:
            return
        run = self.runs[evaluation.run]
        dataset = self.datasets[run.dataset]
        side = dataset.tiles.size // self.codecs[dataset.codec].factor // run.model.patch
        check_stages(
            f"evaluations.{name}.pipefusion",
            evaluation.pipefusion,
            tokens=side**2,
            depth=run.model.shape[1],
            ranks=self.machine.ranks if self.machine.launcher != "none" else None,  # which may be started by hand
        )

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

    @property
    def scored(self) -> list[str]:
        """Evaluations that are compared with real tiles: all but scenes."""
        return [name for name, evaluation in self.evaluations.items() if evaluation.windows is None]

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
