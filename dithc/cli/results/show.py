"""`dithc show`: describes any output of dithc, and draws it on request."""

import argparse
import json
import math
import struct
from pathlib import Path
from typing import Any

from dithc.core.integrity import load_checksummed_lines, load_document, parse_json, require_regular_file
from dithc.core.logging import UserError, escaping, read_metrics, user_error
from dithc.core.units import format_bytes

SUMMARY = "Describes any output: manifest, folder of a stage, shard, checkpoint, store, metrics, JSON of a report."
EXAMPLE = "dithc show results/demo/tiles/sentinel2 --png tiles.png"
KINDS = (
    "a manifest (.json), a folder of a stage, an array (.npy), a checkpoint, a folder store/RUN-DIGEST, weights (.safetensors), "
    "metrics.jsonl, events.jsonl, the JSON of a report, or automem.json"
)
EVENTS_FILE = "events.jsonl"
ROWS = 64  # of an array, for its statistics
NUMBERS = 40  # maximum lines of values; the remaining lines are counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="PATH", help=KINDS)
    parser.add_argument("--png", type=Path, metavar="FILE", help="also draw the output to this file")


def run(args: argparse.Namespace) -> int:
    """Print the description, and draw the output on request; UserError if it is damaged or has no image."""
    try:
        lines = describe(args.path)
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        got = f"{type(error).__name__}: {error}"
        fix = "check it with `dithc verify`, or rebuild it"
        raise user_error(f"{args.path} cannot be read", got=got, expected=KINDS, fix=fix) from error
    print("\n".join(map(escaping.escaped, lines)))
    if args.png:
        from dithc.cli.results.plots import draw

        manifest = args.path / "manifest.json"  # a stage's folder is also described by its manifest
        draw(manifest if manifest.is_file() else args.path, args.png)
        print(f"drawn: {args.png}")
    return 0


def describe(path: Path) -> list[str]:
    """Describe a file or folder, one text per line."""
    if path.is_dir():
        return _folder(path)
    if path.suffix == ".npy" and path.is_file():
        return _array(path)
    if path.suffix == ".safetensors" and path.is_file():
        return _weights(path)
    if path.suffix == ".jsonl" and path.is_file():
        return _events(path) if path.name == EVENTS_FILE else _metrics(path)
    if path.suffix == ".json" and path.is_file():
        return _document(path)
    got = "another type of file" if path.exists() else "no such path"
    raise user_error(f"cannot show {path}", got=got, expected=KINDS, fix="check the path")


def _folder(path: Path) -> list[str]:
    if (path / "manifest.json").is_file():
        return _document(path / "manifest.json")
    if (path / "checkpoint.json").is_file():
        return _document(path / "checkpoint.json")
    if any(path.glob("step_*/checkpoint.json")):
        return _store(path)
    if steps := sorted(path.glob("step_*.json")):
        return [f"run in {len(steps)} segment(s), the last:", *_document(steps[-1])]
    if (path / "metrics.jsonl").is_file():
        return _metrics(path / "metrics.jsonl")
    if arrays := sorted(path.glob("*.npy")):
        return [f"folder {path}: {len(arrays)} arrays, no manifest (unfinished?)", *_array(arrays[0])]
    if manifests := sorted(path.rglob("manifest.json")):
        listed = [f"  {item.parent.relative_to(path)}" for item in manifests]
        return [f"folder {path}: {len(manifests)} manifests", *listed]
    got = "a folder without outputs of dithc"
    raise user_error(f"cannot show {path}", got=got, expected=KINDS, fix="check the path")


def _document(path: Path) -> list[str]:
    content = load_document(require_regular_file(path).read_text())
    if not isinstance(content, dict):
        raise ValueError(f"a JSON document of type {type(content).__name__}")
    if "stage" in content and "summary" in content:
        return _manifest(path)
    if "meta" in content and "step" in content:
        return _checkpoint(path, content)
    if "evaluations" in content and "origins" in content:
        return _report(content)
    if "plan" in content and "trace" in content:
        return _plan(path, content)
    if "bench" in content and "summary" in content:
        from dithc.core.measurements import Measurement

        return [f"measurement {path}", *Measurement.of(content).text().splitlines()]
    return [f"JSON {path}", *_values(content)]


def _manifest(path: Path) -> list[str]:
    from dithc.core.artifacts import Manifest

    manifest = Manifest.read(path)
    size = sum(entry["bytes"] for entry in manifest.files)
    lines = [
        f"manifest of stage {manifest.stage}: {manifest.name}",
        f"  digest {manifest.digest}, code {manifest.code.get('source', 'unknown')}, written {manifest.created_at} "
        f"on {manifest.host.get('name', 'unknown')} in {manifest.wall_seconds:.1f} s",
        f"  {len(manifest.files)} files, {format_bytes(size)}",
    ]
    for title, values in (("summary", manifest.summary), ("settings", manifest.spec), ("made from", manifest.inputs)):
        lines += [f"{title}:", *_values(values)] if values else []
    return lines


def _checkpoint(path: Path, content: dict[str, Any]) -> list[str]:
    files = [
        f"  {entry['path']}: {format_bytes(entry['bytes'])}, sha256 {entry['sha256'][:12]}"
        for entry in content["files"]
    ]
    head = f"checkpoint {path.parent} at step {content['step']}"
    return [head, *files, "metadata:", *_values(content["meta"])]


