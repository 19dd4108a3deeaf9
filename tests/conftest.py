"""What every test may count on: a logger that no earlier test has set up."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _logger_untouched() -> Iterator[None]:
    yield
    logger = logging.getLogger("dithc")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)
