"""A complete restoration, from its inputs to its manifest: parts of blocks, then the images of each scene."""

import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from dithc.config import evaluations, training
from dithc.core.artifacts import Manifest, digest, outputs, sha256_file, summaries
from dithc.core.logging import get_logger, progress, unwritten, user_error
from dithc.data import Tiles
from dithc.diffusion import Objective
from dithc.diffusion.restoration import RadialCovariance
from dithc.engine.comm import Group
from dithc.engine.scheduler import deadline
from dithc.latents import Codec, open_codec
from dithc.sample.load_network import load_network
from dithc.sample.restoration.blocks import blocks
from dithc.sample.restoration.job import RestorationJob
from dithc.sample.restoration.latent_space import LatentSpace
from dithc.sample.restoration.outputs import RestoredScene, folder_name, is_part, write_part
from dithc.sample.restoration.scenes import Flag, RestorableScenes
from dithc.sample.restoration.summary import summarize
from dithc.sample.restoration.work import BlockSampler

COVARIANCE_TILES, COVARIANCE_VALUES = 512, 1 << 26  # most tiles, and most values of at least 32 tiles
PARTS_PER_RANK = 8  # of scenes that are sampled together, before their images are written
ERROR_TILES, ERROR_VALUES = 96, 1 << 24  # most of these tiles, and most values of at least 16, to measure errors
WAIT_SECONDS, STOPPED_SECONDS = 1800.0, 10.0  # ranks wait for each other between blocks and images only
FEW_OBSERVED = 0.05  # share of the pixels inside a scene
GRACE, EXIT_SECONDS = 1.3, 15.0  # multiple of the slowest item so far; seconds to exit
log = get_logger(__name__)

Part = tuple[int, int, int]
"""Number of a scene, of its block, and of a part of the members."""
Item = TypeVar("Item")
Score = Callable[[RestorationJob, BlockSampler, Sequence[RestoredScene], Group], dict[str, Any] | None]
"""Compares restored scenes with their hidden pixels, writes `RestorationJob.scores` and returns its content; None if stopped."""


def restore(job: RestorationJob, group: Group, *, score: Score | None = None) -> summaries.RestoreSummary | None:
    """Restore the scenes of a job and write the manifest; all ranks share the parts of blocks, then the scenes.

    Returns the values of the manifest. If the job ends earlier, finished parts and scenes are kept, and the result is None.
    With `hide`, `score` compares the restored with the hidden pixels.

    Raises:
        UserError: Inputs are missing, damaged or inconsistent, a sampled value is not finite, or the disk is full.
    """
    start = time.monotonic()
    output, owner = outputs.OutputFolder.of(job.out), dict[str, Any](stage="restore", name=job.name)
    if group.rank == 0:
        output.check(**owner)
    inputs = job.inputs()
    sampler, scenes, meta = _open(job, group)
    restored = _plan(job, sampler, scenes, group, identities=_identities(job, inputs, scenes, group))
    missing = group.broadcast_object(_missing(restored) if group.rank == 0 else None)  # hashes all finished files
    group.wait_at_most(WAIT_SECONDS, stopped_seconds=STOPPED_SECONDS)
    if group.rank == 0:
        output.claim(**owner)
        paths = [path for one in restored for path in (*one.part_files(), *one.files())]
        output.plan([*paths, job.scores])
        _check_space(job.out.parent, restored, missing, PARTS_PER_RANK * group.size)

    try:
        if not _restore_scenes(job, sampler, restored, missing, group):
            return None
    except OSError as error:
        raise unwritten("a restored scene", job.out.parent, error, kept="finished parts and scenes are kept") from error
    numbers = summarize(job, restored, sampler, meta, ranks=group.size)
    if score is not None and job.settings.hide is not None:
        scores = score(job, sampler, restored, group)
        if scores is None:
            return None
        numbers["scores"] = scores
    if group.rank == 0:
        extra = [job.scores] if "scores" in numbers else []
        numbers["seconds"] = round(time.monotonic() - start, 3)
        kept = [*(path for one in restored for path in one.files()), *extra]
        output.prune([*kept, *([job.regression] if job.regression else [])])
        records = Manifest.entries(job.out.parent, [*(one.files()[-1] for one in restored), *extra])
        Manifest(
            **owner,
            spec=job.spec,
            summary=numbers,
            files=[entry for one in restored for entry in one.entries()] + records,
            inputs=inputs,
            wall_seconds=numbers["seconds"],
        ).write(job.out)
        output.finish(**owner)
        log.info(f"{len(restored)} restored scenes in {job.out.parent}, {len(missing)} written now")
    group.barrier()  # launchers kill the other ranks soon after the first has ended
    return numbers


