"""Conditions of tiles as numbers: maps of columns to the model-ready file, and the inputs of a network by condition.

Legend: N tiles, K conditions of the model-ready file, k numbers of one condition of a network.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt

from dithc.core.logging import user_error

YEAR_DAYS = 365.2425
NUM_VIEWS = 8


class Condition(TypedDict, total=False):
    """Map from a column of the table to a column of the model-ready file.

    linear: (v - center) / scale; sin and cos: of 2 pi v / period; log2: log2(v / scale); code: index of v in `values`.
    """

    name: str
    column: str
    unit: str
    map: Literal["linear", "sin", "cos", "log2", "code"]
    center: float
    scale: float
    period: float
    values: list[str]


MODEL: tuple[Condition, ...] = (
    {"name": "lon_sin", "column": "lon", "unit": "degree", "map": "sin", "period": 360.0},
    {"name": "lon_cos", "column": "lon", "unit": "degree", "map": "cos", "period": 360.0},
    {"name": "lat", "column": "lat", "unit": "degree", "map": "linear", "center": 0.0, "scale": 90.0},
    {"name": "day_sin", "column": "day_of_year", "unit": "day", "map": "sin", "period": YEAR_DAYS},
    {"name": "day_cos", "column": "day_of_year", "unit": "day", "map": "cos", "period": YEAR_DAYS},
    {
        "name": "sun_elevation",
        "column": "sun_elevation",
        "unit": "degree",
        "map": "linear",
        "center": 45.0,
        "scale": 45.0,
    },
    {"name": "sun_azimuth_sin", "column": "sun_azimuth", "unit": "degree", "map": "sin", "period": 360.0},
    {"name": "sun_azimuth_cos", "column": "sun_azimuth", "unit": "degree", "map": "cos", "period": 360.0},
    {"name": "gsd", "column": "gsd_m", "unit": "metre", "map": "log2", "scale": 10.0},
    {"name": "satellite", "column": "satellite", "unit": "", "map": "code"},
    {"name": "sensor", "column": "sensor", "unit": "", "map": "code"},
)

PARAMETERS = {"linear": {"center", "scale"}, "sin": {"period"}, "cos": {"period"}, "log2": {"scale"}}
"""Parameters of each map of a number."""

CLOUD: Condition = {"name": "cloud", "column": "cloud_frac", "unit": "", "map": "linear", "center": 0.0, "scale": 1.0}
GROUPS = {
    "place": ("lon", "lat"),
    "season": ("day_of_year",),
    "sun": ("sun_elevation", "sun_azimuth"),
    "gsd": ("gsd_m",),
    "cloud": ("cloud_frac",),
}
"""Columns of each condition of a network. The name of a plugin's condition is its column."""


def apply_map(column: list[Any], condition: Condition) -> npt.NDArray[np.float64]:
    if condition["map"] == "code":
        codes = {value: number for number, value in enumerate(condition["values"])}
        return np.array([codes.get(value, np.nan) for value in column], np.float64)
    values = np.array([np.nan if value is None else value for value in column], np.float64)
    features: npt.NDArray[np.float64]
    match condition["map"]:
        case "linear":
            features = (values - condition["center"]) / condition["scale"]
        case "log2":
            features = np.log2(values / condition["scale"])
        case "sin" | "cos" as wave:
            features = {"sin": np.sin, "cos": np.cos}[wave](2 * np.pi * values / condition["period"])
    return features


def network_inputs(model: Sequence[Condition], ready: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[np.float32]]:
    """Return the conditions of a network (N, k) by name, NaN if unknown, from the model-ready file (N, K).

    The place is a unit vector, (cos lat cos lon, cos lat sin lon, sin lat). Codes of satellites and sensors are left out.
    """
    columns = [entry["column"] for entry in model if entry["map"] != "code"]
    grouped = {column for group in GROUPS.values() for column in group}
    groups = {name: group for name, group in GROUPS.items() if set(group) <= set(columns)}
    groups |= {column: (column,) for column in columns if column not in grouped}
    inputs = {}
    for name, group in groups.items():
        values = ready[:, [number for number, entry in enumerate(model) if entry["column"] in group]]
        if name == "place":
            lon_sin, lon_cos, lat = values.astype(np.float64).T
            radians = lat * np.pi / 2
            vector = [np.cos(radians) * lon_cos, np.cos(radians) * lon_sin, np.sin(radians)]
            values = np.stack(vector, axis=1).astype(np.float32)
        inputs[name] = values
    return inputs


def inputs_of_values(
    model: Sequence[Condition], values: Mapping[str, Sequence[float]]
) -> dict[str, npt.NDArray[np.float32]]:
    """Return the conditions (1, k) of a network by name from values of their columns; NaN without values.

    The view is the orientation of the tile. Raises UserError for a name that the tiles do not have, or for another number
    of values.
    """
    columns: dict[str, float] = {}
    for name, numbers in values.items():
        group = GROUPS.get(name, (name,))
        if len(numbers) != len(group) or not set(group) <= {entry["column"] for entry in model}:
            raise user_error(
                f"condition {name} of an evaluation",
                got=list(numbers),
                expected=f"values of {', '.join(group)}, which the tiles of the run have",
                fix="correct `conditions` of the evaluation",
            )
        columns |= dict(zip(group, numbers, strict=True))
    return single_inputs(model, {column: [value] for column, value in columns.items()})


def single_inputs(model: Sequence[Condition], columns: Mapping[str, list[Any]]) -> dict[str, npt.NDArray[np.float32]]:
    """Return the conditions (1, k) of a network by name from columns of one value, NaN if unknown.

    The view (1, 8) is the orientation of the tile: 1, then seven zeros.
    """
    ready = [apply_map(columns.get(entry["column"], [None]), entry) for entry in model]
    inputs = network_inputs(model, np.array(ready, np.float32).reshape(1, -1))
    return inputs | {"view": np.eye(1, NUM_VIEWS, dtype=np.float32)}
