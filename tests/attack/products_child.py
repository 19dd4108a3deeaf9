"""Child process that runs `dithc ingest` on hostile inputs within resource limits and prints a JSON line per result."""

import contextlib
import ctypes
import hashlib
import io
import json
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

MEMORY_BYTES = 4 << 30
CAPABILITIES_3, READ_CAPABILITIES = 0x20080522, 0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: bits 1 and 2


def stage_outcome(config: str, out: Path) -> dict[str, Any]:
    """Return status and output, and for a successful stage each scene's reason or content (`staged_scenes`)."""
    from dithc.cli import main

    errors, output = io.StringIO(), io.StringIO()
    scenes: dict[str, Any] = {}
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(output):
        try:
            status = main(["ingest", "--config", config, "--dataset", "set", "--out", str(out / "manifest.json")])
            if status == 0:
                scenes = staged_scenes(out)
        except BaseException:
            status = -1
            traceback.print_exc(file=errors)
    return {"status": status, "text": errors.getvalue() + output.getvalue(), "scenes": scenes}


def staged_scenes(out: Path) -> dict[str, Any]:
    """Return by scene the rejection reason, or the hash of pixels and mask, grid and notes."""
    import numpy as np

    from tests.inputs.tables import read_rows

    stacks = json.loads((out / "scenes.json").read_text())["stacks"]
    found: dict[str, Any] = {}
    for row in read_rows(out / "scenes.parquet"):
        if row["status"] == "rejected":
            assert all(row[output] for output in ("problem", "got", "expected", "fix")), row
            found[row["scene_id"]] = {"rejected": row["reason"]}
        else:
            entry = stacks[row["stack"]]
            pixels = np.load(out / entry["file"])[row["row"]]
            whole = np.ones(pixels.shape[1:], np.uint8)  # a fully valid stack has no mask
            mask = whole if entry["mask"] is None else np.load(out / entry["mask"])[row["row"]]
            found[row["scene_id"]] = {
                "pixels": hashlib.sha256(pixels.tobytes() + mask.tobytes()).hexdigest(),
                "grid": repr([row["crs"], row["transform"], row["label"], row["height"], row["width"]]),
                "notes": row["notes"],
            }
    return found


def drop_read_capabilities() -> None:
    """Drop the capabilities that let the administrator read protected files."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(CAPABILITIES_3, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    for index in (0, 1):  # effective and permitted sets, first 32 capabilities
        sets[index] &= ~READ_CAPABILITIES
    assert libc.capset(header, sets) == 0


if __name__ == "__main__":
    drop_read_capabilities()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    answers = sys.stdout
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(stage_outcome(request["config"], Path(request["out"]))) + "\n")
        answers.flush()
