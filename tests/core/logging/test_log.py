"""Messages name the rank, errors name the fix, progress is plain lines in a log, metrics survive a torn line."""

import io
import json
import logging
import math
import resource
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dithc.cli import main
from dithc.core.logging import MetricsWriter, escaping, get_logger, progress, read_metrics, setup_logging, user_error
from dithc.core.logging.messages import _Line

HOSTILE = st.text(
    st.sampled_from("ab é\n\r\t\x00\x1b\x9b\u200b\u202e\u2066\u2028\ufeff\udcff") | st.characters(), min_size=1
)


@given(HOSTILE)
def test_control_characters_are_escaped_in_messages_and_streams(text: str) -> None:
    def printable(shown: str, *, lines: int) -> None:
        assert shown.count("\n") == lines - 1
        assert shown.replace("\n", "").isprintable()

    printable(escaping.escaped(text), lines=1)
    assert escaping.escaped(text) == text or not text.isprintable()
    printable(str(user_error(f"a {text}", got=text, expected=text, fix=text)), lines=4 + 4 * text.count("\n    "))
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Line(rank=0))
    handler.emit(logging.LogRecord("dithc.train", logging.WARNING, "", 0, "file %s", (text,), None))
    printable(stream.getvalue().removesuffix("\n"), lines=1 + text.count("\n  "))
    output = io.StringIO()
    escaping.escape_stream(output)
    escaping.escape_stream(output)
    print(text, file=output, end="")
    output.write(escaping.Coded("\x1b[0m"))
    printable(output.getvalue().removesuffix("\x1b[0m"), lines=1 + text.count("\n"))


def test_file_names_are_escaped_in_command_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x1b[31m\u202e\nINFO forged.json"
    (tmp_path / name).write_text('{"x": 1}')
    assert main(["show", str(tmp_path / name)]) == 0
    assert main(["show", str(tmp_path / f"no {name}")]) == 2
    assert main(["verify", str(tmp_path / f"no {name}")]) == 2
    output = capsys.readouterr()
    for shown in (output.out, output.err):
        assert r"a\x1b[31m\u202e\nINFO forged" in shown
        assert shown.replace("\n", "").isprintable()


def test_nonzero_ranks_log_only_warnings_with_a_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging(rank=3)
    get_logger("dithc.train.monitoring").info("hidden")
    get_logger("dithc.train.monitoring").warning("shown")
    setup_logging(rank=0)
    get_logger("dithc.train.monitoring").info("spoken")
    text = capsys.readouterr().err
    assert "hidden" not in text
    assert "r3 | " in text
    assert "train: warning: shown" in text
    assert "train: spoken" in text


def test_progress_without_a_terminal_is_a_line_with_rate_and_time(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("dithc").propagate = True
    with caplog.at_level(logging.INFO, logger="dithc"), progress(total=4, label="tiles", unit="tile") as bar:
        bar.update(4, loss="0.5")
    assert "4/4 tile (100 %)" in caplog.text
    assert caplog.records[0].name == "dithc.tiles"
    assert "tile/s" in caplog.text
    assert "remaining, loss 0.5" in caplog.text


def test_resumed_metrics_use_the_last_line_per_step_and_skip_torn_lines(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, loss=2.0)
        writer.write(2, loss=1.5)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    with MetricsWriter(tmp_path) as writer:
        writer.write(2, loss=1.25)
    assert [(row["step"], row["loss"]) for row in read_metrics(tmp_path)] == [(1, 2.0), (2, 1.25)]
    assert list((tmp_path / "tensorboard").iterdir())


def test_nonfinite_metrics_are_written_as_null_and_read_as_nan(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path) as writer:
        writer.write(1, loss=math.nan, lr=None, vb=1.0)
    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=lambda word: pytest.fail(word))["loss"] is None
    (row,) = read_metrics(tmp_path)
    assert math.isnan(row["loss"])
    assert math.isnan(row["lr"])
    assert row["vb"] == 1.0


@given(limit=st.integers(0, 900))
@settings(deadline=None, max_examples=25)
def test_full_file_system_raises_in_the_calling_thread(limit: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, threads = tmp_path_factory.mktemp("metrics"), threading.active_count()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    step = 1

    def fill() -> None:
        nonlocal step
        with MetricsWriter(folder) as writer:
            for step in range(1, 99):
                writer.write(step, loss=1.0 / step, lr=1e-4)

    try:
        with pytest.raises(OSError):
            fill()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert threading.active_count() == threads
    with MetricsWriter(folder, after=step - 1) as writer:
        writer.write(step, loss=1.0 / step)
    assert [row["step"] for row in read_metrics(folder)] == list(range(1, step + 1))


def test_tensorboard_discards_events_before_a_resume(tmp_path: Path) -> None:
    for after, losses in ((0, [9.0, 8.0, 7.0]), (1, [2.0])):
        with MetricsWriter(tmp_path, after=after) as writer:
            for number, loss in enumerate(losses, start=after + 1):
                writer.write(number, loss=loss)
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert [(event.step, event.value) for event in board.Scalars("loss")] == [(1, 9.0), (2, 2.0)]
