"""What every test may count on: a logger that no earlier test has set up, and back ends that are undone; what runs, and where."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests import sampling

# A tuning in the user's cache would change which products run, and how they are cut: also in the processes that tests start.
os.environ["DITHC_TUNING"] = "off"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--openmpi", type=Path, metavar="HOME", help="run all ranks under the Open MPI that is installed there"
    )
    parser.addoption("--sample", metavar="COMMIT", help="of families of slow tests, run those that COMMIT draws")
    parser.addoption("--short", action="store_true", help="with --sample: draw few of the slow tests of each folder")


SAMPLE, UNITS = pytest.StashKey[str](), pytest.StashKey[TemporaryDirectory[str]]()


def pytest_configure(config: pytest.Config) -> None:
    if home := config.getoption("--openmpi"):
        from tests.ranks import openmpi_environment

        os.environ.update(openmpi_environment(home.absolute()))
    asked = config.getoption("--sample")
    told = getattr(config, "workerinput", {}).get("sample")  # all workers draw with what was the commit when they began
    config.stash[SAMPLE] = told if told is not None else sampling.commit_of(asked) if asked else ""


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
    asked = config.getoption("--sample")
    return f"sample: none, as there is no commit {asked} here: all tests run" if asked else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if seed := config.stash[SAMPLE]:
        left_out = sampling.left_out(items, seed=seed, short=config.getoption("--short"))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]
    if told := getattr(config, "workerinput", {}).get("units"):
        items[:] = sampling.long_units_first(items)
        sampling.write_units(items, Path(told))


@pytest.fixture(autouse=True)
def _logger_untouched() -> Iterator[None]:
    yield
    logger = logging.getLogger("dithc")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


@pytest.fixture
def use_backend() -> Iterator[Callable[[str], None]]:
    """Chooses a back end of the operators until the end of the test; skips where it does not work here."""
    from dithc import hcops
    from dithc.hcops.table import obstacle

    with ExitStack() as stack:

        def use(backend: str) -> None:
            if why := obstacle(backend):
                pytest.skip(f"back end {backend}: {why}")
            stack.enter_context(hcops.use(backend))

        yield use
