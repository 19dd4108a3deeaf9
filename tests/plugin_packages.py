"""Simulated pip installation of a package for the duration of a test: entry points, and their objects below."""

import os
import sys
import tomllib
import warnings
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from pydantic import Field, field_validator
from torch import Tensor

from dithc.config import codecs, datasets, evaluations

MODULE = "tests.plugin_packages"


def install_plugin(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    package: str = "mine",
    version: str = "1.0",
    **groups: dict[str, str],
) -> None:
    """Install a package: `samplers={"ddim": "tests.plugin_packages:DdimSampler"}` are its entry points of dithc.samplers."""
    site = folder / f"site-{package}-{version}"
    info = site / f"{package}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    lines = [
        f"[dithc.{group}]\n" + "".join(f"{name} = {to}\n" for name, to in points.items())
        for group, points in groups.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    add_to_path(site, monkeypatch)


def install_example(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package of examples/ according to its pyproject.toml."""
    source = Path(__file__).parent.parent / "examples" / name
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    groups = {group.removeprefix("dithc."): points for group, points in project["entry-points"].items()}
    install_plugin(folder, monkeypatch, package=project["name"], version=project["version"], **groups)
    add_to_path(source, monkeypatch)


def add_to_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Add a folder to the path of this process and of processes started by the test."""
    monkeypatch.syspath_prepend(str(folder))
    previous = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *([previous] if previous else [])]))


class DdimSampler(evaluations.PluginSampler):
    """Sampler that returns the clean image predicted from the last state of DDIM; `times` changes a setting."""

    share: float = Field(default=0.0, ge=0.0, le=1.0)
    search: int = 0  # also the name of a built-in setting

    def run(self, context: Any) -> Tensor:
        x = context.noise(0)
        for step in reversed(range(len(context.schedule))):
            x0, noise, _ = context.predict(x, step)
            kept = context.schedule.alpha_bar_before[step].item()
            x = kept**0.5 * x0 + (1 - kept) ** 0.5 * noise
        return x


class FailingSampler(DdimSampler):
    """Sampler with a broken validation of its settings."""

    @field_validator("share")
    @classmethod
    def _checked(cls, share: float) -> float:
        return {0.0: share}[share]


class FlowSampler(evaluations.PluginSampler):
    """Euler's method along a flow."""

    predicts = "flow"

    def run(self, context: Any) -> Tensor:
        x = context.noise(0)
        for start, stop in context.intervals(context.steps):
            x = x - (start - stop) * context.at(x, start)
        return x


class FoldedCodec(codecs.PluginCodec):
    """Codec that stores pixels of 2 x 2 as channels, without loss."""

    downsampling_factor: Literal[2] = 2
    bands: Literal["all"] = "all"
    defect: Literal["none", "raises", "batch", "shape"] = "none"

    def network(self) -> Any:
        if self.defect == "raises":
            raise KeyError("weights")
        return FoldedCodecNetwork(self.defect)


class FoldedCodecNetwork:
    bands, has_logvar = None, False

    def __init__(self, defect: str) -> None:
        self.defect = defect

    def encode(self, x: Tensor) -> tuple[Tensor, None]:
        z = torch.pixel_unshuffle(x, 2)
        z = z - z.mean(dim=0) if self.defect == "batch" else z
        return z[:, 1:] if self.defect == "shape" else z, None

    def decode(self, z: Tensor) -> Tensor:
        return torch.pixel_shuffle(z, 2)


CALLS = count()


class ChannelMeans(codecs.PluginExtractor):
    """Extractor of the mean of each channel, and its square."""

    defect: Literal["none", "raises", "batch", "chance", "shape", "nan"] = "none"

    def network(self) -> Callable[[Tensor], Tensor]:
        return self._features

    def _features(self, x: Tensor) -> Tensor:
        means = x.mean(dim=(2, 3))
        match self.defect:
            case "raises":
                raise KeyError("weights")
            case "batch":
                means = means - means.mean(dim=0)
            case "chance":
                means = means + 100 * next(CALLS)  # random numbers are sometimes too similar to be noticed
            case "shape":
                means = means[:, :, None]
            case "nan":
                means = means * float("nan")
        return torch.cat([means, means**2], dim=1)


class DoubledConditions(datasets.PluginConditions):
    """Condition of twice the day of the year."""

    defect: Literal["none", "raises", "length", "column", "inf", "map"] = "none"

    def model(self) -> list[dict[str, Any]]:
        column = "day_of_year" if self.defect == "column" else self.kind
        kind = "code" if self.defect == "map" else "linear"
        return [{"name": "d", "column": column, "unit": "day", "map": kind, "center": 100.0, "scale": 2.0}]

    def open(self) -> Callable[[Mapping[str, list[Any]]], Mapping[str, list[float | None]]]:
        return self._compute

    def _compute(self, known: Mapping[str, list[Any]]) -> dict[str, list[float | None]]:
        values = [None if day is None else 2.0 * day for day in known["day_of_year"]]
        match self.defect:
            case "raises":
                raise KeyError("day")
            case "length":
                values = values[1:]
            case "inf":
                values = [float("inf")] * len(values)
        return {self.kind: values}


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # pydantic warns of the name

    class ShadowingSampler(evaluations.PluginSampler):
        """Sampler that redefines a common setting."""

        words: int = 0


sys.modules.setdefault(MODULE, sys.modules[__name__])  # entry points import this module by that name
