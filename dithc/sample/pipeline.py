"""A complete sampling run, from its inputs to its manifest.

Legend: N images; C bands, H, W image.
"""

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dithc.config import evaluations, training
from dithc.core.artifacts import Manifest, digest, outputs, sha256_file
from dithc.core.logging import get_logger, progress, user_error
from dithc.data import Tiles, mosaic, write_png
from dithc.diffusion import Objective
from dithc.engine.comm import Group
from dithc.engine.numa import available_bytes
from dithc.engine.scheduler import deadline
from dithc.latents import Codec, Latents, open_codec
from dithc.model import DiT
from dithc.sample.generate import CodecReconstructions, ImageGenerator, Images
from dithc.sample.job import SamplingJob
from dithc.sample.load_network import describe, load_guide, load_network
from dithc.sample.parallel import SamplingGroup, rank_groups
from dithc.sample.parallel_plan import chosen_degrees
from dithc.sample.scene_shards import check_disk, check_memory, free_bytes, preview, write_scene
from dithc.sample.shards import SHARD_IMAGES, ImageShards, batches

NOT_IN_IDENTITY = {"num_images"}  # image i does not depend on the number of images
# Ranks that share an image or a shard wait for each other at every step, and while one rank writes a shard.
WAIT_SECONDS, STOPPED_SECONDS = 1800.0, 10.0
SHARD_GRACE, EXIT_SECONDS = 1.3, 15.0  # multiple of the slowest shard so far; seconds to exit
GRID_FILE = "grid.png"
LABELS_NOTE = "uniform over the classes with train samples, from (seed, index)"
log = get_logger(__name__)


def sample(job: SamplingJob, group: Group) -> dict[str, Any] | None:
    """Draw the missing images of an evaluation and write the manifest; all ranks, placed on their cores, share the shards.

    Returns the values of the manifest. If the job ends earlier, sampling stops between two shards, keeps every finished
    shard and returns None.

    Raises:
        UserError: Inputs are missing, damaged or inconsistent, an image is not finite, or the disk is full.
    """
    start = time.monotonic()
    output = outputs.OutputFolder.of(job.out)
    if group.rank == 0:
        output.check(stage="sample", name=job.name)
    inputs = inputs_of(job)
    is_codec, sampler = job.evaluation.checkpoint == "codec", job.evaluation.sampler
    images, meta = _open_codec(job) if is_codec else open_images(job, tiles_digest=inputs[str(job.tiles)])
    identity: dict[str, Any] = {
        "spec": {name: value for name, value in job.spec.items() if name not in NOT_IN_IDENTITY},
        "inputs": sorted(inputs.values()),
        "rendering_digest": meta["rendering_digest"],
    }
    if is_codec:
        identity["codec"] = meta["codec"]
    elif isinstance(sampler, evaluations.PluginSampler) and sampler.files:
        identity["sampler_files"] = [sha256_file(path) for path in sampler.files]
    scenes = _scenes(images)
    each = SHARD_IMAGES if scenes is None else 1
    shards = ImageShards(folder=job.out.parent, total=images.count, identity=digest(identity), each=each)
    missing = group.broadcast_object(_missing(shards) if group.rank == 0 else None)
    if scenes is not None and missing:
        _check_scenes(scenes, shards, missing, bands=meta["bands"], group=group)
    is_complete = _draw_shards(images, shards, missing, job=job, group=group)
    if group.any(not is_complete):
        return None
    numbers = _numbers(job, shards, meta=meta, ranks=group.size)
    if group.rank == 0:
        display = np.load(shards.path(0, kind="rgb")) if scenes is None else preview(shards)
        grid = job.out.parent / GRID_FILE
        write_png(grid, mosaic(display, columns=min(8, len(display))))
        output.prune([*shards.files(), grid])
        files = [entry for shard in range(shards.count) for entry in shards.read_sidecar(shard)["files"]]
        files += Manifest.entries(job.out.parent, [*map(shards.sidecar, range(shards.count)), grid])
        Manifest(
            stage="sample",
            name=job.name,
            spec=job.spec,
            summary=numbers,
            files=files,
            inputs=inputs,
            wall_seconds=round(time.monotonic() - start, 3),
        ).write(job.out)
        output.finish(stage="sample", name=job.name)
        log.info(f"{shards.total} images in {job.out.parent}, {len(missing)} of {shards.count} shards made now")
    group.barrier()  # rank 0 may still be writing, and launchers kill the other ranks soon after the first has ended
    return numbers


