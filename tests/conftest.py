"""What every test may count on: a logger that no earlier test has set up, and back ends that are undone."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

# A tuning in the user's cache would change which products run, and how they are cut: also in the processes that tests start.
os.environ["DITHC_TUNING"] = "off"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--openmpi", type=Path, metavar="HOME", help="run all ranks under the Open MPI that is installed there"
    )


def pytest_configure(config: pytest.Config) -> None:
    if home := config.getoption("--openmpi"):
        from tests.ranks import openmpi_environment

        os.environ.update(openmpi_environment(home.absolute()))


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
