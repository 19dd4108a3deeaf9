"""Images for `dithc show`: the grid of a stage, the loss of a run, a memory plan, a dataset of tiles, restored scenes."""

from pathlib import Path
from typing import Any

from dithc.core.artifacts import Manifest, outputs
from dithc.core.integrity import parse_json, require_regular_file
from dithc.core.logging import get_logger, user_error
from dithc.data.export import find_input
from dithc.report import draw_loss, draw_plan, draw_restoration, draw_tiles

log = get_logger(__name__)


def draw(path: Path, target: Path) -> None:
    """Draw the images of a stage, the loss of a run or a memory plan, as a PNG.

    Raises UserError if `path`, a file or folder that dithc wrote, contains none of these.
    """
    content = _json(path)
    grid = (path if path.is_dir() else path.parent) / "grid.png"
    if "plan" in content or content.get("bench") == "automem":
        outputs.write(target, draw_plan(path))
    elif (metrics := _metrics_of(path, content)) is not None:
        outputs.write(target, draw_loss(metrics, store=metrics.parent.parent))
    elif content.get("stage") == "tiles":
        outputs.write(target, _tiles(path))
    elif content.get("stage") == "restore" and (drawn := _restoration(path)) is not None:
        images, columns = drawn
        outputs.write(target, images)
        log.info(f"columns of {target}: {columns}")
    elif (path.is_dir() or path.name == "manifest.json") and grid.is_file():
        outputs.write(target, grid.read_bytes())
    else:
        raise user_error(
            f"{path} has no image",
            got="numbers only",
            expected="tiles, restored scenes, another stage with grid.png, a run's metrics, or a memory plan",
            fix="remove --png",
        )


def _tiles(path: Path) -> bytes:
    """Draw a dataset given its manifest. Without its scenes, omit rejected tiles and masks."""
    manifest = Manifest.read(path, stage="tiles")
    scenes = find_input(path, manifest, stage="ingest")
    if scenes is None:
        log.warning(f"the scenes of {path} are missing: omitting rejected tiles and masks")
    return draw_tiles(path.parent, title=manifest.name, scenes=scenes and scenes[0].parent)


def _restoration(path: Path) -> tuple[bytes, str] | None:
    """Draw the first restored scenes given their manifest: observation, mean, members and deviation, one row per scene."""
    manifest = Manifest.read(path, stage="restore")
    tiles = find_input(path, manifest, stage="tiles")
    scenes = find_input(path, manifest, stage="ingest", name=manifest.spec["dataset"])
    if tiles is None or scenes is None:
        raise user_error(
            f"the inputs of {path} were not found",
            got="no tiles of the prior" if tiles is None else "no scenes",
            expected="both at the recorded paths, or in the same folder of results",
            fix="start in the working folder of the stages, or copy all results",
        )
    return draw_restoration(path, tiles=tiles[0].parent, scenes=scenes[0].parent)


def _json(path: Path) -> dict[str, Any]:
    if path.suffix != ".json" or not path.is_file():
        return {}
    content = parse_json(require_regular_file(path).read_text())
    return content if isinstance(content, dict) else {}


def _metrics_of(path: Path, content: dict[str, Any]) -> Path | None:
    """Return metrics.jsonl, given it, a folder of a run, its store, one of its checkpoints or one of its manifests."""
    if path.is_dir():
        if steps := sorted(path.glob("step_*.json")):
            return _metrics_of(steps[-1], _json(steps[-1]))
        paths = [path / "metrics.jsonl", path / "metrics" / "metrics.jsonl", path.parent / "metrics" / "metrics.jsonl"]
    elif path.name == "metrics.jsonl":
        paths = [path]
    elif path.name == "checkpoint.json":
        paths = [path.parent.parent / "metrics" / "metrics.jsonl"]
    else:
        metrics = (content.get("summary") or {}).get("metrics")
        paths = [Path(metrics), path.parent / metrics] if metrics else []
    return next((one for one in paths if one.is_file()), None)
