"""Runs `dithc stage` for one hostile input after another, within limits of its own, and says what came of each as a JSON line."""

import contextlib
import hashlib
import io
import json
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

MEMORY_BYTES = 4 << 30


def outcome(config: str, out: Path) -> dict[str, Any]:
    """Status, what was printed, and of a stage that succeeded each scene's reason, or the hash of its pixels and mask."""
    from dithc.cli import main

    said, told = io.StringIO(), io.StringIO()
    scenes: dict[str, str] = {}
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(told):
        try:
            status = main(["stage", "--config", config, "--dataset", "set", "--out", str(out / "manifest.json")])
            if status == 0:
                scenes = staged(out)
        except BaseException:
            status = -1
            traceback.print_exc(file=said)
    return {"status": status, "text": said.getvalue() + told.getvalue(), "scenes": scenes}


def staged(out: Path) -> dict[str, str]:
    import numpy as np

    from dithc.data.table import read_rows

    stacks = json.loads((out / "scenes.json").read_text())["stacks"]
    found = {}
    for row in read_rows(out / "scenes.parquet"):
        if row["status"] == "rejected":
            assert all(row[told] for told in ("what", "got", "expected", "remedy")), row
            found[row["scene_id"]] = f"refused: {row['reason']}"
        else:
            entry = stacks[row["stack"]]
            arrays = [np.load(out / entry[name])[row["row"]] for name in ("file", "mask")]
            found[row["scene_id"]] = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
    return found


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    answers = sys.stdout
    for line in sys.stdin:
        asked = json.loads(line)
        answers.write(json.dumps(outcome(asked["config"], Path(asked["out"]))) + "\n")
        answers.flush()
