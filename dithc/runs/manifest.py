"""The manifest: the small JSON document that says a stage has finished, with what, and what it gave."""

import os
import platform
import resource
import stat
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from dithc.config import Experiment
from dithc.log import problem
from dithc.runs.code import code_version, made_by
from dithc.runs.files import atomic_write, sha256_file
from dithc.runs.outcome import OF_ONE_MAKING, check
from dithc.runs.spec import digest, stage_spec
from dithc.sealed import plain, seal, unseal

HASHED_AT_ONCE = 4
UNCOUNTED = (".png", ".json", "turned.npy", ".column.npy")
MADE = ".made"  # hidden beside a manifest: how, when and where it was made, which decides nothing
OF_MAKING = ("code", "host", "seconds", "written")
TIME = "%Y-%m-%dT%H:%M:%SZ"


def _host() -> dict[str, Any]:
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {"name": platform.node(), "cpus": os.cpu_count(), "peak_rss_bytes": peak * 1024}


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a finished stage leaves for the next one and for the report: two documents, each sealed.

    The manifest itself has what follows from settings and inputs alone: a result that is made again has the same bytes, and the
    workflow engine sees that nothing has changed. What is of one making is in a document beside it (`MADE`): code, host and
    times, numbers that measure it, files that tell of it.

    Whoever reads a manifest may go on to read its files: `whole` compares each with what was written before it is used.

    Attributes:
        stage: name of the stage, such as `tiles`.
        name: name of the data set, run or evaluation it worked on.
        spec: the semantic settings that decided the result.
        numbers: what it gave (counts, scores, seconds), one of `outcome`; JSON values only.
        files: one entry per file it owns: {"path" (relative to the manifest's folder), "sha256", "bytes"}.
        inputs: digest of each input manifest by path.
        code: version of dithc, the hash of its source, and its commit where it is known.
        host: the machine it ran on, and the most memory that the process took there.
        seconds: wall time of the stage.
    """

    stage: str
    name: str
    spec: dict[str, Any]
    numbers: Mapping[str, Any] = field(default_factory=dict)
    files: list[dict[str, Any]] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=made_by)
    host: dict[str, Any] = field(default_factory=_host)
    seconds: float = 0.0
    written: str = field(default_factory=lambda: time.strftime(TIME, time.gmtime()))

    # Files that the manifests which this process read or wrote list, by absolute path: manifest and entry.
    _listed: ClassVar[dict[str, tuple[Path, dict[str, Any]]]] = {}
    _compared: ClassVar[dict[str, tuple[int, ...]]] = {}  # those found whole, with size, times and number of the file

    @property
    def digest(self) -> str:
        """Digest of the result: the settings, the inputs and the bytes of the files; not of times, hosts and folders.

        Pictures (.png), descriptions (.json), the features of turned images and columns of a table (.column.npy) do not count:
        they show what the rest decides.
        """
        counted = [entry for entry in self.files if not entry["path"].endswith(UNCOUNTED)]
        files = [[Path(entry["path"]).name, entry["sha256"]] for entry in counted]
        return digest({"spec": self.spec, "inputs": sorted(self.inputs.values()), "files": files})

    def write(self, path: Path) -> None:
        """Writes the manifest, last of all of a stage's files."""
        result: dict[str, Any] = {**asdict(self), "digest": self.digest}
        making: dict[str, Any] = {"digest": self.digest}
        making |= {key: result.pop(key) for key in OF_MAKING}
        for document, is_wanted in ((result, False), (making, True)):
            document["numbers"] = {
                key: self.numbers[key] for key in self.numbers if (key in OF_ONE_MAKING) == is_wanted
            }
            document["files"] = [entry for entry in self.files if self._tells_times(entry) == is_wanted]
        atomic_write(self.making_of(path), seal(making))
        atomic_write(path, seal(result))
        self._remember(path)

    def _tells_times(self, entry: dict[str, Any]) -> bool:
        """Whether another making of a file has other bytes: the records beside the shards of a sampling say how long it took."""
        return self.stage == "sample" and Path(entry["path"]).match("shard-*.json")

    @staticmethod
    def making_of(path: Path) -> Path:
        """Where the document on the making of a manifest stands."""
        return path.with_name(f".{path.stem}{MADE}")

    @staticmethod
    def joined(result: dict[str, Any], making: dict[str, Any]) -> dict[str, Any]:
        """The content of both documents.

        Raises:
            ValueError: they are not of one result.
        """
        if making.get("digest") != result.get("digest"):
            raise ValueError(f"the document of its making ({MADE}) is of another result, {making.get('digest')}")
        numbers, files = {**result["numbers"], **making["numbers"]}, [*result["files"], *making["files"]]
        return {**result, **making, "numbers": numbers, "files": files}

    @staticmethod
    def spec_of(experiment: Experiment, stage: str, name: str, *, of_rule: bool = False) -> dict[str, Any]:
        """The semantic settings of a stage, for the manifest's `spec`; `of_rule` is that of `stage_spec`."""
        return stage_spec(experiment, stage, name, of_rule=of_rule)

    @staticmethod
    def code_here() -> dict[str, str]:
        """Version and hash of the code that runs, as in `code`."""
        return code_version()

    @staticmethod
    def entries(folder: Path, paths: Iterable[Path]) -> list[dict[str, Any]]:
        """The `files` of a manifest that will stand in `folder`."""
        with ThreadPoolExecutor(HASHED_AT_ONCE) as pool:
            return list(pool.map(lambda path: file_entry(path, relative_to=folder), paths))

    @classmethod
    def read(cls, path: Path, *, stage: str | None = None) -> Self:
        """Reads a manifest.

        Raises:
            UserError: the file is missing, is altered or no manifest, is of another stage than `stage`, or holds numbers that
                its stage cannot have written.
        """
        wanted = f"the manifest of stage {stage!r}" if stage else "a manifest written by dithc"
        try:
            content = cls.joined(unseal(plain(path).read_text()), cls._making(path))
            written = content.pop("digest")
            manifest = cls(**content)
            manifest._check_kinds()
            if manifest.digest != written:
                raise ValueError(f"it is altered: its content has digest {manifest.digest}, {written} was written")
        except FileNotFoundError as error:
            raise problem(
                f"manifest {path} is missing" if not path.exists() else f"manifest {path} lacks a part",
                got=f"no such file: {error.filename}",
                expected=wanted,
                fix="run the earlier stage first"
                if not path.exists()
                else "copy the folder with its hidden files, or remove it and rerun its stage",
            ) from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise problem(
                f"manifest {path} cannot be read", got=error, expected=wanted, fix="remove it and rerun its stage"
            ) from error
        if stage is not None and manifest.stage != stage:
            raise problem(
                f"manifest {path} is of another stage",
                got=manifest.stage,
                expected=stage,
                fix="pass the manifest of that stage",
            )
        check(manifest.numbers, stage=manifest.stage, path=path)
        manifest._remember(path)
        return manifest

    @classmethod
    def _making(cls, path: Path) -> dict[str, Any]:
        """The document on the making of a manifest.

        Raises:
            ValueError: it is altered.
            FileNotFoundError: it is missing.
        """
        making = cls.making_of(path)
        try:
            return unseal(plain(making).read_text())
        except ValueError as error:
            raise ValueError(f"of the document of its making, {making.name}: {error}") from error

    def _check_kinds(self) -> None:
        """Raises a ValueError where a field is not of its kind, which a document sealed by others may have."""
        texts = [self.stage, self.name, *self.inputs.values(), *(entry["path"] for entry in self.files)]
        texts += [entry["sha256"] for entry in self.files]
        tables = (self.spec, self.numbers, self.code, self.host)
        if not all(isinstance(text, str) for text in texts) or not all(isinstance(one, dict) for one in tables):
            raise ValueError("its fields are of other kinds than those of a manifest")
        if not 0 <= self.seconds < float("inf"):
            raise ValueError(f"its wall time is {self.seconds!r}")
        time.strptime(self.written, TIME)

    def _remember(self, path: Path) -> None:
        for entry in self.files:
            self._listed[os.path.normpath(path.absolute().parent / entry["path"])] = path, entry

    @classmethod
    def whole(cls, path: Path) -> Path:
        """A file that is about to be read, once its bytes were found to be those that a manifest lists.

        Only manifests that this process has read or written count: a stage reads those of its inputs first of all. A file that
        none of them lists is given back as it is. What was compared once is not read again while it is the same file.

        Args:
            path: of the file.

        Raises:
            UserError: it is missing, cut short or altered.
        """
        name = os.path.normpath(path.absolute())
        if name not in cls._listed:
            return path
        manifest, entry = cls._listed[name]
        fault = cls.fault(path, entry, known=cls._compared.get(name))
        if fault is not None:
            raise problem(
                f"{path} was changed after it was written" if path.exists() else f"{path} is missing",
                got=fault,
                expected=f"the {entry['bytes']} bytes that {manifest} lists (SHA-256)",
                fix="delete it and run the workflow again, which makes it again (or `dithc verify --repair`)",
            )
        cls._compared[name] = _state(path)
        return path

    @staticmethod
    def fault(
        path: Path, entry: dict[str, Any], *, hashes: bool = True, known: tuple[int, ...] | None = None
    ) -> str | None:
        """What is wrong with a file, as a sentence of which it is the subject; None where nothing is.

        Args:
            path: of the file.
            entry: of `file_entry`; one without `bytes` says nothing of the size.
            hashes: whether it is read and hashed; otherwise only its size is compared.
            known: state in which it was found whole before; in the same state it is not read again.
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
        """Looks at every file it lists; returns one sentence per file that is missing or altered.

        Args:
            folder: the folder of the manifest, to which the files' paths are relative.
            hashes: whether files are read and re-hashed; otherwise only their sizes are compared.
        """
        faults = []
        for entry in self.files:
            path = Path(os.path.normpath(folder / entry["path"]))
            if fault := self.fault(path, entry, hashes=hashes):
                faults.append(f"{path} {fault}")
        return faults


def _state(path: Path) -> tuple[int, ...]:
    seen = path.stat()
    if not stat.S_ISREG(seen.st_mode):
        raise FileNotFoundError(path)
    return seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino


def file_entry(path: Path, *, relative_to: Path) -> dict[str, Any]:
    """The entry of one file in a list of files: path relative to a folder, SHA-256, bytes."""
    return {
        "path": os.path.relpath(path, relative_to),
        "sha256": sha256_file(path),
        "bytes": path.stat().st_size,
    }
