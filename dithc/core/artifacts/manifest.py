"""Manifest: JSON document of a finished stage with its settings, inputs, numbers and files."""

import os
import platform
import resource
import stat
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, ClassVar, Self

from dithc.core.artifacts.atomic_files import atomic_write, sha256_file
from dithc.core.artifacts.code_version import code_version, made_by
from dithc.core.artifacts.digest import digest
from dithc.core.artifacts.summaries import PROVENANCE_NUMBERS, check
from dithc.core.integrity import dump_checksummed, load_checksummed, require_regular_file
from dithc.core.logging import user_error

HASH_THREADS = 4
TIMED = "shard-*.json"  # records of sampling shards, which contain times
UNCOUNTED = (".png", ".json", ".column.npy")  # images, descriptions and columns of a table
PROVENANCE_SUFFIX = ".provenance.json"  # of the hidden document with code, host and times, which do not affect results
PROVENANCE_KEYS = ("code", "host", "wall_seconds", "created_at")
TIME = "%Y-%m-%dT%H:%M:%SZ"


def _host() -> dict[str, Any]:
    peak = max(resource.getrusage(process).ru_maxrss for process in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {"name": platform.node(), "cpus": os.cpu_count(), "peak_rss_bytes": peak * 1024}


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Result of a finished stage for later stages and the report, in two checksummed documents.

    The manifest contains only data that follow from settings and inputs, so a rebuilt result has the same bytes and
    Snakemake detects no change. A second document next to it (`PROVENANCE_SUFFIX`) contains data of this execution:
    code, host, times, measured numbers, and files with measurements.

    After a manifest was read, `verified` compares its files with the listed hashes before use.
    """

    stage: str  # such as `tiles`
    name: str  # of the dataset, run or evaluation
    spec: dict[str, Any]  # semantic settings that determine the result
    summary: Mapping[str, Any] = field(default_factory=dict)  # results, a type of `summaries`; JSON values only
    files: list[dict[str, Any]] = field(default_factory=list)  # see `file_entry`
    inputs: dict[str, str] = field(default_factory=dict)  # digest of each input manifest, by path
    code: dict[str, str] = field(default_factory=made_by)
    host: dict[str, Any] = field(default_factory=_host)
    wall_seconds: float = 0.0  # wall time of the stage
    created_at: str = field(default_factory=lambda: time.strftime(TIME, time.gmtime()))

    # Manifest and entry of each file in the manifests that this process has read or written, by absolute path.
    _entries: ClassVar[dict[str, tuple[Path, dict[str, Any]]]] = {}
    _verified: ClassVar[dict[str, tuple[int, ...]]] = {}  # verified files, with size, times and inode

    @property
    def digest(self) -> str:
        """Digest of settings, inputs and file contents, independent of times, hosts and folders.

        Excludes files that follow from other files (`UNCOUNTED`)."""
        entries = [entry for entry in self.files if not entry["path"].endswith(UNCOUNTED)]
        files = [[Path(entry["path"]).name, entry["sha256"]] for entry in entries]
        return digest({"spec": self.spec, "inputs": sorted(self.inputs.values()), "files": files})

    def write(self, path: Path) -> None:
        """Write the manifest, after all other files of the stage."""
        result: dict[str, Any] = {**asdict(self), "digest": self.digest}
        provenance: dict[str, Any] = {"digest": self.digest}
        provenance |= {key: result.pop(key) for key in PROVENANCE_KEYS}
        timed = TIMED if self.stage == "sample" else ""
        for document, is_wanted in ((result, False), (provenance, True)):
            numbers = {key: number for key, number in self.summary.items() if (key in PROVENANCE_NUMBERS) == is_wanted}
            files = [entry for entry in self.files if fnmatch(Path(entry["path"]).name, timed) == is_wanted]
            document |= {"summary": numbers, "files": files}
        atomic_write(self.provenance_path(path), dump_checksummed(provenance))
        atomic_write(path, dump_checksummed(result))
        self._register(path)

    @staticmethod
    def provenance_path(path: Path) -> Path:
        return path.with_name(f".{path.stem}{PROVENANCE_SUFFIX}")

    @staticmethod
    def joined(result: dict[str, Any], provenance: dict[str, Any]) -> dict[str, Any]:
        """Return the content of both documents; raises ValueError if they belong to different results."""
        if provenance.get("digest") != result.get("digest"):
            raise ValueError(f"its document {PROVENANCE_SUFFIX} belongs to another result, {provenance.get('digest')}")
        numbers, files = {**result["summary"], **provenance["summary"]}, [*result["files"], *provenance["files"]]
        return {**result, **provenance, "summary": numbers, "files": files}

    code_here = staticmethod(code_version)

    @staticmethod
    def entries(folder: Path, paths: Iterable[Path]) -> list[dict[str, Any]]:
        with ThreadPoolExecutor(HASH_THREADS) as pool:
            return list(pool.map(lambda path: file_entry(path, relative_to=folder), paths))

    @classmethod
    def read(cls, path: Path, *, stage: str | None = None) -> Self:
        """Read a manifest; UserError if it is missing, altered, invalid or of another stage than `stage`."""
        expected = f"the manifest of stage {stage!r}" if stage else "a manifest written by dithc"
        try:
            content = cls.joined(load_checksummed(require_regular_file(path).read_text()), cls._read_provenance(path))
            written = content.pop("digest")
            manifest = cls(**content)
            manifest._check_types()
            if manifest.digest != written:
                raise ValueError(f"it is altered: its content has digest {manifest.digest}, {written} was written")
        except FileNotFoundError as error:
            fix = "copy the folder with its hidden files, or remove it and rerun its stage"
            raise user_error(
                f"manifest {path} is {'incomplete' if path.exists() else 'missing'}",
                got=f"no such file: {error.filename}",
                expected=expected,
                fix=fix if path.exists() else "run the earlier stage first",
            ) from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise user_error(
                f"manifest {path} cannot be read", got=error, expected=expected, fix="remove it and rerun its stage"
            ) from error
        if stage is not None and manifest.stage != stage:
            raise user_error(
                f"manifest {path} is of another stage",
                got=manifest.stage,
                expected=stage,
                fix="pass the manifest of this stage",
            )
        check(manifest.summary, stage=manifest.stage, path=path)
        manifest._register(path)
        return manifest

    @classmethod
    def _read_provenance(cls, path: Path) -> dict[str, Any]:
        """Return the second document of a manifest; ValueError if it is altered."""
        provenance = cls.provenance_path(path)
        try:
            return load_checksummed(require_regular_file(provenance).read_text())
        except ValueError as error:
            raise ValueError(f"document {provenance.name}: {error}") from error

    def _check_types(self) -> None:
        """Raise ValueError for a field of the wrong type, as in a document that another program wrote."""
        texts = [self.stage, self.name, *self.inputs.values(), *(entry["path"] for entry in self.files)]
        texts += [entry["sha256"] for entry in self.files]
        tables = (self.spec, self.summary, self.code, self.host)
        if not all(isinstance(text, str) for text in texts) or not all(isinstance(table, dict) for table in tables):
            raise ValueError("fields have the wrong types")
        if not 0 <= self.wall_seconds < float("inf"):
            raise ValueError(f"its wall time is {self.wall_seconds!r}")
        time.strptime(self.created_at, TIME)

    def _register(self, path: Path) -> None:
        for entry in self.files:
            self._entries[os.path.normpath(path.absolute().parent / entry["path"])] = path, entry

    @classmethod
    def verified(cls, path: Path) -> Path:
        """Return a file after a comparison of its bytes with its manifest.

        Uses the manifests that this process has read or written; a file without manifest is unchecked. A verified file is
        not read again while size, times and inode are the same. UserError if the file is missing, truncated or altered.
        """
        name = os.path.normpath(path.absolute())
        if name not in cls._entries:
            return path
        manifest, entry = cls._entries[name]
        fault = cls.fault(path, entry, known=cls._verified.get(name))
        if fault is not None:
            raise user_error(
                f"{path} was changed after it was written" if path.exists() else f"{path} is missing",
                got=fault,
                expected=f"the {entry['bytes']} bytes that {manifest} lists (SHA-256)",
                fix="delete it and rerun the workflow, which rebuilds it (or `dithc verify --repair`)",
            )
        cls._verified[name] = _state(path)
        return path

    @staticmethod
    def fault(
        path: Path, entry: dict[str, Any], *, hashes: bool = True, known: tuple[int, ...] | None = None
    ) -> str | None:
        """Return the fault of a file as a predicate, such as `is missing`; None for an intact file.

        `bytes` of its entry are optional. Without `hashes`, only sizes are compared. A file in the `known` state of its last
        verification is not read again.
        """
        try:
            state = _state(path)
            if state == known:
                return None
            if state[0] != entry.get("bytes", state[0]):
                return f"has {state[0]} bytes, {entry['bytes']} were written"
            if hashes and sha256_file(path) != entry["sha256"]:
                return "has other bytes than were written (SHA-256 differs)"
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            return f"cannot be read: {error}"
        return None

    def verify(self, folder: Path, *, hashes: bool = True) -> list[str]:
        """Return one sentence per missing or altered file, relative to the manifest's folder; see `fault`."""
        paths = [(Path(os.path.normpath(folder / entry["path"])), entry) for entry in self.files]
        return [f"{path} {fault}" for path, entry in paths if (fault := self.fault(path, entry, hashes=hashes))]


def _state(path: Path) -> tuple[int, ...]:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise FileNotFoundError(path)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def file_entry(path: Path, *, relative_to: Path) -> dict[str, Any]:
    """Return the entry of a file in a manifest: path relative to a folder, SHA-256, bytes."""
    return {"path": os.path.relpath(path, relative_to), "sha256": sha256_file(path), "bytes": path.stat().st_size}
