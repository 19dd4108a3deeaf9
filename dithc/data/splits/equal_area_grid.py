"""A grid over the entire Earth: rows between parallels, each divided into nearly square cells of equal area.

At 60 degrees, cells of a cylindrical equal-area grid have half the width and twice the height of cells at its standard
parallel.

Legend: N places, P points of each; longitudes and latitudes in degrees (WGS84).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dithc.data.geometry import ECCENTRICITY_2, SEMI_MAJOR_M, Floats

Ints = npt.NDArray[np.int64]

MAX_SPAN_DEGREES = 90.0
"""Largest longitude span of a place to either side of its center. A larger span contains a pole and all longitudes."""


def _authalic(latitudes: Floats) -> Floats:
    """Return q(90) times the sine of the authalic latitude (Snyder, Map Projections, 1987, equation 3-12)."""
    e, sine = np.sqrt(ECCENTRICITY_2), np.sin(np.radians(latitudes))
    return np.asarray((1 - ECCENTRICITY_2) * (sine / (1 - ECCENTRICITY_2 * sine**2) + np.arctanh(e * sine) / e))


POLE = float(_authalic(np.array(90.0)))
RADIUS_M = SEMI_MAJOR_M * np.sqrt(POLE / 2)
"""Radius of the sphere with the Earth's area (equation 3-13)."""


@dataclass(frozen=True, kw_only=True)
class EarthGrid:
    """Cells of `side_m` x `side_m` square meters, by row from the equator and column from 180 W."""

    side_m: float

    def rows(self, latitudes: Floats) -> Ints:
        beta = np.arcsin(np.clip(_authalic(latitudes) / POLE, -1.0, 1.0))
        return np.asarray(np.floor(RADIUS_M * beta / self.side_m), np.int64)

    def count(self, rows: Ints) -> Ints:
        """Return the cells per row: its area divided by the cell area, at least one."""
        ends = np.clip(np.stack([rows, rows + 1]) * self.side_m / RADIUS_M, -np.pi / 2, np.pi / 2)
        area = 2 * np.pi * RADIUS_M**2 * (np.sin(ends[1]) - np.sin(ends[0]))
        return np.asarray(np.maximum(np.rint(area / self.side_m**2), 1), np.int64)

    def columns(self, rows: Ints, longitudes: Floats) -> Ints:
        """Return the column of each longitude in its row, not wrapped at 180 degrees to keep the order."""
        return np.asarray(np.floor((longitudes + 180.0) / 360.0 * self.count(rows)), np.int64)

    def cells(self, longitudes: Floats, latitudes: Floats) -> tuple[Ints, Ints]:
        rows = self.rows(latitudes)
        return rows, self.columns(rows, longitudes) % self.count(rows)

    def bounds(self, row: int, column: int) -> tuple[float, float, float, float]:
        """Return west, south, east and north of a cell in degrees (Snyder's series 3-18, accurate to a millimeter)."""
        beta = np.clip(np.array([row, row + 1]) * self.side_m / RADIUS_M, -np.pi / 2, np.pi / 2)
        e2, e4, e6 = ECCENTRICITY_2, ECCENTRICITY_2**2, ECCENTRICITY_2**3
        terms = (e2 / 3 + 31 * e4 / 180 + 517 * e6 / 5040, 23 * e4 / 360 + 251 * e6 / 3780, 761 * e6 / 45360)
        south, north = np.degrees(beta + sum(term * np.sin(2 * k * beta) for k, term in enumerate(terms, start=1)))
        width = 360.0 / int(self.count(np.array(row)))
        return column * width - 180.0, float(south), (column + 1) * width - 180.0, float(north)

    def touched(self, longitudes: Floats, latitudes: Floats, *, buffer_m: float) -> tuple[Ints, Ints, Ints]:
        """Return place, row and column of all cells touched by bounding boxes of places (N, P), grown by `buffer_m`.

        The first point is the center of its place. A place at a pole has no cell.
        """
        middle = longitudes[:, :1]
        around = (longitudes - middle + 180.0) % 360.0 - 180.0  # (N, P)
        grow = np.degrees(buffer_m / (SEMI_MAJOR_M * (1 - ECCENTRICITY_2)))
        south, north = latitudes.min(1) - grow, latitudes.max(1) + grow  # (N,)
        shrink = np.cos(np.radians(np.minimum(np.maximum(abs(south), abs(north)), 90.0)))
        with np.errstate(divide="ignore"):
            wide = np.degrees(buffer_m / (SEMI_MAJOR_M * shrink)) if buffer_m else np.zeros_like(shrink)
        west, east = around.min(1) - wide, around.max(1) + wide
        number = np.flatnonzero(np.maximum(-west, east) <= MAX_SPAN_DEGREES)
        bottom, top = self.rows(south[number]), self.rows(north[number])
        number, rows = _expand_ranges(number, bottom, top)
        west, east = west + middle[:, 0], east + middle[:, 0]
        places = np.arange(len(rows), dtype=np.int64)
        pair, columns = _expand_ranges(places, self.columns(rows, west[number]), self.columns(rows, east[number]))
        return number[pair], rows[pair], columns % self.count(rows[pair])


def _expand_ranges(numbers: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """Repeat each number for every value of its range; also return the values of all ranges, first to last."""
    lengths = last - first + 1
    starts = np.cumsum(lengths) - lengths
    return np.repeat(numbers, lengths), np.arange(lengths.sum()) - np.repeat(starts - first, lengths)
