"""The paper's page in a browser, at three widths; the looking is that of the report's own page."""

from pathlib import Path

import pytest

from tests.report.test_browser import BROWSER, assert_fits


@pytest.mark.skipif(BROWSER is None, reason="no chromium is installed: the page is not looked at in a browser")
@pytest.mark.slow
def test_page_fits_every_screen_fetches_nothing_and_tells_every_picture(page: Path, tmp_path: Path) -> None:
    assert_fits(page, tmp_path)