def _restore_scenes(
    job: RestorationJob,
    sampler: BlockSampler,
    restored: Sequence[RestoredScene],
    missing: dict[int, list[tuple[int, int]]],
    group: Group,
) -> bool:
    """Sample the missing parts and write their scenes, some scenes at a time; False if the job ends earlier."""
    unfinished = {(scene, block) for scene, parts in missing.items() for block, _ in parts}
    for scene, block in sorted(unfinished):
        sampler.measured(sampler.levels(scene, restored[scene].blocks[block]), group)

    def sample_part(unit: Part) -> None:
        _sample(sampler, restored[unit[0]], *unit)

    def write_scene(scene: int) -> None:
        restored[scene].write(tags={"restoration": job.name, "run": job.settings.run})

    waves = list(_waves(missing, PARTS_PER_RANK * group.size))
    units = [[(scene, *part) for scene in wave for part in missing[scene]] for wave in waves]
    own = sum(len(parts[group.rank :: group.size]) for parts in units)
    with progress(total=own, label=f"restore {job.name}", unit="part", quiet=group.rank > 0 or not own) as bar:
        for wave, parts in zip(waves, units, strict=True):
            shares = (
                partial(_share, parts, sample_part, unit="part", advance=bar.update),
                partial(_share, wave, write_scene, unit="scene"),
            )
            for share in shares:
                is_complete = share(group=group)
                group.wait_at_most(None, stopped_seconds=STOPPED_SECONDS)  # other ranks may need hours for an item
                if group.any(not is_complete):
                    return False
    return True


