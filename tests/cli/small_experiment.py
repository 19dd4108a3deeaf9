"""Small experiment on generated images, with its stages run by the commands."""

import json
from pathlib import Path
from typing import Any

from dithc.cli import main

DATASET = ("--dataset", "set")


class SmallExperiment:
    """Experiment under `root`. Stage NAME writes `root/NAME/manifest.json`."""

    def __init__(self, root: Path, *, scenes: int, low: int = 0, high: int = 255, **evaluation: Any) -> None:
        self.root = root
        source = {"kind": "image-folder", "size": 16, "synthetic": {"scenes": scenes, "size": 24, "classes": 2}}
        dataset = {"title": "A set", "source": source, "codec": "pixels", "tiles": {"size": 16}}
        dataset["rendering"] = {"bands": ["R", "G", "B"], "low": low, "high": high}
        self.settings: dict[str, Any] = {
            "name": "tiny",
            "datasets": {"set": dataset},
            "codecs": {"pixels": {"kind": "pixel"}},
            "runs": {"run": {"dataset": "set", "steps": 2, "global_batch_size": 2}},
            "extractors": {"own": {"kind": "classifier", "train_dataset": "set", "steps": 3, "batch": 8}},
            "evaluations": {"score": {"run": "run", "extractor": "own", **evaluation}},
        }
        self.configure(seed=0)
        tiles = ("--tiles", self.manifest("tiles"))
        self.commands = {
            "synthesize": self.line("synthesize", *DATASET, out="inputs"),
            "ingest": self.line("ingest", *DATASET, "--inputs", self.manifest("inputs"), out="scenes"),
            "tiles": self.line("tiles", *DATASET, "--scenes", self.manifest("scenes"), out="tiles"),
            "extractor": self.line("extractor", "--extractor", "own", *tiles, out="extractor"),
        }

    def configure(self, *, seed: int) -> None:
        (self.root / "config.json").write_text(json.dumps({**self.settings, "seed": seed}))

    def manifest(self, name: str) -> str:
        return str(self.root / name / "manifest.json")

    def line(self, command: str, *arguments: str, out: str) -> list[str]:
        """Return the arguments of a command that writes the stage `out`."""
        return [command, "--config", str(self.root / "config.json"), *arguments, "--out", self.manifest(out)]

    def features(self, *arguments: str, out: str) -> list[str]:
        """Return the arguments of `dithc features` with the trained extractor."""
        extractor = ("--extractor", "own", "--extractor-manifest", self.manifest("extractor"))
        return self.line("features", *extractor, *arguments, out=out)

    def run(self, *names: str) -> None:
        for name in names:
            assert main(self.commands[name]) == 0, name
