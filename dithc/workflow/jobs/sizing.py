"""Resource needs of a job: a rule for memory and a rule for time, from model, batch and data.

Memory of a node (`ResourceEstimate.memory_mb`): process baseline, model state, activations of concurrent images, and pixels. Time
(`ResourceEstimate.minutes`): floating-point operations over the rate of the cores (`machine.gflops_per_core`), I/O, and startup.
Both are upper bounds, checked against the peaks in manifests; settings in `resources` override them. Without visible source
files, sizes are those of the ingested scenes, or unknown: a job then requests the limit of the machine.
Legend: N images at once; T tokens; D width; L blocks.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dithc.config import ExperimentConfig, codecs, datasets, training
from dithc.engine.cost import memory, records
from dithc.workflow.monitor import read_mapping

MB = 1e6
# Resident memory of a dithc process after its imports: 0.35 GB with torch, 0.15 GB without, doubled because libraries differ.
TORCH_MB, PLAIN_MB = 800, 400
# Values that the Stable Diffusion autoencoder keeps per image without gradients, in (pixels x first width).
KEPT_CONVOLUTION, SD_WIDTH = 12, 128
VALIDATION_PASSES = 256 * 8  # forward passes of one image: at most 256 tiles, each at 8 diffusion times
MAX_FEATURES = 2048  # per image
COPY_QUERIES, COPY_FLOPS = 2 * 2048, 22e3  # images in the search for copies, and operations for each and a tile
# Bytes per pixel of the 10 m grid of a Sentinel-2 product: half of the memory of a process that reads band by band.
READING_BYTES = {"sentinel2": 5, "sentinel2-stac": 8}
SAMPLED_SHARD = 64  # images that `dithc sample` buffers before it writes them
RESTORED_COPIES, STRIP_BYTES = 28, 256 << 20  # copies of a block in sampler and solver (measured); rows of all members
SOLVE_FLOPS = 2e4  # of the solver of a restoration per value and step
START_MINUTES = 2.0
UNKNOWN_MB, UNKNOWN_MINUTES = 16_000, 1440  # requests for work of unknown size on a machine without limits
DISK_MB_PER_SECOND = 20.0
CONVOLUTION_SHARE = 0.5  # fraction of `gflops_per_core` that PyTorch's small convolutions reach
SOURCE_BANDS = {"sentinel2": 13, "sentinel2-stac": 13, "image-folder": 3}
ITEMS, MAX_FILES = (".json", ".geojson"), 100_000
SHARDS, SHARD_PART_BYTES = (".tar", ".parquet"), 64 << 20  # readers hold one image, or one row group, at a time
NEAR_BYTES, NEAR_PAIRS_MB = 1700, 160.0  # memory per tile and for pairs in the search for near duplicates
EXPANSION = 12  # bytes of decoded 4-byte values per byte of a file, which may be compressed to a third
LAYER_MB = 512  # decoded files that a layer keeps
SHARE = 1.25  # factor on the sum, for heap fragmentation
PLANNED_SHARE = 1.05  # the same for measured memory


@dataclass(frozen=True)
class ResourceEstimate:
    """Megabytes (10^6) per node, and minutes of wall time; `is_known` is False for work of unknown size."""

    memory_mb: int
    minutes: int
    is_known: bool = True


def needs(
    experiment: ExperimentConfig, stage: str, name: str, *, ranks_per_node: int, ranks: int, cores: int
) -> ResourceEstimate:
    """Return the needs of a job.

    `stage` is as in `resources`; `ranks` are the processes of training and sampling, `cores` those of a node.
    """
    rule = _RULES.get(stage)
    if stage == "train" and (plan := planned(experiment, name)) is not None:
        return plan
    if rule is None:
        return ResourceEstimate(4 * TORCH_MB, 60)
    megabytes, flops, disk_mb = rule(experiment, name, ranks)
    nodes = 1
    if stage == "ingest":
        megabytes *= min(cores, max(1, _scenes(experiment, name)))
    elif stage in ("train", "sample", "restore"):
        nodes = max(1, ranks // ranks_per_node)
        megabytes *= ranks_per_node
    flops_per_second = experiment.machine.gflops_per_core * 1e9 * cores * nodes
    seconds = flops / flops_per_second + disk_mb / DISK_MB_PER_SECOND
    needed, machine = megabytes * SHARE, experiment.machine
    if math.isinf(needed):
        needed = (machine.memory_per_node_mb or UNKNOWN_MB) - 1000
    if math.isinf(seconds):
        return ResourceEstimate(int(needed), machine.max_walltime_minutes or UNKNOWN_MINUTES, is_known=False)
    return ResourceEstimate(100 * math.ceil(needed / 100), math.ceil(START_MINUTES + seconds / 60))


def _tokens(experiment: ExperimentConfig, run: training.RunConfig) -> int:
    dataset = experiment.datasets[run.dataset]
    return max(1, dataset.tiles.size // (experiment.codecs[dataset.codec].downsampling_factor * run.model.patch)) ** 2


def source_files(root: str | None) -> tuple[int, int, int]:
    """Return number, total bytes and largest bytes of the files of a source or layer; zeros without a folder.

    Archives of images count with the part that a reader holds in memory.
    """
    count = total = largest = 0
    for path in islice(_paths_below(root), MAX_FILES):
        with suppress(OSError):  # the reader rejects a dangling link
            size = path.stat().st_size
            part = min(size, SHARD_PART_BYTES) if path.name.lower().endswith(SHARDS) else size
            count, total, largest = count + 1, total + size, max(largest, part)
    return count, total, largest


def _paths_below(root: str | None) -> Iterator[Path]:
    if root is not None and Path(root).is_file():
        yield Path(root)
    elif root is not None:
        yield from (Path(folder, name) for folder, _, names in os.walk(root) for name in names)


def _bands(dataset: datasets.DatasetConfig) -> int:
    bands = getattr(dataset.source, "bands", None)
    count = len(bands) if bands is not None else SOURCE_BANDS.get(dataset.source.kind, 4)
    return count + len(dataset.layer_bands)


def _scene_mb(experiment: ExperimentConfig, name: str) -> tuple[float, float]:
    """Return megabytes of a scene of a dataset in memory, and of all scenes on disk."""
    dataset = experiment.datasets[name]
    bands, synthetic = _bands(dataset), dataset.source.synthetic
    if synthetic is not None:
        scene_mb = bands * synthetic.size**2 * 4 / MB
        return scene_mb, scene_mb * _scenes(experiment, name)
    count, total, largest = source_files(dataset.source.path)
    total_mb = 3 * total / MB if count else _ingested(experiment, name)[1]
    if dataset.source.kind in READING_BYTES or not count:
        return bands * datasets.SENTINEL2_SIDE**2 * 2 / MB, total_mb
    return EXPANSION * largest / MB, total_mb


def _ingested(experiment: ExperimentConfig, name: str) -> tuple[float, float]:
    """Return the number and megabytes of a dataset's ingested scenes; infinite before ingestion."""
    manifest = read_mapping(Path(experiment.results, experiment.name, "scenes", name, "manifest.json"))
    megabytes = sum(entry["bytes"] for entry in manifest.get("files", [])) / MB
    return (manifest["summary"]["scenes"], megabytes) if manifest else (math.inf, math.inf)


