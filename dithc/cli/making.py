"""What the verbs of stages share: what of which experiment is made, the manifests that it is made of, its own at the end."""

import argparse
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dithc.runs import Manifest, outputs

if TYPE_CHECKING:
    from dithc.config import Experiment


def add_of(parser: argparse.ArgumentParser, of: str, *, which: str = "") -> None:
    """Declares `--config` and the name in one of its sections, such as `--dataset` in `datasets`."""
    parser.add_argument("--config", type=Path, required=True, help="configuration file of the experiment")
    parser.add_argument(f"--{of}", required=True, help=f"name in the section `{of}s`{which}")


def add_out(parser: argparse.ArgumentParser, beside: str) -> None:
    """Declares `--out`; what else is written stands beside it."""
    parser.add_argument("--out", type=Path, required=True, help=f"manifest to write; {beside} beside it")


def folder(args: argparse.Namespace) -> Path:
    """What a verb with `--out` writes, as `dithc.cli` asks for it."""
    return Path(args.out).parent


@dataclass
class Making:
    """A stage while it is made, from now on: what it has read and where it goes.

    Attributes:
        experiment: the configuration.
        stage: such as `tiles`.
        of: the name in the configuration whose settings decide it.
        out: the manifest to write.
        name: of the result, where that is another than `of`.
        inputs: digests of the manifests that it was made of, by path.
    """

    experiment: "Experiment"
    stage: str
    of: str
    out: Path
    name: str | None = None
    inputs: dict[str, str] = field(default_factory=dict)
    _start: float = field(default_factory=time.monotonic)

    @property
    def folder(self) -> Path:
        """Where its files stand."""
        return self.out.parent

    @cached_property
    def output(self) -> outputs.OutputFolder:
        """Folder of the manifest."""
        return outputs.OutputFolder.of(self.out)

    def check(self) -> None:
        """Reject an output folder that holds other files (see `OutputFolder.check`)."""
        self.output.check(stage=self.stage, name=self.name or self.of)

    def claim(self) -> None:
        """Mark the output folder as this stage's before the first file is written (see `OutputFolder.claim`)."""
        self.output.claim(stage=self.stage, name=self.name or self.of)

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The settings that decide it."""
        return Manifest.spec_of(self.experiment, self.stage, self.of)

    def read(self, path: Path, stage: str) -> Manifest:
        """The manifest of another stage, which this one is made of.

        Raises:
            UserError: it is none, or of another stage.
        """
        manifest = Manifest.read(path, stage=stage)
        self.inputs[str(path)] = manifest.digest
        return manifest

    def files(self) -> list[Path]:
        """All files of its folder but the manifest and hidden ones, by name."""
        found = (path for path in self.folder.iterdir() if path.is_file() and not path.name.startswith("."))
        return sorted(path for path in found if path != self.out)

    def write(self, numbers: Mapping[str, Any], files: Iterable[Path] = ()) -> None:
        """Writes the manifest: what came out, and the files that it consists of."""
        Manifest(
            stage=self.stage,
            name=self.name or self.of,
            spec=self.spec,
            inputs=self.inputs,
            files=Manifest.entries(self.folder, list(files)),
            numbers=numbers,
            seconds=time.monotonic() - self._start,
        ).write(self.out)
        self.output.finish(stage=self.stage, name=self.name or self.of)
