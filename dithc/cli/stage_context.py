"""Common parts of stage commands: the settings, the input manifests and the output manifest of one execution."""

import argparse
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dithc.config import stage_spec
from dithc.core.artifacts import Manifest, outputs

if TYPE_CHECKING:
    from dithc.config import ExperimentConfig


def add_entry_arguments(parser: argparse.ArgumentParser, entry: str, *, which: str = "") -> None:
    """Declare `--config` and the option for a name in one of its sections, such as `--dataset` for `datasets`."""
    parser.add_argument("--config", type=Path, required=True, help="configuration file of the experiment")
    parser.add_argument(f"--{entry}", required=True, help=f"name in the section `{entry}s`{which}")


def add_out(parser: argparse.ArgumentParser, content: str) -> None:
    """Declare `--out`. Other files are written next to it."""
    parser.add_argument("--out", type=Path, required=True, help=f"manifest to write; {content} next to it")


def folder(args: argparse.Namespace) -> Path:
    """Return the folder that a command with `--out` writes, for `dithc.cli`."""
    return Path(args.out).parent


@dataclass
class CommandRecord:
    """Execution of one stage, timed from its construction.

    `entry` is the name in the configuration of the settings that determine the result, `name` the name of the result if it
    differs, `out` the manifest to write, and `inputs` are the digests of the input manifests by path.
    """

    experiment: "ExperimentConfig"
    stage: str
    entry: str
    out: Path
    name: str | None = None
    inputs: dict[str, str] = field(default_factory=dict)
    _start: float = field(default_factory=time.monotonic)

    @property
    def folder(self) -> Path:
        """Folder of the output files."""
        return self.out.parent

    @cached_property
    def output(self) -> outputs.OutputFolder:
        """Output folder with the rules for replacing and deleting files."""
        return outputs.OutputFolder.of(self.out)

    def check(self) -> None:
        """Reject an output folder that contains other files (see `OutputFolder.check`)."""
        self.output.check(**self._owner)

    def claim(self) -> None:
        """Mark the output folder as this stage's before the first file is written (see `OutputFolder.claim`)."""
        self.output.claim(**self._owner)

    @property
    def _owner(self) -> dict[str, Any]:
        return {"stage": self.stage, "name": self.name or self.entry}

    @cached_property
    def spec(self) -> dict[str, Any]:
        """Settings that determine the result."""
        return stage_spec(self.experiment, self.stage, self.entry)

    def read(self, path: Path, stage: str) -> Manifest:
        """Read the manifest of an input stage and record its digest; UserError if it belongs to another stage."""
        manifest = Manifest.read(path, stage=stage)
        self.inputs[str(path)] = manifest.digest
        return manifest

    def files(self) -> list[Path]:
        """Return all files of the folder except the manifest and hidden files, sorted by name."""
        paths = (path for path in self.folder.iterdir() if path.is_file() and not path.name.startswith("."))
        return sorted(path for path in paths if path != self.out)

    def write(self, numbers: Mapping[str, Any], files: Iterable[Path] = ()) -> None:
        """Write the manifest with the results and the output files."""
        Manifest(
            **self._owner,
            spec=self.spec,
            inputs=self.inputs,
            files=Manifest.entries(self.folder, list(files)),
            summary=numbers,
            wall_seconds=time.monotonic() - self._start,
        ).write(self.out)
        self.output.finish(**self._owner)
