"""The manifest: the small JSON document that says a stage has finished, with what, and what it gave."""

import json
import os
import platform
import resource
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from dithc.config import Experiment
from dithc.log import problem
from dithc.runs.code import code_version
from dithc.runs.files import atomic_write, plain, sha256_file
from dithc.runs.spec import digest, stage_spec


def _host() -> dict[str, Any]:
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {"name": platform.node(), "cpus": os.cpu_count(), "peak_rss_bytes": peak * 1024}


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a finished stage leaves for the next one and for the report.

    Attributes:
        stage: name of the stage, such as `tiles`.
        name: name of the data set, run or evaluation it worked on.
        spec: the semantic settings that decided the result.
        numbers: what it gave (counts, scores, seconds); JSON values only.
        files: one entry per file it owns: {"path" (relative to the manifest's folder), "sha256", "bytes"}.
        inputs: digest of each input manifest by path.
        code: version of dithc and the hash of its source.
        host: the machine it ran on, and the most memory that the process took there.
        seconds: wall time of the stage.
    """

    stage: str
    name: str
    spec: dict[str, Any]
    numbers: dict[str, Any] = field(default_factory=dict)
    files: list[dict[str, Any]] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=code_version)
    host: dict[str, Any] = field(default_factory=_host)
    seconds: float = 0.0
    written: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))

    @property
    def digest(self) -> str:
        """Digest of the result: the settings, the inputs and the bytes of the files; not of times, hosts and folders.

        Pictures (.png) and descriptions (.json) do not count: they show what the rest decides.
        """
        counted = [entry for entry in self.files if not entry["path"].endswith((".png", ".json"))]
        files = [[Path(entry["path"]).name, entry["sha256"]] for entry in counted]
        return digest({"spec": self.spec, "inputs": sorted(self.inputs.values()), "files": files})

    def write(self, path: Path) -> None:
        """Writes the manifest, last of all of a stage's files."""
        atomic_write(path, json.dumps({**asdict(self), "digest": self.digest}, indent=1, allow_nan=False) + "\n")

    @staticmethod
    def spec_of(experiment: Experiment, stage: str, name: str) -> dict[str, Any]:
        """The semantic settings of a stage, for the manifest's `spec`."""
        return stage_spec(experiment, stage, name)

    @staticmethod
    def entries(folder: Path, paths: Iterable[Path]) -> list[dict[str, Any]]:
        """The `files` of a manifest that will stand in `folder`."""
        return [file_entry(path, relative_to=folder) for path in paths]

    @classmethod
    def read(cls, path: Path, *, stage: str | None = None) -> Self:
        """Reads a manifest.

        Raises:
            UserError: the file is missing, is no manifest, or is of another stage than `stage`.
        """
        wanted = f"the manifest of stage {stage!r}" if stage else "a manifest written by dithc"
        try:
            content = json.loads(plain(path).read_text())
            content.pop("digest")
            manifest = cls(**content)
        except FileNotFoundError:
            raise problem(
                f"manifest {path} is missing", got="no such file", expected=wanted, remedy="run the earlier stage first"
            ) from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise problem(
                f"manifest {path} cannot be read", got=error, expected=wanted, remedy="remove it and rerun its stage"
            ) from error
        if stage is not None and manifest.stage != stage:
            raise problem(
                f"manifest {path} is of another stage",
                got=manifest.stage,
                expected=stage,
                remedy="pass the manifest of that stage",
            )
        return manifest

    def verify(self, folder: Path, *, hashes: bool = True) -> list[str]:
        """Looks at every file it lists; returns one sentence per file that is missing or altered.

        Args:
            folder: the folder of the manifest, to which the files' paths are relative.
            hashes: whether files are read and re-hashed; otherwise only their sizes are compared.
        """
        faults = []
        for entry in self.files:
            path = Path(os.path.normpath(folder / entry["path"]))
            try:
                num_bytes = path.stat().st_size
            except FileNotFoundError:
                faults.append(f"{path} is missing")
                continue
            if num_bytes != entry["bytes"]:
                faults.append(f"{path} has {num_bytes} bytes, {entry['bytes']} were written")
            elif hashes and sha256_file(path) != entry["sha256"]:
                faults.append(f"{path} has other bytes than were written (SHA-256 differs)")
        return faults


def file_entry(path: Path, *, relative_to: Path) -> dict[str, Any]:
    """The entry of one file in a list of files: path relative to a folder, SHA-256, bytes."""
    return {
        "path": os.path.relpath(path, relative_to),
        "sha256": sha256_file(path),
        "bytes": path.stat().st_size,
    }