def _store(path: Path) -> list[str]:
    from dithc.core.artifacts import CheckpointStore

    store = CheckpointStore(path)
    lines = [f"store {path}: {len(store.steps())} checkpoints"]
    for step in store.steps():
        size = sum(file.stat().st_size for file in store.path(step).iterdir())
        lines.append(f"  step {step}: {format_bytes(size)}")
    if (path / "spec.json").is_file():
        settings = parse_json(require_regular_file(path / "spec.json").read_text())
        lines += ["settings:", *_values({name: settings[name] for name in settings if name != "checksum"})]
    if (path / EVENTS_FILE).is_file():
        lines += ["last events:", *_events(path / EVENTS_FILE)[1:][-5:]]
    return lines


def _report(content: dict[str, Any]) -> list[str]:
    lines = [f"report of experiment {content['name']}: {content['title']}, written {content['written']}"]
    for item in content["evaluations"]:
        score = item["score"]
        outcome = "not run"
        if score:
            counts = f"{score['n_generated']} against {score['n_real']} real"
            outcome = f"FID {score['fid']:.6g}, floor {score['floor']}, {counts}"
            if content.get("measure") == "KID":
                outcome = f"KID {score['kid']:.4g}, 95 % {score['kid_interval'] or 'unknown'}, {outcome}"
            outcome += "" if score["comparable_to_published"] else ", NOT COMPARABLE with published FID"
        lines.append(f"  {item['name']} ({item['label']}): {outcome}")
    return lines + [f"  warning: {text}" for text in content["warnings"]]


def _plan(path: Path, content: dict[str, Any]) -> list[str]:
    from dithc.engine.automem import Plan

    tiers = ", ".join(
        f"{tier['name']} ({'unlimited' if tier['budget_bytes'] is None else format_bytes(tier['budget_bytes'])})"
        for tier in content["tiers"]
    )
    return [f"memory plan {path}: {tiers}", *Plan.from_dict(content["plan"]).describe().splitlines()]


def _metrics(path: Path) -> list[str]:
    rows = read_metrics(path.parent)
    if not rows:
        return [f"metrics {path}: no step yet"]
    lines = [f"metrics {path}: {len(rows)} steps, {rows[0]['step']:.0f} to {rows[-1]['step']:.0f}"]
    for name in rows[-1]:
        values = [row[name] for row in rows if math.isfinite(row.get(name, math.nan))]
        if name not in ("step", "time") and values:
            ends = f"first {values[0]:.6g}, last {values[-1]:.6g}"
            lines.append(f"  {name}: {ends}, {min(values):.6g} to {max(values):.6g}")
    return lines


def _events(path: Path) -> list[str]:
    """Describe the events of a run, one per line: time, type and details. Skip a torn line."""
    lines = []
    events, altered = load_checksummed_lines(path.read_text(errors="replace"))
    for event in events:
        time, kind = event.pop("time", "at an unknown time"), event.pop("event", "an event")
        parts = {name: one if isinstance(one, str) else json.dumps(one) for name, one in event.items()}
        details = ", ".join(f"{name} {value}" for name, value in parts.items())
        lines.append(f"  {time} {kind}: {details}" if details else f"  {time} {kind}")
    lines += [f"  altered lines: {', '.join(map(str, altered))}"] if altered else []
    return [f"events {path}: {len(events)}", *lines]


def _weights(path: Path) -> list[str]:
    """Describe names and shapes from the header of a safetensors file (8 bytes of length, then JSON)."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > path.stat().st_size:
            raise ValueError("its header is longer than the file")
        head: dict[str, Any] = parse_json(file.read(length))
    metadata = head.pop("__metadata__", {})
    lines, total = [], 0
    for name, entry in head.items():
        total += math.prod(entry["shape"])
        lines.append(f"  {name}: {entry['dtype']} {tuple(entry['shape'])}")
    return [f"weights {path}: {len(head)} tensors, {total:,} numbers", *_values(metadata), *_first(lines)]


def _array(path: Path) -> list[str]:
    import numpy as np

    array = np.load(path, mmap_mode="r")
    lines = [f"array {path}: {array.dtype} {array.shape}, {format_bytes(array.nbytes)}"]
    if array.size and array.ndim:
        rows = np.asarray(array[:ROWS], dtype=np.float64)
        x = rows[np.isfinite(rows)]
        lines.append(f"  first {len(rows)} rows: {rows.size - x.size} numbers not finite")
        if x.size:
            lines.append(f"  {x.min():.6g} to {x.max():.6g}, mean {x.mean():.6g}, std {x.std():.6g}")
    return lines


def _values(content: Any, name: str = "") -> list[str]:
    """Format a nested mapping as dotted lines, with long values shortened."""
    lines: list[str] = []
    for key, value in content.items():
        if isinstance(value, dict) and value:
            lines += _values(value, f"{name}{key}.")
        else:
            text = json.dumps(value)
            lines.append(f"  {name}{key}: {text if len(text) < 160 else text[:150] + ' ...'}")
    return lines if name else _first(lines)


def _first(lines: list[str]) -> list[str]:
    return lines if len(lines) <= NUMBERS else [*lines[:NUMBERS], f"  ... and {len(lines) - NUMBERS} more"]