def _synthesize(experiment: ExperimentConfig, name: str, _: int) -> tuple[float, float, float]:
    scene_mb, total_mb = _scene_mb(experiment, name)
    return PLAIN_MB + 12 * scene_mb, 0.0, 10 * total_mb


def _ingest(experiment: ExperimentConfig, name: str, _: int) -> tuple[float, float, float]:
    """Needs of ingestion, per process; one process per core reads scenes."""
    dataset = experiment.datasets[name]
    scene_mb, total_mb = _scene_mb(experiment, name)
    if dataset.source.kind in READING_BYTES and dataset.source.synthetic is None:
        scene_mb = READING_BYTES[dataset.source.kind] * datasets.SENTINEL2_SIDE**2 / MB
    layers_mb = sum(EXPANSION * source_files(layer.path)[2] / MB + LAYER_MB for layer in dataset.layers.values())
    return PLAIN_MB + 2.2 * scene_mb + layers_mb, 0.0, 4 * total_mb


def _tiles(experiment: ExperimentConfig, name: str, _: int) -> tuple[float, float, float]:
    dataset = experiment.datasets[name]
    scene_mb, total_mb = _scene_mb(experiment, name)
    pairs_mb = 0.0
    if dataset.split.duplicates == "near":  # tiles of three bands or more, and the pairs that are compared together
        pairs_mb = NEAR_BYTES * total_mb / (3 * dataset.tiles.size**2) + NEAR_PAIRS_MB
    return PLAIN_MB + 2.2 * scene_mb + pairs_mb, 0.0, (4 + 2 * (pairs_mb > 0)) * total_mb


