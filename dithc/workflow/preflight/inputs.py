"""Checks of the user's files against their settings, before the first job."""

import os
import re
from collections.abc import Iterator, Set
from itertools import islice
from pathlib import Path

from dithc.config import ExperimentConfig, codecs, datasets, stage_spec
from dithc.core.artifacts import Manifest
from dithc.core.logging import UserError, user_error
from dithc.core.system_files import is_system_file
from dithc.core.weights import content_of, files_of
from dithc.workflow.experiment_graph import ExperimentGraph

PROGRAMS = (("encoder.pt", "decoder.pt"), ("encoder.pt2", "decoder.pt2"))
LEVEL_2A = re.compile(r"_MSIL2A_")
MAX_INSPECTED = 2_000  # inspected folders and files of a source; ingestion reports faults of the rest
PRODUCTS, PACKED = ".SAFE", ".ZIP"


def check_inputs(graph: ExperimentGraph, rules: Set[str]) -> None:
    """Check the user's files for the given rules, without reading them completely; one UserError lists all faults."""
    experiment = graph.experiment
    faults = [*_missing_files(experiment, rules), *_incomplete_files(experiment, rules), *_bands(graph, rules)]
    faults += _gaps(graph, rules)
    if faults:
        raise user_error(
            f"input of experiment {experiment.name!r} is missing on this machine, or incomplete",
            got="".join(f"\n    {line}" for line in faults),
            expected="your data, autoencoder and feature extractor at those paths (nothing is downloaded)",
            fix="copy or link them there (`dithc fetch` downloads the products of a `search`), or set the keys in a second "
            "--configfile; config/README.md lists the files of each kind. If only the nodes have them, set "
            "`machine: {inputs_visible_on: nodes}`",
        )


def _missing_files(experiment: ExperimentConfig, rules: Set[str]) -> list[str]:
    if experiment.machine.inputs_visible_on == "nodes":
        return []
    paths: dict[str, str | None] = {}
    for name, dataset in experiment.datasets.items() if "ingest" in rules else ():
        paths[f"datasets.{name}.source.path"] = dataset.source.path
        paths[f"datasets.{name}.source.dem"] = getattr(dataset.source, "dem", None)
        paths |= {f"datasets.{name}.layers.{key}.path": layer.path for key, layer in dataset.layers.items()}
    if rules & {"latents", "sample"}:
        paths |= {f"codecs.{name}.path": getattr(codec, "path", None) for name, codec in experiment.codecs.items()}
    if rules & {"features_real", "features_generated"}:
        paths |= {f"extractors.{name}.path": extractor.path for name, extractor in experiment.extractors.items()}
    if "simulate_scaling" in rules:
        simulate = experiment.bench.simulate
        paths |= {"bench.simulate.machine": simulate.machine, "bench.simulate.step": simulate.step}
    missing = {key: path for key, path in paths.items() if path is not None and not Path(path).exists()}
    return [f"{key}: {path}: no such file or folder" for key, path in missing.items()]


def _incomplete_files(experiment: ExperimentConfig, rules: Set[str]) -> Iterator[str]:
    """Yield faults of inputs that exist and are incomplete or of another type."""
    only_on_nodes = experiment.machine.inputs_visible_on == "nodes"
    if rules & {"latents", "sample"}:
        for name, codec in experiment.codecs.items():
            key, path = f"codecs.{name}.path", Path(getattr(codec, "path", None) or ".")
            if isinstance(codec, codecs.TorchScriptCodecConfig) and path.exists():
                yield from _check_programs(key, path) if path.is_dir() else _check_weights(key, path)
            elif isinstance(codec, codecs.SdVaeConfig | codecs.DiffusersCodecConfig) and path.is_file():
                yield f"{key}: {path}: a file; expected the folder with config.json and the weights"
            elif isinstance(codec, codecs.SdVaeConfig | codecs.DiffusersCodecConfig) and path.exists():
                if not (path / "config.json").is_file():
                    yield f"{key}: {path}: the folder has no config.json"
                yield from _check_weights(key, path)
    if rules & {"features_real", "features_generated"}:
        for name, extractor in experiment.extractors.items():
            key, path = f"extractors.{name}.path", Path(extractor.path or ".")
            if isinstance(extractor, codecs.ExtractorConfig) and extractor.path is not None and path.is_dir():
                yield f"{key}: {path}: a folder; expected the weights file in it"
            elif isinstance(extractor, codecs.ExtractorConfig) and path.is_file():
                yield from _check_weights(key, path)
    if rules & {"pretrain", "finetune"}:
        for name, run in experiment.runs.items():
            if run.init_from_file is not None and not (only_on_nodes and not Path(run.init_from_file).exists()):
                yield from _check_weights(f"runs.{name}.init_from_file", Path(run.init_from_file))
    for name, dataset in experiment.datasets.items() if "ingest" in rules else ():
        path = Path(dataset.source.path or "no folder")
        if dataset.source.path is not None and path.is_dir() and not any(True for _ in _visible_paths(path)):
            yield f"datasets.{name}.source.path: {path}: the folder is empty"


