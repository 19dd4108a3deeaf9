"""Canvases of figures, and their conversion to the bytes of an image."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Figure
from matplotlib.image import imread, imsave
from numpy.typing import NDArray

from dithc.core.logging import user_error
from dithc.report.figures import theme

DPI = 170
WIDTH_INCHES = 10.4
TITLE_SIZE = 8.5  # type size of the title of an image
QUALITY = 92  # of WebP images, at most 100
PHOTOGRAPHS_BYTES = 300_000  # size of a PNG above which it contains photographs
LINE_INCHES = 0.17  # height of a line of small type
NARROW = 8.0  # ratio of the ends of an axis below which it has more ticks

Margins = tuple[float, float]
"""Free inches above and below the panels."""


@contextmanager
def styled() -> Iterator[None]:
    settings: Any = theme.SETTINGS
    with matplotlib.rc_context(settings):
        yield


def as_png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def render_png(draw: Callable[[], Figure]) -> bytes:
    """Call a function that draws a figure, in the theme of the report, and return the PNG."""
    with styled():
        return as_png(draw())


def as_svg(figure: Figure) -> bytes:
    """Return a finished figure as SVG with reproducible bytes."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "dithc"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return an image (H, W, 3) as PNG."""
    buffer = io.BytesIO()
    imsave(buffer, pixels, format="png")
    return buffer.getvalue()


def as_webp(pixels: NDArray[np.uint8]) -> bytes:
    """Return a photographic image (H, W, 3) as lossy WebP, with a tenth of the size of a PNG."""
    buffer = io.BytesIO()
    imsave(buffer, pixels, format="webp", pil_kwargs={"quality": QUALITY, "method": 6})
    return buffer.getvalue()


def recode_png(png: bytes) -> bytes:
    """Recode a figure as WebP: lossless, or slightly lossy if it contains photographs."""
    buffer = io.BytesIO()
    options = {"lossless": True, "method": 2} if len(png) < PHOTOGRAPHS_BYTES else {"quality": QUALITY, "method": 4}
    imsave(buffer, imread(io.BytesIO(png))[..., :3], format="webp", pil_kwargs=options)
    return buffer.getvalue()


def read_webp(content: bytes) -> NDArray[np.uint8]:
    return np.asarray(imread(io.BytesIO(content), format="webp")[..., :3], np.uint8)


def read_image(path: Path) -> NDArray[np.uint8]:
    try:
        pixels = imread(path)
    except (OSError, SyntaxError, ValueError) as error:
        raise user_error(
            f"image {path} cannot be read", got=error, expected="PNG", fix="remove it and rerun its stage"
        ) from error
    pixels = np.stack([pixels] * 3, axis=-1) if pixels.ndim == 2 else pixels[..., :3]
    return np.asarray(pixels * 255 + 0.5, np.uint8)


def canvas(count: int, *, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels in rows of `height` inches."""
    columns = min(columns, count)
    figure, rows = grid([height] * -(-count // columns), columns=columns)
    panels = [panel for row in rows for panel in row]
    for panel in panels[count:]:
        panel.set_visible(False)
    return figure, panels[:count]


def grid(heights: Sequence[float], *, columns: int = 1, sharex: bool = False) -> tuple[Figure, list[list[Axes]]]:
    """Return rows of these heights in inches, each with this many panels."""
    figure = Figure(figsize=(WIDTH_INCHES, sum(heights)), layout="constrained")
    panels = figure.subplots(len(heights), columns, squeeze=False, sharex=sharex, height_ratios=heights)
    return figure, [list(row) for row in panels]


def framed(heights: Sequence[float], margins: Margins) -> tuple[Figure, Any, list[Axes]]:
    """Return stacked panels between two margins, at least one panel, and the part with the panels."""
    heights = heights or [1.2]
    parts = [margins[0], sum(heights), margins[1]]
    figure = Figure(figsize=(WIDTH_INCHES, sum(parts)), layout="constrained")
    rows = figure.add_gridspec(len(parts), 1, height_ratios=[max(part, 1e-3) for part in parts])
    body = figure.add_subfigure(rows[1, 0])
    return figure, body, list(body.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])


def panels_over_images(
    *, tops: Sequence[float], rows: int, columns: int, height: float
) -> tuple[Figure, list[Axes], list[list[Axes]]]:
    """Return panels of these heights in inches over rows of image panels, `height` inches each."""
    figure = Figure(figsize=(WIDTH_INCHES, sum(tops) + rows * height), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=[sum(tops), rows * height], squeeze=False)[:, 0]
    panels = above.subplots(len(tops), 1, height_ratios=tops, squeeze=False)[:, 0]
    return figure, list(panels), [list(row) for row in below.subplots(rows, columns, squeeze=False)]


def lanes(panel: Any, labels: Sequence[str], *, margin: float = 0.6) -> None:
    """Label horizontal lanes from the top down, without grid lines along them."""
    panel.set_yticks(range(len(labels)), labels)
    panel.tick_params(axis="y", labelcolor=theme.INK)
    panel.set_ylim(len(labels) - 1 + margin, -margin)
    panel.grid(visible=False, axis="y")


def number_log_axis(axis: Any) -> None:
    """Format plain numbers on a logarithmic axis, denser on a narrow range."""
    low, high = sorted(axis.get_view_interval())
    axis.get_major_locator().set_params(subs=(1, 2, 5) if high > NARROW * low else range(1, 10), numticks=12)
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(lambda value, _: "")


def placeholder(text: str) -> Figure:
    """Return a figure with the text `text`, for a missing result."""
    figure = Figure(figsize=(WIDTH_INCHES, 1.2))
    figure.text(0.5, 0.5, text, ha="center", va="center", color=theme.MUTED, style="italic")
    return figure
