"""The page in a browser: it fits the screen, fetches no files, and its images have texts and can be enlarged."""

import html
import json
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

WIDTHS = (360, 768, 1400)
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CSS = Path(__file__).parents[2] / "dithc" / "report" / "html" / "report.css"
# Inspect the page in frames of several widths. The result is in the document that the browser prints.
LOOK = """<!doctype html><body>FRAMES<script>
addEventListener("load", () => {
  const found = [];
  for (const frame of document.querySelectorAll("iframe")) {
    const page = frame.contentDocument, large = page.getElementById("large");
    const buttons = [...page.querySelectorAll("button.enlarge")];
    buttons[0].click();
    const opened = [large.open, large.querySelector("img").alt === buttons[0].querySelector("img").alt];
    large.dispatchEvent(new frame.contentWindow.KeyboardEvent("keydown", { key: "ArrowRight" }));
    opened.push(large.querySelector("p").textContent === buttons[1].dataset.title);
    large.close();
    large.dispatchEvent(new frame.contentWindow.Event("close"));  // what the browser will do when this script has ended
    opened.push(page.activeElement === buttons[1]);
    found.push({
      inner: frame.contentWindow.innerWidth, wide: page.scrollingElement.scrollWidth, opened,
      fetched: frame.contentWindow.performance.getEntriesByType("resource").map((one) => one.name)
        .filter((name) => !name.startsWith("data:")),
      silent: [...page.images].filter((image) => !image.alt).length, images: page.images.length,
      untold: [...page.querySelectorAll("table")]
        .filter((table) => !table.caption || table.querySelector("th:not([scope])")).length,
      heads: [...page.querySelectorAll("h1, h2, h3, h4")].map((head) => Number(head.tagName[1])),
    });
  }
  document.body.textContent = "FOUND" + JSON.stringify(found) + "DNUOF";
});
</script></body>"""


@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
@pytest.mark.slow
def test_page_fits_every_screen_loads_no_files_and_describes_every_image(out: Path, tmp_path: Path) -> None:
    assert_fits(out, tmp_path)


def assert_fits(out: Path, tmp_path: Path) -> None:
    """Check width, fetched files, text alternatives and enlargement at each width."""
    frames = "".join(
        f'<iframe src="file://{out}" width="{width}" height="800" style="border:0"></iframe>' for width in WIDTHS
    )
    (tmp_path / "look.html").write_text(LOOK.replace("FRAMES", frames))
    options = (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--allow-file-access-from-files",
        "--window-size=1600,900",
    )
    command = [
        str(BROWSER),
        *options,
        f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom",
        f"file://{tmp_path / 'look.html'}",
    ]
    output = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout
    for width, found in zip(
        WIDTHS, json.loads(html.unescape(output.partition("FOUND")[2].partition("DNUOF")[0])), strict=True
    ):
        assert found["inner"] == width
        assert found["wide"] <= width, f"at {width} px the page is {found['wide']} px wide"
        assert found["opened"] == [True] * 4, "opened with its text, next image, closed, focus restored"
        assert (found["fetched"], found["silent"], found["untold"]) == ([], 0, 0)
        assert found["images"] > 8
        levels = found["heads"]
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in pairwise(levels)), "no heading level is skipped"


def luminance(color: str) -> float:
    """Return the relative luminance of `#rrggbb` by WCAG 2.2."""
    parts = [int(color[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_text_has_a_contrast_of_4_5(theme: int) -> None:
    block = re.findall(r":root \{(.*?)\}", CSS.read_text(), re.S)[theme]
    colors = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
    pairs = [
        (text, background) for text in ("ink", "soft", "muted", "accent") for background in ("page", "card", "code")
    ]
    pairs += [(name, f"{name}-soft") for name in ("good", "warn", "bad")] + [
        ("ink", "accent-soft"),
        ("muted", "accent-soft"),
    ]
    for text, background in pairs:
        high, low = sorted((luminance(colors[text]), luminance(colors[background])), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, background)
