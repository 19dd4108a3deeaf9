"""Common test setup: a fresh logger, restored backends, and the selection and distribution of tests."""

import gc
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests import sampling

# A tuning in the user's cache would change the selected products and their partition, also in processes started by
# tests.
os.environ["DITHC_TUNING_FOLDER"] = "off"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--openmpi", type=Path, metavar="HOME", help="run all ranks under the Open MPI installed in this folder"
    )
    parser.addoption("--sample", metavar="COMMIT", help="run only the part of each slow test family drawn by COMMIT")
    parser.addoption("--short", action="store_true", help="with --sample: draw only a few slow tests per folder")


SAMPLE, UNITS = pytest.StashKey[str](), pytest.StashKey[TemporaryDirectory[str]]()


def pytest_configure(config: pytest.Config) -> None:
    if home := config.getoption("--openmpi"):
        from tests.ranks import openmpi_environment

        os.environ.update(openmpi_environment(home.absolute()))
    requested = config.getoption("--sample")
    shared = getattr(config, "workerinput", {}).get("sample")  # all workers use the commit of the start
    gc.disable()  # collection of the tests imports all libraries and keeps what it creates
    config.stash[SAMPLE] = shared if shared is not None else sampling.commit_of(requested) if requested else ""


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    if UNITS not in node.config.stash:
        node.config.stash[UNITS] = TemporaryDirectory()
    node.workerinput["sample"] = node.config.stash[SAMPLE]
    node.workerinput["units"] = str(Path(node.config.stash[UNITS].name, "units.json"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return sampling.scheduler(config, log, Path(config.stash[UNITS].name, "units.json"))


def pytest_report_header(config: pytest.Config) -> str | None:
    if seed := config.stash[SAMPLE]:
        return f"sample: of families of slow tests, those drawn by {seed[:12]}; without --sample all run"
    requested = config.getoption("--sample")
    return f"sample: none, because commit {requested} does not exist here: all tests run" if requested else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if seed := config.stash[SAMPLE]:
        skipped = sampling.skipped_tests(items, seed=seed, short=config.getoption("--short"))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in skipped])
        items[:] = [item for item in items if item.nodeid not in skipped]
    if units_file := getattr(config, "workerinput", {}).get("units"):
        items[:] = sampling.long_units_first(items)
        sampling.write_units(items, Path(units_file))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _logger_untouched() -> Iterator[None]:
    yield
    logger = logging.getLogger("dithc")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


@pytest.fixture
def use_backend() -> Iterator[Callable[[str], None]]:
    """Return a function that selects an operator backend for the test; it skips if the backend is unavailable."""
    from dithc.engine import hcops
    from dithc.engine.hcops.kernel_registry import obstacle

    with ExitStack() as stack:

        def use(backend: str) -> None:
            if reason := obstacle(backend):
                pytest.skip(f"back end {backend}: {reason}")
            stack.enter_context(hcops.use(backend))

        yield use
