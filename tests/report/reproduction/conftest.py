"""Shared page of realistic documents."""

from pathlib import Path

import pytest

from dithc.core.reproduction import TargetResult
from dithc.report import reproduction
from tests.report.reproduction import documents


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of documents, figures and the page."""
    return tmp_path_factory.mktemp("paper")


@pytest.fixture(scope="session")
def all_targets(folder: Path) -> list[TargetResult]:
    return documents.all_documents(folder)


@pytest.fixture(scope="session")
def page(folder: Path, all_targets: list[TargetResult]) -> Path:
    path = folder / "report.html"
    reproduction.write_page(all_targets, path)
    return path