def _open(job: RestorationJob, group: Group) -> tuple[BlockSampler, RestorableScenes, dict[str, Any]]:
    """Return the prior and the scenes, checked for consistency; all ranks have the covariance of the first."""
    tiles, settings = Tiles(job.tiles.parent), job.settings
    model, meta = load_network(job.prior())
    codec = open_codec(job.codec_settings, info=tiles.info, folder=job.codec.parent if job.codec else None)
    size, channels = (tiles.info["size"] // codec.downsampling_factor,) * 2, codec.latent_channels
    got, expected = (codec.id, size, channels), (meta["codec"], model.config.size, model.config.in_channels)
    if got != expected:
        fix = "pass the tiles of the training run, and use its configuration"
        raise user_error("codec, size and bands of the tiles", got=got, expected=expected, fix=fix)
    scenes = RestorableScenes(
        job.scenes.parent,
        tiles.info,
        settings,
        training=job.training.parent,
        hiding=job.masks.parent if job.masks is not None else None,
        given=[band for _, bands, role in model.config.band_groups if role == "condition" for band in bands],
    )
    scenes.check_coarse()
    if job.regression is not None:
        scenes.check_hiding(size=tiles.info["size"])
    for name, bands, role in model.config.band_groups:
        names = ", ".join(tiles.info["bands"][band] for band in bands)
        otherwise = "sampled with the other bands" if role == "modeled" else "absent"
        log.info(
            f"group {name} ({names}): held clean in blocks without gaps of these bands, {otherwise} in other blocks"
        )
    values = group.broadcast_object(_tile_values(tiles, codec) if group.rank == 0 else None)
    state, latent_state, images, labels = values
    latents = None if codec.keeps_pixels else LatentSpace.of(codec, tiles.info, latent_state)
    objective = Objective.of(training.ObjectiveConfig(**meta["objective"]))
    solver = settings.sampler_for(meta["objective"]["prediction_type"])
    bf16 = meta["dtype"] == "bf16"
    sampler = BlockSampler(
        model,
        scenes,
        settings,
        objective=objective,
        covariance=RadialCovariance.of_state(state),
        images=torch.from_numpy(images),
        labels=torch.from_numpy(labels),
        bf16=bf16,
        sampler=solver,
        latents=latents,
    )
    return sampler, scenes, meta


def _tile_values(tiles: Tiles, codec: Codec) -> tuple[Any, ...]:
    """Return values of drawn train tiles.

    Returns:
        The covariance of their pixels, and of their latents (None for pixels), as states; the clearest tiles as the network
        gets them, float32 (n, Z, h, w) with NaN in gaps; and the labels (n) of these.
    """
    size = len(tiles.info["bands"]) * tiles.info["size"] ** 2
    rows = tiles.drawn("train", max(32, min(COVARIANCE_TILES, COVARIANCE_VALUES // size)), seed=0)
    clear = tiles.clear(rows)
    pixels = np.where(clear[:, None], tiles.scaled(rows), np.nan)
    chosen = np.argsort(-clear.mean((1, 2)), kind="stable")[: max(16, min(ERROR_TILES, ERROR_VALUES // size))]
    labels = tiles.labels[rows[chosen]].astype(np.int64)
    state = RadialCovariance.of(pixels).state()
    if codec.keeps_pixels:
        return state, None, pixels[chosen], labels
    encoded = codec.input(tiles, rows)
    latents = codec.encode(encoded[chosen])[0] * codec.scale
    return state, LatentSpace.state(codec, encoded), latents.numpy(), labels


def _identities(job: RestorationJob, inputs: dict[str, str], scenes: RestorableScenes, group: Group) -> list[str]:
    """Return a digest of all settings and inputs of each scene. Other scenes of the dataset do not affect it."""
    plugin, paths = job.settings.sampler, (job.checkpoint, job.tiles, job.codec, job.masks)
    files = [sha256_file(path) for path in plugin.files] if isinstance(plugin, evaluations.PluginSampler) else []
    shared = {"spec": job.spec, "inputs": [inputs[str(path)] for path in paths if path], "sampler_files": files}
    own = [scenes.digest(scene) for scene in range(group.rank, scenes.count, group.size)]
    found = group.gather_objects(own)
    return [
        digest({**shared, "scene": found[scene % group.size][scene // group.size]}) for scene in range(scenes.count)
    ]


def _plan(
    job: RestorationJob, sampler: BlockSampler, scenes: RestorableScenes, group: Group, *, identities: Sequence[str]
) -> list[RestoredScene]:
    """Return all scenes with the parts of their blocks; parts hold as many members as a network call has windows."""
    settings, plans, clouded = job.settings, [], []
    multiple, tile = math.lcm(*scenes.coarse.values(), sampler.factor), int(scenes.info["size"])
    for scene in range(scenes.count):
        inside = observed = 0
        found = blocks(scenes.shape(scene), size=settings.block_size, window=tile, multiple=multiple)
        parts, counts = [], []
        for block in found:
            place = scene, block.rows.extent, block.columns.extent
            flags = scenes.flags(*place)
            is_inside = (flags != Flag.OUTSIDE).any(0)
            inside += int(is_inside.sum())
            observed += int((is_inside & ((flags == Flag.OBSERVED).any(0) | ~scenes.gaps(*place))).sum())
            each = max(1, settings.batch_size // sampler.grid(block).num_windows)
            counts.append(int((flags == Flag.RESTORED).sum()))
            first_members = range(0, settings.members, each) if counts[-1] else ()
            parts.append([range(first, min(settings.members, first + each)) for first in first_members])
        plans.append(
            RestoredScene(
                scenes=scenes,
                scene=scene,
                folder=job.out.parent / folder_name(scenes.column("scene_id", scene)),
                blocks=found,
                parts=parts,
                counts=counts,
                members=settings.members,
                identity=identities[scene],
            )
        )
        if observed < FEW_OBSERVED * inside:
            clouded.append(scenes.column("scene_id", scene))
    if clouded and group.rank == 0:
        log.warning(
            f"fewer than {FEW_OBSERVED:.0%} of the pixels of {', '.join(clouded)} are observed: their restored pixels are"
            " samples of the prior, not of the ground; remove these scenes from the dataset"
        )
    return plans


def _missing(restored: Sequence[RestoredScene]) -> dict[int, list[tuple[int, int]]]:
    """Return the unfinished scenes with their missing parts, as (block, part)."""
    return {
        one.scene: [
            (block, part)
            for block, parts in enumerate(one.parts)
            for part in range(len(parts))
            if not is_part(one.part(block, part), identity=one.identity)
        ]
        for one in restored
        if one.record() is None
    }


def _waves(missing: dict[int, list[tuple[int, int]]], count: int) -> Iterator[list[int]]:
    """Yield consecutive scenes with at least `count` parts together, to be written before the next."""
    wave: list[int] = []
    for scene in missing:
        wave.append(scene)
        if sum(len(missing[one]) for one in wave) >= count:
            yield wave
            wave = []
    yield wave


def _check_space(
    folder: Path, restored: Sequence[RestoredScene], missing: dict[int, list[tuple[int, int]]], count: int
) -> None:
    """Raise UserError if the missing parts of a wave exceed the disk; warn if uncompressed images exceed it."""
    free = shutil.disk_usage(folder).free
    waves = _waves(missing, count)
    parts = max(sum(restored[scene].part_bytes(missing[scene]) for scene in wave) for wave in waves)
    images = sum(restored[scene].image_bytes() for scene in missing)
    if free < parts:
        raise user_error(
            f"disk space for the unfinished members of scenes in {folder}",
            got=f"{free / 2**30:.1f} GiB free",
            expected=f"at least {parts / 2**30:.1f} GiB, and space for images",
            fix="free disk space, choose another folder of `results`, or reduce `members`",
        )
    if free < parts + images:
        log.warning(
            f"{free / 2**30:.1f} GiB of disk space may be too small for {images / 2**30:.1f} GiB of images before "
            "compression: free disk space, or reduce `members`"
        )


def _share(
    items: Sequence[Item],
    work: Callable[[Item], None],
    group: Group,
    *,
    unit: str,
    advance: Callable[[int], object] = lambda _: None,
) -> bool:
    """Process this rank's share of items; return False if the walltime is too short for a further item.

    The first item always starts, so that a repeatedly restarted job makes progress. `advance` counts finished items.
    """
    slowest = 0.0
    for item in items[group.rank :: group.size]:
        remaining = deadline.seconds_left()
        if slowest and remaining is not None and remaining < GRACE * slowest + EXIT_SECONDS:
            log.warning(f"stopping: {remaining:.0f} s of the walltime left, a {unit} takes {slowest:.0f} s")
            return False
        start = time.monotonic()
        work(item)
        slowest = max(slowest, time.monotonic() - start)
        advance(1)
    return True


def _sample(sampler: BlockSampler, restored: RestoredScene, scene: int, block: int, part: int) -> None:
    """Sample a part of the members of a block and write it."""
    sampled, errors = sampler.members(scene, restored.blocks[block], restored.parts[block][part])
    values = np.column_stack([restored.restored(block, sampled), errors])
    if not torch.from_numpy(values).isfinite().all():
        raise user_error(
            f"a restored value of scene {restored.scenes.column('scene_id', scene)} is not finite",
            got="NaN or infinity from the network or the solver",
            expected="finite numbers",
            fix="increase `steps` or `noise` of the restoration; check the last training losses",
        )
    write_part(restored.part(block, part), values, identity=restored.identity)
