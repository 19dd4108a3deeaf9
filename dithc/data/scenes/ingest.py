"""Stage `scenes`: read every file of a source once, check it, stack it with scenes of its shape, and record a row."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dithc.config import datasets
from dithc.core.artifacts import Manifest, atomic_write, digest, outputs, summaries
from dithc.core.logging import UserError, get_logger, progress, user_error
from dithc.data.file_checks import printable
from dithc.data.parquet import TableWriter
from dithc.data.readers import read_scenes, state_of
from dithc.data.scene import Reason, Rejection, SceneRejectedError
from dithc.data.scenes.read_scenes import gather
from dithc.data.scenes.reading import INDEX_FILE, TABLE_FILE
from dithc.data.scenes.scene_cache import COLUMNS, CachedScene, SceneCacheWriter, partial_folder, rejected_row
from dithc.data.scenes.stacks import link

SCHEMA_VERSION = 2
"""Version 2 omits the mask of a stack with valid pixels only (null in the index)."""
EXAMPLES_PER_REASON = 2
GSD_TOLERANCE = 0.01
MULTI_IMAGE = ("multi-page", "animated")
"""Notes of files with several images, of which the first is read."""
DECODERS = ("rasterio", "pillow", "numpy", "xarray", "h5py")
log = get_logger(__name__)


def ingest_scenes(
    dataset: datasets.DatasetConfig, folder: Path, *, out: Path, threads: int = 1
) -> summaries.IngestSummary:
    """Stage all scenes of a source: stacks, `scenes.parquet` and `scenes.json`; return values for the manifest.

    Scenes from `out`, or from an interrupted run with the same settings, are reused if their files are unchanged.
    Neither reuse nor `threads` changes a byte of the result. Several threads read with processes. `out` is replaced on
    success only.

    Raises:
        UserError: There are no scenes, too many are rejected, one contradicts the declaration, or the disk is full.
    """
    scenes = read_scenes(dataset.source, folder, dataset.layers)
    settings = _settings(dataset, scenes.classes, scenes.shared)
    with partial_folder(out, settings=settings) as (partial, caches), outputs.OutputFolder(out).replaced() as temporary:
        stats, target = IngestCounts(), partial / "now"
        target.mkdir()
        with (
            TableWriter(target / TABLE_FILE, columns=COLUMNS | scenes.columns) as table,
            SceneCacheWriter(target, settings=settings) as record,
            progress(total=len(scenes), label="scenes", unit="scene") as bar,
        ):
            for outcome, state in gather(scenes, caches, partial=partial, settings=settings, threads=threads):
                scene = _check_scene(outcome, stats)
                if isinstance(scene, Rejection):
                    stats.reject(scene)
                    table.add(**rejected_row(scene, folder))
                else:
                    stats.accept(scene)
                    location = record.add(scene, state)
                    table.add(**scene.row, stack=location.stack, row=location.row)
                bar.update(1, rejected=str(stats.rejected))
        stats.left_out = scenes.left_out()
        if dataset.source.kind == "sentinel2-array":
            _check_offset(folder, stats)
        if stats.accepted <= stats.other_dtype or stats.rejected > dataset.max_rejected_fraction * len(scenes):
            raise _too_many_error(folder, stats, len(scenes), dataset.max_rejected_fraction)
        index = {
            "schema_version": SCHEMA_VERSION,
            "kind": dataset.source.kind,
            **stats.first,
            "layers": dataset.layer_bands,
            "classes": scenes.classes,
            "counts": stats.summary(),
            "stacks": record.stacks.entries,
        }
        atomic_write(target / INDEX_FILE, json.dumps(index, indent=1) + "\n")
        for path in sorted(target.iterdir()):
            link(path, temporary / path.name)
    for reason, count in stats.reasons.items():
        log.warning(f"{count} of {len(scenes)} scenes rejected: {reason}, such as {stats.examples[reason][0]}")
    if pages := sum(stats.notes[note] for note in MULTI_IMAGE):
        log.warning(
            f"scenes with further pages or frames, which are not read: {pages}; write each to a file (tiffsplit)"
        )
    return stats.summary()


def _settings(dataset: datasets.DatasetConfig, classes: list[str], shared: object) -> str:
    """Return a digest of all settings that affect scenes, besides their files; labels depend on the list of classes.

    `shared` is the attribute of `SceneSource`, which depends on all files.
    """
    source = dataset.source
    dem = getattr(source, "dem", None)
    ground = dem and state_of([Path(dem)], relative_to=Path(dem).parent)
    code = {**Manifest.code_here(), **{name: version(name) for name in DECODERS}}
    if isinstance(source, datasets.PluginSource):
        code |= {"plugin": " ".join(source.plugin.values())}
    content = source.model_dump(mode="json", exclude={"path"})
    layers = {name: layer.model_dump(mode="json", exclude={"path"}) for name, layer in dataset.layers.items()}
    parts = {"source": content, "layers": layers, "classes": classes, "ground": ground, "shared": shared, "code": code}
    return digest(parts)


@dataclass(kw_only=True)
class IngestCounts:
    """Counts of an ingestion."""

    first: dict[str, Any] = field(default_factory=dict)  # properties that all scenes must share
    accepted: int = 0
    reasons: Counter[str] = field(default_factory=Counter)  # of rejected scenes
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))  # messages per reason
    notes: Counter[str] = field(default_factory=Counter)
    other_dtype: int = 0  # scenes with another data type than the first
    left_out: dict[str, int] = field(default_factory=dict)  # files that no reader opens, by suffix

    @property
    def rejected(self) -> int:
        return self.reasons.total()

    def accept(self, scene: CachedScene) -> None:
        self.accepted += 1
        self.notes.update(scene.notes)
        self.first = self.first or scene.kind

    def reject(self, rejection: Rejection) -> None:
        error, reason = rejection.error, str(rejection.error.reason)
        self.reasons[reason] += 1
        if len(self.examples[reason]) < EXAMPLES_PER_REASON:
            text = f"{rejection.path}: {error.problem}; got {error.got}; expected {error.expected}; {error.fix}"
            self.examples[reason].append(printable(text))

    def summary(self) -> summaries.IngestSummary:
        return {
            "scenes": self.accepted + self.rejected,
            "accepted": self.accepted,
            "rejected": dict(self.reasons),
            "notes": dict(self.notes),
            "left_out": self.left_out,
            "bands": self.first["bands"],
        }


def _check_scene(outcome: CachedScene | Rejection, stats: IngestCounts) -> CachedScene | Rejection:
    """Return the scene, or a rejection if bands, type or pixel size differ from the first accepted scene."""
    if isinstance(outcome, Rejection) or not stats.first:
        return outcome
    kind, first = outcome.kind, stats.first
    fix = "list the other files in `source.exclude`, or define another dataset for them"
    names = (name for name in ("file_dtype", "dtype", "units", "scale", "offset") if kind[name] != first[name])
    if name := next(names, None):
        stats.other_dtype += 1
        title = f"the {name.replace('file_', '')} of the file differs from the first scene"
        error = SceneRejectedError(Reason.WRONG_DTYPE, title, got=kind[name], expected=first[name], fix=fix)
    elif kind["bands"] != first["bands"]:
        title = "the bands differ from the previous scenes"
        got, expected = ", ".join(kind["bands"]), ", ".join(first["bands"])
        error = SceneRejectedError(Reason.MISSING_BAND, title, got=got, expected=expected, fix=fix)
    elif abs(kind["gsd_m"] - first["gsd_m"]) > GSD_TOLERANCE * first["gsd_m"]:
        title, fix = "the pixel size differs from the previous scenes", f"{fix}, or resample them (gdalwarp -tr)"
        got, expected = f"{kind['gsd_m']:g} m", f"{first['gsd_m']:g} m"
        error = SceneRejectedError(Reason.RESOLUTION_MISMATCH, title, got=got, expected=expected, fix=fix)
    else:
        return outcome
    return Rejection(scene_id=outcome.scene_id, path=outcome.path, error=error)


def _check_offset(folder: Path, stats: IngestCounts) -> None:
    """Reject a dataset if some files contradict the declared offset, because the other files are then doubtful."""
    reason = str(Reason.OFFSET_CONTRADICTION)
    if not stats.reasons[reason]:
        return
    raise user_error(
        f"{stats.reasons[reason]} of {stats.accepted + stats.rejected} files in {folder} contradict the declared offset",
        got="".join(f"\n    {text}" for text in stats.examples[reason]),
        expected="an offset that fits every file: if some contradict it, others may be wrong without detection",
        fix="follow each line; put files of two types into two datasets, and remove a single deviating file",
    )


def _too_many_error(folder: Path, stats: IngestCounts, total: int, limit: float) -> UserError:
    lines = [
        f"{count} x {reason}: {text}" for reason, count in stats.reasons.items() for text in stats.examples[reason]
    ]
    return user_error(
        f"{stats.rejected} of {total} scenes in {folder} cannot be used",
        got="".join(f"\n    {line}" for line in lines),
        expected=f"usable scenes, most of one data type, and a share of rejected scenes of at most {limit:g} "
        "(`max_rejected_fraction`)",
        fix="follow each line; if the rejected files may be omitted, raise `max_rejected_fraction` of the dataset",
    )
