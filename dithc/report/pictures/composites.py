"""False-color composites that are common in remote sensing, by sensor."""

from collections.abc import Iterator, Sequence

# Name, meaning, and bands as red, green and blue by sensor.
SWIR = "vegetation is green, bare soil and rock are pink, water is black"
COMPOSITES: tuple[tuple[str, str, tuple[tuple[str, str, str], ...]], ...] = (
    ("color infrared", "vegetation is red", (("B08", "B04", "B03"), ("NIR", "R", "G"))),
    ("short-wave infrared", SWIR, (("B12", "B8A", "B04"), ("B11", "B8A", "B04"))),
)


def composites(bands: Sequence[str]) -> Iterator[tuple[str, str, tuple[str, str, str]]]:
    """Yield name, meaning and bands of the composites of these bands."""
    for name, meaning, choices in COMPOSITES:
        for choice in choices:
            if set(choice) <= set(bands):
                yield name, meaning, choice
                break