def inputs_of(job: SamplingJob) -> dict[str, str]:
    """Return the digest of each input manifest, by path; UserError for the checkpoint of another run."""
    stages = ((job.checkpoint, "train"), (job.latents, "latents"), (job.tiles, "tiles"), (job.codec, "codec"))
    manifests = {str(path): Manifest.read(path, stage=stage) for path, stage in stages if path is not None}
    if job.checkpoint is not None and (name := manifests[str(job.checkpoint)].name) != job.evaluation.run:
        raise user_error(
            f"checkpoint of evaluation {job.name} is of another run",
            got=name,
            expected=job.evaluation.run,
            fix="pass a manifest of this run, or select another evaluation",
        )
    return {path: manifest.digest for path, manifest in manifests.items()}


def _open_codec(job: SamplingJob) -> tuple[CodecReconstructions, dict[str, Any]]:
    tiles, codec = _tiles_and_codec(job)
    meta = {"step": None, "codec": codec.id, "rendering_digest": digest(tiles.info["display"])}
    return CodecReconstructions(codec, tiles, evaluation=job.evaluation), meta


def _tiles_and_codec(job: SamplingJob) -> tuple[Tiles, Codec]:
    tiles = Tiles(job.tiles.parent)
    return tiles, open_codec(job.codec_settings, info=tiles.info, folder=job.codec.parent if job.codec else None)


def open_images(job: SamplingJob, *, tiles_digest: str) -> tuple[ImageGenerator, dict[str, Any]]:
    """Return the network, the codec and the classes, checked for consistency."""
    guide = load_guide(job)
    model, meta = load_network(job)
    assert job.latents is not None
    tiles, codec = _tiles_and_codec(job)
    if codec.id != meta["codec"]:
        raise user_error(
            f"codec of evaluation {job.name} differs from the codec of the training run",
            got=codec.id,
            expected=meta["codec"],
            fix="sample with the codec of the run's latents, or retrain on latents of this codec",
        )
    latents = Latents(job.latents.parent, codec_id=codec.id, tiles_digest=tiles_digest)
    if latents.num_classes != meta["num_classes"]:
        raise user_error(
            f"latents {job.latents} differ from those of the training run",
            got=f"{latents.num_classes} classes",
            expected=f"{meta['num_classes']} classes",
            fix="pass the latents of the run's dataset",
        )
    classes = np.unique(latents.labels[latents.rows("train")]).astype(np.int64)
    objective = Objective.of(training.ObjectiveConfig(**meta["objective"]))
    images = ImageGenerator(
        model,
        codec,
        evaluation=job.evaluation,
        classes=classes,
        objective=objective,
        bf16=meta["dtype"] == "bf16",
        guide=guide,
        conditions=_conditions(model, tiles, job.evaluation),
    )
    images.check_size(job.name)
    evaluations = images.network_evaluations()
    stretch = digest(tiles.info["display"])
    return images, meta | {"network_evaluations": evaluations, "rendering_digest": stretch, "bands": codec.in_bands}


def _conditions(model: DiT, tiles: Tiles, evaluation: evaluations.EvaluationConfig) -> Tensor | None:
    """Return the numbers (K) of the network's conditions and levels, NaN if absent; None without these."""
    names, levels = (
        [name for name, _ in model.config.conditions],
        torch.full((len(model.config.band_groups),), torch.nan),
    )
    inputs = tiles.conditions_of(evaluation.conditions) if names else {}
    numbers = [*(torch.from_numpy(inputs[name][0]) for name in names), levels]
    return torch.cat(numbers) if sum(map(len, numbers)) else None


def _scenes(images: Images) -> ImageGenerator | None:
    """Return the images if they are scenes: drawn one by one in windows, and written by rows."""
    return images if isinstance(images, ImageGenerator) and images.grid is not None else None


