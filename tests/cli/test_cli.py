"""Command line: each command has help with an example, and errors end with status 2 and four lines."""

import argparse
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

from dithc.cli import COMMANDS, command_module, main
from dithc.config import ExperimentConfig


@pytest.mark.parametrize("verb", COMMANDS)
def test_command_help_contains_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    assert f"example:\n  dithc {verb}" in capsys.readouterr().out


def test_overview_lists_all_commands_also_after_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert main(["fly"]) == 2
    text, error = capsys.readouterr()
    assert all(f"  {verb} " in text for verb in COMMANDS)
    assert "unknown command 'fly'" in error
    assert text in error


def test_user_error_is_four_lines_without_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--evaluation", "x", "--real", "a", "--generated", "b", "--out", "c"]
    assert main(["fid", "--config", "nowhere.yaml", *arguments]) == 2
    text = capsys.readouterr().err
    assert "nowhere.yaml does not exist" in text
    assert [line.split(":")[0] for line in text.splitlines()[1:]] == ["  got", "  expected", "  fix"]


def test_interrupt_during_import_is_reported_without_a_traceback(monkeypatch, capsys):
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dithc.cli.import_module", interrupted)
    assert main(["train"]) == 130
    assert capsys.readouterr().err.endswith("train: error: interrupted\n")


@pytest.mark.parametrize(("arguments", "status"), [(["train", "--no-such-option"], 2), (["train", "--help"], 0)])
def test_invalid_option_status_is_reported_to_the_launcher(arguments, status, monkeypatch, capsys):
    """With any other status the launcher would restart all ranks."""
    statuses = []
    monkeypatch.setattr("dithc.engine.comm.launch.exit_report.report_exit", statuses.append)
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == status
    assert statuses == ([status] if status else [])
    lines = capsys.readouterr().err.split("\n")
    assert [line[:11] for line in lines] == (
        [lines[0][:11], "  got:     ", "  expected:", "  fix:     ", ""] if status else [""]
    )


class Slow:
    """Command that writes a folder until `end` is set."""

    SUMMARY, EXAMPLE = "", ""

    def __init__(self) -> None:
        self.started, self.end = threading.Event(), threading.Event()

    def add_arguments(self, parser):
        parser.add_argument("--out", type=Path)

    def folder(self, args):
        return args.out.parent

    def run(self, args):
        self.started.set()
        assert self.end.wait(600)
        return 0


def test_concurrent_write_to_a_folder_is_rejected_with_status_76(monkeypatch, tmp_path, capsys):
    slow = Slow()
    monkeypatch.setattr("dithc.cli.import_module", lambda _: slow)
    arguments = ["ingest", "--out", str(tmp_path / "scenes" / "manifest.json")]
    with ThreadPoolExecutor(1) as others:
        first = others.submit(main, arguments)
        assert slow.started.wait(600)
        assert main(arguments) == 76
        slow.end.set()
        assert first.result(600) == 0
    output = capsys.readouterr().err
    assert f"process {os.getpid()} on" in output
    assert "works on" in output
    assert main(arguments) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["synthesize", "ingest", "tiles", "codec", "latents", "extractor", "export"])
def test_folder_writing_commands_return_the_output_folder(verb):
    module = import_module(command_module(verb))
    args = argparse.Namespace(out=Path("somewhere/out/manifest.json"))
    assert module.folder(args) == (args.out if verb == "export" else args.out.parent)


def test_memory_error_contains_the_resource_key_of_the_stage() -> None:
    from dithc.cli import SCHEDULED_COMMANDS, _as_user_error

    resources = ExperimentConfig.model_fields["resources"].annotation
    assert set(SCHEDULED_COMMANDS) == set(get_args(get_args(resources)[0])) - {"default"}
    assert "(`resources: {sample: {mem_mb}}` requests it)" in str(_as_user_error("sample", MemoryError()))
    assert "resources" not in str(_as_user_error("show", MemoryError()))


OF = "--config nowhere.yaml"
LINES = (f"sample {OF} --evaluation e --tiles t --out", f"train {OF} --run r --latents l --out", "simulate --json")


@pytest.mark.parametrize("arguments", map(str.split, LINES))
def test_folder_as_output_file_is_rejected_before_work_starts(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept").touch()
    assert main([*arguments, str(tmp_path)]) == 2
    output = capsys.readouterr().err
    assert f"got:      {tmp_path}, which is a folder\n  expected: the file to write\n  fix:      name a file" in output
    assert (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["--ranks", "2", "--", "no-such-program"], "got:      no-such-program: no such program\n"),
        (["--ranks", "2", "--cpus-per-rank", "0", "--", "true"], "launch --cpus-per-rank\n  got:      0\n"),
        (["--cpus-per-node", "-1", "--", "true"], "launch --cpus-per-node\n  got:      -1\n"),
    ],
)
def test_launch_rejects_invalid_arguments_before_starting_processes(
    arguments: list[str], output: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert main(["launch", *arguments]) == 2
    text = capfd.readouterr().err
    assert output in text
    assert text.count("\n") == 4


def test_export_rejects_a_non_utf8_output_folder_before_work_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiles = tmp_path / "manifest.json"
    tiles.write_text("{}")
    assert main(["export", "--tiles", str(tiles), "--out", str(tmp_path / "e\udcfe/new")]) == 2
    assert "a name that is not valid UTF-8" in capsys.readouterr().err
    assert not [*tmp_path.glob("e*/*")]
