"""Running catalog with generated scenes, and an environment without credentials."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread

import pytest

from tests.data.stac.server import StacServer
from tests.inputs.stac_items import write_items


@pytest.fixture(scope="session")
def _scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stac") / "scenes"
    write_items(folder, scenes=4)
    return folder


@pytest.fixture
def server(_scenes: Path, tmp_path: Path) -> Iterator[StacServer]:
    """Running catalog of four scenes: two of Earth Search, one of Planetary Computer, one of collection 1."""
    server = StacServer(Path(shutil.copytree(_scenes, tmp_path / "served")))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record of the delays of downloads in seconds, which are skipped."""
    waited: list[float] = []
    monkeypatch.setattr("dithc.data.stac.download.time.sleep", waited.append)
    return waited


@pytest.fixture
def no_token(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Remove credentials from the environment; `no_token(TOKEN=...)` sets variables."""
    for name in ("DITHC_STAC_TOKEN", "DITHC_STAC_TOKEN_HOSTS"):
        monkeypatch.delenv(name, raising=False)
    return lambda **values: [monkeypatch.setenv(name, value) for name, value in values.items()] and None