def _scenes(experiment: ExperimentConfig, name: str) -> float:
    """Return the maximum number of scenes: files, or Sentinel-2 products."""
    dataset = experiment.datasets[name]
    synthetic, root = dataset.source.synthetic, dataset.source.path
    if synthetic is not None:
        return synthetic.scenes * (synthetic.classes if dataset.source.kind == "image-folder" else 1)
    if dataset.source.kind not in READING_BYTES or root is None:
        found = source_files(dataset.source.path)[0]
    elif dataset.source.kind == "sentinel2-stac":
        found = sum(file.lower().endswith(ITEMS) for _, _, files in os.walk(root) for file in files)
    else:
        found = sum(folder.upper().endswith(".SAFE") for folder, _, _ in os.walk(root))
        found += sum(file.lower().endswith(".zip") for _, _, files in os.walk(root) for file in files)
    return found or _ingested(experiment, name)[0]


def _convolutions(experiment: ExperimentConfig, dataset: datasets.DatasetConfig) -> tuple[float, float]:
    """Return stored values and multiply-adds per pixel of a codec's encoder and decoder."""
    codec = experiment.codecs[dataset.codec]
    if isinstance(codec, codecs.KlVaeConfig):
        area, width, latent = codec.downsampling_factor**2, codec.hidden_channels, codec.latent_channels
        patch, blocks = _bands(dataset) * area, codec.decoder_blocks
        activations = 6 * patch + width * (6 + 4 * blocks) + 8 * latent
        adds = width * (9 * patch + 10 * blocks * width + 11 * latent + patch) + 2 * patch * latent
        return activations / area, adds / area
    if codec.kind == "pixel":
        return 1.0, 1.0
    # A layer of the first level has 9 x width^2 multiply-adds per pixel; each half has about 12 of them. Other codecs use the
    # same estimate.
    groups = codec.groups if isinstance(codec, codecs.ExternalCodecConfig) else 1
    return groups * KEPT_CONVOLUTION * SD_WIDTH, groups * 2 * 12 * 9 * SD_WIDTH**2


def _orthogonalization(codec: codecs.KlVaeConfig, bands: int) -> float:
    """Return multiply-adds of the optimizer for the large kernels of a codec: 4 S^2 L + 14 S^3 for each (S, L)."""
    width, blocks = codec.hidden_channels, codec.decoder_blocks
    columns = 9 * (bands * codec.downsampling_factor**2 + blocks * width)
    return 4.0 * width**2 * columns + 14.0 * (blocks + 1) * width**3


def _codec(experiment: ExperimentConfig, name: str, _: int) -> tuple[float, float, float]:
    codec = experiment.codecs[name]
    if not isinstance(codec, codecs.KlVaeConfig):
        return TORCH_MB, 0.0, 0.0
    dataset = experiment.datasets[codec.train_dataset]
    activations, adds = _convolutions(experiment, dataset.model_copy(update={"codec": name}))
    pixels = codec.batch_size * codec.crop(dataset.tiles.size) ** 2
    flops = codec.steps * 2 * (3 * adds * pixels + _orthogonalization(codec, _bands(dataset))) / CONVOLUTION_SHARE
    moments = (
        4 * 8 * (_bands(dataset) * codec.downsampling_factor**2) ** 2
    )  # second moments of patches, and their decomposition
    return (
        TORCH_MB + (4 * activations * pixels + moments) / MB + _scene_mb(experiment, codec.train_dataset)[1] / 4,
        flops,
        0.0,
    )


def _latents(experiment: ExperimentConfig, name: str, _: int) -> tuple[float, float, float]:
    dataset = experiment.datasets[name]
    activations = _convolutions(experiment, dataset)[0]
    total_mb = _scene_mb(experiment, name)[1]
    flops = _codec_pass(experiment, name) * dataset.views
    passes = 2 + dataset.views + (dataset.clusters is not None)  # clusters read all tiles
    return TORCH_MB + 32 * dataset.tiles.size**2 * activations * 4 / MB, flops, passes * total_mb