def _check_scenes(images: ImageGenerator, shards: ImageShards, missing: list[int], *, bands: int, group: Group) -> None:
    """Raise UserError on all ranks if scenes exceed memory or disk, before sampling starts."""
    available = available_bytes()
    by_rank = group.gather_objects(None if available is None else available // group.local_size)
    if free := [memory for memory in by_rank if memory is not None]:
        check_memory(images.shape, free=min(free))
    disk_bytes = group.broadcast_object(free_bytes(shards.folder) if group.rank == 0 else None)
    check_disk(shards, missing, shape=(bands, *images.image_size), free=disk_bytes)


def _missing(shards: ImageShards) -> list[int]:
    """Return the missing shards; log the reason if an existing shard is invalid."""
    faults = {shard: shards.fault(shard) for shard in range(shards.count)}
    for shard, fault in faults.items():
        if fault:
            log.warning(f"regenerating {shards.path(shard)}: {fault}")
    return [shard for shard, fault in faults.items() if fault is not None]


def _draw_shards(images: Images, shards: ImageShards, missing: list[int], *, job: SamplingJob, group: Group) -> bool:
    """Draw shards, each by a group of ranks; return False if the walltime is too short for a further shard.

    The first shard always starts, so that a repeatedly restarted job makes progress.
    """
    group.wait_at_most(WAIT_SECONDS, stopped_seconds=STOPPED_SECONDS)
    with group.stop_timeout():
        plan = chosen_degrees(images, [len(shards.indices(shard)) for shard in missing], job=job, group=group)
        degrees = plan.best.degrees
        groups = rank_groups(degrees, ranks=group.size)
        images.team = team = SamplingGroup.of(group, degrees, groups)
    if group.rank == 0:
        output = outputs.OutputFolder.of(job.out)
        output.claim(stage="sample", name=job.name)
        output.plan([*shards.files(), shards.folder / GRID_FILE])
    group.barrier()
    if group.size > 1 and missing:
        teams = group.size // degrees.size
        log.info(f"{len(missing)} shard(s) by {teams} group(s) of {degrees.size} rank(s) each, {plan.describe()}")
    own_shards = missing[team.number :: len(groups)] if team.number is not None else []
    steps, batch = images.steps, min(job.evaluation.batch_size, shards.each)
    scenes = _scenes(images)
    draw = images.images if scenes is None else scenes.latents
    total = sum(len(team.local_images(shards.indices(shard))) for shard in own_shards)
    num_drawn, slowest, is_complete, label = 0, 0.0, True, f"sample {job.name}"

    def report(step: int, steps: int) -> None:
        bar.update(len(part), images=f"{num_drawn + len(part) * (step == steps)}/{total}")

    with progress(total=total * steps, label=label, unit="image-steps", quiet=group.rank > 0 or not own_shards) as bar:
        for shard in own_shards:
            remaining = deadline.seconds_left()
            is_late = bool(slowest) and remaining is not None and remaining < SHARD_GRACE * slowest + EXIT_SECONDS
            if team.members.any(is_late):
                log.warning(f"stopping: {remaining or 0:.0f} s of the walltime left, a shard takes {slowest:.0f} s")
                is_complete = False
                break
            start, parts = time.monotonic(), []
            for part in batches(team.local_images(shards.indices(shard)), batch):
                parts.append(draw(part, on_step=report))  # (N, C, H, W); scenes: (1, Z, h, w)
                num_drawn += len(part)
            _write(images, shards, shard, parts, start=start)
            slowest = max(slowest, time.monotonic() - start)
    group.wait_at_most(None, stopped_seconds=STOPPED_SECONDS)  # other ranks may need hours for their last shard
    return is_complete


def _write(images: Images, shards: ImageShards, shard: int, parts: list[Tensor], *, start: float) -> None:
    """Collect a shard on the first rank of its group, which writes it."""
    scenes = _scenes(images)
    if scenes is not None:
        (latent,) = parts[0]  # (Z, h, w)
        write_scene(shards, shard, scenes, latent, start=start)
        return
    team = images.team
    decoded = team.gather(torch.cat(parts) if parts else None, shards.indices(shard))  # (shard, C, H, W)
    if decoded is not None:
        shards.write(
            shard,
            images=decoded.numpy(),
            rgb=images.codec.to_rgb(decoded),
            labels=images.labels(shards.indices(shard)),
            seconds=(time.monotonic() - start) * team.members.size,
        )


def _sampler_settings(evaluation: evaluations.EvaluationConfig, *, meta: dict[str, Any]) -> dict[str, Any]:
    names = (
        "weights",
        "sampler",
        "solver_order",
        "steps",
        "guidance_scale",
        "guidance_channels",
        "guidance_interval",
        "guidance_reference",
    )
    settings = {name: getattr(evaluation, name) for name in names} | {"sampler": str(evaluation.sampler)}
    if evaluation.windows is not None:
        settings |= {"image_size": evaluation.image_size, "windows": evaluation.windows.model_dump(mode="json")}
    settings |= {name: meta[name] for name in ("step", "dtype", "network_evaluations")}
    return {**settings, "labels": LABELS_NOTE}


def _numbers(job: SamplingJob, shards: ImageShards, *, meta: dict[str, Any], ranks: int) -> dict[str, Any]:
    config = job.evaluation
    sidecars = [shards.read_sidecar(shard) for shard in range(shards.count)]
    seconds = sum(float(sidecar["seconds"]) for sidecar in sidecars)
    seams = [float(sidecar["seam_ratio"]) for sidecar in sidecars if "seam_ratio" in sidecar]
    return {
        "images": shards.total,
        "seconds": round(seconds, 3),
        "images_per_second": shards.total * ranks / seconds if seconds else None,
        "ranks": ranks,
        "run": config.run,
        "checkpoint": config.checkpoint,
        "weights_description": describe(config, step=meta["step"]),
        **({"split": config.real_split} if config.checkpoint == "codec" else _sampler_settings(config, meta=meta)),
        "seed": config.seed,
        "codec": meta["codec"],
        "rendering_digest": meta["rendering_digest"],
        "shape": sidecars[0]["shape"],
        **({"seam_ratio": round(sum(seams) / len(seams), 4)} if seams else {}),
    }
