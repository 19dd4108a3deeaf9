"""The page of the paper targets in a browser at three widths."""

from pathlib import Path

import pytest

from tests.report.test_browser import BROWSER, assert_fits


@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
@pytest.mark.slow
def test_page_fits_every_screen_loads_no_files_and_describes_every_image(page: Path, tmp_path: Path) -> None:
    assert_fits(page, tmp_path)