def _codec_pass(experiment: ExperimentConfig, name: str) -> float:
    dataset = experiment.datasets[name]
    _, adds = _convolutions(experiment, dataset)
    numbers = _scene_mb(experiment, name)[1] * MB / 4
    return 2 * adds * numbers / _bands(dataset) / CONVOLUTION_SHARE


def _train(experiment: ExperimentConfig, name: str, ranks: int) -> tuple[float, float, float]:
    run, machine = experiment.runs[name], experiment.machine
    tokens = _tokens(experiment, run)
    image_flops = run.model.flops(tokens)
    share = math.ceil(run.global_batch_size * machine.pipeline_stages / ranks)
    concurrent = min(run.micro_batch_size or share, share)
    needed = memory.rank_memory(
        run,
        images=concurrent,
        tokens=tokens,
        process=TORCH_MB * MB,
        stages=machine.pipeline_stages,
        snapshot=machine.checkpoint_mode == "async",
    )
    passes = 4 if run.activation_checkpointing == "block" else 3
    step_flops = passes * image_flops * run.global_batch_size + run.update_flops
    flops = step_flops * run.segment_steps
    if run.validate_every is not None:
        flops += image_flops * VALIDATION_PASSES * (run.segment_steps // run.validate_every + 1)
    checkpoint = (needed.state - needed.gradients) / MB * (run.segment_steps / run.checkpoint_every + 1)
    return needed.total / MB, flops, checkpoint


def planned(experiment: ExperimentConfig, name: str) -> ResourceEstimate | None:
    """Return the needs of a training job by its plan (`dithc plan`), or None without a plan for its present settings."""
    run, results = experiment.runs[name], Path(experiment.results, experiment.name)
    plan = records.estimate_of(records.read_plan(records.plan_path(results, name)), run, experiment.machine)
    if plan is None:
        return None
    steps = run.segment_steps * plan["interval"][1]
    if run.validate_every is not None:  # forward passes; a step has three
        steps += (
            plan["interval"][1]
            / 3
            * VALIDATION_PASSES
            / run.global_batch_size
            * (run.segment_steps // run.validate_every + 1)
        )
    state = sum(plan["memory"][key] for key in ("weights", "optimizer", "averages")) / MB
    steps += state / DISK_MB_PER_SECOND * (run.segment_steps / run.checkpoint_every + 1)
    megabytes = PLANNED_SHARE * plan["node_bytes"] / MB
    return ResourceEstimate(100 * math.ceil(megabytes / 100), math.ceil(START_MINUTES + steps / 60))


def _sample(experiment: ExperimentConfig, name: str, ranks: int) -> tuple[float, float, float]:
    evaluation = experiment.evaluations[name]
    run = experiment.runs[evaluation.run]
    dataset, tokens, parameters = experiment.datasets[run.dataset], _tokens(experiment, run), run.model.parameters
    (width, _, _), side, bands = run.model.shape, dataset.tiles.size, _bands(dataset)
    networks = 2 if evaluation.guidance_reference is not None else 1
    # Two networks process an image in sequence; one network processes both halves of the guidance together.
    halves = 2 if evaluation.guidance_scale != 1.0 else 1
    concurrent = min(evaluation.batch_size, SAMPLED_SHARD) * (halves if networks == 1 else 1)
    activations, _ = _convolutions(experiment, dataset)
    decoding = min(evaluation.batch_size, SAMPLED_SHARD) * side**2 * activations * 4
    buffered = SAMPLED_SHARD * side**2 * bands * 4 * 3
    network = concurrent * tokens * width * 4 * run.model.kept_widths + parameters * 8 * networks
    flops = (
        run.model.flops(tokens)
        * evaluation.num_images
        * evaluation.steps
        * (2 if evaluation.guidance_scale != 1.0 else 1)
    )
    if evaluation.windows is not None and evaluation.image_size is not None:
        across = evaluation.image_size / side
        flops *= (across / (1 - evaluation.windows.overlap)) ** 2
        # One row of decoded tiles with its output buffers, and the latents of several steps, which are smaller than the pixels.
        buffered = evaluation.image_size * side * bands * 4 * 6 + evaluation.image_size**2 * 4
    if evaluation.checkpoint == "codec":
        return TORCH_MB + (decoding + buffered) / MB, 4 * _codec_pass(experiment, run.dataset), 0.0
    return TORCH_MB + (decoding + buffered + network) / MB, flops, 0.0


def _restore(experiment: ExperimentConfig, name: str, ranks: int) -> tuple[float, float, float]:
    restoration = experiment.restorations[name]
    run = experiment.runs[restoration.run]
    dataset, tokens, members = experiment.datasets[run.dataset], _tokens(experiment, run), restoration.members
    side, bands, (width, _, _) = dataset.tiles.size, _bands(dataset), run.model.shape
    values = bands * (restoration.block_size + 2 * side) ** 2  # of a block with its margins
    pixels = _scene_mb(experiment, restoration.dataset)[1] * MB / (4 * _bands(experiment.datasets[restoration.dataset]))
    windows = (pixels / side**2) / (1 - restoration.windows.overlap) ** 2
    network = 4.0 * restoration.batch_size * tokens * width * run.model.kept_widths + run.model.parameters * 8
    files = 4 * pixels * bands * (2 * members + 4)  # parts of the members, and images of members and statistics
    flops = windows * run.model.flops(tokens) + SOLVE_FLOPS * pixels * bands
    return (
        TORCH_MB + (4 * RESTORED_COPIES * values + STRIP_BYTES + network) / MB,
        members * restoration.steps * flops,
        2 * files / MB + DISK_MB_PER_SECOND * 60 * (restoration.hide.regression_minutes if restoration.hide else 0.0),
    )


def _extractor(experiment: ExperimentConfig, name: str, _: int) -> tuple[float, float, float]:
    extractor = experiment.extractors[name]
    assert isinstance(extractor, codecs.ExtractorConfig), "others are not trained"
    dataset = experiment.datasets[extractor.train_dataset or ""]
    pixels = dataset.tiles.size**2
    flops = 3 * 2 * 4 * 9 * 64**2 * pixels * extractor.batch * extractor.steps / CONVOLUTION_SHARE
    return (
        TORCH_MB
        + extractor.batch * pixels * 64 * 8 * 4 / MB
        + _scene_mb(experiment, extractor.train_dataset or "")[1] / 4,
        flops,
        0.0,
    )


def _features(experiment: ExperimentConfig, name: str, _: int) -> tuple[float, float, float]:
    # InceptionV3 needs 12 GFLOP per image and 0.6 GB for a batch of 32, other kinds less.
    evaluations = experiment.evaluations.values()
    images = max((item.num_images for item in evaluations), default=0)
    total_mb = sum(_scene_mb(experiment, item)[1] for item in experiment.datasets)
    tiles = _all_tiles(experiment)
    flops = 12e9 if experiment.extractors[name].kind in ("inception", "torchscript") else 1e9
    passes = 1 + max((len(item.band_triplets) + item.needs_pixel_statistics for item in evaluations), default=0)
    return 2 * TORCH_MB + 600, flops * passes * max(images, tiles) / CONVOLUTION_SHARE, passes * total_mb


def _all_tiles(experiment: ExperimentConfig) -> float:
    sets = experiment.datasets.items()
    return sum(_scene_mb(experiment, key)[1] * MB / (4 * item.tiles.size**2 * _bands(item)) for key, item in sets)


def _fid(experiment: ExperimentConfig, name: str, ranks: int) -> tuple[float, float, float]:
    """Needs of scores: matrices of 2,048 features, 32 MB each, for the distance, and the search for copies."""
    flops = COPY_QUERIES * COPY_FLOPS * _all_tiles(experiment) / CONVOLUTION_SHARE  # in float64
    searching = [item.num_images for item in experiment.evaluations.values() if "precision-recall" in item.metrics]
    if searching:  # all pairs
        flops += 2 * MAX_FEATURES * (_all_tiles(experiment) + max(searching)) ** 2 / CONVOLUTION_SHARE
    return TORCH_MB, flops, DISK_MB_PER_SECOND * 180


_RULES: dict[str, Callable[[ExperimentConfig, str, int], tuple[float, float, float]]] = {
    "synthesize": _synthesize,
    "ingest": _ingest,
    "tiles": _tiles,
    "codec": _codec,
    "latents": _latents,
    "train": _train,
    "sample": _sample,
    "restore": _restore,
    "extractor": _extractor,
    "features": _features,
    "fid": _fid,
    "report": lambda *_: (2 * TORCH_MB, 0.0, DISK_MB_PER_SECOND * 180),
}
"""Megabytes per process, floating-point operations per job, and megabytes of I/O, by stage."""
