"""What every test may count on: the logger as it was, whatever an earlier test set up."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _logger_as_it_was() -> Iterator[None]:
    logger = logging.getLogger("dithc")
    before = list(logger.handlers), logger.propagate, logger.level
    yield
    logger.handlers[:], logger.propagate = before[0], before[1]
    logger.setLevel(before[2])
