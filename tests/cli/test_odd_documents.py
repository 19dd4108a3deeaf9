"""Documents that are pipes, too deep, or contain invalid numbers: reported in four lines or skipped, without waiting."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from dithc.cli import main
from dithc.sealed import seal_line

DEEP = "[" * 100_000 + "]" * 100_000
HEAD = ('{"x":' + DEEP + "}").encode()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("deep.json", DEEP),
        ("deep.safetensors", struct.pack("<Q", len(HEAD)) + HEAD),
        ("codec.json", json.dumps({"origins": 1, "evaluations": 2})),
    ],
)
def test_document_that_is_none_is_four_lines(name: str, content: str | bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    assert main(["show", str(tmp_path / name)]) == 2


@pytest.mark.parametrize("line", [DEEP, '{"step": 2, "loss": {}}', '{"step": 2, "loss": 1' + "0" * 400 + "}", "\xff"])
def test_metrics_that_are_none_are_passed_over(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text(f"{seal_line({'step': 1, 'loss': 0.5})}{line}\n")
    assert main(["show", str(tmp_path / "metrics.jsonl"), "--png", str(tmp_path / "loss.png")]) == 0
    assert "1 steps, 1 to 1" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["config.json", "lease.json", "fid/score/manifest.json"])
@pytest.mark.slow
def test_pipes_among_results_are_not_waited_for(name: str, tmp_path: Path) -> None:
    config = Path(__file__).parents[1] / "workflow" / "small.yaml"
    from dithc.config import experiment_of

    content = experiment_of([config]).model_dump(mode="json")
    (tmp_path / "config.json").write_text(json.dumps(content))
    pipe = tmp_path / name.replace("score", next(iter(content["evaluations"])))
    pipe.parent.mkdir(parents=True, exist_ok=True)
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    code = "import sys; from dithc.cli import main; sys.exit(main(sys.argv[1:]))"
    for words in (["status", str(tmp_path)], ["show", str(pipe.parent)]):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode in (0, 2), done.stderr
        assert "Traceback" not in done.stderr
