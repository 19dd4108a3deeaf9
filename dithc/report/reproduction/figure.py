"""The figure of a target, framed by its title, its machine and the differences from the setting of the paper."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dithc.core.artifacts import outputs
from dithc.core.reproduction import TargetResult
from dithc.report.figures import bars, canvas, marks, series, theme

LINE_CHARACTERS, LINE_INCHES, HEAD_INCHES = 168, 0.15, 0.62
LABEL_INCHES, EMPTY_INCHES, MAX_INCHES = 0.34, 0.9, 12.0  # of images


def draw_mosaic(document: TargetResult, margins: canvas.Margins, folder: Path) -> Any:
    """Draw the images of a document from the top down."""
    paths = [folder / image.path for image in document.images]
    arrays = [canvas.read_image(path) if path.is_file() else None for path in paths]
    shapes = [pixels.shape if pixels is not None else None for pixels in arrays]
    sides = [min(MAX_INCHES, canvas.WIDTH_INCHES * shape[0] / shape[1]) if shape else EMPTY_INCHES for shape in shapes]
    figure, _, axes = canvas.framed([LABEL_INCHES + side for side in sides], margins)
    for panel, image, pixels in zip(axes, document.images, arrays, strict=False):
        panel.set_axis_off()
        panel.set_title(marks.shorten(image.label, 90))
        if pixels is None:
            marks.placeholder(panel, f"missing: {marks.shorten(image.path, 90)}")
        else:
            panel.imshow(pixels, interpolation="nearest" if pixels.shape[1] < 400 else "antialiased")
    if not arrays:
        reason = next((cell.reason for cell in document.cells if cell.reason), "no samples exist")
        marks.placeholder(axes[0], marks.shorten(reason, 120))
    return figure


CURVES = ("fig7", "fig10", "fig11")  # targets drawn as curves; others except figure 8 have bars


def draw_target(document: TargetResult, stem: Path) -> None:
    """Write the figure of a document as `stem.svg` and `stem.png`; its images are relative to the folder of `stem`."""
    figure = build_figure(document, folder=stem.parent, is_framed=True)
    with canvas.styled():
        for ending, code in ((".svg", canvas.as_svg), (".png", canvas.as_png)):
            outputs.write(stem.parent / (stem.name + ending), code(figure))


def build_figure(document: TargetResult, *, folder: Path, is_framed: bool) -> Any:
    """Return the figure; a frame adds title, machine and differences from the setting of the paper."""
    notes = [line for note in document.notes for line in textwrap.wrap(note, LINE_CHARACTERS)] if is_framed else []
    margins = (HEAD_INCHES if is_framed else 0.0, LINE_INCHES * len(notes) + 0.1 if notes else 0.0)
    with canvas.styled():
        if document.target == "fig8":
            figure = draw_mosaic(document, margins, folder)
        elif document.target in CURVES:
            figure = series.draw_series(document.series, margins)
        else:
            figure = bars.draw_bars(document.cells, margins)
        if is_framed:
            _draw_frame(figure, document, notes)
    return figure


def _draw_frame(figure: Any, document: TargetResult, notes: list[str]) -> None:
    height, title = figure.get_size_inches()[1], f"{document.paper}. {document.title}"
    figure.text(0.008, 1 - 0.11 / height, title, fontsize=12.5, fontweight="bold", va="top")
    machine = f"{machine_line(document.machine)} · scale {document.scale}"
    figure.text(0.008, 1 - 0.37 / height, machine, fontsize=8.5, color=theme.MUTED, va="top")
    for index, line in enumerate(reversed(notes)):
        figure.text(0.008, (0.06 + LINE_INCHES * index) / height, line, fontsize=7.5, color=theme.MUTED, va="bottom")


def machine_line(machine: Mapping[str, Any]) -> str:
    parts = [str(machine.get("name") or "machine not recorded")]
    for name, form in {"cores": "{} cores", "memory_gib": "{} GiB", "architecture": "{}", "isa": "{}"}.items():
        parts += [form.format(machine[name])] if machine.get(name) else []
    parts += [f"as described by {machine['described_by']}"] if machine.get("described_by") else []
    return ", ".join(parts)
