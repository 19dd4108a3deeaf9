"""Errors for processes that end while reading scenes."""

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dithc.core.logging import UserError
from dithc.data.scenes.read_scenes import gather


class SelfKillingScenes:
    """Two scenes that kill the process when they are read."""

    folder = Path()

    def __len__(self) -> int:
        return 2

    def inspect(self, position: int) -> tuple[str, int]:
        return f"state {position}", 1

    def scene_id(self, position: int) -> str:
        return f"scene {position}"

    def memory_bytes(self, _: int) -> int:
        return 1 << 20

    def read(self, *_: Any) -> Any:
        assert multiprocessing.parent_process() is not None
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_killed_reader_process_is_reported_with_the_signal(tmp_path: Path) -> None:
    scenes: Any = SelfKillingScenes()
    with pytest.raises(UserError, match="SIGKILL") as caught:
        list(gather(scenes, [], partial=tmp_path, settings="s", threads=2))
    assert "more memory" in str(caught.value)
    assert "scenes already read are kept" in str(caught.value)
