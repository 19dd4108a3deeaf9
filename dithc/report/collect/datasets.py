"""Records of datasets and codecs, from the manifests of scenes, tiles, codecs and latents."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from dithc.config import ExperimentConfig
from dithc.core.measurements import short
from dithc.report.collect.gather import ExperimentResults, StageResult
from dithc.report.documents import read_json
from dithc.report.records import CodecRecord, DatasetRecord

# File of the stage `ingest`. Ingested scenes may be archived; rejected tiles are then not shown.
SCENES_FILE = "scenes.json"


def dataset_record(experiment: ExperimentConfig, results: ExperimentResults, name: str) -> DatasetRecord:
    """Collect the record of a dataset and its codec."""
    settings = experiment.datasets[name]
    scenes, tiles, latents = (results.last(stage, name) for stage in ("ingest", "tiles", "latents"))
    info = read_json(tiles.file("dataset.json")) if tiles else {}
    scene_numbers, tile_numbers = numbers_of(scenes), numbers_of(tiles)
    classes = info.get("classes")
    return DatasetRecord(
        name=name,
        title=settings.title,
        kind=settings.source.kind,
        synthetic=settings.source.synthetic is not None,
        is_tiled=name in experiment.tiled,
        scenes=scene_numbers.get("accepted", scene_numbers.get("scenes")),
        scenes_rejected=scene_numbers.get("rejected") or {},
        tiles=tile_numbers.get("accepted"),
        tiles_rejected=tile_numbers.get("rejected") or {},
        splits=tile_numbers.get("splits") or {},
        band_names=[str(band) for band in info.get("bands") or tile_numbers.get("bands") or []],
        size=tile_numbers.get("size"),
        gsd_m=info.get("gsd_m"),
        units=str(info.get("units") or ""),
        classes=settings.clusters or (len(classes) if isinstance(classes, list | dict) else None),
        codec=_codec(experiment, results, name),
        grid=tiles.file("grid.png") if tiles else None,
        cluster_grid=latents.file("grid.png") if latents and settings.clusters else None,
        ranges=info.get("ranges") or {},
        tiles_folder=tiles.path.parent if tiles and info.get("shards") else None,
        scenes_folder=scenes.path.parent if scenes and (scenes.path.parent / SCENES_FILE).is_file() else None,
        rendering=rendering_of(settings.rendering.model_dump(mode="json"), str(info.get("units") or "")),
    )


def rendering_of(display: Mapping[str, Any], units: str) -> str:
    """Describe the conversion to 8-bit RGB: bands, and the values that map to 0 and 255."""
    ends = [[end] * 3 if isinstance(end, int | float) else end for end in (display["low"], display["high"])]
    parts = [f"{band} {short(low)}–{short(high)}" for band, low, high in zip(display["bands"], *ends, strict=True)]
    return ", ".join(parts) + (f" ({units})" if units else "")


def _codec(experiment: ExperimentConfig, results: ExperimentResults, dataset: str) -> CodecRecord:
    name = experiment.datasets[dataset].codec
    trained, latents = results.last("codec", name), results.last("latents", dataset)
    fields = select_fields(CodecRecord, numbers_of(trained)) | {
        "name": name,
        "kind": experiment.codecs[name].kind,
        "train_dataset": getattr(experiment.codecs[name], "train_dataset", None),
        "shape": numbers_of(latents).get("shape"),
        "grid": trained.file("grid.png") if trained else None,
        "bands": trained.file("bands.png") if trained else None,
    }
    return CodecRecord(**fields)


def select_fields(record: type, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers that are fields of a record."""
    return {field.name: numbers[field.name] for field in fields(record) if field.name in numbers}


def numbers_of(result: StageResult | None) -> Mapping[str, Any]:
    return result.summary if result else {}
