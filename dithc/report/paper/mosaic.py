"""Figure 8: pictures of samples beside real tiles, each under its label."""

from pathlib import Path
from typing import Any

from dithc.papers import Document
from dithc.report.figures import canvas
from dithc.report.paper.frame import Frame, cut, nothing

COLUMNS, LABEL_INCHES, EMPTY_INCHES, MOST_INCHES = 2, 0.34, 0.9, 12.0


def draw_mosaic(document: Document, frame: Frame, folder: Path) -> Any:
    """Draw the pictures of a document: small ones in two columns, wide ones stacked."""
    found = [(one, _read(folder / one.path)) for one in document.images]
    wide = any(pixels is not None and pixels.shape[1] > 1.4 * pixels.shape[0] for _, pixels in found)
    columns = 1 if wide or len(found) < 2 else COLUMNS
    width = canvas.WIDTH_INCHES / columns
    rows = [found[place : place + columns] for place in range(0, len(found), columns)]
    heights = [
        max(
            LABEL_INCHES
            + (min(MOST_INCHES, width * pixels.shape[0] / pixels.shape[1]) if pixels is not None else EMPTY_INCHES)
            for _, pixels in row
        )
        for row in rows
    ] or [1.2]
    figure, _, grid = canvas.framed(heights, columns=columns, top=frame.top, bottom=frame.bottom)
    for panels, row in zip(grid, rows, strict=False):
        for panel, (picture, pixels) in zip(panels, row, strict=False):
            panel.set_axis_off()
            panel.set_title(cut(picture.label, 90))
            if pixels is None:
                nothing(panel, f"missing: {cut(picture.path, 90)}")
            else:
                panel.imshow(pixels, interpolation="nearest" if pixels.shape[1] < 400 else "antialiased")
        for panel in panels[len(row) :]:
            panel.set_visible(False)
    if not rows:
        said = next((cell.reason for cell in document.cells if cell.reason), "no samples have been made")
        nothing(grid[0][0], cut(said, 120))
    return figure


def _read(path: Path) -> Any:
    """Read pixels; None without the file."""
    return canvas.read_picture(path) if path.is_file() else None