def _check_programs(key: str, path: Path) -> Iterator[str]:
    if not any(all((path / name).is_file() for name in names) for names in PROGRAMS):
        yield f"{key}: {path}: the folder lacks {', or '.join(' and '.join(names) for names in PROGRAMS)}"


def _check_weights(key: str, path: Path) -> Iterator[str]:
    """Yield faults of a path to weights: a missing file or shard, or a file that certainly has other content."""
    try:
        for file in files_of(path):
            if (content := content_of(file)).fix:
                yield f"{key}: {file}: {content.words}; {content.fix}"
    except (OSError, ValueError) as error:
        yield f"{key}: {error}" if str(path) in str(error) else f"{key}: {path}: {error}"


def _bands(graph: ExperimentGraph, rules: Set[str]) -> Iterator[str]:
    """Yield bands in the settings that the scenes do not have."""
    experiment = graph.experiment
    for name, dataset in experiment.datasets.items():
        scene_bands = _bands_of(graph, name, dataset, is_staged="ingest" not in rules)
        if scene_bands is None:
            continue
        bands_of_key = {f"datasets.{name}.rendering.bands": list(dataset.rendering.bands)}
        bands_of_key |= {f"datasets.{name}.source.bands": list(getattr(dataset.source, "bands", None) or [])}
        codec = experiment.codecs[dataset.codec]
        if isinstance(codec, codecs.ExternalCodecConfig) and isinstance(codec.bands, list):
            bands_of_key |= {f"codecs.{dataset.codec}.bands": [band for group in codec.bands for band in group]}
        for key, evaluation in experiment.evaluations.items():
            if graph.dataset_of(key) == name:
                bands_of_key[f"evaluations.{key}.band_triplets"] = [
                    band for triplet in evaluation.band_triplets for band in triplet
                ]
        for key, bands in bands_of_key.items():
            if unknown := [band for band in dict.fromkeys(bands) if band not in scene_bands]:
                yield f"{key} has {', '.join(unknown)}: the scenes of {name} have {', '.join(scene_bands)}"


def _gaps(graph: ExperimentGraph, rules: Set[str]) -> Iterator[str]:
    """Yield datasets of `hide` that were ingested and have no gaps; ingestion checks the other datasets."""
    from dithc.data import products

    for name, restoration in (
        graph.experiment.restorations.items() if "restore" in rules and "ingest" not in rules else ()
    ):
        dataset = restoration.gap_source
        scenes = None if dataset is None else Path(graph.path("scenes", dataset))
        if scenes is not None and scenes.exists() and not products.Scenes(scenes.parent).has_gaps:
            yield (
                f"restorations.{name}.hide.dataset: the scenes of {dataset} have neither clouds nor pixels without data; "
                "choose another dataset, or hide generated shapes (`hide.share`)"
            )


def _bands_of(
    graph: ExperimentGraph, name: str, dataset: datasets.DatasetConfig, *, is_staged: bool
) -> list[str] | None:
    """Return the bands of the scenes, as ingested or by product names; None if unknown."""
    try:
        if is_staged:
            staged = Manifest.read(Path(graph.path("scenes", name)), stage="ingest")
            if staged.spec == stage_spec(graph.experiment, "ingest", name):  # else it will be ingested again
                return staged.summary.get("bands")
    except UserError:
        pass
    source = dataset.source
    if not isinstance(source, datasets.Sentinel2Source) or source.path is None or not Path(source.path).is_dir():
        return None
    products = [path for path in _visible_paths(Path(source.path)) if path.name.upper().endswith((PRODUCTS, PACKED))]
    if not products or not all(LEVEL_2A.search(path.name) for path in products):
        return None
    bands = [*(source.bands or datasets.SENTINEL2_BANDS), *dataset.layer_bands]
    return [band for band in bands if band != datasets.NOT_OF_LEVEL_2A]


def _visible_paths(folder: Path) -> Iterator[Path]:
    """Return the first visible files and folders below a folder, without the contents of products."""

    def visible() -> Iterator[Path]:
        for place, folders, names in os.walk(folder):
            yield from (Path(place, name) for name in sorted((*folders, *names)) if not is_system_file(name))
            folders[:] = [name for name in folders if not is_system_file(name) and not name.upper().endswith(PRODUCTS)]

    return islice(visible(), MAX_INSPECTED)
