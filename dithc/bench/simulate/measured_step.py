"""Measured step as input of a simulation: files of `dithc bench step` and `dithc bench scaling`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dithc.core.integrity import load_document, require_regular_file
from dithc.core.logging import user_error
from dithc.engine.cost import ModelWorkload, scenario


@dataclass(frozen=True)
class MeasuredStep:
    """Step on one node: `seconds` without and `whole_seconds` with the exposed exchange, for `images` on the node."""

    seconds: float
    images: int
    ranks: int
    whole_seconds: float
    source: str


def read_measured(path: Path, model: str) -> MeasuredStep:
    """Read the step of a model on the fewest ranks."""
    try:
        content = load_document(require_regular_file(path).read_text())
        step = {"step": _from_step, "scaling": _from_scaling}[content["bench"]](content, model, path)
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise user_error(
            f"{path} contains no step time of {model} on one node",
            got=f"{type(error).__name__}: {error}",
            expected="an unmodified JSON file of `dithc bench step` or `dithc bench scaling` with a successful run",
            fix=f"create it by `dithc bench step --model {model} --json FILE`, or set --step to seconds",
        ) from None
    if not step.seconds > 0:
        raise user_error(f"seconds of a step in {path}", got=step.seconds, expected="above 0", fix="measure again")
    return step


def _from_step(content: dict[str, Any], model: str, path: Path) -> MeasuredStep:
    settings = content["settings"]
    _expect(settings["model"], settings.get("overrides"), model)
    row = next(row for row in content["variants"] if row["name"] == "dithc" and row["status"] == "ok")
    seconds = float(row["seconds"]["median"])
    return MeasuredStep(seconds, int(settings["batch"]), 1, seconds, f"{path}, bench step, {settings['dtype']}")


def _from_scaling(content: dict[str, Any], model: str, path: Path) -> MeasuredStep:
    settings = content["settings"]
    _expect(model, settings.get("overrides"), model)
    curve = next(one for one in content["curves"] if one["model"] == model)
    point = next(p for p in curve["points"] if p["status"] == "ok" and p["nodes"] == 1 and not p["oversubscribed"])
    whole, ranks = float(point["seconds"]), int(point["ranks"])
    seconds = whole - float(point["exposed_seconds"] or 0.0)
    return MeasuredStep(seconds, int(point["images"]), ranks, whole, f"{path}, bench scaling, {settings['dtype']}")


def _expect(measured_model: str, overrides: object, model: str) -> None:
    if measured_model != model or overrides:
        raise ValueError(f"{measured_model}{f' with {overrides}' if overrides else ''}")


def measured_curve(measured: MeasuredStep, model: ModelWorkload) -> dict[str, Any]:
    """Return a measured curve with one point, for JSON."""
    point = scenario.point_row(
        model,
        nodes=1,
        ranks=measured.ranks,
        images=measured.images,
        seconds=measured.whole_seconds,
        efficiency=1.0,
        exposed_seconds=measured.whole_seconds - measured.seconds,
    )
    head = {"label": "this machine", "kind": "measured", "model": model.name, "mode": "weak", "global_batch_size": None}
    return {**head, "source": measured.source, "points": [point]}
