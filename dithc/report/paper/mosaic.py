"""Figure 8: mosaics of samples next to real tiles, each below its label."""

from pathlib import Path
from typing import Any

from dithc.papers import Document
from dithc.report.figures import canvas
from dithc.report.paper.frame import Frame, cut, nothing

LABEL_INCHES, EMPTY_INCHES, MOST_INCHES = 0.34, 0.9, 12.0


def draw_mosaic(document: Document, frame: Frame, folder: Path) -> Any:
    """Draw the images of a document from the top down."""
    found = [
        (one, canvas.read_picture(path) if (path := folder / one.path).is_file() else None) for one in document.images
    ]
    heights = [
        LABEL_INCHES
        + (
            EMPTY_INCHES
            if pixels is None
            else min(MOST_INCHES, canvas.WIDTH_INCHES * pixels.shape[0] / pixels.shape[1])
        )
        for _, pixels in found
    ]
    figure, _, grid = canvas.framed(heights or [1.2], top=frame.top, bottom=frame.bottom)
    for (panel,), (picture, pixels) in zip(grid, found, strict=False):
        panel.set_axis_off()
        panel.set_title(cut(picture.label, 90))
        if pixels is None:
            nothing(panel, f"missing: {cut(picture.path, 90)}")
        else:
            panel.imshow(pixels, interpolation="nearest" if pixels.shape[1] < 400 else "antialiased")
    if not found:
        reason = next((cell.reason for cell in document.cells if cell.reason), "no samples exist")
        nothing(grid[0][0], cut(reason, 120))
    return figure
